"""Which GPU is meant where processes number the devices each in their own way."""

from pathlib import Path

import pytest

from tests.tracer.nsys_exports import RECORDING, Rows, export
from tests.tracer.test_formats_carry import again, assert_survived, contents
from tracer import formats
from tracer.model.trace import Trace

ONE, TWO = 4242, 4343
Seen = list[tuple[int, int, int]]


def recording(devices: dict[int, int], seen: Seen) -> Rows:
    """An export in which each process runs a kernel and a copy between two devices; `seen`: (gpuId, cudaId, pid)."""

    def rows(table: str) -> list[dict[str, object]]:
        row = RECORDING[table][0]
        found = [row | {"deviceId": device, "globalPid": 1 << 48 | pid << 24} for pid, device in devices.items()]
        return [row | {"srcDeviceId": row["deviceId"]} for row in found] if table.endswith("MEMCPY") else found

    tables = {name: rows(name) for name in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY")}
    gpus = [{"vmId": 1, "id": id, "name": f"GPU {id}"} for id in (0, 1, 2)]
    known = {"TARGET_INFO_CUDA_DEVICE": [dict(zip(("gpuId", "cudaId", "pid"), row, strict=True)) for row in seen]}
    return {name: RECORDING[name] for name in ("StringIds", "META_DATA_EXPORT")} | tables | known | {
        "TARGET_INFO_GPU": gpus
    }  # fmt: skip


def devices_of(trace: Trace) -> dict[int, int]:
    """Process -> its device, which all its rows must have."""
    for table in ("kernels", "memcpys"):
        frame = trace[table]
        found = dict(zip(frame["process"].tolist(), frame["device"].tolist(), strict=True))
    assert trace["memcpys"]["src_device"].tolist() == trace["memcpys"]["device"].tolist()
    assert dict(zip(*(trace["kernels"][c].tolist() for c in ("process", "device")), strict=True)) == found
    return found


@pytest.mark.parametrize(
    ("called", "seen", "found", "gpus"),
    [
        pytest.param({ONE: 0, TWO: 1}, [(0, 0, ONE), (1, 1, TWO)], {ONE: 0, TWO: 1}, {0: 0, 1: 1}, id="alike"),
        pytest.param({ONE: 0, TWO: 0}, [(2, 0, ONE), (2, 0, TWO)], {ONE: 0, TWO: 0}, {0: 2}, id="one GPU"),
        pytest.param({ONE: 0, TWO: 0}, [(0, 0, ONE), (2, 0, TWO)], {ONE: 0, TWO: 2}, {0: 0, 2: 2}, id="both device 0"),
        pytest.param(
            {ONE: 0, TWO: 1}, [(1, 0, ONE), (0, 1, ONE), (0, 0, TWO), (1, 1, TWO)], {ONE: 1, TWO: 1}, {0: 0, 1: 1},
            id="one GPU of two numbers",
        ),
        pytest.param({ONE: 0, TWO: 0}, [(0, 0, 7), (2, 0, 8)], {ONE: 3, TWO: 3}, {0: 0, 2: 2}, id="untold"),
    ],
)  # fmt: skip
def test_devices_are_gpus(
    called: dict[int, int], seen: Seen, found: dict[int, int], gpus: dict[int, int], tmp_path: Path
) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite", recording(called, seen)))
    assert devices_of(trace) == found
    names = dict(zip(*(trace["devices"][c].tolist() for c in ("device", "name")), strict=True))
    assert names == {device: f"GPU {gpu}" for device, gpu in gpus.items()}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("suffixes", [(".sqlite",), ("", ".sqlite")], ids="→".join)
def test_they_stay_the_same_in_every_copy(suffixes: tuple[str, ...], whole: bool, tmp_path: Path) -> None:
    rows = recording({ONE: 0, TWO: 0}, [(0, 0, ONE), (2, 0, TWO)])
    source = export(tmp_path / "a.sqlite", rows)
    first = formats.read(source, whole=whole)
    assert first.notes == [
        "processes number the devices differently, so the GPUs' own numbers are used: "
        f"0 is device 0 of process {ONE}, 2 is device 0 of process {TWO}"
    ]
    formats.write(first, path := tmp_path / "b.sqlite")
    copy = formats.read(path := again(path, *suffixes))
    assert devices_of(copy) == devices_of(first)
    assert copy.notes == first.notes
    if whole:
        assert_survived(contents(source), contents(path))
