"""Gaps, idle time, bubbles and waits of streams add up, whatever happens; the exact truths are in data/truths."""

from contextlib import suppress

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.truths import as_found, rows, value
from tracer import Trace
from tracer.analysis.causes import CAUSES, PART_COLUMNS, PARTS
from tracer.analysis.idle import PLACES
from tracer.analysis.streams import WAITS
from tracer.errors import EmptyTraceError
from tracer.model.intervals import total

SPAN = st.tuples(st.integers(0, 5000), st.integers(0, 400)).map(lambda s: (s[0], s[0] + s[1]))
NAMES = [
    "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaGraphLaunch_v10000",
    "cudaGraphInstantiate_v12000", "cudaEventRecord_v3020",
]  # fmt: skip


@st.composite
def disorder(draw: st.DrawFn) -> Trace:
    """A few steps on two devices among calls, copies, ranges and kernels anywhere."""
    script, threads = Script(), st.sampled_from([THREAD, THREAD + 1])
    for token in range(draw(st.integers(2, 5))):
        script.range("token", token * 1000, token * 1000 + 900)
        kernels = draw(st.lists(SPAN, min_size=1, max_size=3))
        script.launch((token * 1000 + 1, token * 1000 + 30), *kernels, device=draw(st.integers(0, 1)))
    for span in draw(st.lists(SPAN, max_size=12)):
        script.call(draw(st.sampled_from(NAMES)), *span, thread=draw(threads))
    for span in draw(st.lists(SPAN, max_size=4)):
        script.copy((0, 1), span, stream=draw(st.integers(7, 8)))
    for span in draw(st.lists(SPAN, max_size=4)):
        script.range(draw(st.sampled_from(["split 0: host", "work"])), *span, thread=draw(threads))
    for span in draw(st.lists(SPAN, max_size=3)):
        script.kernel(*span, process=draw(st.sampled_from([PROCESS, 999])))
    for span in draw(st.lists(SPAN, max_size=3)):
        script.launch((1, 2), span, name="ncclDevKernel_SendRecv", device=draw(st.integers(0, 1)))
    return script.trace


def check_causes(table: object, whole: list[int]) -> None:
    """Parts add up to causes, and causes to the whole, in whole nanoseconds, none of them negative."""
    found = rows(table, *PART_COLUMNS, *CAUSES)
    assert all(isinstance(ns, int) and ns >= 0 for row in found for ns in row)
    for row, ns in zip(found, whole, strict=True):
        each = dict(zip([*PART_COLUMNS, *CAUSES], row, strict=True))
        assert all(sum(each[part] for part in inner) == each[cause] for cause, inner in PARTS.items())
        assert sum(each[cause] for cause in CAUSES) == ns


@settings(max_examples=16)
@given(disorder())
def test_periods_gaps_and_bubbles_are_the_sum_of_their_parts(trace: Trace) -> None:
    recording = as_found(trace, pattern="token")
    with suppress(EmptyTraceError):
        check_gaps(recording)
    assume(len(recording.trace.kernels))  # those without a length are left out
    bubbles = value(recording, "bubbles")
    check_causes(bubbles.table, [sum(row) for row in rows(bubbles.table, "length", "communication")])
    assert sum(rows(bubbles.steps, "total")) == sum(rows(bubbles.table, "length"))
    for idle, *waits in rows(bubbles.streams, "idle_us", *(f"{name}_us" for name in WAITS)):
        assert min(waits) >= 0
        assert sum(waits) == pytest.approx(idle)
    spans = rows(recording.spans, "device", "start", "end")
    for device in {device for device, *_ in spans}:  # bubbles and compute fill the device within its steps
        steps = [span for of, *span in spans if of == device]
        compute = [(a, b) for of, at, a, b in rows(recording.compute, "device", "at", "start", "end")
                   if of == device and at >= 0]  # fmt: skip
        idle = [sum(ns) for of, *ns in rows(bubbles.table, "device", "length", "communication") if of == device]
        assert total(*zip(*steps, strict=True)) == total(*zip(*compute, strict=True)) + sum(idle)


def check_gaps(recording: object) -> None:
    gaps = recording.gaps_at_rate
    idle = gaps.idle
    check_causes(gaps.table, rows(gaps.table, "gap"))
    assert sum(gaps.causes_us.values()) == pytest.approx(gaps.gap_us["mean"])
    for period, busy, communication, others, idled, *places in rows(
        idle.steps, "period", "busy", "communication", "others", "idle", *PLACES
    ):
        assert min(busy, communication, others, idled, *places) >= 0
        assert busy + communication + others + idled == period
        assert sum(places) == idled
    everything = sum(rows(idle.steps, "idle"))
    assert sum(end - start for start, end in rows(idle.table, "start", "end")) == everything
    assert sum(rows(idle.holes, "idle_us")) * len(idle.steps) * 1e3 == pytest.approx(everything)
    assert all(part <= whole for part, whole in rows(idle.holes, "part_us", "idle_us"))
    for place, causes in idle.causes_us.items():
        assert sum(causes.values()) == pytest.approx(idle.idle_us[place])
        assert all(part >= 0 for inner in idle.parts_us[place].values() for part in inner.values())


BETWEEN = st.tuples(st.integers(100, 3900), st.integers(1, 300)).map(lambda s: (s[0], s[0] + s[1]))
SPANS = st.lists(BETWEEN, max_size=6)
Spans = list[tuple[int, int]]


@settings(max_examples=8)
@given(SPANS, SPANS, SPANS, st.lists(BETWEEN, max_size=3))
def test_causes_nanosecond_by_nanosecond(copies: Spans, frees: Spans, launches: Spans, strangers: Spans) -> None:
    script = Script()
    for begin in (0, 2000, 4000):
        script.range("token", begin, begin + 1990)
        script.launch((begin + 1, begin + 5), (begin + 10, begin + 100))
    launched = {4: (1, 5), 2010: (2001, 2005), 4010: (4001, 4005)}
    for call in launches:
        kernel = (call[1] + 7, call[1] + 40)
        launched.setdefault(kernel[0], call)  # of several that begin at once the first
        script.launch(call, kernel)
    for copy in copies:
        script.copy((copy[0] - 9, copy[0] + 9), copy)
    for free in frees:
        script.call("cudaFree_v3020", *free)
    for stranger in strangers:
        script.kernel(*stranger, process=999)
    trace = script.trace
    ours = [(a, b) for a, b, process in rows(trace["kernels"], "start", "end", "process") if process == PROCESS]
    api = rows(trace["api"], "name", "start", "end")

    def inside(spans: Spans, at: int) -> bool:
        return any(a <= at < b for a, b in spans)

    def called(word: str) -> Spans:
        return [(a, b) for name, a, b in api if word in name]

    def part(at: int, begin: int, behind: int, call: tuple[int, int]) -> str:
        """`begin` of the idle piece, and the start and the launch of the compute behind its hole."""
        if inside([copy for copy in copies if copy[1] <= behind], at):
            return "copy_device"
        if inside(called("Launch"), at):
            return "launch_call"
        if call[1] <= begin:
            return "launch_queued"
        if at >= call[0]:
            return "launch_latency"
        if inside(called("Memcpy"), at):
            return "copy_call"
        return "host_allocation" if inside(called("Free"), at) else "host_code"

    first, last = 10, 4010
    free = [not inside(ours, at) and not inside(strangers, at) for at in range(first, last)]
    expected: dict[str, int] = {}
    begin = first
    for at in range(first, last):
        if free[at - first]:
            if not free[at - 1 - first]:
                begin = at
            behind = min(start for start, _ in ours if start > at)
            name = part(at, begin, behind, launched[behind])
            expected[name] = expected.get(name, 0) + 1
    idle = as_found(trace, pattern="token").idle
    found: dict[str, float] = {}
    for causes in idle.parts_us.values():
        for name, us in (each for inner in causes.values() for each in inner.items() if each[1]):
            found[name] = found.get(name, 0) + us * 1e3 * len(idle.steps)
    assert found == pytest.approx(expected)
