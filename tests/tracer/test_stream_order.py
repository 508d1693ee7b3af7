"""Records that contradict the order of their stream: each kind on a trace made by hand, and what holds of all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tracer import Trace, analyse
from tracer.analysis.stream_order import in_order
from tracer.errors import EmptyTraceError

STEPS, KERNELS = 12, 4
FIRST, PERIOD, WORK, GAP = 2_000_000_000, 1_000_000, 150_000, 30_000
"""ns: each step launches `KERNELS` kernels, which begin this long behind each other."""


def loop(graphs: bool = False, fetches: bool = False) -> Script:
    """Steps of kernels of 150 µs with 30 µs between them, launched one by one or by one graph each, and of a copy."""
    script = Script()
    for step in range(STEPS):
        begin = FIRST + step * PERIOD
        script.range("token", begin - 50_000, begin + 900_000)
        starts = [begin + number * (WORK + GAP) for number in range(KERNELS)]
        if graphs:
            call = (begin - 40_000, begin - 30_000)
            script.launch(call, *((at, at + WORK) for at in starts), api="cudaGraphLaunch_v10000")
        else:
            for number, at in enumerate(starts):
                launch = begin - 40_000 + number * 1000
                script.launch((launch, launch + 900), (at, at + WORK), name=f"k{number}")
        if fetches:
            script.copy((begin - 29_000, begin - 28_000), (begin + 750_000, begin + 751_000), "DtoH")
        script.sync(begin - 20_000, starts[-1] + WORK + 5000)
    return script


def changed(script: Script, rows: list[int], **times: int) -> Trace:
    """The trace with other times in some kernels; `by` is how much later they end."""
    by = times.pop("by", 0)
    for row in rows:
        kernel = script.rows["kernels"][row]
        kernel |= times
        kernel["end"] += by
    return script.trace


def busy_is_within_periods(trace: Trace) -> None:
    recording = analyse(trace)
    steps = recording.idle.periods
    assert (steps.busy <= steps.period).all()
    compared = recording.measured.steps
    known = ~np.isnan(compared.period)
    assert (compared.busy[known] <= compared.period[known]).all()


def test_nothing_is_said_of_streams_in_order() -> None:
    for script in (loop(), loop(graphs=True)):
        trace = script.trace
        recording = analyse(trace)
        assert recording.trace is trace
        assert len(trace.contradictions.rows) == 0
        assert (len(recording.steps), recording.notes) == (STEPS, [])


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("by", [3_000_000, 7_000_000, 200_000])
def test_a_long_kernel_is_cut_and_its_step_left_out(graphs: bool, by: int) -> None:
    truth = analyse(loop(graphs).trace)
    trace = changed(loop(graphs), [2 * KERNELS + 1], by=by)
    found = analyse(trace)
    name = "k" if graphs else "k1"
    assert found.trace.notes[0].startswith(
        f"1 of the device's {STEPS * KERNELS} records contradicts the order of its stream: 1 cut where the next work "
        "begins; record again, with intertoken record\n"
    )
    assert f"or has no time ({name}): 1 cut" in found.trace.notes[0]
    assert found.steps.doubts == (
        f"records of the device contradict the order of their stream; left out: 1 of {STEPS} steps",
    )
    assert found.idle.share == truth.idle.share
    assert set(found.idle.periods.idle.tolist()) == set(truth.idle.periods.idle.tolist())
    assert found.steps.rows.start.tolist() == np.delete(truth.steps.rows.start, 2).tolist()
    busy_is_within_periods(trace)


@pytest.mark.parametrize("stamp", [{"start": 0, "end": 0}, {"end": 0}, {"start": FIRST, "end": FIRST - 1}])
def test_kernels_without_times_are_left_out_with_their_steps(stamp: dict[str, int]) -> None:
    rows = [5, 9, 30]
    found = analyse(changed(loop(), rows, **stamp))
    assert found.trace.notes[0].startswith(
        f"3 of the device's {STEPS * KERNELS} records contradict the order of their stream"
    )
    assert "(k1, k2): 3 left out; record again" in found.trace.notes[0]
    assert found.steps.doubts == (
        f"records of the device contradict the order of their stream; left out: 3 of {STEPS} steps",
    )
    assert set(found.idle.periods.idle.tolist()) == {PERIOD - KERNELS * WORK}
    assert len(found.trace.kernels) == STEPS * KERNELS - 3


def test_a_kernel_that_was_over_before_earlier_work_began_is_left_out() -> None:
    early = FIRST - 30_000
    found = analyse(changed(loop(), [9 * KERNELS + 2], start=early, end=early + WORK // 10))
    assert "(k2): 1 left out" in found.trace.notes[0]
    assert found.steps.doubts[0].endswith(f"left out: 1 of {STEPS} steps")
    assert set(found.idle.periods.idle.tolist()) == {PERIOD - KERNELS * WORK}


def test_a_burst_of_kernels_behind_later_work_is_left_out() -> None:
    """They are stamped behind the kernels of the next two steps, one behind the other."""
    script, behind = loop(), FIRST + 7 * PERIOD - 60_000
    for number in range(3):
        script.rows["kernels"][4 * KERNELS + 1 + number] |= {
            "start": behind + number * 2000, "end": behind + number * 2000 + 1500,
        }  # fmt: skip
    found = analyse(script.trace)
    assert "(k1, k2 and others): 3 left out" in found.trace.notes[0]
    assert found.steps.doubts[0].endswith(f"left out: 1 of {STEPS} steps")


@pytest.mark.parametrize(("steps", "left_out"), [(1, 1), (3, 3), (5, 0)])
def test_a_burst_behind_the_wait_for_it_is_left_out(steps: int, left_out: int) -> None:
    """The next step begins later, so that all is in order on the stream; of five steps in a row it is the clock."""
    script = loop()
    for kernel in script.rows["kernels"][5 * KERNELS :]:
        kernel |= {"start": kernel["start"] + 60 * PERIOD, "end": kernel["end"] + 60 * PERIOD}
    for call in [*script.rows["api"], *script.rows["syncs"], *script.rows["nvtx"]]:
        late = 60 * PERIOD * (call["start"] > FIRST + 5 * PERIOD - 60_000)
        call |= {"start": call["start"] + late, "end": call["end"] + late}
    for step in range(5 - steps, 5):
        for number in range(KERNELS):
            at = FIRST + step * PERIOD + 850_000 + number * 2000
            script.rows["kernels"][step * KERNELS + number] |= {"start": at, "end": at + 1500}
    trace = in_order(script.trace)
    assert len(trace.contradictions.rows) == left_out * KERNELS
    if left_out:
        assert analyse(trace).steps.doubts[0].endswith(f"left out: {left_out} of {STEPS} steps")


def test_kernels_stamped_together_are_left_out() -> None:
    begin = FIRST + 6 * PERIOD
    found = analyse(changed(loop(), [*range(6 * KERNELS, 7 * KERNELS)], start=begin, end=begin + 5000))
    assert f"{KERNELS} left out" in found.trace.notes[0]
    assert found.steps.doubts[0].endswith(f"left out: 1 of {STEPS} steps")


def test_a_copy_without_times_keeps_telling_what_its_step_is() -> None:
    script = loop(fetches=True)
    script.rows["memcpys"][5] |= {"start": 0, "end": 0}
    found = analyse(script.trace)
    assert len(found.trace.memcpys) == STEPS
    assert found.steps.doubts[0].endswith(f"left out: 1 of {STEPS} steps")


def test_if_most_records_are_wrong_there_are_no_times() -> None:
    recording = analyse(changed(loop(), [*range(STEPS * KERNELS // 2 + 1)], start=0, end=0))
    refusal = f"the recording has no times of the device: {STEPS * KERNELS // 2 + 1} of the device's {STEPS * KERNELS} "
    with pytest.raises(EmptyTraceError, match=refusal):
        recording.steps  # noqa: B018
    assert recording.summary.problem.startswith(refusal)


def test_times_without_any_order_are_none() -> None:
    script, kernels = loop(), STEPS * KERNELS
    for row, at in enumerate(np.random.default_rng(1).permutation(kernels).tolist()):
        script.rows["kernels"][row] |= {"start": FIRST + at * PERIOD, "end": FIRST + at * PERIOD + WORK}
    found = in_order(script.trace).contradictions
    assert found.is_most
    assert kernels / 2 < len(found) < kernels
    with pytest.raises(EmptyTraceError, match=f"no times of the device: {len(found)} of"):
        analyse(script.trace).steps  # noqa: B018


def test_a_device_clock_that_jumps_back_is_left_to_the_check_of_clocks() -> None:
    script = loop()
    for kernel in script.rows["kernels"][6 * KERNELS :]:
        kernel |= {"start": kernel["start"] - 2 * PERIOD, "end": kernel["end"] - 2 * PERIOD}
    assert len(in_order(script.trace).contradictions.rows) == 0


@st.composite
def streams(draw: st.DrawFn) -> Script:
    """Work in order on several streams: kernels, some of which begin before the one before them is over, and graphs
    whose two kernels overlap."""
    script, host = Script(), FIRST
    free, begun = dict.fromkeys((7, 13, 20), FIRST), dict.fromkeys((7, 13, 20), FIRST)
    for kind in draw(st.lists(st.sampled_from(["kernel", "dependent", "graph"]), min_size=2, max_size=60)):
        stream, length = draw(st.sampled_from(sorted(free))), draw(st.integers(500, 300_000))
        call, host = (host, host + 900), host + draw(st.integers(1000, 200_000))
        begin = max(free[stream], call[0]) + draw(st.integers(0, 40_000))
        if kind == "graph":
            length = 60_000 + length // 50
            inside = (begin + length // 3, begin + length // 2)
            script.launch(call, (begin, begin + length), inside, stream=stream, name="of graph")
        else:
            begin = max(begin - draw(st.integers(0, 15_000)) * (kind == "dependent"), call[0], begun[stream])
            length += max(free[stream] - begin, 0)
            script.launch(call, (begin, begin + length), stream=stream, name=draw(st.sampled_from("abc")))
        free[stream], begun[stream] = begin + length, begin
    return script


@settings(max_examples=60)
@given(streams())
def test_nothing_is_cut_on_streams_in_order(script: Script) -> None:
    trace = script.trace
    assert in_order(trace) is trace
    assert len(trace.contradictions.rows) == 0


@given(st.integers(0, STEPS * KERNELS - 2), st.integers(500_000, 5_000_000), st.booleans())
def test_one_inflated_kernel_is_found_wherever_it_is(row: int, by: int, graphs: bool) -> None:
    trace = changed(loop(graphs), [row], by=by)
    assert in_order(trace).contradictions.rows.start.tolist() == [trace.kernels.start[row]]
    truth, found = analyse(loop(graphs).trace), analyse(trace)
    assert set(found.idle.periods.idle.tolist()) == set(truth.idle.periods.idle.tolist())
    assert len(found.steps) == STEPS - 1
    busy_is_within_periods(trace)
