"""CUPTI's raw buffers to a trace, on buffers made by hand: every field, every way in which a buffer can be odd."""

import struct
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.errors import RecordError
from tracer.model.trace import Trace
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti_records import CallNames, OwnRanges, Sources, build, device_uuids, parse
from tracer.recorders.symbols import demangled, short_name

SIZES = activity.sizes(130001)
ORIGIN, PROCESS = 1_000_000, 4321
TEXTS = {0: "", 64: "_Z6matvecPfi", 128: "cudaGraph", 192: "token", 256: "domain"}


def record(kind: int, /, **values: float) -> bytes:
    """A record of CUDA 13.0 with these fields, zeros elsewhere."""
    raw = bytearray(SIZES[kind])
    struct.pack_into("<I", raw, 0, kind)
    for name, value in values.items():
        offset, form = activity.FIELDS[kind][name]
        np.ndarray((), np.dtype(form), raw, offset)[...] = value
    return bytes(raw)


def trace_of(
    *buffers: bytes, own: OwnRanges | None = None, dropped: int = 0, sizes: Mapping[int, int] = SIZES
) -> Trace:
    sources = Sources(ORIGIN, PROCESS, TEXTS.__getitem__, CallNames(None))
    return build(parse(buffers, sizes), sources, own or OwnRanges(), ORIGIN + 10_000, dropped)


def test_a_kernel_keeps_every_field() -> None:
    kernel = record(
        activity.KERNEL, start=ORIGIN + 5, end=ORIGIN + 9, device=1, context=2, stream=13, correlation=77, name=64,
        grid_x=3, grid_y=4, grid_z=5, block_x=6, block_y=7, block_z=8, registers=40, static_shared=16,
        dynamic_shared=32, graph_node=(5 << 32) + 2, graph=5,
    )  # fmt: skip
    row = trace_of(kernel)["kernels"].iloc[0].to_dict()
    expected = {"start": 5, "end": 9, "device": 1, "context": 2, "stream": 13, "correlation": 77, "process": PROCESS,
                "name": "matvec(float*, int)", "short_name": "matvec", "grid_x": 3, "grid_y": 4, "grid_z": 5,
                "block_x": 6, "block_y": 7, "block_z": 8, "registers": 40, "static_shared": 16, "dynamic_shared": 32,
                "graph_node": (5 << 32) + 2, "graph": 5}  # fmt: skip
    assert row == expected


def test_copies_fills_syncs_events_and_graphs() -> None:
    where = {"context": 1, "stream": 7}
    times = {"start": ORIGIN + 10, "end": ORIGIN + 20}
    trace = trace_of(
        record(activity.CONTEXT, context=1, device=3),
        record(activity.MEMCPY, **times, **where, device=3, kind=1, src_kind=2, dst_kind=3, bytes=64, correlation=5),
        record(activity.MEMCPY_PEER, **times, **where, device=3, kind=10, src_device=3, dst_device=4, bytes=8),
        record(activity.MEMSET, **times, **where, device=3, value=9, bytes=128, mem_kind=3),
        record(activity.SYNCHRONIZATION, **times, **where, type=3, correlation=6, event=0xFFFFFFFF),
        record(activity.CUDA_EVENT, **where, event=4, correlation=8, event_sync=2),
        record(activity.GRAPH_TRACE, **times, **where, device=3, graph=11, correlation=9),
    )
    copies = trace["memcpys"]
    assert copies["kind"].tolist() == ["HtoD", "PtoP"]
    assert copies["src_kind"].tolist()[0] == "pinned"
    assert copies[["src_device", "dst_device"]].to_numpy().tolist() == [[-1, -1], [3, 4]]
    assert trace["memsets"][["value", "bytes", "mem_kind"]].to_numpy().tolist() == [[9, 128, "device"]]
    assert trace["syncs"][["type", "device", "event"]].to_numpy().tolist() == [["stream", 3, -1]]
    assert trace["cuda_events"][["device", "event", "event_sync"]].to_numpy().tolist() == [[3, 4, 2]]
    assert trace["graph_launches"][["start", "graph", "stream"]].to_numpy().tolist() == [[10, 11, 7]]
    assert trace["streams"]["stream"].tolist() == [7]


def test_calls_of_both_layers_in_the_order_of_their_start() -> None:
    def call(kind: int, start: int, cbid: int) -> bytes:
        return record(kind, start=ORIGIN + start, end=ORIGIN + start + 1, cbid=cbid, thread=9, correlation=start)

    api = trace_of(call(activity.RUNTIME, 30, 7) + call(activity.DRIVER, 10, 8), call(activity.RUNTIME, 20, 7))["api"]
    assert api["name"].tolist() == ["cu call 8", "cuda call 7", "cuda call 7"]
    assert api["layer"].tolist() == ["driver", "runtime", "runtime"]
    assert api["start"].tolist() == [10, 20, 30]


def marker(at: int, flags: int, number: int, **more: float) -> bytes:
    return record(activity.MARKER, timestamp=ORIGIN + at, flags=flags, id=number, thread=5, process=PROCESS, **more)


def test_ranges_marks_and_what_stays_open() -> None:
    trace = trace_of(
        marker(10, 2, 1, name=192, domain=256)
        + record(activity.MARKER_DATA, id=1, payload_kind=4, payload=3, color=255),
        marker(20, 1, 2, name=192) + marker(30, 2, 3, name=192) + marker(40, 4, 1),
    )
    rows = trace["nvtx"][["start", "end", "text", "kind", "domain"]].to_numpy().tolist()
    assert rows == [
        [10, 40, "token", "push/pop", "domain"],
        [20, 20, "token", "mark", ""],
        [30, 10_000, "token", "push/pop", ""],
    ]
    assert trace["nvtx"]["payload"].tolist()[0] == 3
    assert trace.notes == ["1 NVTX ranges were still open at the end; they end with the recording"]


def test_what_is_lost_is_said() -> None:
    kernel = record(activity.KERNEL, start=ORIGIN + 1, end=ORIGIN + 2, name=64)
    untimed = record(activity.KERNEL, name=64)
    odd = struct.pack("<I", 250) + bytes(60)
    trace = trace_of(kernel + odd + kernel, kernel + kernel[:100], untimed, b"", dropped=17)
    assert len(trace["kernels"]) == 2
    text = " | ".join(trace.notes)
    assert "17 activity records were dropped" in text
    assert "kind 250" in text
    assert "bytes of CUPTI's buffers could not be read" in text
    assert "1 of the kernels have no times" in text


@given(st.lists(st.lists(st.sampled_from(sorted(SIZES)), max_size=12), max_size=6))
def test_every_record_is_found_in_any_mix(kinds: list[list[int]]) -> None:
    parsed = parse([b"".join(record(kind) for kind in buffer) for buffer in kinds], SIZES)
    flat = [kind for buffer in kinds for kind in buffer]
    assert {kind: len(rows) for kind, rows in parsed.records.items()} == {k: flat.count(k) for k in set(flat)}
    assert (parsed.unknown, parsed.unread_bytes) == ({}, 0)


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_harm(noise: bytes) -> None:
    parsed = parse([noise, record(activity.KERNEL)], SIZES)
    assert activity.KERNEL in parsed.records


def test_every_known_version_has_all_kinds_and_unknown_ones_are_refused() -> None:
    for version in (18, 20, 26, 28, 130000, 130001, 130100, 130400):
        sizes = activity.sizes(version)
        assert set(sizes) == set(activity.FIELDS)
        assert all(size % 4 == 0 for size in sizes.values())
    for version in (17, 140000):
        with pytest.raises(RecordError, match="not supported"):
            activity.sizes(version)


def test_an_old_version_without_a_field_has_it_missing() -> None:
    sizes = activity.sizes(18)
    event = bytearray(sizes[activity.CUDA_EVENT])
    struct.pack_into("<IIIII", event, 0, activity.CUDA_EVENT, 8, 1, 7, 4)
    events = trace_of(bytes(event), sizes=sizes)["cuda_events"]
    assert events[["event", "event_sync"]].to_numpy().tolist() == [[4, -1]]


@pytest.mark.parametrize(
    ("mangled", "name", "short"),
    [
        ("_Z3addPfi", "add(float*, int)", "add"),
        ("gemv", "gemv", "gemv"),
        ("_ZN2at6native6reduceIfLi4EEEvPT_", "void at::native::reduce<float, 4>(float*)", "reduce"),
    ],
)
def test_kernel_names(mangled: str, name: str, short: str) -> None:
    assert demangled(mangled) == name
    assert short_name(name) == short


def test_devices_that_the_process_cannot_use_are_left_out() -> None:
    """With CUDA_VISIBLE_DEVICES=1, CUPTI describes the machine's other GPU as device 1."""
    both = [record(activity.DEVICE, device=0, uuid_low=7, name=64, visible=1),
            record(activity.DEVICE, device=1, uuid_low=8, name=64)]  # fmt: skip
    assert trace_of(*both)["devices"]["device"].tolist() == [0]
    assert device_uuids(parse(both, SIZES).records).to_dict() == {0: 7}
