"""Steps that clocks or lost records spoil are found, said, and in no figure."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.recordings import KINDS, LLAMA, SAMPLES
from tests.tracer.engines import Host
from tests.tracer.handmade import Script
from tracer import Trace, formats
from tracer.analysis.clocks import doubts, without_doubtful
from tracer.analysis.gaps import GapReport, gap_report
from tracer.analysis.step_work import steps_per_s
from tracer.analysis.tokens import ALL_STEPS, Bounds, Steps, choose_steps, find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError
from tracer.model.schema import DEVICE_TABLES, MISSING
from tracer.model.trace import LIGHT

SECOND = 10**9
ON_HOST = ("api", "syncs", "nvtx")


@pytest.fixture(scope="module")
def recording() -> Trace:
    """A real one, llama.cpp at graph level, without what was before its steps."""
    trace = formats.read(LLAMA["saaas", "graph"], whole=False)
    begin = int(find_steps(trace).table["start"].iloc[0])
    return trace.map_tables(lambda _, frame: frame[frame["start"] >= begin] if "start" in frame else frame)


@pytest.fixture(scope="module")
def steps(recording: Trace) -> Steps:
    return find_steps(recording)


@pytest.fixture(scope="module")
def truth(recording: Trace, steps: Steps) -> GapReport:
    return gap_report(recording, steps)


Shift = Callable[[np.ndarray], np.ndarray]


def moved(trace: Trace, shift: Shift, tables: tuple[str, ...] = (*ON_HOST, *DEVICE_TABLES)) -> Trace:
    """The trace as clocks would have written it that say `shift(t)` at `t`."""
    return trace.map_tables(
        lambda name, frame: (
            frame.assign(**{side: frame[side] + shift(frame[side].to_numpy()) for side in ("start", "end")})
            if name in tables
            else frame
        )
    )


def at(time: int, by: int) -> Shift:
    return lambda times: np.where(times >= time, by, 0)


def middle(trace: Trace, steps: Steps, inside: str) -> int:
    """A time in the middle of the steps: in the host's own code, in a sync while the device works, in a launch."""
    half = int(steps.table["start"].iloc[len(steps) // 2])
    if inside == "host code":
        ends = np.sort(trace["api"]["end"].to_numpy())
        starts = np.sort(trace["api"]["start"].to_numpy())
        idle = [(a, b) for a in ends[ends > half][:20] for b in starts[starts > a][:1] if b - a > 1000]
        return int((idle[0][0] + idle[0][1]) // 2)
    graphs = trace["graph_launches"]
    graph = graphs[graphs["start"] > half].iloc[0]
    if inside == "sync":
        return int(graph["start"] + graph["end"]) // 2
    return int(trace["api"].set_index("correlation").loc[int(graph["correlation"]), "start"]) + 10


def close_to(found: GapReport, truth: GapReport) -> None:
    assert found.gap_us["p50"] == pytest.approx(truth.gap_us["p50"], rel=0.02)
    assert found.gap_us["mean"] == pytest.approx(truth.gap_us["mean"], rel=0.1)
    assert found.idle.busy_us == pytest.approx(truth.idle.busy_us, rel=0.01)
    assert found.causes_us == pytest.approx(truth.causes_us, rel=0.2, abs=2)


@pytest.mark.parametrize("name", KINDS)
def test_sound_recordings_lose_no_step(name):
    trace = formats.read(SAMPLES / name, whole=False)
    steps = find_steps(trace)
    assert without_doubtful(trace, steps).doubts == ()


@pytest.mark.parametrize("inside", ["host code", "sync", "launch"])
def test_a_jump_forward(recording, steps, truth, inside):
    spoilt = moved(recording, at(middle(recording, steps, inside), 5 * SECOND))
    chosen = choose_steps(spoilt, None, ALL_STEPS)
    [why] = chosen.doubts
    assert "for up to 5.00 s, once: the clock jumped, or the program paused; left out: 1 of" in why
    assert why in chosen.notes
    assert len(chosen) == len(steps) - 1
    assert steps_per_s(spoilt, chosen) == pytest.approx(steps_per_s(recording, steps), rel=0.02)
    close_to(gap_report(spoilt, chosen), truth)


def test_a_jump_back(recording, steps, truth):
    spoilt = moved(recording, at(middle(recording, steps, "host code"), -5 * SECOND))
    chosen = choose_steps(spoilt, None, ALL_STEPS)
    [why] = chosen.doubts
    assert why.startswith("the clock went back by up to 5.00 s, once; left out: ")
    assert len(steps) - 4 <= len(chosen) < len(steps)
    assert steps_per_s(spoilt, chosen) == pytest.approx(steps_per_s(recording, steps), rel=0.05)
    close_to(gap_report(spoilt, chosen), truth)


@pytest.mark.parametrize("by", [-2_000_000, 2_000_000, -50_000])
def test_device_and_host_apart_for_half_of_it(recording, steps, truth, by):
    spoilt = moved(recording, at(middle(recording, steps, "host code"), by), DEVICE_TABLES)
    chosen = choose_steps(spoilt, None, ALL_STEPS)
    [why] = chosen.doubts
    low, high = (float(word.replace(",", "")) for word in why.split(": ")[1].split(" µs")[0].split(" to "))
    assert low - 1 <= abs(by) / 1e3 <= high + 1
    assert high - low < 20
    assert ("behind" in why) == (by < 0)
    half = len(steps) // 2
    assert half - 2 <= len(chosen) <= half + 2
    close_to(gap_report(spoilt, chosen), truth)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_wait_for_the_event_before_does_not_wait_for_this_step(recorded):
    """Each step waits for the event of the one before while its own kernel runs for 400 µs more."""
    script = Script()
    for step in range(10):
        begin = step * 500_000
        script.range("token", begin, begin + 100_000)
        script.launch((begin, begin + 1000), (begin + 2000, begin + 490_000))
        if recorded:
            script.record(begin + 2000, begin + 3000, event=step)
        if step:
            script.sync(begin + 4000, begin + 9000, name="cudaEventSynchronize_v3020", type="event", event=step - 1)
    chosen = choose_steps(script.trace, None, ALL_STEPS)
    assert (len(chosen), chosen.doubts) == (10, ())


def test_a_few_microseconds_ahead_are_said_and_spoil_nothing(recording, steps):
    spoilt = moved(recording, lambda times: np.full(len(times), 25_000), DEVICE_TABLES)
    chosen = choose_steps(spoilt, None, ALL_STEPS)
    assert len(chosen) == len(steps)
    assert "µs ahead; parts of gaps and waits have at least that error" in chosen.doubts[0]


@pytest.mark.parametrize(("error", "told"), [(326_000, ["326 µs"]), (13_000, [])])
def test_an_inexact_clock_is_told_and_spoils_nothing(recording, steps, error, told):
    inexact = Trace(dict(recording.tables), recording.metadata | {"clock": {"device_error_ns": error}}, [])
    chosen = without_doubtful(inexact, steps)
    assert len(chosen) == len(steps)
    notes = [note for note in chosen.notes if "device times are known to within" in note]
    assert len(notes) == len(told)
    assert all(words in note for words, note in zip(told, notes, strict=True))


def test_rounding_to_microseconds_is_no_doubt(recording, steps):
    rounded = moved(recording, lambda times: times // 1000 * 1000 - times)
    assert doubts(rounded, find_steps(rounded)) == []


def test_a_whole_recording_in_doubt_is_refused(recording):
    spoilt = moved(recording, lambda times: np.full(len(times), -1_000_000), DEVICE_TABLES)
    with pytest.raises(EmptyTraceError, match=r"no step is usable: the clock of device 0 "):
        choose_steps(spoilt, None, ALL_STEPS)


def dropped(trace: Trace, table: str, gone: pd.Series) -> Trace:
    return trace.map_tables(lambda name, frame: frame[~gone] if name == table else frame)


def test_launches_without_work(recording, steps, truth):
    graphs = recording["graph_launches"]
    mine = graphs[graphs["start"] > int(steps.table["start"].iloc[20])].index[:3]
    spoilt = dropped(recording, "graph_launches", graphs.index.isin(mine))
    chosen = choose_steps(spoilt, None, ALL_STEPS)
    assert chosen.doubts == (
        f"records are missing: launches without recorded work (3); left out: 3 of {len(steps)} steps",
    )
    close_to(gap_report(spoilt, chosen), truth)


def test_work_without_launches(recording, steps):
    graphs, api = recording["graph_launches"], recording["api"]
    mine = graphs.loc[graphs["start"] > int(steps.table["start"].iloc[20]), "correlation"].iloc[[0, 5, 9]]
    spoilt = dropped(recording, "api", api["correlation"].isin(mine))
    found = doubts(spoilt, find_steps(spoilt))
    assert [(each.why, len(each.steps)) for each in found] == [
        ("records are missing: work without a recorded launch (3)", 3)
    ]


def losing(tables: tuple[str, ...], lost: Callable[[int], bool], kind: str = "") -> Trace:
    """A decode loop of 60 steps; these rows of some tables lack their number: copies only of that kind, calls only of
    launches of kernels."""
    host = Host(Script())
    for _ in range(60):
        host.step()
        host.copy()
        host.kernels(["prepare"] * 4)
        host.graph(1)
        host.fetch()
    for name in tables:
        rows = [row for row in host.script.rows[name] if row.get("kind", "").startswith(kind)]
        rows = [row for row in rows if name != "api" or row["name"].startswith("cudaLaunchKernel")]
        for at, row in enumerate(rows):
            if lost(at):
                row["correlation"] = MISSING
    return host.script.trace


WORK = ("kernels", "memcpys", "graph_launches")
HALF = np.random.default_rng(5).random(1000) < 0.5


@pytest.mark.parametrize("tables", [WORK, ("graph_launches",), ("memcpys",)])
@pytest.mark.parametrize(
    "lost", [lambda at: HALF[at], lambda at: at % 2 == 1, lambda at: at % 3 > 0], ids=["half", "every 2nd", "2 of 3"]
)
def test_what_losses_may_join_is_no_step(tables, lost, tmp_path):
    """Of the records that show where a step ends some are missing, at random or in the rhythm of the steps."""
    trace = losing(tables, lost, kind="D" if tables == ("memcpys",) else "")
    with pytest.raises(EmptyTraceError, match=r"the steps are unknown: records are missing: .* may be several"):
        choose_steps(trace, None, ALL_STEPS)
    formats.write(trace, tmp_path / "lost")
    told = json.loads(CliRunner().invoke(main, ["info", str(tmp_path / "lost"), "--json"]).stdout)
    assert told["steps"] is None
    assert told["problem"].startswith("the steps are unknown")
    by_name = choose_steps(trace, None, Bounds(pattern="cudaGraphLaunch"))
    assert len(by_name) == 60


@pytest.mark.parametrize("tables", [("api",), ("kernels",)])
def test_lost_kernels_join_no_steps(tables):
    chosen = choose_steps(losing(tables, lambda at: HALF[at]), None, ALL_STEPS)
    assert any(" of " in why and "records are missing" in why for why in chosen.doubts)
    assert len(chosen) == 60


@pytest.mark.parametrize("every", [1, 2, 3])
def test_graphs_without_times_are_no_idle_time(every):
    """Marked steps, some of whose graphs have no record, as those that the light recorder cannot stamp: their time is
    not idle. If most have none, nothing is known of the others either."""
    host = Host(Script())
    for step in range(60):
        begin = host.now
        host.copy()
        host.kernels(["prepare"] * 2)
        host.graph(1)
        host.now += 600
        host.fetch()
        host.script.range("token", begin, host.now)
        if step % every == 0:
            host.script.rows["graph_launches"].pop()
    trace = Trace(dict(host.script.trace.tables), {"source": LIGHT}, [])
    chosen = choose_steps(trace, None, ALL_STEPS)
    if every < 3:
        with pytest.raises(EmptyTraceError, match="no gap and no idle time: records are missing: launches without"):
            gap_report(trace, chosen)
    else:
        assert (len(chosen), chosen.source) == (40, "nvtx")
        assert gap_report(trace, chosen).idle.idle_us["p50"] < 0.6


def test_a_light_recording_without_times_says_what_has_them():
    host = Host(Script())
    host.copy()
    trace = Trace(dict(host.script.trace.tables), {"source": LIGHT}, [])
    with pytest.raises(
        EmptyTraceError, match=r"was CUDA traced \(the light recorder cannot .*; --passes graph can\)\?"
    ):
        find_steps(trace)


def test_work_that_was_launched_before_the_recording_is_no_loss(recording, steps):
    begin = int(steps.table["start"].iloc[10]) + 1_000_000
    late = recording.map_tables(lambda name, frame: frame[frame["start"] >= begin] if name == "api" else frame)
    late = late.map_tables(lambda name, frame: frame[frame["end"] >= begin] if name in DEVICE_TABLES else frame)
    assert doubts(late, find_steps(late)) == []


def test_two_hosts_lose_their_own_wall_alone(recording, steps):
    table = pd.concat([steps.table, steps.table.assign(process=7)], ignore_index=True)
    two = replace(steps, table=table)
    rate = steps_per_s(recording, steps)
    assert steps_per_s(recording, two.without(np.array([3]), [], ["why"])) == pytest.approx(rate, rel=0.02)
    times = two.without(np.array([3]), [(0, 5, None)], ["why"]).spoilt
    assert len(times) == 3
    assert set(times["process"]) == {int(steps.table["process"].iloc[0]), 7}
    assert MISSING not in set(times["end"])
