"""Perfetto traces: every event is inside, decoded with Perfetto's own protos."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.recordings import LLAMA, SAMPLES, SIX
from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.test_formats_roundtrip import traces
from tracer import formats, write
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.errors import FormatError
from tracer.formats.tracks import SYNC_NAMES, arrows, spans
from tracer.model.trace import Trace

Event = protos.TrackEvent


@dataclass
class Slice:
    """One slice or instant."""

    name: str
    category: str
    start: int
    end: int
    track: int
    args: dict[str, Any]
    flows: list[int]
    ends_flows: list[int]


@dataclass
class Decoded:
    """A file as readers see it."""

    tracks: dict[int, Any] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def path(self, track: int) -> list[str]:
        """The names from a track up."""
        descriptor = self.tracks[track]
        above = self.path(descriptor.parent_uuid) if descriptor.parent_uuid else []
        return [descriptor.name or descriptor.thread.thread_name or descriptor.process.process_name, *above]


def decode(path: Path) -> Decoded:
    """Replay the packets, with what each kind of packet must keep to."""
    packets = protos.Trace.FromString(path.read_bytes()).packet
    assert packets[0].sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    names: dict[str, dict[int, str]] = defaultdict(dict)
    found = Decoded()
    open_slices: dict[int, list[Slice]] = defaultdict(list)
    last: dict[int, int] = {}
    for packet in packets:
        assert packet.trusted_packet_sequence_id == 1
        for intern, entries in packet.interned_data.ListFields():
            for entry in entries:
                assert entry.iid not in names[intern.name]
                names[intern.name][entry.iid] = entry.str.decode() if hasattr(entry, "str") else entry.name
        if packet.HasField("track_descriptor"):
            assert packet.track_descriptor.uuid not in {0, *found.tracks}
            assert packet.track_descriptor.parent_uuid in {0, *found.tracks}
            found.tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if not packet.HasField("track_event"):
            continue
        event, track = packet.track_event, packet.track_event.track_uuid
        assert packet.timestamp >= last.get(track, 0)
        last[track] = packet.timestamp
        if event.type == Event.TYPE_COUNTER:
            found.counters[found.tracks[track].name].append((packet.timestamp, event.counter_value))
        elif event.type == Event.TYPE_SLICE_END:
            open_slices[track].pop().end = packet.timestamp
        else:
            args = {names["debug_annotation_names"][a.name_iid]: _value(a, names) for a in event.debug_annotations}
            (category,) = event.category_iids
            slice = Slice(
                names["event_names"][event.name_iid], names["event_categories"][category], packet.timestamp,
                packet.timestamp, track, args, list(event.flow_ids), list(event.terminating_flow_ids),
            )  # fmt: skip
            found.slices.append(slice)
            if event.type == Event.TYPE_SLICE_BEGIN:
                open_slices[track].append(slice)
            else:
                assert event.type == Event.TYPE_INSTANT
    assert not any(open_slices.values())
    return found


def _value(annotation: Any, names: dict[str, dict[int, str]]) -> Any:
    kind = annotation.WhichOneof("value")
    text = names["debug_annotation_string_values"].get(annotation.string_value_iid)
    return text if kind == "string_value_iid" else getattr(annotation, kind)


def decoded(trace: Trace) -> Decoded:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.pftrace"
        write(trace, path)
        return decode(path)


def expected_slices(trace: Trace) -> list[tuple[str, str, int, int]]:
    """(category, name, start, end) of every event, without the code under test."""
    rows = []
    activity = trace.activities().frame()
    category = {"kernels": "kernel", "memcpys": "memcpy", "memsets": "memset", "graph_launches": "graph"}
    for table, name, start, end in activity[["table", "name", "start", "end"]].itertuples(index=False):
        rows.append((category[table], name, start, end))
    rows += [("cuda api", *row) for row in trace["api"][["name", "start", "end"]].itertuples(index=False, name=None)]
    rows += [("nvtx", *row) for row in trace["nvtx"][["text", "start", "end"]].itertuples(index=False, name=None)]
    for kind, start, end in trace["syncs"][["type", "start", "end"]].itertuples(index=False):
        rows.append(("sync", SYNC_NAMES[kind], start, end))
    times = spans(trace, "cuda_events")["start"]
    return rows + [("event record", "event record", time, time) for time in times]


def as_rows(found: Decoded) -> list[tuple[str, str, int, int]]:
    return [(slice.category, slice.name, slice.start, slice.end) for slice in found.slices]


# --- nothing is lost ---


@given(trace=traces())
@settings(max_examples=6)
def test_every_event_of_any_trace_is_inside(trace: Trace) -> None:
    found = decoded(trace)
    assert sorted(as_rows(found)) == sorted(expected_slices(trace))
    begun = sorted(flow for slice in found.slices for flow in slice.flows)
    ended = sorted(flow for slice in found.slices for flow in slice.ends_flows)
    assert begun == ended == arrows(trace)["id"].tolist()


@pytest.mark.parametrize(
    "name",
    ["llama1b-saaas-graph", SIX.name, "llama-1.1b-aaag-branches-cuda", "llama-1.1b-sccc-sequential-cuda/node"],
)
def test_every_event_of_a_recording_is_inside(name: str) -> None:
    trace = formats.read(SAMPLES / name)
    found = decoded(trace)
    assert sorted(as_rows(found)) == sorted(expected_slices(trace))
    call_of = {flow: slice for slice in found.slices for flow in slice.flows}
    activities = [slice for slice in found.slices if slice.category in ("kernel", "memcpy", "memset", "graph")]
    calls = trace["api"].set_index("correlation")[["name", "start", "end"]]
    for slice in activities:
        if slice.args["correlation"] not in calls.index:
            assert not slice.ends_flows
            continue
        (flow,) = slice.ends_flows
        call = call_of[flow]
        assert (call.name, call.start, call.end) == tuple(calls.loc[slice.args["correlation"]])


def test_counters_hold_one_value_per_step() -> None:
    trace = formats.read(LLAMA["sccc", "node"])
    counts = sync_report(trace, find_steps(trace)).counts
    assert counts["syncs"].median() == 14
    found = decoded(trace).counters
    assert {name: len(values) for name, values in found.items()} == {
        f"{what} per token": len(counts) for what in ("syncs", "copies", "launches")
    }
    for what in ("syncs", "copies", "launches"):
        assert found[f"{what} per token"] == list(zip(counts["start"], counts[what], strict=True))


def test_without_steps_there_are_no_counters_and_a_note(tmp_path: Path) -> None:
    script = Script()
    script.range("alone", 0, 10)
    (note,) = write(script.trace, tmp_path / "a.pftrace")
    assert note.startswith("no counters per token: the trace has no kernels")
    assert not decode(tmp_path / "a.pftrace").counters


# --- tracks, arguments and names ---


def test_threads_and_streams_have_their_tracks() -> None:
    script = Script()
    script.launch((0, 5), (10, 30), (20, 40))  # at once on one stream
    script.sync(15, 45)
    script.range("a", 0, 12)
    script.range("b", 1, 50)
    trace = script.trace
    trace.tables |= Trace.from_columns(
        threads={"process": [PROCESS], "thread": [THREAD], "name": ["main"]},
        processes={"process": [PROCESS], "name": ["python"]},
        devices={"device": [0], "name": ["H200"]},
    ).tables | {name: frame for name, frame in trace.tables.items() if len(frame)}
    found = decoded(trace)
    paths = {(s.category, s.name, s.start): found.path(s.track) for s in found.slices}
    assert paths == {
        ("cuda api", "cudaLaunchKernel_v7000", 0): ["main"],
        ("cuda api", "cudaStreamSynchronize_v3020", 15): ["main"],
        ("nvtx", "a", 0): ["main"],
        ("nvtx", "b", 1): ["overlapping ranges", "main"],
        ("kernel", "k", 10): ["stream 7", "GPU 0 (H200)"],
        ("kernel", "k", 20): ["stream 7", "GPU 0 (H200)"],
        ("sync", "Stream Sync", 15): ["stream 7 syncs", "GPU 0 (H200)"],
    }
    assert len({s.track for s in found.slices if s.category == "kernel"}) == 2
    threads = [(t.thread.pid, t.thread.tid) for t in found.tracks.values() if t.HasField("thread")]
    assert threads == [(PROCESS, THREAD)]


def test_arguments_are_the_columns_that_are_known() -> None:
    trace = Trace.from_columns(
        kernels={"start": [1], "end": [2], "correlation": [5], "context": [1], "name": ["void k<int>()"],
                 "short_name": ["k"], "grid_x": [2**40], "graph": [3]},
        memcpys={"start": [1], "end": [2], "kind": ["HtoD"], "bytes": [0], "src_kind": ["pinned"]},
        nvtx={"start": [1, 2], "end": [2, 2], "text": ["", "<b>"], "domain": ["NCCL", ""], "payload": [2.5, None],
              "kind": ["push/pop", "mark"]},
        api={"start": [0], "end": [1], "name": ["cudaFree"], "return_value": [0]},
    )  # fmt: skip
    args = {(slice.category, slice.name): slice.args for slice in decoded(trace).slices}
    assert args == {
        ("kernel", "k"): {"correlation": 5, "context": 1, "name": "void k<int>()", "grid_x": 2**40, "graph": 3},
        ("memcpy", "memcpy HtoD"): {"kind": "HtoD", "bytes": 0, "src_kind": "pinned", "dst_kind": "unknown"},
        ("nvtx", ""): {"kind": "push/pop", "domain": "NCCL", "payload": 2.5},
        ("nvtx", "<b>"): {"kind": "mark"},
        ("cuda api", "cudaFree"): {"return_value": 0, "layer": "runtime"},
    }


def test_times_below_zero_are_shifted_and_noted(tmp_path: Path) -> None:
    script = Script()
    script.range("r", -5, 10)
    notes = write(script.trace, tmp_path / "a.pftrace")
    assert notes[0] == "all times are shifted by 5 ns, because Perfetto has no negative times"
    assert as_rows(decode(tmp_path / "a.pftrace")) == [("nvtx", "r", 0, 15)]


# --- the format ---


def test_it_can_be_written_but_not_read(tmp_path: Path) -> None:
    for name in ("a.pftrace", "b.perfetto-trace"):
        result = CliRunner().invoke(main, ["convert", str(SIX), str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert not formats.is_trace(tmp_path / name)
        with pytest.raises(FormatError, match="Perfetto trace can be written but not read"):
            formats.read(tmp_path / name)
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.perfetto-trace").read_bytes()


def test_an_empty_trace() -> None:
    assert decoded(Trace({})).slices == []
