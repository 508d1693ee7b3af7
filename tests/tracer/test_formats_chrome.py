"""Chrome JSON as PyTorch writes it: what is read, to the nanosecond, and what of damaged files."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.kineto import GPU, HOST, THREAD, event, read, write
from tracer import formats
from tracer.analysis.tokens import find_steps
from tracer.errors import FormatError
from tracer.formats import chrome

CPU = Path(__file__).parent / "data" / "pytorch-2.15-cpu.json.gz"


def error_of(path: Path) -> str:
    with pytest.raises(FormatError) as caught:
        formats.read(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


# --- what PyTorch writes ---


def test_a_recording_of_pytorch_on_the_cpu() -> None:
    trace = formats.read(CPU)
    nvtx = trace["nvtx"]
    counts = nvtx["domain"].value_counts()
    assert counts["cpu_op"] == 57
    assert nvtx.loc[nvtx["text"].str.startswith("ProfilerStep"), "text"].tolist() == [
        f"ProfilerStep#{number}" for number in (2, 3, 4)
    ]
    first = nvtx[nvtx["text"] == "ProfilerStep#2"].iloc[0]
    assert (first["start"], first["end"]) == (4413367086811519, 4413367086811519 + 279730)
    assert trace["processes"][["process", "name"]].to_numpy().tolist() == [[100, "python"]]
    assert trace["threads"]["name"].tolist() == ["thread 100 (python)"]
    assert trace.metadata["base_time_ns"] == 1790857026000000000
    assert trace.notes == []


def test_every_table_of_a_gpu_recording(tmp_path: Path) -> None:
    trace = read(tmp_path, GPU)
    kernel = trace["kernels"].iloc[1].to_dict()
    assert kernel == kernel | {
        "start": 1_050_000, "end": 1_450_000, "device": 0, "context": 1, "stream": 7, "correlation": 11,
        "process": HOST, "name": "void mm<float>(int)", "grid_x": 2, "grid_y": 3, "grid_z": 4, "block_x": 32,
        "registers": 40, "dynamic_shared": 1024, "static_shared": -1, "graph": -1, "graph_node": -1,
    }  # fmt: skip
    copy = trace["memcpys"].iloc[0].to_dict()
    assert copy == copy | {"kind": "HtoD", "bytes": 4096, "src_kind": "pinned", "dst_kind": "device", "process": HOST}
    assert trace["syncs"]["type"].tolist() == ["stream"] * 4
    assert trace["api"]["process"].unique().tolist() == [HOST]
    assert trace["devices"][["device", "name", "sm_count", "total_memory"]].to_numpy().tolist() == [
        [0, "GPU A", 132, 2**37]
    ]
    assert trace["threads"]["name"].tolist() == ["main"]
    assert trace["processes"]["process"].tolist() == [HOST]
    assert trace.metadata == {
        "source": "PyTorch profiler, rank 0 of 2", "schema_version": 1, "base_time_ns": 1_700_000_000_000_000_000,
        "distributed": {"backend": "nccl", "rank": 0, "world_size": 2},
    }  # fmt: skip
    assert trace.notes == []


def test_python_functions_only_if_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [event("python_function", "f.py(1): f", 1, 2), event("cpu_op", "op", 1, 2)])
    trace = chrome.read(path)
    assert (len(trace["nvtx"]), trace.notes) == (1, ["1 python_function events are left out"])
    trace = chrome.read(path, python_functions=True)
    assert sorted(trace["nvtx"]["domain"]) == ["cpu_op", "python_function"]
    assert trace.notes == []


def test_annotations_that_mean_a_token_win_over_profiler_steps(tmp_path: Path) -> None:
    decodes = [event("user_annotation", "decode", 1000 * n + 2, 800) for n in range(4)]
    trace = read(tmp_path, GPU["traceEvents"] + decodes)
    assert find_steps(trace).table["start"].tolist() == [2_000, 1_002_000, 2_002_000, 3_002_000]


def test_arrows_stand_in_for_correlations(tmp_path: Path) -> None:
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 1, 1),
        event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=77),
        {"ph": "s", "cat": "ac2g", "id": 5, "name": "ac2g", "pid": HOST, "tid": THREAD, "ts": 1},
        {"ph": "s", "cat": "ac2g", "id": 6, "name": "ac2g", "pid": HOST, "tid": THREAD, "ts": 3},
        {"ph": "f", "cat": "ac2g", "id": 5, "name": "ac2g", "pid": 0, "tid": 7, "ts": 20, "bp": "e"},
        {"ph": "f", "cat": "ac2g", "id": 6, "name": "ac2g", "pid": 0, "tid": 7, "ts": 30, "bp": "e"},
        *[event("kernel", "k", ts, 5, 0, 7) for ts in (20, 30, 40)],
    ]
    trace = read(tmp_path, events)
    assert trace["api"]["correlation"].tolist() == [5, 77]
    assert trace["kernels"]["correlation"].tolist() == [5, 77, -1]


@pytest.mark.parametrize(
    ("ts", "ns"),
    [
        (b"4413367086673.450", 4413367086673450),
        (b"1790857026000000.001", 1790857026000000001),
        (b"4007199254740993.999", 4007199254740993999),
        (b"12", 12000),
        (b"1.5e3", 1500000),
        (b"-1.001", -1001),
    ],
)
def test_times_are_exact(tmp_path: Path, ts: bytes, ns: int) -> None:
    text = b'[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%s,"dur":0.001}]' % ts
    row = read(tmp_path, text)["nvtx"].iloc[0]
    assert (row["start"], row["end"]) == (ns, ns + 1)


# --- files that are damaged or hostile ---


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_truncated_file_gives_what_is_there_and_a_note(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, GPU)
    path.write_bytes(path.read_bytes()[:-200])
    trace = formats.read(path)
    assert 0 < len(trace["kernels"]) <= 4
    assert trace.notes[0].startswith("the file is truncated: only the ")


@pytest.mark.parametrize("kept", [1, 5, 20])
def test_truncated_gzip_without_an_event(tmp_path: Path, kept: int) -> None:
    path = write(tmp_path / "a.json.gz", GPU)
    path.write_bytes(path.read_bytes()[:kept])
    error_of(path)


def test_damaged_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json.gz", {"pad": [1.5] * 100, **GPU})
    content = bytearray(path.read_bytes())
    content[60:160] = bytes(100)
    path.write_bytes(content)
    assert "damaged" in error_of(path) or "no JSON" in error_of(path)


def test_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.formats.chrome._ACCEPTED", 1 << 20)
    path = write(tmp_path / "a.json.gz", b'{"traceEvents": [' + b" " * (8 << 20) + b"]}")
    assert "unpacks to more than 200 times its size" in error_of(path)


def test_no_json_behind_the_first_event(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", b'{"traceEvents": [{"ph": "X"}, {"ph": oops}]}')
    assert "not valid JSON" in error_of(path)


def test_json_that_is_no_trace(tmp_path: Path) -> None:
    assert "not a trace" in error_of(write(tmp_path / "run.json", {"schema": "intertoken.run/1"}))


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    text = json.dumps([event("cpu_op", "aXb", 1, 1)]).encode().replace(b"aXb", b"a\xffb")
    assert read(tmp_path, text)["nvtx"]["text"].tolist() == ["a\ufffdb"]


def test_a_hostile_depth(tmp_path: Path) -> None:
    start = b'[{"ph": "X", "args": '
    assert "nested deeper than 1000 levels" in error_of(write(tmp_path / "a.json.gz", start + b"[" * 100_000))
    hidden = b'["]\\"]\\\\",' * 500_000  # brackets and quotes in strings, over many chunks
    assert "nested deeper than 1000 levels" in error_of(write(tmp_path / "b.json", start + hidden))


def test_brackets_in_names_do_not_nest(tmp_path: Path) -> None:
    events = [event("cpu_op", '[{\\"[' * 10, n, 1) for n in range(5_000)]
    assert len(read(tmp_path, events)["nvtx"]) == 5_000


def test_events_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    good = event("cpu_op", "good", 1, 1)
    bad: list[Any] = [
        good | {"ts": None}, good | {"ts": "soon"}, good | {"ts": 2**63}, good | {"ts": 1e300},
        {k: v for k, v in good.items() if k != "dur"}, good | {"name": 7},
        good | {"dur": -1}, good | {"ts": 2**61 // 1000, "dur": 2**62 // 1000},
        5, None,
        good | {"ph": "C"}, good | {"ph": [1, 2]}, good | {"ph": {}},
    ]  # fmt: skip
    trace = read(tmp_path, [good, *bad])
    assert trace["nvtx"]["text"].tolist() == ["good"]
    assert trace.notes == [
        "6 events without a usable time or name are left out",
        "2 events with a negative or impossible duration are left out",
        "2 entries that are not events are left out",
        "1 events of phase 'C' are left out",
        "2 events of phase '' are left out",
    ]


# --- any events ---

TIMES = st.integers(0, 2**60)


@given(rows=st.lists(st.tuples(TIMES, st.integers(0, 2**40), st.text(max_size=8), st.integers(0, 2**32)), max_size=8))
def test_any_kernels_survive(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int, str, int]]) -> None:
    def us(ns: int) -> str:
        return f"{Decimal(ns).scaleb(-3):f}"

    texts = [
        f'{{"ph": "X", "cat": "kernel", "name": {json.dumps(name)}, "pid": 0, "tid": 7, "ts": {us(start)}, '
        f'"dur": {us(length)}, "args": {{"correlation": {correlation}}}}}'
        for start, length, name, correlation in rows
    ]
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_text('{"traceEvents": [' + ", ".join(texts) + "]}", encoding="utf-8")
    kernels = formats.read(path)["kernels"]
    columns = [kernels[name].tolist() for name in ("start", "end", "name", "correlation")]
    found = sorted(zip(*columns, strict=True))
    assert found == sorted((start, start + length, name, c) for start, length, name, c in rows)


@given(flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6), gz=st.booleans())
def test_any_damage_is_one_line_or_a_trace(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], gz: bool
) -> None:
    path = write(tmp_path_factory.mktemp("damaged") / ("a.json.gz" if gz else "a.json"), GPU)
    content = bytearray(path.read_bytes())
    for at, value in flips:
        content[at % len(content)] = value
    path.write_bytes(content)
    try:
        kernels, problem = len(formats.read(path)["kernels"]), str(path)
    except FormatError as error:
        kernels, problem = 0, str(error)
    assert kernels <= 4
    assert problem.startswith(str(path))
    assert "\n" not in problem
