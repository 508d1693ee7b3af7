"""Compares runs with a base, with 95 % intervals, or gives the reason why that is impossible.

An interval is computed from the first of these that is available:

1. For tokens/s, the untraced repeats of run.json or of the engine's own benchmark.
2. Several recordings on both sides: each is one value, so that variation between processes is included.
3. Long batches of the steps of the recordings, and how much processes of one program differ.

Figures are medians for a run's headline (tokens/s, gap p50) and means if they must add up (causes, kernels).
`tracer.analysis.units` divides the runs and computes the differences, `tracer.analysis.difference` their intervals;
`tracer.analysis.sides` decides which figures can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, log
from typing import Final, Literal

import numpy as np

from tracer.analysis.causes import CAUSES
from tracer.analysis.difference import MANY, NORMAL, Estimate, needed, showable
from tracer.analysis.interval import SHOWN, Interval
from tracer.analysis.kernel_changes import KernelChanges, compare_kernels, no_kernels
from tracer.analysis.recorded import COUNTS, Unit
from tracer.analysis.sides import Basis as Basis
from tracer.analysis.sides import (
    Refusal,
    causes_alike,
    cautions,
    kernels_alike,
    measure_untraced,
    obstacles,
    other_program,
    other_tracing,
    other_work,
    times_alike,
)
from tracer.analysis.sides import Side as Side
from tracer.analysis.sides import best_basis as best_basis
from tracer.analysis.units import PROCESSES, Speedup, Units, speedup_of
from tracer.errors import IncomparableError
from tracer.extensions import view
from tracer.model.fits import fits_of

Verdict = Literal["faster", "slower", "no difference shown", "no interval", "no verdict"]

_TOTAL_DIFFERS: Final = 0.01
_MANY: Final = {"steps": 10_000}

RATES: Final[dict[Unit, str]] = {"tokens/s": "tokens_per_s, ratio", "steps/s": "steps_per_s, ratio"}
"""Unit of a rate -> its figure."""
GAP, MEAN_GAP, BUSY, DISTORTION = "gap_us p50", "gap_us mean", "busy_us", "distortion"
"""Figures."""


def figure_of_cause(cause: str) -> str:
    """The figure of a cause."""
    return f"causes_us {cause}"


def figure_of_count(kind: str) -> str:
    """The figure of syncs, copies or launches."""
    return f"{kind}_per_token"


def figure_of_needed(unit: str) -> str:
    """The figure of the required number of steps, repeats or recordings."""
    return f"needed {unit}"


LABELS: Final = {
    **{figure: unit.capitalize() for unit, figure in RATES.items()},
    GAP: "Gap p50, µs",
    MEAN_GAP: "Gap mean, µs",
    **{figure_of_cause(cause): f"of which {cause}, µs" for cause in CAUSES.values()},
    BUSY: "GPU busy, µs per token",
    **{figure_of_count(kind): f"{kind.capitalize()} per token" for kind in COUNTS},
    DISTORTION: "Tracing overhead of the recording, ×",
    **{
        figure_of_needed(unit): f"{unit.capitalize()} per run to show it" for unit in ("steps", "repeats", "recordings")
    },
}
"""Figure -> its label, in display order; kernels have none."""


@dataclass(frozen=True)
class Line:
    """A figure of a run and its base, the only source of what is shown of a comparison.

    Attributes:
        figure: its name, one of `LABELS` or of a kernel.
        base, other: of the base and of the other run; None if unknown.
        change: the ratio of rates, the difference of others; None if the recordings do not support it.
    """

    figure: str
    base: float | None
    other: float | None
    change: Interval | None = None

    @property
    def is_rate(self) -> bool:
        """Whether `change` is a ratio."""
        return self.figure in RATES.values()


@dataclass(frozen=True, eq=False)
class Comparison:
    """One run against the base. Differences are the other's figure minus the base's; None or absent if the recordings
    do not support them.

    Attributes:
        base, other: the runs.
        basis: what `speedup` is computed from, `rate` what it counts; `method` how its interval was computed.
        paired: whether at steps with equal numbers.
        speedup: rate of the other / that of the base; above 1 the other is faster.
        total_speedup: the same from the total time of all recorded steps, in which a few slow steps count fully.
        gap_us: difference of the median gaps, µs, None where a rate does not tell one of them; `mean_gap_us` of the
            means.
        causes_us: cause's name -> difference of the means, µs; they add up to `mean_gap_us`.
        busy_us: difference of the mean time that the device computes for a step, µs.
        counts: "syncs", "copies", "launches" -> difference per token.
        kernels: see `compare_kernels`; no rows if tracing affects the kernels of the two differently.
        verdict: "faster", "slower", "no difference shown" (the interval contains 1), "no interval", or "no verdict".
        refusal: why there is no verdict, and how to get one; None if there is one.
        needed: the number of `unit` that would show a speed-up of this size (`difference.needed`), if none is shown.
        unit: "steps", "repeats" or "recordings": what would have to be measured more often.
        seconds: how long each recording should be, if recordings are needed.
        showable: many of `unit`, and the logarithm of the smallest speed-up that they would show, if none is shown.
        cautions: caveats for a reader, see `sides.cautions`.
    """

    base: Side
    other: Side
    basis: Basis
    rate: Unit
    method: str
    paired: bool
    speedup: Interval | None
    total_speedup: float | None
    gap_us: Interval | None
    mean_gap_us: Interval | None
    causes_us: dict[str, Interval]
    busy_us: Interval | None
    counts: dict[str, float]
    kernels: KernelChanges
    verdict: Verdict
    refusal: Refusal | None
    needed: int | None
    unit: str
    seconds: float | None
    showable: tuple[int, float] | None
    cautions: list[str]

    @property
    def gap_statistic(self) -> Literal["p50", "mean"]:
        """The statistic of the gap that can be compared: the mean where a rate does not tell the median."""
        return "mean" if self.gap_us is None and self.mean_gap_us is not None else "p50"

    @property
    def gap(self) -> Interval | None:
        """Difference of that statistic, µs."""
        return self.mean_gap_us if self.gap_us is None else self.gap_us

    def lines(self) -> list[Line]:
        """All figures but those of kernels, in display order."""
        base, other, counts = self.base, self.other, (self.base.counts, self.other.counts)
        gaps, causes = (base.gap_us, other.gap_us), (base.causes_us, other.causes_us)
        rates = [side.rates(side.basis).get(self.rate) for side in (base, other)]
        overheads = [side.recordings[0].distortion for side in (base, other)]
        lines = [
            Line(RATES[self.rate], rates[0], rates[1], self.speedup),
            Line(GAP, gaps[0]["p50"], gaps[1]["p50"], self.gap_us),
            Line(MEAN_GAP, gaps[0]["mean"], gaps[1]["mean"], self.mean_gap_us),
        ]
        shown = {name for each in causes for name, us in each.items() if us or name != CAUSES["communication"]}
        for cause in CAUSES.values():
            if cause in shown:
                own = causes[0][cause], causes[1][cause]
                lines.append(Line(figure_of_cause(cause), own[0], own[1], self.causes_us.get(cause)))
        lines.append(Line(BUSY, base.busy_us, other.busy_us, self.busy_us))
        for kind in COUNTS:
            if kind in counts[0] or kind in counts[1]:
                change = Interval(self.counts[kind]) if kind in self.counts else None
                lines.append(Line(figure_of_count(kind), counts[0].get(kind), counts[1].get(kind), change))
        lines.append(Line(DISTORTION, overheads[0], overheads[1]))
        if self.needed is not None:
            lines.append(Line(figure_of_needed(self.unit), None, self.needed))
        return lines

    def _repr_html_(self) -> str | None:
        """The HTML for notebooks, by the view `comparisons`; None if there is none."""
        show = view("comparisons")
        return None if show is None else str(show([self]))


def compare(base: Side, other: Side, *, force: bool = False) -> Comparison:
    """Compare a run with a base, on the best basis that both have.

    Args:
        base: the run that speed-ups and differences refer to.
        force: also compare what is not comparable, without a verdict.

    Raises:
        IncomparableError: different GPUs, models or batch sizes, or no kernel in common.
    """
    against = list(dict.fromkeys(text for b in base.recordings for o in other.recordings for text in obstacles(b, o)))
    if against and not force:
        raise IncomparableError(f"{base.name} and {other.name} are not comparable: {'; '.join(against)}")
    basis, units = best_basis(base, other), Units(base, other)
    speedup = speedup_of(units, basis)
    work = other_work(base, other) or other_program(base, other)
    tracing = _tracing(base, other, speedup) if basis == "traced" else None
    refusal = _together(Refusal(f"not comparable, comparison forced: {'; '.join(against)}", "record the same in both")
                        if against else None, work, tracing)  # fmt: skip
    stated = work is None and tracing is None
    total = base.steps.mean("period") / other.steps.mean("period")
    verdict = "no verdict" if refusal is not None else _verdict(speedup.ratio)
    gaps = work is None and times_alike(base, other)
    mean = _means(units)
    is_open = verdict == "no difference shown" and speedup.units is not None
    return Comparison(
        base=base,
        other=other,
        basis=basis,
        rate=speedup.rate,
        method=speedup.method,
        paired=units.paired,
        speedup=speedup.ratio if stated else None,
        total_speedup=total if stated and not (base.traced or other.traced) else None,
        gap_us=_gap(units) if gaps and not (base.gap_between("p50") or other.gap_between("p50")) else None,
        mean_gap_us=mean["gap"] if gaps else None,
        causes_us={CAUSES[column]: mean[column] for column in CAUSES} if gaps and causes_alike(base, other) else {},
        busy_us=mean["busy"] if work is None and _busy_alike(base, other) else None,
        counts=_counts(base, other) if work is None else {},
        kernels=compare_kernels(units) if work is None and kernels_alike(base, other) else no_kernels(),
        verdict=verdict,
        refusal=refusal,
        needed=needed(speedup.units or 1, speedup.error, log(speedup.ratio.estimate)) if is_open else None,
        unit=speedup.unit,
        seconds=speedup.seconds if is_open else None,
        showable=showable(speedup.units or 1, speedup.error, _MANY.get(speedup.unit, MANY)) if is_open else None,
        cautions=[*cautions(base, other), *(_of_steps(units, basis, speedup, total) if stated else [])],
    )  # fmt: skip


def _tracing(base: Side, other: Side, speedup: Speedup) -> Refusal | None:
    """A refusal if traced steps show no direction."""
    refusal = other_tracing(base, other)
    if refusal is not None or _verdict(speedup.ratio) in ("faster", "slower"):
        return refusal
    instead = measure_untraced(base, other)
    if speedup.ratio.low is None and speedup.method.startswith("only"):
        return Refusal(f"{speedup.method.partition(',')[0]} were recorded", instead)
    added = [run.steps.mean("period") * (1 - run.least_share) for run in (base, other)]
    return Refusal(
        "the difference is within what tracing can have added to a step of either run (the time in which the device "
        f"does not compute, plus some time for each kernel recorded): up to {added[1]:,.0f} µs in {other.name} and "
        f"{added[0]:,.0f} µs in {base.name}",
        instead,
    )


def _together(*refusals: Refusal | None) -> Refusal | None:
    known = [refusal for refusal in refusals if refusal is not None]
    if not known:
        return None
    parts = [dict.fromkeys(getattr(refusal, part) for refusal in known) for part in ("why", "instead")]
    return Refusal(*("; ".join(texts) for texts in parts))


def _of_steps(units: Units, basis: Basis, speedup: Speedup, total: float) -> list[str]:
    """Caveats for a speed-up over recorded steps."""
    caveats = []
    if units.need_processes and basis != "traced" and PROCESSES in speedup.method:
        engines = {recording.engine for run in (units.base, units.other) for recording in run.recordings}
        program = engines.pop() if len(engines) == 1 and "" not in engines else "one program"
        apart = 100 * np.expm1(NORMAL * units.rates_of_processes(basis))
        caveats.append(
            f"two processes of {program} differ by up to {apart:.1f} % in their rates, which the intervals include; "
            "record each run several times, separated by commas, to replace this by what they differ by themselves"
        )
    if basis == "light" and abs(total - speedup.ratio.estimate) > _TOTAL_DIFFERS * speedup.ratio.estimate:
        caveats.append(f"from the total time instead of the median step it is {total:.3f}: some steps are much slower")
    return caveats


def _gap(units: Units) -> Interval:
    """Difference of the median gaps."""
    if units.of_recordings:
        base, other = (
            Estimate.of(np.array([[r.gaps.gap_us["p50"]] for r in run.recordings]), of_medians=True)
            for run in (units.base, units.other)
        )
        return other.minus(base).intervals()[0]
    return _in_processes(units, units.change("gap", of=np.median), ["gap"])[0]


def _means(units: Units) -> dict[str, Interval]:
    """Differences of the mean gap, causes and busy time."""
    names = ["gap", *CAUSES, "busy"]
    return dict(zip(names, _in_processes(units, units.change(*names), names), strict=True))


def _in_processes(units: Units, change: Estimate, names: list[str]) -> list[Interval]:
    """Differences of these columns with the uncertainty of the untraced rates and that between processes."""
    if not units.of_recordings:
        change = change.beside(np.array([_rate_error(units.base, units.other, name) for name in names]))
    if units.need_processes:
        change = change.beside(np.array([units.of_processes(name) for name in names]))
    return change.intervals()


def _busy_alike(base: Side, other: Side) -> bool:
    return not (base.traced or other.traced) or kernels_alike(base, other, as_many=True)


def _counts(base: Side, other: Side) -> dict[str, float]:
    return {kind: other.counts[kind] - value for kind, value in base.counts.items() if kind in other.counts}


def _rate_error(base: Side, other: Side, name: str) -> float:
    """The standard error that the untraced rates add to a difference of gaps, µs, or to a cause's part of them,
    together with that of correcting the causes."""
    if name == "busy":
        return 0.0
    halves = []
    for run in (base, other):
        gap = run.steps.mean("gap")
        share = run.steps.mean(name) / gap if gap > 0 else 0.0
        halves.append(share * float(np.mean([r.gap_error for r in run.recordings])))
        if name != "gap" and any(r.corrected for r in run.recordings):
            halves.append(fits_of(run.recordings[0].conditions.get("gpu", "")).causes.error * gap)
    return hypot(*halves) / NORMAL


def _verdict(speedup: Interval) -> Verdict:
    if speedup.low is None or speedup.high is None:
        return "no interval"
    if speedup.low > 1 + SHOWN:
        return "faster"
    return "slower" if speedup.high < 1 - SHOWN else "no difference shown"
