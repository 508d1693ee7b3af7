"""The kernels of two runs: which take longer, per token and per call, over many kernels simultaneously."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tracer.analysis.difference import BATCHES, Estimate
from tracer.analysis.processes import deviation_of_kernels
from tracer.analysis.recorded import WHOLE_GRAPH, StepKernels
from tracer.analysis.sides import Side
from tracer.analysis.units import Units
from tracer.model.columns import Columns, Names, Texts, firsts, joined, ranks
from tracer.model.intervals import Bools, Floats, Ints

FALSE_DISCOVERIES: Final = 0.05
"""The accepted false discovery rate among the kernels reported as slower or faster."""


class KernelChanges(Columns):
    """The kernels of either run, by the size of their difference per token; NaN if unknown.

    Attributes:
        name, blocks: as in `StepKernels`.
        base_calls, other_calls, base_us, other_us: per token.
        difference_us: other - base, with its interval.
        base_us_per_call, other_us_per_call: of each run.
        per_call_ratio: other / base, with its interval.
        p: see `compare_kernels`.
        verdict: "slower" or "faster" per call, "only in base", "only in other", "" if no difference is shown.
    """

    name: Names
    blocks: Ints
    base_calls: Floats
    other_calls: Floats
    base_us: Floats
    other_us: Floats
    difference_us: Floats
    difference_low: Floats
    difference_high: Floats
    base_us_per_call: Floats
    other_us_per_call: Floats
    per_call_ratio: Floats
    per_call_low: Floats
    per_call_high: Floats
    p: Floats
    verdict: Texts


def compare_kernels(units: Units) -> KernelChanges:
    """Each kernel of either run.

    Intervals are for the individual kernel (95 %). `p` is for the hypothesis that a call takes the same time in both
    runs, adjusted over all kernels that occur in every unit of both with the method of Benjamini and Hochberg (1995),
    which bounds the share of false discoveries. Holm's method would bound the chance of even one and miss most
    differences among hundreds of kernels. A whole graph is one kernel; its calls are compared only if a token launches
    the same number in both runs, since half a model is not a faster model.
    """
    tables = [joined([recording.kernels for recording in run.recordings]) for run in (units.base, units.other)]
    every = joined(tables)
    names = every.name.in_order
    kind = ranks(names.codes, every.blocks)
    first = firsts(kind, int(kind.max(initial=-1)) + 1)
    of_kind = np.split(kind, [len(tables[0])])
    sums = [_sums(units, *each, len(first)) for each in zip((units.base, units.other), tables, of_kind, strict=True)]
    steps = [counts.sum() for *_, counts in sums]
    us, calls = ([each[at].sum(axis=0) / n for each, n in zip(sums, steps, strict=True)] for at in (0, 1))
    means = [
        Estimate.of(each[0] / each[2][:, None], total) for each, total in zip(sums, us, strict=True)
    ]  # fmt: skip
    recordings = (*units.base.recordings, *units.other.recordings)
    apart = deviation_of_kernels(*recordings) if units.need_processes else 0.0
    difference = means[1].minus(means[0]).beside(apart * np.hypot(*us))
    low, high = _bounds(difference)
    name = names[first]
    alike = ~name.rows(WHOLE_GRAPH) | (calls[0] == calls[1])
    ratio, verdict = _per_call(sums, alike, apart * np.sqrt(2))
    verdict[calls[1] <= 0], verdict[calls[0] == 0] = "only in base", "only in other"
    per_call = [
        np.divide(each, of, out=np.full(len(first), np.nan), where=of > 0) for each, of in zip(us, calls, strict=True)
    ]
    changes = KernelChanges(
        name, every.blocks[first], calls[0], calls[1], us[0], us[1], difference.value, low, high, per_call[0],
        per_call[1], ratio[0], ratio[1], ratio[2], ratio[3], verdict,
    )  # fmt: skip
    return changes[np.argsort(-np.abs(changes.difference_us), kind="stable")]


def no_kernels() -> KernelChanges:
    """The table without rows."""
    figures: dict[str, Any] = dict.fromkeys(KernelChanges.column_names(), np.zeros(0))
    return KernelChanges(**figures | {"name": Names.of(())})


_Sums = tuple[Floats, Floats, Floats]
"""(k units, m kernels) each: µs and calls; and (k,) the steps of each unit."""


def _sums(units: Units, run: Side, table: StepKernels, kind: Ints, kinds: int) -> _Sums:
    """Of each recording or, in one recording, of each batch of its steps."""
    recording = np.repeat(np.arange(len(run.recordings)), [len(each.kernels) for each in run.recordings])
    step = ranks(recording, table.step)
    count = int(step.max(initial=-1)) + 1
    if units.of_recordings:
        of_step = recording[firsts(step, count)]
    else:
        of_step = np.repeat(np.arange(BATCHES), [len(part) for part in np.array_split(np.arange(count), BATCHES)])
    k = int(of_step.max(initial=0)) + 1
    us, calls = np.zeros((k, kinds)), np.zeros((k, kinds))
    np.add.at(us, (of_step[step], kind), table.us)
    np.add.at(calls, (of_step[step], kind), table.calls)
    return us, calls, np.bincount(of_step, minlength=k).astype(np.float64)


def _bounds(found: Estimate) -> tuple[Floats, Floats]:
    """Lower and upper bounds, NaN if unknown."""
    return found.value - found.half_width, found.value + found.half_width


def _per_call(sums: list[_Sums], alike: Bools, apart: float) -> tuple[Floats, Texts]:
    """Of the `alike` kernels that occur in every unit of both runs, ratio per call with low and high and p (4, n), and
    the verdict; NaN and "" for others. `apart`: the deviation of the ratio's logarithm between processes."""
    from scipy import stats  # imported here because it takes longer than reading two small recordings

    shared = np.logical_and.reduce([(calls > 0).all(axis=0) & (us > 0).all(axis=0) for us, calls, _ in sums]) & alike
    base, other = (
        Estimate.of(np.log(us[:, shared] / calls[:, shared]),
                    np.log(us[:, shared].sum(axis=0) / calls[:, shared].sum(axis=0)))
        for us, calls, _ in sums
    )  # fmt: skip
    ratio = other.minus(base).beside(apart)
    adjusted = stats.false_discovery_control(ratio.p_values()) if len(ratio.value) else np.zeros(0)
    per_call, verdict = np.full((4, len(shared)), np.nan), np.full(len(shared), "", dtype=object)
    per_call[:, shared] = [*np.exp([ratio.value, *_bounds(ratio)]), adjusted]
    verdict[shared] = np.where(adjusted <= FALSE_DISCOVERIES, np.where(ratio.value > 0, "slower", "faster"), "")
    return per_call, verdict
