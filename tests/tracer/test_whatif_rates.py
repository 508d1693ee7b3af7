"""What-ifs of recordings with and without a rate: the profiler's part, margins, and what cannot be told."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tracer.bases import base_of
from tests.tracer.handmade import Script
from tests.tracer.machine import KERNEL, SAMPLING, Machine, recorded
from tests.tracer.machine import RETURN as RETURN_NS
from tests.tracer.test_whatif import FITS, light, period_ns, predicted, with_steps
from tracer.analysis.gaps import gap_report
from tracer.analysis.path.graph import RETURN
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.base import CORRECTED, PLAIN, TRACED
from tracer.analysis.whatif.edits import ScaleHost, ScaleKernels, SyncLatency, WithoutSyncs
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.analysis.whatif.prediction import UNMEASURED
from tracer.errors import EmptyTraceError, TraceError, UsageError


def test_what_was_never_measured_has_no_margin() -> None:
    """And several edits have one only where each has."""
    found = predicted(light(recorded("aaag")), SyncLatency(100))
    assert 0 < found.speedup.estimate < 1
    assert found.speedup.bounds is None
    assert found.notes == [UNMEASURED]
    both = predicted(light(recorded("sccc")), FollowStrategy("saaas"), ScaleHost(0.5))
    assert both.speedup.bounds is None
    assert both.of_steps.bounds is not None


def test_the_interval_holds_what_differs_between_blocks_of_steps() -> None:
    """What a sync that waits for nothing costs is sure where all steps have it, less so where some have it, here and
    there, and least where it is a run of them."""
    mixed = np.random.default_rng(0).permutation(40) < 24
    widths = []
    for has_idle_sync in (np.ones(40, bool), mixed, np.sort(mixed)):
        machine = Machine()
        for token in range(40):
            start = machine.now
            machine.copy()
            machine.launch()
            machine.copy("DtoH")
            machine.sync()
            if has_idle_sync[token]:
                machine.sync()
            machine.think(SAMPLING // 8)
            machine.script.range("token", start, machine.now)
        found = predicted(light(machine.script.trace), WithoutSyncs())
        assert found.of_steps.low <= found.of_steps.estimate <= found.of_steps.high
        widths.append(found.of_steps.high - found.of_steps.low)
        assert found.speedup.low < found.of_steps.low
        assert found.of_steps.high < found.speedup.high
    assert widths[0] == 0 < widths[1] < widths[2]


def test_a_traced_recording_without_a_rate_tells_nothing_of_the_engine() -> None:
    """As recorded is as recorded; what the engine would gain is not stated."""
    found = predicted(recorded("sccc"), FollowStrategy("aaag"))
    assert found.state == TRACED
    assert found.of_engine is None
    assert found.speedup.bounds is None
    assert found.corrected is None
    assert found.recorded.gap_us == gap_report(*with_steps(recorded("sccc"))).gap_us
    assert predicted(found.trace).state == TRACED  # nor does what was predicted from it
    known = predicted(recorded("sccc"), FollowStrategy("aaag"), untraced=1e9 / (period_ns(recorded("sccc")) - 100))
    assert known.state == CORRECTED
    assert known.of_engine == known.speedup
    assert known.recorded.gap_us == found.recorded.gap_us
    assert known.corrected.gap_us["p50"] < known.recorded.gap_us["p50"]
    assert predicted(known.trace).state == PLAIN


def test_idle_at_a_rate_is_what_the_device_leaves() -> None:
    """Of the step without the profiler, and of the one that is predicted."""
    base = period_ns(recorded("sccc"))
    found = predicted(recorded("sccc"), FollowStrategy("aaag"), untraced=1e9 / (base - 100))
    stretch = FITS.stretch.per_kernel + FITS.stretch.share * KERNEL  # its graph has one kernel
    assert found.corrected.idle_us["p50"] * 1e3 == pytest.approx(base - 100 - KERNEL + stretch, abs=1)
    assert found.predicted.idle_us["p50"] * 1e3 == pytest.approx(
        found.predicted.period_us * 1e3 - KERNEL + stretch, abs=20
    )
    assert found.recorded.idle_us["p50"] * 1e3 == base - KERNEL


def test_launches_of_graphs_lose_their_records_first() -> None:
    """With a rate that they account for, the host's other times stay: what they make up is known, not of the rest."""
    trace = recorded("sccc")
    found = base_of(Causality.of(trace), find_steps(trace), 1e9 / (period_ns(trace) - 10))
    assert found.assumed.host == 1
    assert 0 < found.assumed.graph_launch < 1
    more = base_of(Causality.of(trace), find_steps(trace), 1e9 / (period_ns(trace) - 100))
    assert more.assumed.host < 1
    assert more.assumed.graph_launch == FITS.launch_left("node")
    slower = base_of(Causality.of(trace), find_steps(trace), 1e9 / (period_ns(trace) + 50))
    assert slower.assumed.host > 1
    assert slower.corrected.period_us * 1e3 == pytest.approx(period_ns(trace) + 50, abs=12)


def test_where_no_time_passes_there_is_no_speedup() -> None:
    script = Script()
    for token in range(4):
        script.range("token", token * 100, token * 100 + 100)
        script.kernel(token * 100, token * 100 + 100)
    assert predicted(script.trace, ScaleKernels("k", 0.5)).speedup.estimate == 2
    with pytest.raises(EmptyTraceError, match="would become zero"):
        predicted(script.trace, ScaleKernels("k", 0))
    with pytest.raises(UsageError, match="no step has a sync 1; they have none"):
        predicted(script.trace, WithoutSyncs((1,)))


def test_the_return_of_a_wait_is_not_the_profilers() -> None:
    """With the rate of the untraced engine the host's code gets shorter, not what a wait takes after the work."""
    trace = recorded("sccc")
    base = base_of(Causality.of(trace), find_steps(trace), 1e9 / (period_ns(trace) - 60))
    edges = base.causality.dag.edges
    length = base.time[edges.target] - base.time[edges.source]
    returns = (edges.kind == RETURN) & (edges.weight == RETURN_NS)
    assert base.assumed.host < 0.95
    assert returns.sum() >= 12
    assert np.median(length[returns]) == RETURN_NS


def test_an_untraced_rate_takes_the_profilers_part_out_of_the_host() -> None:
    """Compute stays; what the host does shrinks until a token takes what it took without the profiler."""
    trace = recorded("sccc")
    base = period_ns(trace)
    found = predicted(trace, FollowStrategy("aaag"), untraced=1e9 / (base - 100))
    assert found.before.period_us * 1e3 == pytest.approx(base - 100, abs=6)
    assert found.before.steps_per_s == pytest.approx(1e9 / (base - 100))
    assert found.before.tokens_per_s is None  # nothing tells how many a step gains
    with pytest.raises(TraceError, match="tracing stretched the kernels"):
        predicted(trace, FollowStrategy("aaag"), untraced=1e9 / KERNEL)
    with pytest.raises(TraceError, match="that rate is from another run"):
        predicted(trace, FollowStrategy("aaag"), untraced=1e9 / base / 2)
