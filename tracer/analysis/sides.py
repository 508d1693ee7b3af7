"""The two sides of a comparison: the source of their tokens/s, and whether they can be compared.

Rates count tokens if the number of tokens per step is known for both, else steps.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from statistics import median
from typing import Final, Literal

import numpy as np

from tracer.analysis.interval import Interval
from tracer.analysis.rates import Unit, Untraced
from tracer.analysis.recorded import (
    COUNTS,
    WHOLE_GRAPH,
    Measured,
    MeasuredSteps,
    counts_per_token,
)
from tracer.engines.engine import DECODE, SPECULATIVE
from tracer.errors import UsageError
from tracer.model.columns import joined

Basis = Literal["untraced", "light", "traced"]
"""The source of tokens/s: measured without a profiler, the recorded steps of a light pass, or traced steps."""


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: a recording, or several of the same configuration.

    `place` is the command-line argument that named it, if any.
    """

    name: str
    recordings: tuple[Measured, ...]
    place: str = ""

    @classmethod
    def of(cls, *recordings: Measured, place: str = "") -> Side:
        """A side named after its first recording."""
        return cls(recordings[0].name, recordings, place)

    @cached_property
    def steps(self) -> MeasuredSteps:
        """Those of all recordings, one behind the other."""
        return joined([r.steps for r in self.recordings])

    @property
    def counts(self) -> dict[str, float]:
        """Syncs, copies and launches per token: medians over the steps."""
        return counts_per_token(self.steps)

    @property
    def gap_us(self) -> Mapping[str, float | None]:
        """p50, mean and, unless corrected by a rate, p90; the median over several recordings. None where only
        `gap_between` is known."""
        gaps = [r.gaps.gap_us for r in self.recordings]
        known = [name for name in gaps[0] if all(name in each for each in gaps)]
        return {name: None if self.gap_between(name) else median([each[name] for each in gaps]) for name in known}

    def gap_between(self, name: str) -> Interval | None:
        """The 95 % interval of the p50 or of the mean of the gap that reaches farthest, if a rate tells it only within
        one so wide that there is no figure."""
        key = f"gap_us {name}"
        known = [r.gaps.between[key] for r in self.recordings if r.corrected and key in r.gaps.between]
        wide = [interval for interval in known if interval.is_wide]
        return max(wide, key=lambda one: (one.high or 0.0) - (one.low or 0.0), default=None)

    @property
    def causes_us(self) -> Mapping[str, float | None]:
        """Name of each cause -> mean over the recordings; within one recording they add up to the mean gap. None each
        if that has no figure."""
        causes = [r.gaps.causes_us for r in self.recordings]
        if self.gap_between("mean"):
            return dict.fromkeys(causes[0])
        return {name: float(np.mean([each[name] for each in causes])) for name in causes[0]}

    @property
    def busy_us(self) -> float:
        """The mean time that the device computes for a step."""
        return self.steps.mean("busy")

    @property
    def traced(self) -> bool:
        """Whether any of the recordings was made under a profiler."""
        return any(recording.traced for recording in self.recordings)

    @property
    def inflated(self) -> bool:
        """Whether any of the gaps are longer than they would be without a profiler."""
        return any(recording.inflated for recording in self.recordings)

    @property
    def least_share(self) -> float:
        """The minimum share of a step's recorded period that would remain without a profiler."""
        return min(recording.least_share for recording in self.recordings)

    @property
    def untraced(self) -> Untraced | None:
        """The rate without a profiler; with several recordings, the rate of each is a repeat. None if one lacks it, or
        if some count tokens and some steps."""
        known = [r.untraced for r in self.recordings if r.untraced is not None]
        if len(known) < len(self.recordings) or len(known) == 1:
            return known[0] if len(self.recordings) == 1 and known else None
        rates = [rate.median for rate in known]
        units = {rate.unit for rate in known}
        if len(units) > 1:
            return None
        return Untraced(units.pop(), median(rates), tuple(rates), given=all(rate.given for rate in known))

    @property
    def basis(self) -> Basis:
        """The best available basis."""
        return best_basis(self)

    @property
    def tokens_per_step(self) -> float | None:
        """The median over several recordings; None if one of them lacks it."""
        known = [r.tokens_per_step for r in self.recordings if r.tokens_per_step is not None]
        return median(known) if len(known) == len(self.recordings) else None

    def rates(self, basis: Basis) -> dict[Unit, float]:
        """The rate on that basis, of tokens and of steps as far as known; the median over several recordings.

        Raises:
            UsageError: the untraced rate is unknown.
        """
        gained = self.tokens_per_step
        if basis != "untraced":
            steps = median([r.steps_per_s for r in self.recordings])
            return _both("steps/s", steps, "tokens/s", steps * gained if gained else None)
        if self.untraced is None:
            raise UsageError(f"{self.name}: the untraced rate is unknown; give --untraced-tokens-per-s")
        rate = self.untraced.median
        if self.untraced.unit == "steps/s":
            return {"steps/s": rate}
        return _both("tokens/s", rate, "steps/s", rate / gained if gained else None)


def _both(unit: Unit, rate: float, other: Unit, converted: float | None) -> dict[Unit, float]:
    return {unit: rate} if converted is None else {unit: rate, other: converted}


def best_basis(*runs: Side) -> Basis:
    """Untraced rates if every run has them, all in tokens or all in steps; else the recorded steps. Those of light
    passes are preferred to a rate without repeats or spread."""
    rates = [run.untraced for run in runs]
    traced = any(run.traced for run in runs)
    units = {None if rate is None else rate.unit for rate in rates}
    if len(units) == 1 and all(rate and (traced or rate.is_repeated or rate.given) for rate in rates):
        return "untraced"
    return "traced" if traced else "light"


# --- whether they can be compared ---
#
# What a profiler adds to a step lies between nothing and the part of it in which the device does not compute. The
# amount depends on the calls and kernels it records. So traced times show a direction only if the same recorder, at the
# same level, recorded the same number of calls in both, and the difference exceeds what it can have added to either.

MUST_AGREE: Final = ("gpu", "backend", "model", "batch")
"""Conditions that must match for two runs to do the same work on the same device."""

SHOULD_AGREE: Final = (
    "prompt", "shared_prompt", "context", "gpu_layers", "devices", "experts", "engine", "clock rate", "driver",
)  # fmt: skip
"""Conditions that affect the times; often they are what is being compared."""

_OF_WORK: Final = ("model", "batch")
_HIDDEN: Final = 0.5  # of the kernels' time: more is not seen
_BUSY: Final = 2.0  # times; branches on three streams took 0.61 of the time of one
_ALIKE: Final = 1.1  # times; a mask of a longer context alone makes the kernels no slower
_TELLING: Final = 1024  # bytes; smaller copies are of positions and tokens, which all models have


@dataclass(frozen=True)
class Refusal:
    """Why there is no verdict, and how to get one."""

    why: str
    instead: str


def obstacles(base: Measured, other: Measured) -> list[str]:
    """Why the two are not comparable; empty if they are, or if the recordings do not say."""
    reasons = [unlike(key, base.conditions, other.conditions) for key in MUST_AGREE]
    base_names, other_names = (set(r.kernels.name) - {WHOLE_GRAPH} for r in (base, other))
    if base_names and other_names and base_names.isdisjoint(other_names):
        reasons.append(f"no kernel in common ({min(base_names)}, ... against {min(other_names)}, ...)")
    return [text for text in reasons if text]


def same_work(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs of these conditions did the same work on the same device, as far as known."""
    return not any(unlike(key, one, other) for key in MUST_AGREE)


def unlike(key: str, base: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """How a condition that both know differs, in words; None if it does not."""
    values = base.get(key), other.get(key)
    return None if None in values or values[0] == values[1] else f"{key} {values[0]} against {values[1]}"


def other_work(base: Side, other: Side) -> Refusal | None:
    """A refusal if steps of different phases would be compared."""
    phases = [_phases(run, by_token=bool(base.untraced and other.untraced)) for run in (base, other)]
    if phases[0] == phases[1]:
        return None
    base_phases, other_phases = (" and ".join(sorted(each)) for each in phases)
    why = f"their steps are of different phases: {other_phases} in {other.name}, {base_phases} in {base.name}"
    shared = set.intersection(*(set(r.held) for run in (base, other) for r in run.recordings))
    if not shared:
        return Refusal(why, "record the same phase in both")
    phase = DECODE if DECODE in shared else min(shared)
    return Refusal(why, f"compare the same phase of both: `{_command(base, other)} --phase {phase}`")


def other_program(base: Side, other: Side) -> Refusal | None:
    """A refusal if the kernels of the steps are not seen and what is seen differs as no change of the strategy makes
    it: then they may be of different models."""
    pairs = [pair for pair in _pairs(base, other) if any(r.hidden_share > _HIDDEN for r in pair)]
    pairs = [pair for pair in pairs if not all("model" in r.conditions for r in pair)]
    reasons = dict.fromkeys(text for pair in pairs for text in _unlike_programs(*pair))
    if not reasons:
        return None
    return Refusal(
        f"not the same program? {'; '.join(reasons)}; their kernels, which would tell, are in CUDA graphs that were "
        "recorded whole",
        "record both at node level, or name the model of both in run.json",
    )


def _unlike_programs(base: Measured, other: Measured) -> Iterator[str]:
    """What of two steps differs as no change of the strategy makes it. That changes the number of copies, merges them,
    or fetches a token instead of its logits; branches on several streams shorten the busy time, to no less than half in
    any recording."""
    names = other.name, base.name
    busy = other.steps.mean("busy"), base.steps.mean("busy")
    if max(busy) > _BUSY * min(busy):
        yield f"the device computes for {busy[0]:,.0f} µs a step in {names[0]}, for {busy[1]:,.0f} µs in {names[1]}"
    inputs, results = (
        [tuple(size for size in each if size >= _TELLING) for each in (other.copied[at], base.copied[at])]
        for at in (0, 1)
    )
    differing = sum(one != two for one, two in zip(*inputs, strict=True)) if len(inputs[0]) == len(inputs[1]) else 0
    if differing > 1 or (differing and max(busy) > _ALIKE * min(busy)):
        yield f"the inputs of a step have {_sizes(inputs[0])} in {names[0]}, {_sizes(inputs[1])} in {names[1]}"
    if results[0] and results[1] and max(results[0]) != max(results[1]):
        yield f"a step fetches {max(results[0]):,} bytes in {names[0]}, {max(results[1]):,} in {names[1]}"
    for run, of in ((other, base), (base, other)):
        period, busy_us = run.period_by_rate_us, of.steps.mean("busy")
        if period is not None and _BUSY * period < busy_us:
            yield f"by its rate a step of {run.name} takes {period:,.0f} µs; {of.name} computes for {busy_us:,.0f} µs"


def _sizes(each: Iterable[int]) -> str:
    return f"{', '.join(f'{size:,}' for size in each)} bytes"


def other_tracing(base: Side, other: Side) -> Refusal | None:
    """A refusal if tracing overhead cannot be assumed to be the same in both."""
    reasons = dict.fromkeys(text for pair in _pairs(base, other) for text in _tracing(*pair))
    return Refusal("; ".join(reasons), measure_untraced(base, other)) if reasons else None


def measure_untraced(base: Side, other: Side) -> str:
    """What to do if traced times are inconclusive."""
    rates = " ".join(
        f"--untraced-tokens-per-s {_rate_option(run, letter)}" for run, letter in ((base, "X"), (other, "Y"))
    )
    unknown = [run.name for run in (base, other) if run.untraced is None]
    return (
        f"run {' and '.join(unknown)} several times without a profiler, and give the token steps per second that the "
        f"engine's own benchmark reports: `{_command(base, other)} {rates}`"
    )


def times_alike(base: Side, other: Side) -> bool:
    """Whether the gaps can be compared: neither is inflated, and gaps known only up to the stretching of graphs by
    tracing were stretched in the same way."""
    if base.inflated or other.inflated:
        return False
    exact = all(not r.traced or r.graph_trace == "graph" for r in (*base.recordings, *other.recordings))
    return exact or kernels_alike(base, other, as_many=True)


def causes_alike(base: Side, other: Side) -> bool:
    """Whether the causes of the gaps can also be compared: from light passes, or corrected without stretched
    kernels."""
    levels = {r.graph_trace if r.traced else "" for r in (*base.recordings, *other.recordings)}
    return times_alike(base, other) and (levels == {""} or levels == {"graph"})


def kernels_alike(base: Side, other: Side, *, as_many: bool = False) -> bool:
    """Whether tracing affects a kernel equally in both, and with `as_many` all kernels of a step together."""
    return all(_recorded_alike(a, b) and (not as_many or _as_many_kernels(a, b)) for a, b in _pairs(base, other))


def cautions(base: Side, other: Side) -> list[str]:
    """The caveats for any difference: conditions, how both were recorded, and what each recording says about itself.
    One that holds for several pairs is said once. The only source of these for the command, the page and the report."""
    pairs_by_text: dict[str, list[tuple[Measured, Measured]]] = {}
    for pair in _pairs(base, other):
        for text in _differences(*pair):
            pairs_by_text.setdefault(text, []).append(pair)
    differences = [
        text.format(*(_names(pair[at] for pair in pairs) for at in (0, 1))) for text, pairs in pairs_by_text.items()
    ]
    return [*differences, *notes([*base.recordings, *other.recordings])]


def _names(recordings: Iterable[Measured]) -> str:
    return ", ".join(dict.fromkeys(recording.name for recording in recordings))


def notes(recordings: Iterable[Measured]) -> list[str]:
    """The caveats for the recordings, their steps and their gaps, each one once."""
    runs_by_note: dict[str, list[str]] = {}
    for recording in recordings:
        for warning in filter(None, (*recording.notes, recording.gaps.warning, recording.gaps.left_out)):
            runs_by_note.setdefault(warning, []).append(recording.name)
    return [f"{', '.join(dict.fromkeys(names))}: {warning}" for warning, names in runs_by_note.items()]


def _differences(base: Measured, other: Measured) -> Iterator[str]:
    """Texts with {0} in place of the base's name and {1} in place of the other's."""
    for key in SHOULD_AGREE:
        if text := unlike(key, other.conditions, base.conditions):
            yield f"{{1}} and {{0}} differ in {_plain(text)}"
    if ("gpu" in base.conditions) != ("gpu" in other.conditions):
        yield "it is unknown whether {1} and {0} ran on the same GPU: only one of them names it"
    unsaid = [key for key in _OF_WORK if key not in base.conditions or key not in other.conditions]
    if "batch" in unsaid and len(base.gained) and len(other.gained):
        unsaid.remove("batch")
        yield (
            f"the batch differs from step to step: a step gains {other.tokens_per_step:.3g} tokens in {{1}} and "
            f"{base.tokens_per_step:.3g} in {{0}} (means), which affects tokens/s and steps/s"
        )
    if unsaid:
        yield f"it is unknown whether {{1}} and {{0}} ran with the same {' and '.join(unsaid)}"
    if not _recorded_alike(base, other):
        yield (
            "they were recorded differently, so tracing also affects the difference in gaps and kernels: {1} "
            f"{_plain(_level(other))}, {{0}} {_plain(_level(base))}"
        )
    if base.inflated != other.inflated:
        inflated, honest = ("{0}", "{1}") if base.inflated else ("{1}", "{0}")
        yield (
            f"the gap of {inflated} is as traced, that of {honest} is not inflated: their difference means "
            "nothing without --untraced-tokens-per-s for every run"
        )


def _plain(text: str) -> str:
    """A text without places for names."""
    return text.replace("{", "{{").replace("}", "}}")


def _tracing(base: Measured, other: Measured) -> Iterator[str]:
    """Why tracing adds different amounts to the two, or may do so."""
    if base.traced != other.traced:
        traced, light = (base, other) if base.traced else (other, base)
        yield f"{traced.name} was recorded under a profiler, which slows it by an unknown amount; {light.name} was not"
        return
    if base.recorder != other.recorder or not base.recorder:
        tools = [r.recorder or "an unknown one" for r in (other, base)]
        yield f"they were made by different recorders ({tools[0]}, {tools[1]}), which slow a step by different amounts"
        return
    if base.graph_trace != other.graph_trace:
        yield (
            f"they were traced at different levels ({other.graph_trace}, {base.graph_trace}), which slow a step by "
            "different amounts"
        )
        return
    counts = [counts_per_token(r.steps) | {"recorded kernels": r.kernels_per_step} for r in (base, other)]
    unlike = [
        f"{other_counts[kind]:g} {kind} against {base_counts[kind]:g}"
        for base_counts, other_counts in (counts,)
        for kind in base_counts
        if kind in other_counts and base_counts[kind] != other_counts[kind]
    ]
    if unlike:
        yield f"tracing adds time to every call and kernel it records, and their steps differ: {', '.join(unlike)}"
    if not all(kind in each for each in counts for kind in COUNTS):
        yield "tracing adds time to every call, and the calls of their steps were not recorded"


def _phases(run: Side, by_token: bool) -> set[str]:
    """The phases of its steps; if rates count tokens, speculative steps are treated as decode steps."""
    phases = {phase for recording in run.recordings for phase in recording.phases}
    return {DECODE if by_token and phase == SPECULATIVE else phase for phase in phases}


def _pairs(base: Side, other: Side) -> Sequence[tuple[Measured, Measured]]:
    return list(product(base.recordings, other.recordings))


def _recorded_alike(base: Measured, other: Measured) -> bool:
    if not base.traced and not other.traced:
        return base.graph_trace == other.graph_trace
    base_recorded, other_recorded = ((r.traced, r.recorder, r.graph_trace) for r in (base, other))
    return base_recorded == other_recorded


def _as_many_kernels(base: Measured, other: Measured) -> bool:
    return not base.traced or base.kernels_per_step == other.kernels_per_step


def _level(recording: Measured) -> str:
    """How CUDA graphs were traced, by which recorder, and how that changed the period."""
    if not recording.traced:
        return "without a profiler"
    level = f"at {recording.graph_trace} level" if recording.graph_trace != "none" else "without CUDA graphs"
    level = f"by {recording.recorder} {level}" if recording.recorder else level
    return f"{level} (period × {recording.distortion:.2f})" if recording.distortion is not None else level


def _command(base: Side, other: Side) -> str:
    return shlex.join(["intertoken", "compare", *(run.place or run.name for run in (base, other))])


def _rate_option(run: Side, letter: str) -> str:
    """The value of the option for token steps per second, with letters for rates that must be measured."""
    if run.untraced is None:
        return ",".join([letter] * 3)
    rate = run.rates("untraced").get("steps/s")
    return "X" if rate is None else f"{rate:.6g}"
