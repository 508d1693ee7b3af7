"""Chrome JSON as we write it: read back the same, exact to the nanosecond, and drawn in full by viewers."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.test_formats_roundtrip import NAMES
from tracer import formats
from tracer.model.schema import API_LAYERS, MEMCPY_KINDS, MEMORY_KINDS, MISSING, NO_ID, SYNC_TYPES
from tracer.model.trace import Trace

CPU = Path(__file__).parent / "data" / "pytorch-2.15-cpu.json.gz"
Event = dict[str, Any]


def contents(path: Path) -> dict[str, Any]:
    """The file with its numbers exact."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(text, parse_float=Decimal)
    assert isinstance(found, dict)
    return found


def events(path: Path, phase: str = "X") -> list[Event]:
    return [event for event in contents(path)["traceEvents"] if event["ph"] == phase]


# --- what Kineto's form can hold ---

TIME, LENGTH = st.integers(0, 2**60), st.integers(0, 2**40)
ID = st.integers(0, 2**32)
MAYBE = st.integers(MISSING, 2**40).filter(lambda id: id != NO_ID)  # which stands for none
ON_STREAM = {"device": st.integers(MISSING, 7), "context": MAYBE, "stream": MAYBE, "correlation": ID}
SIZES = {f"{what}_{axis}": MAYBE for what in ("grid", "block") for axis in "xyz"}
GRAPH_ID = st.just(MISSING) | st.integers(1, 2**62)
HELD: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "kernels": {
        **ON_STREAM, **SIZES, "name": NAMES, "short_name": NAMES, "registers": MAYBE, "static_shared": MAYBE,
        "dynamic_shared": MAYBE, "graph": GRAPH_ID, "graph_node": GRAPH_ID,
    },
    "memcpys": {
        **ON_STREAM, "kind": st.sampled_from([kind for kind in MEMCPY_KINDS if "UVM" not in kind]), "bytes": MAYBE,
        "src_kind": st.sampled_from(list(MEMORY_KINDS)), "dst_kind": st.sampled_from(list(MEMORY_KINDS)),
        "src_device": MAYBE, "dst_device": MAYBE, "graph_node": GRAPH_ID,
    },
    "memsets": {
        **ON_STREAM, "bytes": MAYBE, "mem_kind": st.sampled_from(list(MEMORY_KINDS)), "graph_node": GRAPH_ID,
    },
    "api": {"thread": st.integers(1, 3), "correlation": ID, "name": NAMES, "layer": st.sampled_from(list(API_LAYERS))},
    "syncs": {**ON_STREAM, "type": st.sampled_from(list(SYNC_TYPES)), "event": MAYBE},
    "cuda_events": {**ON_STREAM, "event": MAYBE},
    "nvtx": {"thread": st.integers(1, 3), "text": NAMES, "kind": st.sampled_from(["push/pop", "mark"])},
    "devices": {"name": NAMES, "sm_count": MAYBE, "total_memory": MAYBE},
}  # fmt: skip


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Random rows of one process, of what Kineto's form can hold; no range crosses what is on its thread."""
    tables: dict[str, pd.DataFrame] = {}
    for name, columns in HELD.items():
        rows = draw(st.lists(st.fixed_dictionaries(columns), min_size=name == "api", max_size=5))
        frame = pd.DataFrame(rows, columns=list(columns))
        if name not in ("cuda_events", "devices"):
            frame["start"] = [draw(TIME) for _ in rows]
            frame["end"] = [start + draw(LENGTH) for start in frame["start"]]
        tables[name] = frame.assign(device=range(len(rows))) if name == "devices" else frame.assign(process=PROCESS)
    nvtx = tables["nvtx"]
    nvtx["end"] = nvtx["end"].where(nvtx["kind"] != "mark", nvtx["start"])
    kept = tables["api"][["thread", "start", "end"]].to_numpy(np.int64).tolist()
    for at, row in zip(nvtx.index, nvtx[["thread", "start", "end"]].to_numpy(np.int64).tolist(), strict=True):
        if any(_cross(row, other) for other in kept):
            nvtx = nvtx.drop(index=at)
        else:
            kept.append(row)
    return Trace(tables | {"nvtx": nvtx})


def _cross(a: list[int], b: list[int]) -> bool:
    first, second = sorted((a, b))
    return first[0] == second[0] and first[1] < second[1] < first[2] < second[2]


def written_and_read(trace: Trace, name: str = "a.json") -> Trace:
    directory = Path(tempfile.mkdtemp())
    try:
        formats.write(trace, directory / name)
        return formats.read(directory / name)
    finally:
        shutil.rmtree(directory)


def as_held(trace: Trace, table: str) -> pd.DataFrame:
    """The columns of a table that Kineto's form can hold, texts as such."""
    frame = trace[table].astype({c: "str" for c in trace[table] if trace[table][c].dtype == "category"})
    if table == "kernels":
        shared = frame[["static_shared", "dynamic_shared"]]
        known = (shared != MISSING).any(axis=1)
        frame["dynamic_shared"] = shared.clip(lower=0).sum(axis=1).where(known, MISSING)
        frame["name"] = frame["name"].where(frame["name"] != "", frame["short_name"])
    left_out = {"short_name", "static_shared"}
    on_host = [] if table == "devices" else ["process"]
    return frame[[*(c for c in HELD[table] if c not in left_out), *({"start", "end"} & {*frame.columns}), *on_host]]


@given(trace=traces())
@settings(max_examples=6)
def test_what_the_form_can_hold_is_read_back_the_same(trace: Trace) -> None:
    again = written_and_read(trace)
    for table in HELD:
        pd.testing.assert_frame_equal(as_held(again, table), as_held(trace, table), obj=table)
    assert again.notes == []


def test_a_recording_of_pytorch_keeps_its_categories(tmp_path: Path) -> None:
    trace = formats.read(CPU)
    again = written_and_read(trace)
    pd.testing.assert_frame_equal(again["nvtx"].astype("str"), trace["nvtx"].astype("str"))
    assert again.metadata == trace.metadata


# --- the file itself ---


@pytest.mark.parametrize("start", [0, 1, 999, 1_001, 1_790_857_026_123_456_789, 2**62 + 1, -1, -1_000_001])
def test_times_are_exact(start: int, tmp_path: Path) -> None:
    script = Script()
    script.kernel(start, start + 1_002)
    formats.write(script.trace, tmp_path / "a.json")
    (kernel,) = events(tmp_path / "a.json")
    assert (kernel["ts"] * 1000, kernel["dur"]) == (start, Decimal("1.002"))


def test_the_args_of_each_category_are_kinetos(tmp_path: Path) -> None:
    on_stream = {"device": 0, "context": 1, "stream": 7, "correlation": 5}
    where = {"start": [10], "end": [30], "process": [PROCESS], **{key: [value] for key, value in on_stream.items()}}
    on_stream["process"] = PROCESS
    shape = {name: [number] for number, name in enumerate(SIZES, start=1)}
    trace = Trace.from_columns(
        kernels={**where, **shape, "name": ["k"], "registers": [40], "static_shared": [8], "dynamic_shared": [16],
                 "graph": [2], "graph_node": [9]},
        memcpys={**where, "kind": ["PtoP"], "src_kind": ["pinned"], "dst_kind": ["device static"], "bytes": [40],
                 "src_device": [0], "dst_device": [1]},
        memsets={**where, "mem_kind": ["device"], "bytes": [4], "end": [10]},
        syncs={**where, "type": ["stream wait"], "event": [3]},
        api={"start": [5], "end": [8], "process": [PROCESS], "thread": [THREAD], "correlation": [5], "name": ["cudaX"]},
        cuda_events={**{key: [value] for key, value in on_stream.items()}, "event": [4]},
        graph_launches={**where, "graph": [2], "graph_exec": [6]},
        nvtx={"start": [0, 1], "end": [9, 1], "process": [PROCESS] * 2, "thread": [THREAD] * 2, "text": ["r", "m"],
              "domain": ["", "NCCL"], "payload": [float("nan"), 3.0], "kind": ["push/pop", "mark"]},
    )  # fmt: skip
    formats.write(trace, tmp_path / "a.json")
    found = {event["name"]: (event["cat"], event["args"]) for event in events(tmp_path / "a.json")}
    assert found == {
        "k": ("kernel", on_stream | {
            "registers per thread": 40, "shared memory": 24, "grid": [1, 2, 3], "block": [4, 5, 6], "graph id": 2,
            "graph node id": 9,
        }),
        "graph 2": ("kernel", on_stream | {"graph id": 2, "graph exec id": 6, "whole graph": 1}),
        "Memcpy PtoP (Pinned -> Device Static)": ("gpu_memcpy", on_stream | {
            "fromDevice": 0, "toDevice": 1, "bytes": 40, "memory bandwidth (GB/s)": 2,
        }),
        "Memset (Device)": ("gpu_memset", on_stream | {"bytes": 4, "memory bandwidth (GB/s)": "N/A"}),
        "Stream Wait Event": ("cuda_sync", on_stream | {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_cuda_event_id": 3,
        }),
        "cudaEvent": ("cuda_event", on_stream | {"event_id": 4}),
        "cudaX": ("cuda_runtime", {"correlation": 5}),
        "r": ("user_annotation", {}),
    }  # fmt: skip
    (record,) = (event for event in events(tmp_path / "a.json") if event["cat"] == "cuda_event")
    assert record["ts"] == Decimal("0.005")  # when the call began
    (mark,) = events(tmp_path / "a.json", "i")
    assert (mark["name"], mark["s"], mark["args"]) == ("m", "t", {"domain": "NCCL", "payload": 3})


def test_what_crosses_is_drawn_beside_and_nothing_is_lost(tmp_path: Path) -> None:
    script = Script()
    script.launch((0, 5), (10, 30), (20, 40))  # at once on one stream
    script.sync(15, 45)
    script.range("a", 0, 12)
    script.range("b", 1, 50)
    assert formats.write(script.trace, tmp_path / "a.json") == [
        "NVTX ranges on separate tracks, because they overlap others: 1"
    ]
    slices = events(tmp_path / "a.json")
    assert len(slices) == len(script.trace)
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        assert not [(a, b) for a in spans for b in spans if a[0] < b[0] < a[1] < b[1]]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(tmp_path / "a.json", "M") if "thread" in e["name"]
             and "name" in e["args"]}  # fmt: skip
    assert sorted(names.values()) == ["overlapping ranges of thread 101", "stream 7", "stream 7 (2)", "stream 7 syncs"]
    assert {"stream 7", "stream 7 (2)"} == {names[e["pid"], e["tid"]] for e in slices if e["cat"] == "kernel"}
    assert formats.read(tmp_path / "a.json")["kernels"]["stream"].tolist() == [7, 7]


def test_arrows_lead_from_a_call_to_each_kernel(tmp_path: Path) -> None:
    script = Script()
    script.launch((0, 5), (10, 20), (20, 30), api="cudaGraphLaunch_v10000")
    formats.write(script.trace, tmp_path / "a.json")
    begins, ends = events(tmp_path / "a.json", "s"), events(tmp_path / "a.json", "f")
    assert [(e["pid"], e["tid"], e["ts"]) for e in begins] == [(PROCESS, THREAD, 0)] * 2
    assert [(e["pid"], e["tid"], e["ts"], e["bp"]) for e in ends] == [
        (0, 7, Decimal("0.01"), "e"), (0, 7, Decimal("0.02"), "e"),
    ]  # fmt: skip
    assert [e["id"] for e in begins] == [e["id"] for e in ends] == [1, 2]
    assert {e["cat"] for e in begins + ends} == {"ac2g"}


def test_an_empty_trace(tmp_path: Path) -> None:
    formats.write(Trace({}), tmp_path / "a.json")
    assert contents(tmp_path / "a.json")["traceEvents"] == []
    assert len(formats.read(tmp_path / "a.json")) == 0


# --- the registry and the command ---
