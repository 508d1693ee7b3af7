"""Steps that clocks, lost records, or pauses of the recorder spoil are found, said, and in no figure."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.recordings import LLAMA
from tests.tracer.engines import Host
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.light_engine import AFTER_GRAPH, BEFORE_GRAPH, GRAPH_NS, HOST_NS, Engine
from tests.tracer.machine import recorded
from tests.tracer.truths import as_found, facts_of, rows, run
from tracer import Trace, analyse, formats, scrub
from tracer.analysis.clocks import doubts
from tracer.analysis.recording import Recording
from tracer.analysis.streams import stream_report
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import LIGHT, PAUSES, Pause, add_pauses, pauses
from tracer.recorders.light import light_trace
from tracer.recorders.window import TimeRange, pauses_between, within
from tracer.scrub import Texts

SECOND = 10**9
EVERYWHERE = ("api", "syncs", "nvtx", *DEVICE_TABLES)
Shift = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def recording() -> Trace:
    """A real one, llama.cpp at graph level, without what was before its steps."""
    trace = formats.read(LLAMA["saaas", "graph"], whole=False)
    begin = rows(as_found(trace).steps.table, "start")[0]
    return trace.map_tables(lambda _, frame: frame[frame["start"] >= begin] if "start" in frame else frame)


@pytest.fixture(scope="module")
def truth(recording: Trace) -> Recording:
    return as_found(recording)


def moved(trace: Trace, shift: Shift, tables: tuple[str, ...] = EVERYWHERE) -> Trace:
    """The trace as clocks would have written it that say `shift(t)` at `t`."""

    def later(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(**{side: frame[side] + shift(frame[side].to_numpy()) for side in ("start", "end")})

    return trace.map_tables(lambda name, frame: later(frame) if name in tables else frame)


def at(time: int, by: int) -> Shift:
    return lambda times: np.where(times >= time, by, 0)


def middle(found: Recording, inside: str) -> int:
    """A time in the middle of the steps: in the host's own code, in a sync while the device works, in a launch."""
    trace, half = found.trace, rows(found.steps.table, "start")[len(found.steps) // 2]
    if inside == "host code":
        ends, starts = (np.sort(trace["api"][side].to_numpy()) for side in ("end", "start"))
        pauses = [(a, b) for a in ends[ends > half][:20] for b in starts[starts > a][:1] if b - a > 1000]
        return int(sum(pauses[0]) // 2)
    graph = trace["graph_launches"].query("start > @half").iloc[0]
    if inside == "sync":
        return int(graph["start"] + graph["end"]) // 2
    return int(trace["api"].set_index("correlation").loc[int(graph["correlation"]), "start"]) + 10


def check_close(found: Recording, truth: Recording) -> None:
    assert found.gaps.gap_us["p50"] == pytest.approx(truth.gaps.gap_us["p50"], rel=0.02)
    assert found.gaps.gap_us["mean"] == pytest.approx(truth.gaps.gap_us["mean"], rel=0.1)
    assert found.idle.busy_us == pytest.approx(truth.idle.busy_us, rel=0.01)
    assert found.gaps.causes_us == pytest.approx(truth.gaps.causes_us, rel=0.2, abs=2)
    rate = truth.figures("steps").steps_per_s
    assert found.figures("steps").steps_per_s == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize(
    ("inside", "by", "said", "fewer"),
    [
        *[(place, 5, r"for up to 5.00 s, once: the clock jumped, or the program paused; left out: 1 of", 1)
          for place in ("host code", "sync", "launch")],
        ("host code", -5, r"^the clock went back by up to 5.00 s, once; left out: ", 4),
    ],
)  # fmt: skip
def test_a_jump(recording: Trace, truth: Recording, inside: str, by: int, said: str, fewer: int) -> None:
    found = analyse(moved(recording, at(middle(truth, inside), by * SECOND)))
    (why,) = found.steps.doubts
    assert re.search(said, why)
    assert why in found.steps.notes
    assert len(truth.steps) - fewer <= len(found.steps) < len(truth.steps)
    check_close(found, truth)


@pytest.mark.parametrize("by", [-2_000_000, 2_000_000, -50_000])
def test_device_and_host_apart_for_half_of_it(recording: Trace, truth: Recording, by: int) -> None:
    found = analyse(moved(recording, at(middle(truth, "host code"), by), DEVICE_TABLES))
    (why,) = found.steps.doubts
    low, high = (float(word.replace(",", "")) for word in why.split(": ")[1].split(" µs")[0].split(" to "))
    assert low - 1 <= abs(by) / 1e3 <= high + 1 < low + 21
    assert ("behind" in why) == (by < 0)
    assert abs(len(found.steps) - len(truth.steps) // 2) <= 2
    assert found.gaps.gap_us["p50"] == pytest.approx(truth.gaps.gap_us["p50"], rel=0.02)


def test_what_spoils_no_step(recording: Trace, truth: Recording) -> None:
    ahead = analyse(moved(recording, lambda times: np.full(len(times), 25_000), DEVICE_TABLES)).steps
    assert "µs ahead; parts of gaps and waits have at least that error" in ahead.doubts[0]
    rounded = analyse(moved(recording, lambda times: times // 1000 * 1000 - times)).steps
    assert rounded.doubts == ()
    assert len(ahead) == len(rounded) == len(truth.steps)
    for error, told in ((326_000, ["326 µs"]), (13_000, [])):  # of an inexact clock
        inexact = Trace(dict(recording.tables), recording.metadata | {"clock": {"device_error_ns": error}}, [])
        notes = [note for note in analyse(inexact).steps.notes if "device times are known to within" in note]
        assert len(notes) == len(told)
        assert all(words in note for words, note in zip(told, notes, strict=True))


@pytest.mark.parametrize("late", [1, 30])
def test_waits_that_return_early_are_none_for_that_work(recording: Trace, late: int) -> None:
    """No clock is ahead by what a wait says alone, or by what the launch of the same work excludes."""
    chosen = recording["graph_launches"]["correlation"].to_numpy()[10 : 10 + late]

    def longer(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        if name != "graph_launches":
            return frame
        return frame.assign(end=frame["end"] + np.where(frame["correlation"].isin(chosen), 200_000, 0))

    assert not analyse(recording.map_tables(longer)).steps.doubts


@pytest.mark.parametrize("by", [3_000_000, -3_000_000])
def test_of_a_light_recording_only_the_error_is_told(by: int) -> None:
    """Its clocks were aligned by the same launches and waits, and by more."""
    engine = Engine()
    for number in range(40):
        engine.graph(number, GRAPH_NS)
        engine.now += HOST_NS
        engine.wait()
    trace = light_trace([engine.ring()])
    found, truth = analyse(moved(trace, lambda times: np.full(len(times), by), DEVICE_TABLES)), analyse(trace)
    assert len(found.steps) == len(truth.steps)
    assert found.gaps.gap_us == truth.gaps.gap_us
    told = [why for why in found.steps.doubts if "device times are known to within" in why]
    assert len(told) == (by < 0)


def test_a_whole_recording_in_doubt_is_refused(recording: Trace) -> None:
    spoilt = moved(recording, lambda times: np.full(len(times), -1_000_000), DEVICE_TABLES)
    with pytest.raises(EmptyTraceError, match=r"no step is usable: the clock of device 0 "):
        analyse(spoilt).steps  # noqa: B018


def test_lost_records_are_counted(recording: Trace, truth: Recording) -> None:
    def without(table: str, lost: list[int]) -> Recording:
        return analyse(recording.map_tables(
            lambda name, frame: frame[~frame["correlation"].isin(lost)] if name == table else frame))  # fmt: skip

    begin = rows(truth.steps.table, "start")[20]
    mine = recording["graph_launches"].query("start > @begin")["correlation"].tolist()
    found = without("graph_launches", mine[:3])
    why = f"records are missing: launches without recorded work (3); left out: 3 of {len(truth.steps)} steps"
    assert found.steps.doubts == (why,)
    check_close(found, truth)
    (why,) = without("api", [mine[0], mine[5], mine[9]]).steps.doubts
    assert why.startswith("records are missing: work without a recorded launch (3); left out: 3 of")
    late = recording.map_tables(lambda name, frame: frame[frame["start"] >= begin] if name == "api" else frame)
    late = late.map_tables(lambda name, frame: frame[frame["end"] >= begin] if name in DEVICE_TABLES else frame)
    assert analyse(late).steps.doubts == ()  # what was launched before the recording is no loss


def losing(tables: tuple[str, ...], lost: Callable[[int], bool], kind: str = "") -> Trace:
    """A decode loop of 60 steps; these rows of some tables lack their number: copies only of that kind, calls only of
    launches of kernels."""
    host = Host(Script()).play("60(DcK1f)", {"K": {"names": ["prepare"] * 4}})
    for name in tables:
        made = [row for row in host.script.rows[name] if row.get("kind", "").startswith(kind)]
        made = [row for row in made if name != "api" or row["name"].startswith("cudaLaunchKernel")]
        for number, row in enumerate(made):
            if lost(number):
                row["correlation"] = MISSING
    return host.script.trace


HALF = np.random.default_rng(5).random(1000) < 0.5


@pytest.mark.parametrize("tables", [("kernels", "memcpys", "graph_launches"), ("graph_launches",), ("memcpys",)])
@pytest.mark.parametrize("lost", [lambda i: HALF[i], lambda i: i % 2 == 1, lambda i: i % 3 > 0], ids=["half", "2", "3"])
def test_what_losses_may_join_is_no_step(tables: tuple[str, ...], lost: Callable[[int], bool]) -> None:
    """Of the records that show where a step ends some are missing, at random or in the rhythm of the steps."""
    trace = losing(tables, lost, kind="D" if tables == ("memcpys",) else "")
    with pytest.raises(EmptyTraceError, match=r"the steps are unknown: records are missing: .* may be several"):
        analyse(trace).steps  # noqa: B018
    assert str(analyse(trace).summary.problem).startswith("the steps are unknown")
    assert len(analyse(trace, pattern="cudaGraphLaunch").steps) == 60


def test_steps_that_a_lost_result_joins_are_no_prompts_and_in_no_figure() -> None:
    """Two results of sixty have no record: two pairs of steps seem to be one of twice the work."""
    trace = losing(("memcpys",), lambda i: i in (20, 40), kind="D")
    whole, found = analyse(losing((), lambda i: False)), analyse(trace)
    assert (whole.steps.phases, whole.steps.doubts) == ({"decode": 60}, ())
    assert found.steps.phases == {"decode": 58}
    assert found.steps.doubts[-1] == (
        "records are missing: 2 of the steps launch what several do, without a result in between; left out: 2 of 58 "
        "steps"
    )
    assert (len(found.steps), found.steps.confidence) == (56, min(0.8, whole.steps.confidence))
    check_close(found, whole)


def test_work_of_a_lost_launch_outside_the_steps_is_told() -> None:
    """A token behind a prompt seems to be part of it."""
    script = decode_loop("asgAs", 20)
    for step in range(20):
        script.range("token" if step else "prefill", step * 1000, step * 1000 + 900)
    assert analyse(script.trace).steps.doubts == ()
    script.kernel(500, 800)
    (why,) = analyse(script.trace).steps.doubts
    assert why == (
        "records are missing: work without a recorded launch outside these steps (1); some steps may be missing"
    )


@pytest.mark.parametrize(
    ("fewer", "left_out"), [({12: 1}, [12]), ({12: 1, 20: 3}, [12, 20]), (dict.fromkeys(range(12, 30), 1), [])]
)
def test_a_replay_with_fewer_kernels_than_its_graph_is_incomplete(fewer: dict[int, int], left_out: list[int]) -> None:
    """Of a graph of five kernels, whose last one copies the result; a graph that is updated has fewer from then on."""
    script = Script()
    for step in range(30):
        at = 100_000 * step
        script.copy((at, at + 1_000), (at + 1_500, at + 2_000))
        number = script.call("cudaGraphLaunch_v10000", at + 2_000, at + 5_000)
        for i in range(5 - fewer.get(step, 0)):
            script.kernel(at + 8_000 + 10_000 * i, at + 17_000 + 10_000 * i, number, name=f"k{i}")
            script.rows["kernels"][-1]["graph"] = 1
        script.copy((at + 6_000, at + 7_000), (at + 60_000, at + 61_000), "DtoH")
        script.sync(at + 8_000, at + 65_000)
        script.range("token", at, at + 70_000)
    found = analyse(script.trace).steps
    assert [each for each in range(30) if each not in rows(found.table, "step")] == left_out
    told = f"records are missing: replays with fewer kernels than their graph has ({len(left_out)})"
    assert [why.startswith(told) for why in found.doubts] == [True] * bool(left_out)
    assert found.confidence > 0.8  # marks tell them apart


@pytest.mark.parametrize("tables", [("api",), ("kernels",)])
def test_lost_kernels_join_no_steps(tables: tuple[str, ...]) -> None:
    steps = analyse(losing(tables, lambda i: HALF[i])).steps
    assert any(" of " in why and "records are missing" in why for why in steps.doubts)
    assert len(steps) == 60


@pytest.mark.parametrize("every", [1, 2, 3])
def test_graphs_without_times_are_no_idle_time(every: int) -> None:
    """Marked steps, some of whose graphs have no record, as those that the light recorder cannot stamp: their time is
    not idle. If most have none, nothing is known of the others either."""
    host = Host(Script())
    for step in range(60):
        begin = host.now
        host.play("cK1", {"K": {"names": ["prepare"] * 2}})
        host.now += 600
        host.fetch()
        host.script.range("token", begin, host.now)
        if step % every == 0:
            host.script.rows["graph_launches"].pop()
    found = analyse(Trace(dict(host.script.trace.tables), {"source": LIGHT}, []))
    if every < 3:
        with pytest.raises(EmptyTraceError, match="no gap and no idle time: records are missing: launches without"):
            found.gaps  # noqa: B018
        with pytest.raises(EmptyTraceError, match="no busy time: records are missing: launches without"):
            stream_report(found.trace, found.steps)
    else:
        assert (len(found.steps), found.steps.source) == (40, "nvtx")
        assert found.idle.idle_us["p50"] < 0.6


def graphs(processes: list[int], lost: Callable[[int, int], bool], api: str = "cudaGraphLaunch_v10000") -> Trace:
    """Twenty marked steps with a graph and a kernel of each process; `lost`: in which steps of which process the work
    of the graph has no record."""
    script = Script()
    for step in range(20):
        for process in processes:
            begin = 10_000 * step + process
            script.range("token", begin, begin + 9000, process=process)
            ran = [] if lost(process, step) else [(begin + 500, begin + 4000)]
            script.launch((begin + 100, begin + 200), *ran, process=process, api=api)
            if ran or len(processes) == 1:
                script.launch((begin + 300, begin + 400), (begin + 4000, begin + 8000), process=process)
    return script.trace


def test_a_rank_whose_work_was_not_recorded_is_named_and_not_counted() -> None:
    trace = graphs([100, 200], lambda process, step: process == 200)
    found = analyse(trace)
    assert len(found.steps) == 20
    assert set(found.steps.rows.process.tolist()) == {100}
    assert found.steps.doubts == (
        "process 200 is not counted: its 20 launches have no work on a device in the recording; it may be a rank whose "
        "own recording has it",
    )
    assert not analyse(graphs([100, 200], lambda process, step: False)).steps.doubts


@pytest.mark.parametrize(
    ("source", "api", "how"),
    [
        ("nsys 2025.3", "cudaGraphLaunch_v10000", "; nsys --cuda-graph-trace=node records it"),
        ("cupti 12.9", "cudaGraphLaunch_v10000", "; --passes node records it"),
        ("PyTorch profiler", "cudaGraphLaunch", "; start torch.profiler before the graphs are captured"),
        ("PyTorch profiler", "hipGraphLaunch", "; ROCm before 7.2.2 loses graphs' kernels: update it, and its copy in "
         "torch/lib"),
        ("nsys 2025.3", "cudaLaunchKernel_v7000", ""), ("something else", "cudaGraphLaunch_v10000", ""),
    ],
)  # fmt: skip
def test_how_to_record_what_is_missing_depends_on_the_recorder(source: str, api: str, how: str) -> None:
    trace = graphs([100], lambda process, step: True, api)
    (why,) = analyse(Trace(dict(trace.tables), {"source": source}, [])).steps.doubts
    assert why == f"records are missing: launches without recorded work (20, in 20 of 20 steps{how})"


def test_records_lost_at_the_start_are_named() -> None:
    (why,) = analyse(graphs([100], lambda process, step: step < 3)).steps.doubts
    assert why == "records are missing at the start: launches without recorded work (3); left out: 3 of 20 steps"
    (why,) = analyse(graphs([100], lambda process, step: step in (0, 2))).steps.doubts
    assert why == "records are missing: launches without recorded work (2); left out: 2 of 20 steps"
    trace = graphs([100], lambda process, step: False)
    for calls, count in ((4, 1), (18, 0)):
        first = {"nvtx": 20 - calls, "api": 40 - 2 * calls}
        kept = trace.map_tables(lambda name, frame, first=first: frame[first.get(name, 0) :])
        found = analyse(kept).steps
        assert (len(found), len(found.doubts)) == (calls, count)
    (why,) = analyse(trace.map_tables(lambda name, frame: frame[{"nvtx": 15, "api": 30}.get(name, 0) :])).steps.doubts
    assert why == (
        "records are missing at the start: 30 kernels or copies over 0.1 ms have no known launch; their iterations, "
        "about 15, are not counted"
    )


PAUSED_NS = 50_000_000  # less than what a clock is taken to have jumped


def windows(trace: Trace, ends: list[int]) -> Trace:
    """The trace with its recorder paused after each of these steps, for so long as no engine idles."""
    edges = np.array(rows(as_found(trace).steps.table, "end"))[ends]

    def later(frame: pd.DataFrame) -> pd.DataFrame:
        by = {"start": "right", "end": "left"}  # the next step may begin as this one ends
        return frame.assign(**{c: frame[c] + PAUSED_NS * np.searchsorted(edges, frame[c], side=by[c]) for c in by})

    cut = trace.map_tables(lambda _, frame: later(frame) if "start" in frame else frame)
    until = [int(edge) + number * PAUSED_NS for number, edge in enumerate(edges)]
    begin, end = cut.span
    since = [begin, *(edge + PAUSED_NS for edge in until)]
    return within(cut, [TimeRange(a, b) for a, b in zip(since, [*until, end + 1], strict=True)])


def said(found: Recording, word: str = "paused") -> list[str]:
    return [note for note in found.steps.notes if word in note]


@pytest.mark.parametrize(("ends", "times"), [([3], "once"), ([3, 7], "2 times")])
def test_no_idle_time_is_across_a_pause(ends: list[int], times: str) -> None:
    """On a machine whose steps are alike: the mean stays, and the figures say that the recorder paused."""
    whole, found = analyse(recorded("sccc")), analyse(cut := windows(recorded("sccc"), ends))
    assert len(pauses(cut)) == len(ends)
    assert found.gaps.gap_us == pytest.approx(whole.gaps.gap_us)
    assert found.idle.idle_us == pytest.approx(whole.idle.idle_us)
    kept = len(whole.idle.steps) - 2 * len(ends)  # what each pause cuts, and the step before
    assert len(found.idle.steps) == kept
    assert said(found) == [f"the recorder paused {times}; left out: {len(ends)} of 12 steps"]


def test_pauses_survive_cuts_every_format_of_ours_and_scrubbing(tmp_path: Path) -> None:
    cut = windows(recorded("sccc"), [2, 6])
    again = within(Trace(dict(cut.tables), cut.metadata, list(cut.notes)), [TimeRange(*cut.span)])
    assert again.metadata[PAUSES] == cut.metadata[PAUSES]
    begin, end = cut.span
    within(Trace(dict(cut.tables), cut.metadata, []), [TimeRange(begin, begin + 1), TimeRange(end, end + 1)])
    assert len(cut.metadata[PAUSES]) == 2  # the original is left alone
    for name in ("cut", "cut.sqlite", "cut.json", "cut.json.gz"):
        formats.write(cut, tmp_path / name)
        assert pauses(formats.read(tmp_path / name)) == pauses(cut) != []
    assert scrub.scrub_metadata(cut.metadata, Texts())[PAUSES] == cut.metadata[PAUSES]


def test_damaged_pauses_are_none() -> None:
    trace = recorded("sccc")
    for told in (None, 3, "xy", [1], [[1]], [[5, 2, None]], [["a", "b", None]], [[1, 2]], [[1, 2, "x"]], [[1, 2, 3, 1]],
                 [[1, 2, 3, True, 4]], {}, [[0, 1 << 80, 1]]):  # fmt: skip
        trace.metadata[PAUSES] = told
        assert pauses(trace) == []
    assert len(analyse(trace).steps) == 12
    add_pauses(trace, [Pause(1, 2)])
    assert pauses(trace) == [Pause(1, 2)]


def test_a_pause_is_of_its_process() -> None:
    """One process pauses while another is recorded: the first has no gap across, the other loses nothing."""
    cut, other = windows(recorded("sccc"), [3]), recorded("sccc", tokens=80)
    (pause,), one = pauses(cut), int(cut["api"]["process"].iloc[0])
    second = other.map_tables(lambda _, frame: frame.assign(process=2) if "process" in frame else frame)
    both = Trace({name: pd.concat([cut[name], second[name]], ignore_index=True) for name in cut.tables}, {}, [])
    add_pauses(both, [Pause(pause.since, pause.until, one)])
    found = analyse(both)
    groups = rows(found.steps.table, "process", "group")
    assert [len({group for process, group in groups if process == of}) for of in (one, 2)] == [2, 1]
    assert [process for process, _ in groups].count(2) == 80
    assert said(found) == [f"the recorder paused once in process {one}; left out: 1 of 92 steps"]
    spans = [TimeRange(0, 10, 1), TimeRange(5, 15, 2), TimeRange(20, 30, 1), TimeRange(25, 35, 2), TimeRange(35, 40, 2)]
    assert pauses_between(spans) == [Pause(10, 20, 1), Pause(15, 25, 2)]
    assert pauses_between([TimeRange(3, 9)]) == []


def served(every: int, pause_ns: int, begin: int = 1_000_000) -> Engine:
    """A decode loop whose host, before some steps, is in no call for that long, as if it waited for a request."""
    made = Engine()
    made.now = begin
    for step in range(60):
        made.now += 400_000 + (pause_ns if step % every == every - 1 else 0)
        made.graph(step, 1_200_000)
        made.wait()
    return made


def test_no_gap_is_across_an_exec() -> None:
    """A process has another ring behind exec; 40 ms pass until the new program decodes, as the old one did."""
    first = served(1, 0)
    found = analyse(light_trace([first.ring(), served(1, 0, first.now + 40_000_000).ring()]))
    assert [each.is_exec for each in pauses(found.trace)] == [True]
    assert said(found, "exec") == ["the program replaced itself (exec) once; left out: 1 of 120 steps"]
    assert len(set(rows(found.steps.table, "group"))) == 2
    assert found.gaps.gap_us["mean"] == pytest.approx(found.gaps.gap_us["p50"], rel=0.01)


@pytest.mark.parametrize(
    ("every", "ms", "caution"),
    [
        (8, 20, "for up to 20.4 ms, 7 times, 60% of the time: the host waited"),
        (50, 20, ", once, 18% of the time: "),
        (8, 0, None), (8, 1, None), (1, 20, None),  # host code of every step
        (50, 3, None),  # too little to change a mean
    ],
)  # fmt: skip
def test_a_host_that_may_have_waited_for_requests_is_cautioned(every: int, ms: int, caution: str | None) -> None:
    notes = said(analyse(light_trace([served(every, ms * 1_000_000).ring()])), "no call and nothing")
    assert [caution in note for note in notes] == ([] if caution is None else [True])


STEPS, LATE_NS = 120, 2_000_000
NEVER_TIMED = [(21, 40_000, 0), (22, 2_000, 9_000)]


def decoding(one_of: int, late_ns: int = LATE_NS, behind: str = "wait", ends: str = "") -> Recording:
    """As vLLM decodes; at the end of one step of some, kernels whose duration no stamp tells, and a host that comes
    back when they have long ended; with these stamps at their ends; these calls of `Engine` end each step."""
    made = Engine()
    for step in range(STEPS):
        made.now += HOST_NS
        timed = {0} if step % 4 == 0 else set()
        made.run(2 * step + 1, BEFORE_GRAPH, timed, ends="ht" if timed else "")
        made.graph(step, GRAPH_NS)
        if step % one_of == one_of - 1:
            made.run(2 * step + 2, NEVER_TIMED, set(), late_ns, ends)
        else:
            made.run(2 * step + 2, AFTER_GRAPH, timed, ends="")
        for call in behind.split():
            getattr(made, call)()
    return analyse(light_trace([made.ring()]))


@pytest.mark.parametrize(
    ("late_ns", "behind", "ends", "unknown"),
    [
        (LATE_NS, "wait", "", STEPS // 5 - 1),  # the last step has none
        (0, "wait", "", 0), (0, "fetch wait", "", 0),  # the wait returns right after the kernels
        (LATE_NS, "fetch wait", "", STEPS // 5 - 1), (LATE_NS, "fetch query", "", STEPS // 5 - 1),  # for the copy alone
        (LATE_NS, "wait", "t", STEPS // 5 - 1), (0, "wait", "ht", 0),  # a stamp that a late host puts tells no end
    ],
)  # fmt: skip
def test_gaps_whose_begin_is_not_told_are_left_out_and_the_others_stay(
    late_ns: int, behind: str, ends: str, unknown: int
) -> None:
    found = decoding(5, late_ns, behind, ends).gaps
    assert (found.unknown, len(found.table)) == (unknown, STEPS - 1 - unknown)
    assert found.gap_us["mean"] == pytest.approx(HOST_NS / 1e3, abs=30)
    missing = f"without {unknown} of {STEPS - 1} gaps and {unknown + found.idle.left_out} of {STEPS - 1} idle times: "
    assert str(found.left_out).startswith(missing) or not unknown


def test_without_most_of_them_there_is_no_gap() -> None:
    with pytest.raises(EmptyTraceError, match=r"no gap: in 119 of 119 steps it is unknown"):
        decoding(1).gaps  # noqa: B018


def test_the_commands_say_what_is_left_out(tmp_path: Path) -> None:
    formats.write(decoding(5).trace, path := tmp_path / "light")
    for command in ("gaps", "info"):
        assert "warning: without 23 of 119 gaps" in " ".join(run(command, path).output.split())
        assert facts_of(command, path)["left_out"].startswith("without 23 of 119 gaps")


def copying(ahead: int, kind: str, early: int = 0) -> Trace:
    """Twelve steps of a kernel and a blocking copy, by a device clock that is `ahead` ns; `early` kernels, of every
    other step from the fourth on, have a start 50 µs before their launch."""
    script = Script()
    for step in range(12):
        begin = 1_000_000 * (step + 1)
        script.range("token", begin - 1_000, begin + 400_000)
        on_device, kernel = begin + ahead, -50_000 if step in range(3, 3 + 2 * early, 2) else 8_000
        script.launch((begin, begin + 5_000), (on_device + kernel, on_device + 100_000))
        script.copy((begin + 6_000, begin + 300_000), (on_device + 110_000, on_device + 300_000), kind,
                    name="cudaMemcpy_v3020")  # fmt: skip
    return script.trace


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("HtoD", []), ("DtoD", []),
        ("DtoH", ["the clock of device 0 differs from the host's: 40 to 48 µs ahead; left out: 12 of 12 steps"]),
    ],
)  # fmt: skip
def test_only_copies_to_the_host_bound_a_clock(kind: str, said: list[str]) -> None:
    """Those from pageable memory return when they are staged, those within the device at once."""
    trace = copying(40_000, kind)
    assert [doubt.line(12) for doubt in doubts(trace, find_steps(trace))] == said


def test_a_record_with_a_wrong_time_is_no_jump_of_the_clock() -> None:
    for early, said in (
        (1, "1 record of device 0 begins before the launch; left out: 1 of 12 steps"),
        (3, "3 records of device 0 begin before the launch; left out: 3 of 12 steps"),
    ):
        recording = analyse(copying(0, "DtoH", early))
        assert recording.steps.doubts == (said,)
        assert len(recording.steps) == 12 - early
        assert recording.gaps.gap_us["p50"] == pytest.approx(908)


def test_a_recording_in_doubt_still_tells_what_its_device_did(recording: Trace, tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    formats.write(moved(recording, lambda times: np.full(len(times), -1_000_000), DEVICE_TABLES), path)
    info, streams = facts_of("info", path), facts_of("streams", path)
    assert info["problem"].startswith("no step is usable: the clock of device 0 ")
    assert info["devices"] == streams["devices"]
    assert info["kernels"]
    assert (info["steps"], streams["steps"]) == (None, None)
    assert streams["notes"][0].startswith("figures are of the whole recording: no step is usable: ")
    assert run("gaps", path).exit_code == 2
