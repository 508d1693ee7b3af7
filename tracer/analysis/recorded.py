"""One recording as a comparison needs it: figures per token step, its kernels, and the conditions that must match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.bounds import HOW_TO_TELL
from tracer.analysis.causes import CAUSES
from tracer.analysis.distortion import UNUSED_RATE
from tracer.analysis.estimates import half_width
from tracer.analysis.gaps import GapReport, measured_rate
from tracer.analysis.step_work import activity_steps, step_spans, tokens_per_step
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError, TraceError
from tracer.model import run_json
from tracer.model.intervals import Floats, covered
from tracer.model.run_json import conditions
from tracer.model.schema import COMPUTE_TABLES, MISSING
from tracer.model.trace import Trace

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording

Unit = Literal["tokens/s", "steps/s"]

COUNTS: Final = ("syncs", "copies", "launches")
KERNEL: Final = ["name", "blocks"]
"""What identifies comparable kernels: the short name and the grid's class, its blocks rounded up to a power of two."""

WHOLE_GRAPH: Final = "CUDA graph"

_NEARLY_ALL: Final = 0.9  # of the steps; requests start and end one by one


@dataclass(frozen=True)
class Untraced:
    """Tokens or steps per second without a profiler.

    Attributes:
        unit: "tokens/s" or "steps/s".
        median: of the repeats.
        repeats: the rate of each; empty if unknown.
        spread: lowest and highest, if the individual repeats are unknown.
        given: by the user, not by run.json.
    """

    unit: Unit
    median: float
    repeats: tuple[float, ...] = ()
    spread: tuple[float, float] | None = None
    given: bool = False

    @property
    def error(self) -> float | None:
        """Half the 95 % interval of the rate's logarithm; None if unknown.

        For a spread it is half of that spread, as if of five repeats: the range of five normal values contains a
        difference of medians in 95 % of cases, that of three in only 78 %.
        """
        if len(self.repeats) > 1:
            return half_width(np.log(self.repeats))
        return log(self.spread[1] / self.spread[0]) / 2 if self.spread else None


@dataclass(frozen=True, eq=False)
class Measured:
    """The token steps of one trace; times in µs.

    Attributes:
        name: as shown to readers.
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
        gaps: the gaps, without tracing's inflation if the untraced rate is known (`corrected`).
        gap_error: half the 95 % interval of a corrected gap due to the untraced rate, µs; 0 if not corrected.
        device_steps: index (device, step); period, compute (first start to last end), busy (union of its kernels),
            gap, one column per key of `CAUSES`, all µs; NaN if no step follows.
        steps: index step; the same averaged over the devices; syncs, copies, launches.
        kernels: one row per step and kernel: step, name, blocks, calls, us.
        strategy, signature: as in `SyncReport`; None if the trace has no API calls; no strategy if nothing decodes.
        notes: caveats about the trace and its steps.
        different: as `Steps.different`: "" unless the steps are of several engines.
    """

    name: str
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
    device_steps: pd.DataFrame
    steps: pd.DataFrame
    kernels: pd.DataFrame
    strategy: str | None
    signature: str | None
    notes: tuple[str, ...]
    different: str = ""

    @property
    def inflated(self) -> bool:
        """Whether the gaps are longer than without a profiler."""
        return self.traced and not self.corrected

    @property
    def recorder(self) -> str:
        """The tool that made it, without its version; "" if unknown."""
        return self.conditions.get("source", "").partition(" ")[0]

    @property
    def kernels_per_step(self) -> float:
        """The median number of individually recorded kernels per step."""
        calls = self._recorded_kernels().groupby("step")["calls"].sum()
        return float(calls.reindex(self.kernels["step"].unique(), fill_value=0).median())

    @property
    def least_share(self) -> float:
        """The minimum share of a step's period in which the device computes and to which tracing cannot have
        contributed: 0..1; 1 if untraced.

        A profiler adds host time, which may account for everything between the kernels, and some time to each kernel
        it records, at most as long as the shortest of them.
        """
        if not self.traced:
            return 1.0
        kernels = self._recorded_kernels()
        shortest = float((kernels["us"] / kernels["calls"]).min()) if len(kernels) else 0.0
        stretch = shortest * float(kernels["calls"].sum()) / max(self.kernels["step"].nunique(), 1)
        least, period = float(self.steps["busy"].mean()) - stretch, float(self.steps["period"].mean())
        return min(max(least / period, 0.0), 1.0)

    def _recorded_kernels(self) -> pd.DataFrame:
        return self.kernels[self.kernels["name"] != WHOLE_GRAPH]


def counts_per_token(steps: pd.DataFrame) -> dict[str, float]:
    """Syncs, copies and launches per token: medians over `Measured.steps`; empty without API calls."""
    return {kind: float(steps[kind].median()) for kind in COUNTS if kind in steps}


def measure(recording: Recording) -> Measured:
    """Compute what a comparison compares. A given rate is ignored if nothing was traced.

    Raises:
        EmptyTraceError: no two steps follow each other on a device, or most overlap so that they have no period.
        TraceError: the given rate belongs to another run.
    """
    trace, steps, within = recording.trace, recording.steps, recording.within
    per_step = tokens_per_step(trace, steps, within)
    given = [] if trace.is_untraced else list(recording.rates)
    step_rate = float(np.median(given)) if given else measured_rate(trace, steps, within)
    recorded = recording.gaps_at_rate
    if recorded.refused is not None and given:
        raise TraceError(recorded.refused)
    untraced = _given(given, per_step)
    if untraced is None and steps.decode_alone and recorded.refused is None:
        untraced = _from_run_json(trace, within)
    unused = [UNUSED_RATE] if recording.rates and not given else []
    if recorded.period_us <= 0:
        raise EmptyTraceError(
            f"no rate: half of the {len(steps)} token steps compute before the preceding step; {HOW_TO_TELL}"
        )
    corrected = recorded.untraced_gap_us is not None
    compute = _step_compute(trace, steps)
    computing = compute[~compute["collective"]]
    times = _step_times(recorded, computing, step_spans(trace, steps, computing), step_rate if corrected else None)
    strategy, signature, counts = _calls(recording)
    error = untraced.error if corrected and untraced is not None else None
    return Measured(
        name=recording.name,
        conditions={"devices": str(computing["device"].nunique())} | _batch(steps) | conditions(trace, within),
        phases=tuple(sorted(set(steps.table["phase"]))),
        held=tuple(steps.phases),
        graph_trace=recorded.graph_trace,
        traced=recorded.warning is not None,
        distortion=recorded.distortion,
        tokens_per_step=per_step,
        gained=np.empty(0) if steps.tokens_per_step is None else steps.table["gained"].to_numpy(np.float64),
        steps_per_s=1e6 / recorded.period_us,
        untraced=untraced,
        gaps=recorded.corrected() if corrected else recorded,
        corrected=corrected,
        gap_error=1e6 / step_rate * error if error is not None and step_rate else 0.0,
        device_steps=times,
        steps=times.groupby("step").mean().join(counts, how="left"),
        kernels=_kernels(compute),
        strategy=strategy,
        signature=signature,
        notes=tuple(dict.fromkeys([*trace.notes, *steps.notes, *unused])),
        different=steps.different,
    )


def _batch(steps: Steps) -> dict[str, str]:
    """The number of sequences that nearly all steps compute, if it is known."""
    sequences = steps.table["sequences"]
    usual = int(sequences.mode().iloc[0])
    return {"batch": str(usual)} if usual != MISSING and (sequences == usual).mean() >= _NEARLY_ALL else {}


def _given(steps_per_s: Sequence[float], tokens_per_step: float | None) -> Untraced | None:
    if not steps_per_s:
        return None
    rates = [rate * (tokens_per_step or 1.0) for rate in steps_per_s]
    unit: Unit = "steps/s" if tokens_per_step is None else "tokens/s"
    return Untraced(unit, float(np.median(rates)), tuple(rates), given=True)


def _from_run_json(trace: Trace, within: str | None) -> Untraced | None:
    rate = run_json.tokens_per_s(trace, within)
    if rate is None or within is not None:
        return None if rate is None else Untraced("tokens/s", rate)
    return Untraced("tokens/s", rate, run_json.tokens_per_s_repeats(trace), run_json.tokens_per_s_spread(trace))


def _step_times(report: GapReport, compute: pd.DataFrame, spans: pd.DataFrame, step_rate: float | None) -> pd.DataFrame:
    """Period, compute, busy, gap and causes per device and step; see `Measured.device_steps`."""
    spans = spans.sort_values(["device", "group", "ordinal"], kind="stable")
    spans["busy"] = _busy(compute, spans) / 1e3
    spans["compute"] = (spans["end"] - spans["start"]) / 1e3
    by_group = spans.groupby(["device", "group"])
    follows = by_group["ordinal"].shift(-1) == spans["ordinal"] + 1
    period = (by_group["start"].shift(-1, fill_value=MISSING) - spans["start"]) / 1e3  # integers, to be exact to the ns
    spans["period"] = period.where(follows & (period > 0))
    gaps = report.table[["step", "device"]].join(report.table[["gap", *CAUSES]] / 1e3)
    rows = spans[["step", "device", "period", "compute", "busy"]].merge(gaps, on=["step", "device"], how="left")
    if step_rate is not None:
        causes_us = report.corrected().causes_us
        untraced = report.table[["step", "device"]].assign(gap=report.idle.untraced_gaps(report.table, step_rate) / 1e3)
        rows["gap"] = rows[["step", "device"]].merge(untraced, how="left")["gap"].to_numpy()
        for column, name in CAUSES.items():
            rows[column] *= causes_us[name] / report.causes_us[name] if report.causes_us[name] else 0.0
    return rows.set_index(["device", "step"])


def _busy(compute: pd.DataFrame, spans: pd.DataFrame) -> NDArray[np.int64]:
    """ns of each span in which its device computes for its step: the union over streams.

    The spans are shifted so that they do not overlap, since steps that overlap in time must not count for each other.
    """
    length = (spans["end"] - spans["start"]).to_numpy()
    begin = np.cumsum(length) - length
    shifts = spans[["step", "device"]].assign(shift=begin - spans["start"].to_numpy())
    shift = compute[["step", "device"]].merge(shifts, how="left")["shift"].to_numpy()
    return covered(compute["start"] + shift, compute["end"] + shift, begin, begin + length)


def _calls(recording: Recording) -> tuple[str | None, str | None, pd.DataFrame]:
    """Class, signature and, per step, the number of host calls; none of these if the trace has no API calls."""
    steps = recording.steps
    try:
        report = recording.syncs
    except TraceError:
        return None, None, pd.DataFrame(index=pd.Index(steps.table["step"]))
    return report.strategy if steps.decodes else None, report.signature, report.counts.set_index("step")[list(COUNTS)]


def _step_compute(trace: Trace, steps: Steps) -> pd.DataFrame:
    """Like `step_compute`, but with collectives, the step, and the class of the grid in `blocks` (1 for whole
    graphs)."""
    compute = trace.activities(COMPUTE_TABLES).frame()  # kernels keep the order of their table
    grid = trace["kernels"][["grid_x", "grid_y", "grid_z"]].clip(lower=1).prod(axis=1)
    compute["blocks"] = 1
    compute.loc[compute["table"] == "kernels", "blocks"] = np.exp2(np.ceil(np.log2(grid))).astype(np.int64).to_numpy()
    compute["at"] = activity_steps(trace, steps, compute)
    compute = compute[compute["at"] >= 0].reset_index(drop=True)
    return compute.assign(step=steps.table["step"].to_numpy()[compute["at"]])


def _kernels(compute: pd.DataFrame) -> pd.DataFrame:
    """Calls and µs of each kernel in each step; see `Measured.kernels`. All whole graphs count as one kernel."""
    timed = compute.assign(us=(compute["end"] - compute["start"]) / 1e3)
    found = timed.groupby(["step", "table", *KERNEL], observed=True).agg(calls=("us", "size"), us=("us", "sum"))
    found = found.reset_index()
    found["name"] = found["name"].astype(str).where(found["table"] == "kernels", WHOLE_GRAPH)
    return found.groupby(["step", *KERNEL], as_index=False)[["calls", "us"]].sum()
