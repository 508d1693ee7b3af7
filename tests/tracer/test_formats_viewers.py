"""Chrome JSON and Perfetto traces that we write: exact to the nanosecond, with every event, drawn in full."""

import gzip
import json
import tempfile
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace as Namespace

import numpy as np
import pandas as pd
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from tests.recordings import LLAMA, SIX
from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.nsys_exports import DATA
from tests.tracer.test_formats_roundtrip import traces, written_and_read
from tracer import analyse, formats, write
from tracer.cli import main
from tracer.formats.tracks import SYNC_NAMES, arrows, lanes, slice_order, spans, tracks_of
from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace


def crossing():
    """Kernels at once on one stream, a sync around them, and ranges that cross."""
    script = Script()
    script.launch((0, 5), (10, 30), (20, 40))
    script.sync(15, 45)
    script.range("a", 0, 12)
    script.range("b", 1, 50)
    return script.trace


INTERVALS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=12)


def _cross(a, b):
    first, second = sorted((a, b))
    return first[0] < second[0] < first[1] < second[1]


def _overlap(a, b):
    first, second = sorted((a, b))
    return second[0] < first[1]


@given(intervals=INTERVALS)
def test_slices_of_a_lane_nest_or_are_disjoint_and_begin_and_end_like_brackets(intervals):
    starts, lengths = np.array(intervals, np.int64).reshape(-1, 2).T
    ends = starts + lengths
    pairs = list(zip(starts.tolist(), ends.tolist(), strict=True))
    for nest, forbidden in ((True, _cross), (False, _overlap)):
        lane = lanes(starts, ends, nest=nest).tolist()
        bad = [(i, j) for i in range(len(pairs)) for j in range(i) if forbidden(pairs[i], pairs[j])]
        assert not [(i, j) for i, j in bad if lane[i] == lane[j]]
        assert bad or set(lane) <= {0}
    nested = lanes(starts, ends, nest=True) == 0
    which, begins = slice_order(starts[nested], ends[nested])
    assert (np.diff(np.where(begins, starts[nested][which], ends[nested][which])) >= 0).all()
    stack = []
    for at, begin in zip(which.tolist(), begins.tolist(), strict=True):
        if begin:
            stack.append(at)
        else:
            assert stack.pop() == at
    assert not stack
    assert sorted(which.tolist()) == sorted([*range(nested.sum())] * 2)


def test_calls_stay_on_their_thread_and_ranges_that_cross_them_do_not():
    script = Script()
    for text, *span in (("holds", 0, 100), ("ends in", 10, 25), ("begins in", 25, 40), ("is in", 22, 24)):
        script.range(text, *span)
    script.call("cudaMalloc", 20, 30)
    tracks = tracks_of(script.trace)
    lane = tracks.table["lane"].to_numpy()
    assert lane[tracks.of["api"]].tolist() == [0]
    lane_of = dict(zip(script.trace["nvtx"]["text"], lane[tracks.of["nvtx"]].tolist(), strict=True))
    assert lane_of == {"holds": 0, "ends in": 1, "is in": 0, "begins in": 1}


ARGS = json.loads((DATA / "viewer-args.json").read_text(encoding="utf-8"))


def test_what_kinetos_form_can_hold_is_read_back_the_same():
    """Also what is unknown, names that are odd, and times beyond the precision of a float."""
    at = 1_790_857_026_123_456_789
    odd = {"start": at, "end": at + 7, "process": PROCESS, "thread": THREAD, "correlation": 2**32, "text": ""}
    odd |= {"domain": "", "name": "<b>\n\0'; Токен ⏱", "kind": "push/pop"}
    tables = {name: dict(columns) for name, columns in ARGS["chrome"]["tables"].items() if name != "graph_launches"}
    for name, columns in tables.items():
        given = (
            {c.name: c.default for c in TABLES[name].columns} | odd | ({"kind": "DtoH"} if name == "memcpys" else {})
        )
        for column, values in columns.items():
            columns[column] = [*values, given[column]]
    tables["devices"] = {"device": [0, 1], "name": ["H200", ""], "sm_count": [132, MISSING]}
    trace = Trace.from_columns(**tables)
    again = written_and_read(trace, "a.json")
    for table, columns in tables.items():
        for column in columns.keys() - {"static_shared", "dynamic_shared", "payload"}:
            assert again[table][column].tolist() == trace[table][column].tolist(), (table, column)
    assert again["kernels"]["dynamic_shared"].tolist() == [24, MISSING]  # static and dynamic are one sum
    assert again.notes == []


def test_a_recording_of_pytorch_keeps_its_categories():
    trace = formats.read(DATA / "pytorch-2.15-cpu.json.gz")
    again = written_and_read(trace, "a.json.gz")
    pd.testing.assert_frame_equal(again["nvtx"].astype("str"), trace["nvtx"].astype("str"))
    assert again.metadata == trace.metadata
    assert len(written_and_read(Trace({}), "a.json")) == 0


def events(path, phase="X"):
    """Those of a phase, with exact numbers."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [event for event in json.loads(text, parse_float=Decimal)["traceEvents"] if event["ph"] == phase]


def test_times_are_exact(tmp_path):
    for start in (0, 1, 999, 1_001, 1_790_857_026_123_456_789, 2**62 + 1, -1, -1_000_001):
        script = Script()
        script.kernel(start, start + 1_002)
        formats.write(script.trace, tmp_path / f"{start}.json")
        (kernel,) = events(tmp_path / f"{start}.json")
        assert (kernel["ts"] * 1000, kernel["dur"]) == (start, Decimal("1.002"))


def test_the_args_of_each_category_are_kinetos(tmp_path):
    formats.write(Trace.from_columns(**ARGS["chrome"]["tables"]), tmp_path / "a.json")
    slices = events(tmp_path / "a.json")
    assert {event["name"]: [event["cat"], event["args"]] for event in slices} == ARGS["chrome"]["events"]
    assert [event["ts"] for event in slices if event["cat"] == "cuda_event"] == [
        Decimal("0.005")
    ]  # when the call began
    (mark,) = events(tmp_path / "a.json", "i")
    assert (mark["name"], mark["s"], mark["args"]) == ("m", "t", {"domain": "NCCL", "payload": 3})


def test_what_crosses_is_drawn_beside_and_arrows_lead_to_each_kernel(tmp_path):
    trace, path = crossing(), tmp_path / "a.json"
    assert formats.write(trace, path) == ["NVTX ranges on separate tracks, because they overlap others: 1"]
    slices, tracks = events(path), defaultdict(list)
    assert len(slices) == len(trace)
    for event in slices:
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert not [1 for track in tracks.values() for a in track for b in track if _cross(a, b)]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(path, "M")
             if "thread" in e["name"] and "name" in e["args"]}  # fmt: skip
    assert sorted(names.values()) == ["overlapping ranges of thread 101", "stream 7", "stream 7 (2)", "stream 7 syncs"]
    assert {"stream 7", "stream 7 (2)"} == {names[e["pid"], e["tid"]] for e in slices if e["cat"] == "kernel"}
    assert formats.read(path)["kernels"]["stream"].tolist() == [7, 7]
    begins, ends = events(path, "s"), events(path, "f")
    assert [(e["pid"], e["tid"], e["ts"]) for e in begins] == [(PROCESS, THREAD, 0)] * 2
    assert [(e["pid"], e["ts"], e["bp"]) for e in ends] == [(0, Decimal("0.01"), "e"), (0, Decimal("0.02"), "e")]
    assert [e["id"] for e in begins] == [e["id"] for e in ends] == [1, 2]
    assert {e["cat"] for e in begins + ends} == {"ac2g"}


def decode(path):
    """Tracks, slices and counters as readers see them: replays the packets, with what each kind must keep to."""
    packets = protos.Trace.FromString(path.read_bytes()).packet
    assert packets[0].sequence_flags == protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    names, open_slices, last = defaultdict(dict), defaultdict(list), defaultdict(int)
    found = Namespace(tracks={}, slices=[], counters=defaultdict(list))

    def value(annotation):
        kind = annotation.WhichOneof("value")
        text = names["debug_annotation_string_values"].get(annotation.string_value_iid)
        return text if kind == "string_value_iid" else getattr(annotation, kind)

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
        assert packet.timestamp >= last[track]
        last[track] = packet.timestamp
        if event.type == protos.TrackEvent.TYPE_COUNTER:
            found.counters[found.tracks[track].name].append((packet.timestamp, event.counter_value))
        elif event.type == protos.TrackEvent.TYPE_SLICE_END:
            open_slices[track].pop().end = packet.timestamp
        else:
            (category,) = event.category_iids
            found.slices.append(Namespace(
                name=names["event_names"][event.name_iid], category=names["event_categories"][category], track=track,
                start=packet.timestamp, end=packet.timestamp, flows=list(event.flow_ids),
                ends_flows=list(event.terminating_flow_ids),
                args={names["debug_annotation_names"][a.name_iid]: value(a) for a in event.debug_annotations},
            ))  # fmt: skip
            if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
                open_slices[track].append(found.slices[-1])
            else:
                assert event.type == protos.TrackEvent.TYPE_INSTANT
    assert not any(open_slices.values())
    found.rows = sorted((slice.category, slice.name, slice.start, slice.end) for slice in found.slices)
    return found


def path_of(found, track):
    """The names from a track up."""
    descriptor = found.tracks[track]
    above = path_of(found, descriptor.parent_uuid) if descriptor.parent_uuid else []
    return [descriptor.name or descriptor.thread.thread_name or descriptor.process.process_name, *above]


def decoded(trace):
    with tempfile.TemporaryDirectory() as directory:
        write(trace, Path(directory) / "a.pftrace")
        return decode(Path(directory) / "a.pftrace")


def expected_rows(trace):
    """(category, name, start, end) of every event, without the code under test."""
    category = {"kernels": "kernel", "memcpys": "memcpy", "memsets": "memset", "graph_launches": "graph"}
    activities = trace.activities().frame()[["table", "name", "start", "end"]].itertuples(index=False)
    rows = [(category[table], *row) for table, *row in activities]
    rows += [("cuda api", *row) for row in trace["api"][["name", "start", "end"]].itertuples(index=False, name=None)]
    rows += [("nvtx", *row) for row in trace["nvtx"][["text", "start", "end"]].itertuples(index=False, name=None)]
    rows += [("sync", SYNC_NAMES[kind], *row) for kind, *row in trace["syncs"][["type", "start", "end"]].to_numpy()]
    return sorted([*rows, *(("event record", "event record", at, at) for at in spans(trace, "cuda_events")["start"])])


@given(trace=traces())
@settings(max_examples=6)
def test_every_event_of_any_trace_is_inside(trace):
    found = decoded(trace)
    assert found.rows == expected_rows(trace)
    begun = sorted(flow for slice in found.slices for flow in slice.flows)
    ended = sorted(flow for slice in found.slices for flow in slice.ends_flows)
    assert begun == ended == arrows(trace)["id"].tolist()


def test_counters_hold_one_value_per_step(tmp_path):
    found = analyse(LLAMA["sccc", "node"])
    counts = found.syncs.counts
    assert decoded(found.trace).counters == {
        f"{what} per token": list(zip(counts["start"], counts[what], strict=True))
        for what in ("syncs", "copies", "launches")
    }
    script = Script()
    script.range("r", -5, 10)
    shifted, without = write(script.trace, tmp_path / "a.pftrace")
    assert shifted == "all times are shifted by 5 ns, because Perfetto has no negative times"
    assert without.startswith("no counters per token: the trace has no kernels")
    alone = decode(tmp_path / "a.pftrace")
    assert (alone.counters, alone.rows) == ({}, [("nvtx", "r", 0, 15)])
    assert decoded(Trace({})).slices == []


def test_threads_and_streams_have_their_tracks():
    trace = crossing()
    trace.tables |= Trace.from_columns(
        threads={"process": [PROCESS], "thread": [THREAD], "name": ["main"]},
        processes={"process": [PROCESS], "name": ["python"]},
        devices={"device": [0], "name": ["H200"]},
    ).tables | {name: frame for name, frame in trace.tables.items() if len(frame)}
    found = decoded(trace)
    assert {(s.category, s.name, s.start): path_of(found, s.track) for s in found.slices} == {
        ("cuda api", "cudaLaunchKernel_v7000", 0): ["main"], ("cuda api", "cudaStreamSynchronize_v3020", 15): ["main"],
        ("nvtx", "a", 0): ["main"], ("nvtx", "b", 1): ["overlapping ranges", "main"],
        ("kernel", "k", 10): ["stream 7", "GPU 0 (H200)"], ("kernel", "k", 20): ["stream 7", "GPU 0 (H200)"],
        ("sync", "Stream Sync", 15): ["stream 7 syncs", "GPU 0 (H200)"],
    }  # fmt: skip
    assert len({s.track for s in found.slices if s.category == "kernel"}) == 2
    threads = [(t.thread.pid, t.thread.tid) for t in found.tracks.values() if t.HasField("thread")]
    assert threads == [(PROCESS, THREAD)]


def test_arguments_are_the_columns_that_are_known():
    found = decoded(Trace.from_columns(**ARGS["perfetto"]["tables"]))
    assert [[slice.category, slice.name, slice.args] for slice in found.slices] == ARGS["perfetto"]["slices"]


def test_both_suffixes_are_written_alike_and_read_again(tmp_path):
    for name in ("a.pftrace", "b.perfetto-trace"):
        result = CliRunner().invoke(main, ["convert", str(SIX), str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        assert len(formats.read(tmp_path / name)) == len(formats.read(SIX))
    assert (tmp_path / "a.pftrace").read_bytes() == (tmp_path / "b.perfetto-trace").read_bytes()
