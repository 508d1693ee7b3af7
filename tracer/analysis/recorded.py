"""One recording as a comparison needs it: figures per token step, its kernels, and the conditions that must match."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.causes import CAUSES
from tracer.analysis.distortion import UNUSED_RATE
from tracer.analysis.evidence import engine_of
from tracer.analysis.gaps import GapReport, measured_rate
from tracer.analysis.rates import Unit as Unit
from tracer.analysis.rates import Untraced, of_run_json, of_steps_per_s
from tracer.analysis.step_work import Compute, StepSpans, activity_steps, of_steps, step_spans, tokens_per_step
from tracer.analysis.syncs import StepCounts
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError, TraceError
from tracer.model import run_json
from tracer.model.columns import Columns, Names, firsts, median, numbers, positions, ranks, spread
from tracer.model.intervals import Bools, Floats, Ints, covered
from tracer.model.run_json import conditions
from tracer.model.schema import MISSING
from tracer.model.trace import Trace, names_of
from tracer.notes import brief, by_weight

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording

COUNTS: Final = ("syncs", "copies", "launches")
WHOLE_GRAPH: Final = "CUDA graph"

_NEARLY_ALL: Final = 0.9  # of the steps; requests start and end one by one


class StepTimes(Columns):
    """Times of steps, µs; NaN if unknown.

    Attributes:
        period: to the next step.
        compute: first start to last end.
        busy: union of its kernels, at most the period.
        gap: to the next step, and its causes, a column for each key of `CAUSES`.
    """

    step: Ints
    period: Floats
    compute: Floats
    busy: Floats
    gap: Floats
    communication: Floats
    sync: Floats
    copy: Floats
    launch: Floats
    host: Floats
    other: Floats

    def values(self, *names: str) -> Floats:
        """(n, m): these columns."""
        return np.stack([getattr(self, name) for name in names], axis=1)

    def mean(self, name: str) -> float:
        """The mean of a column over the steps that have it; NaN if none has."""
        values: Floats = getattr(self, name)
        known = ~np.isnan(values)
        return float(np.where(known, values, 0).sum() / known.sum()) if known.any() else float("nan")


class DeviceSteps(StepTimes):
    """Steps on a device each."""

    device: Ints


class MeasuredSteps(StepTimes):
    """Steps, averaged over the devices, with the number of their calls; NaN if the trace has no API calls."""

    syncs: Floats
    copies: Floats
    launches: Floats


class StepKernels(Columns):
    """The kernels of each step.

    Attributes:
        name, blocks: what identifies comparable kernels: the short name and the grid's class, its blocks rounded up to
            a power of two.
        calls, us: their number, and their time.
    """

    step: Ints
    name: Names
    blocks: Ints
    calls: Ints
    us: Floats


@dataclass(frozen=True, eq=False)
class Measured:
    """The token steps of one trace; times in µs.

    Attributes:
        name: as shown to readers.
        engine: the engine that was recorded, "" if nothing shows it.
        process: what identifies the process, or else the file; "" if nothing does.
        conditions: model, batch, gpu, ... -> their value as text; unknown ones are left out. A batch size that is only
            known from the marks of the steps is included if nearly all steps have it; so is the number of devices on
            which they compute if run.json does not give it.
        phases: the phases of the steps, of `engines.engine.PHASES`; `held` those of all steps of the recording.
        graph_trace: "node", "graph" or "none"; `traced` whether it was made under a profiler.
        distortion: traced / untraced period, None if unknown.
        tokens_per_step: see `step_work.tokens_per_step`; None if unknown.
        gained: the tokens of each step; empty if they are not known.
        steps_per_s: by the median period of the recorded steps.
        untraced: the rate without a profiler, None if unknown.
        gaps: the gaps, without tracing's inflation if the untraced rate is known (`corrected`), even roughly
            (`GapReport.middle_gap_us`).
        gap_error: half the 95 % interval of a corrected gap due to the untraced rate, µs; 0 if not corrected.
        device_steps: the steps on each device.
        steps: the same averaged over the devices.
        kernels: those of each step, collectives included. All whole graphs count as one kernel of one block.
        copied: the bytes of the copies of a step, in the most common combination, to the device and to the host; empty
            where a size is unknown.
        strategy, signature: as in `SyncReport`; None if the trace has no API calls; no strategy if nothing decodes.
        notes: caveats about the trace and its steps, a sentence each.
    """

    name: str
    engine: str
    process: str
    conditions: dict[str, str]
    phases: tuple[str, ...]
    held: tuple[str, ...]
    graph_trace: str
    traced: bool
    distortion: float | None
    tokens_per_step: float | None
    gained: Floats
    steps_per_s: float
    untraced: Untraced | None
    gaps: GapReport
    corrected: bool
    gap_error: float
    device_steps: DeviceSteps
    steps: MeasuredSteps
    kernels: StepKernels
    strategy: str | None
    signature: str | None
    notes: tuple[str, ...]
    copied: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def inflated(self) -> bool:
        """Whether the gaps are longer than without a profiler."""
        return self.traced and not self.corrected

    @property
    def period_by_rate_us(self) -> float | None:
        """A step by the rate without a profiler; None if that is unknown."""
        if self.untraced is None:
            return None
        per_step = self.tokens_per_step if self.untraced.unit == "tokens/s" else 1.0
        return None if per_step is None else 1e6 * per_step / self.untraced.median

    @property
    def recorder(self) -> str:
        """The tool that made it, without its version; "" if unknown."""
        return self.conditions.get("source", "").partition(" ")[0]

    @property
    def kernels_per_step(self) -> float:
        """The median number of individually recorded kernels per step."""
        number, count = numbers(self.kernels.step)
        return median(np.bincount(number, self.kernels.calls * self._is_recorded, count))

    @property
    def least_share(self) -> float:
        """The minimum share of a step's period in which the device computes and to which tracing cannot have
        contributed: 0..1; 1 if untraced.

        A profiler adds host time, which may account for everything between the kernels, and some time to each kernel
        it records, at most as long as the shortest of them.
        """
        if not self.traced:
            return 1.0
        kernels = self.kernels[self._is_recorded]
        shortest = float((kernels.us / kernels.calls).min()) if len(kernels) else 0.0
        stretch = shortest * float(kernels.calls.sum()) / max(numbers(self.kernels.step)[1], 1)
        least = self.steps.mean("busy") - stretch
        return min(max(least / self.steps.mean("period"), 0.0), 1.0)

    @property
    def hidden_share(self) -> float:
        """The share of the time of its kernels that was recorded as whole graphs."""
        us = self.kernels.us
        return float(us[~self._is_recorded].sum() / max(us.sum(), 1e-9))

    @property
    def _is_recorded(self) -> Bools:
        """Which kernels were recorded individually."""
        return ~self.kernels.name.rows(WHOLE_GRAPH)


def counts_per_token(steps: MeasuredSteps) -> dict[str, float]:
    """Syncs, copies and launches per token: medians over the steps; empty without API calls."""
    calls = {kind: getattr(steps, kind) for kind in COUNTS}
    return {kind: float(np.nanmedian(counts)) for kind, counts in calls.items() if not np.isnan(counts).all()}


def measure(recording: Recording) -> Measured:
    """Compute what a comparison compares. A given rate is ignored if nothing was traced.

    Raises:
        EmptyTraceError: no two steps follow each other on a device, or most overlap so that they have no period.
        TraceError: the steps are of several engines, or the given rate belongs to another run.
    """
    trace, steps, within = recording.trace, recording.steps.of_one_engine(), recording.within
    per_step = tokens_per_step(trace, steps, within)
    given = [] if trace.is_untraced else list(recording.rates)
    step_rate = float(np.median(given)) if given else measured_rate(trace, steps, within)
    recorded = recording.gaps_at_rate
    if recorded.refused is not None and given:
        raise TraceError(recorded.refused)
    untraced = of_steps_per_s(given, per_step)
    if untraced is None and steps.decode_alone and recorded.refused is None:
        untraced = of_run_json(trace, within)
    unused = [UNUSED_RATE] if recording.rates and not given else []
    if recorded.period_us <= 0:
        raise EmptyTraceError(
            f"no rate: half of the {len(steps)} token steps compute before the preceding step; {HOW_TO_TELL}"
        )
    corrected = recorded.middle_gap_us is not None
    computing = of_steps(recording.compute)
    times = _step_times(recorded, computing, step_spans(trace, steps, computing), step_rate if corrected else None)
    strategy, signature, counts = _calls(recording)
    error = recording.rate_error if corrected else 0.0
    engine = engine_of(trace)
    return Measured(
        name=recording.name,
        engine="" if engine is None else engine.name,
        process=run_json.process(trace) or recording.place,
        conditions={"devices": str(len(np.unique(computing.device)))} | _batch(steps) | conditions(trace, within),
        phases=tuple(sorted(set(steps.rows.phase))),
        held=tuple(steps.phases),
        graph_trace=recorded.graph_trace,
        traced=recorded.warning is not None,
        distortion=recorded.distortion,
        tokens_per_step=per_step,
        gained=np.empty(0) if steps.tokens_per_step is None else steps.rows.gained.astype(np.float64),
        steps_per_s=1e6 / recorded.period_us,
        untraced=untraced,
        gaps=recorded.corrected(roughly=True) if corrected else recorded,
        corrected=corrected,
        gap_error=1e6 / step_rate * error if step_rate else 0.0,
        device_steps=times,
        steps=_over_devices(times, counts),
        kernels=_kernels(trace, steps),
        strategy=strategy,
        signature=signature,
        notes=tuple(dict.fromkeys(brief(note) for note in by_weight([*recording.notes, *unused]))),
        copied=(_copied(trace, steps, "HtoD"), _copied(trace, steps, "DtoH")),
    )


def _batch(steps: Steps) -> dict[str, str]:
    """The number of sequences that nearly all steps compute, if it is known."""
    sequences = steps.rows.sequences
    distinct, counts = np.unique(sequences, return_counts=True)
    usual = int(distinct[counts.argmax()])
    return {"batch": str(usual)} if usual != MISSING and (sequences == usual).mean() >= _NEARLY_ALL else {}


def _step_times(report: GapReport, compute: Compute, spans: StepSpans, step_rate: float | None) -> DeviceSteps:
    spans = spans[np.lexsort((spans.ordinal, spans.group, spans.device))]
    same = (spans.device[1:] == spans.device[:-1]) & (spans.group[1:] == spans.group[:-1])
    follows = np.append(same & (np.diff(spans.ordinal) == 1), False)
    period = np.append(np.diff(spans.start), 0) / 1e3  # of integers, to be exact to the ns
    period = np.where(follows & (period > 0), period, np.nan)
    gaps = report.gaps
    of = positions([spans.device, spans.step], [gaps.device, gaps.step])
    gap_us, causes_us = gaps.gap / 1e3, {column: gaps.split.cause(column) / 1e3 for column in CAUSES}
    if step_rate is not None:
        gap_us, untraced = report.idle.untraced_gaps(gaps, step_rate) / 1e3, report.corrected(roughly=True).causes_us
        for column, name in CAUSES.items():
            recorded = report.causes_us[name]
            causes_us[column] = causes_us[column] * (untraced[name] / recorded if recorded else 0.0)
    return DeviceSteps(
        step=spans.step,
        device=spans.device,
        period=period,
        compute=(spans.end - spans.start) / 1e3,
        busy=np.fmin(_busy(compute, spans) / 1e3, period),
        gap=spread(gap_us, of, np.nan),
        **{column: spread(us, of, np.nan) for column, us in causes_us.items()},
    )


def _over_devices(times: DeviceSteps, counts: StepCounts | None) -> MeasuredSteps:
    """The means over the devices, and the calls of each step."""
    number = ranks(times.step)
    count = int(number.max(initial=-1)) + 1
    step = times.step[firsts(number, count)]

    def mean(values: Floats) -> Floats:
        known = ~np.isnan(values)
        sums, sizes = np.bincount(number, np.where(known, values, 0), count), np.bincount(number, known, count)
        return np.divide(sums, sizes, out=np.full(count, np.nan), where=sizes > 0)

    calls = [np.full(count, np.nan)] * len(COUNTS)
    if counts is not None:
        of = positions([step], [counts.step])
        calls = [getattr(counts, kind)[of].astype(np.float64) for kind in COUNTS]
    return MeasuredSteps(step, *(mean(getattr(times, name)) for name in StepTimes.column_names()[1:]), *calls)


def _busy(compute: Compute, spans: StepSpans) -> Ints:
    """ns of each span in which its device computes for its step: the union over streams.

    The spans are shifted so that they do not overlap, since steps that overlap in time must not count for each other.
    """
    length = spans.end - spans.start
    begin = np.cumsum(length) - length
    shift = (begin - spans.start)[positions([compute.device, compute.at], [spans.device, spans.at])]
    return covered(compute.start + shift, compute.end + shift, begin, begin + length)


def _calls(recording: Recording) -> tuple[str | None, str | None, StepCounts | None]:
    """Class, signature and the calls of each step; none of these if the trace has no API calls."""
    try:
        report = recording.syncs
    except TraceError:
        return None, None, None
    return report.strategy if recording.steps.decodes else None, report.signature, report.per_step


def _copied(trace: Trace, steps: Steps, kind: str) -> tuple[int, ...]:
    """See `Measured.copied`."""
    copies = trace.memcpys[trace.memcpys.kind.rows(kind)]
    at = activity_steps(trace, steps, copies)
    sizes, at = copies.bytes[at >= 0], at[at >= 0]
    order = np.lexsort((sizes, at))
    ends = np.searchsorted(at[order], np.arange(len(steps) + 1))
    each = Counter(tuple(sizes[order[begin:end]].tolist()) for begin, end in pairwise(ends.tolist()))
    most, _ = each.most_common(1)[0]
    return () if MISSING in most else most


def _kernels(trace: Trace, steps: Steps) -> StepKernels:
    kernels, graphs = trace.kernels, trace.graph_launches
    grid = kernels.grid_x.clip(1) * kernels.grid_y.clip(1) * kernels.grid_z.clip(1)
    blocks = np.append(np.exp2(np.ceil(np.log2(grid))).astype(np.int64), np.ones(len(graphs), np.int64))
    whole = Names(np.zeros(len(graphs), np.int64), np.array([WHOLE_GRAPH], dtype=object))
    names = Names.joined([names_of("kernels", kernels), whole]).in_order
    at = np.append(activity_steps(trace, steps, kernels), activity_steps(trace, steps, graphs))
    us = np.append(kernels.end - kernels.start, graphs.end - graphs.start) / 1e3
    inside = np.flatnonzero(at >= 0)
    step, name, blocks, us = steps.rows.step[at[inside]], names[inside], blocks[inside], us[inside]
    number = ranks(step, name.codes, blocks)
    calls = np.bincount(number)
    row = firsts(number, len(calls))
    sums = np.asarray(np.bincount(number, us, len(calls)), np.float64)
    return StepKernels(step[row], name[row], blocks[row], calls, sums)
