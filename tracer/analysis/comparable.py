"""Whether two runs can be compared: whether they did the same work, whether tracing permits comparing their times, and
the caveats for a reader.

What a profiler adds to a step lies between nothing and the part of it in which the device does not compute. The amount
depends on the calls and kernels it records. So traced times show a direction only if the same recorder, at the same
level, recorded the same number of calls in both, and the difference exceeds what it can have added to either.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from tracer.analysis.recorded import COUNTS, WHOLE_GRAPH, Measured, counts_per_token
from tracer.analysis.sides import Side
from tracer.engines.engine import DECODE, SPECULATIVE

MUST_AGREE: Final = ("gpu", "backend", "model", "batch")
"""Conditions that must match for two runs to do the same work on the same device."""

SHOULD_AGREE: Final = (
    "prompt", "shared_prompt", "context", "gpu_layers", "devices", "experts", "engine", "clock rate", "driver",
)  # fmt: skip
"""Conditions that affect the times; often they are what is being compared."""

_OF_WORK: Final = ("model", "batch")


@dataclass(frozen=True)
class Refusal:
    """Why there is no verdict, and how to get one."""

    why: str
    instead: str


def obstacles(base: Measured, other: Measured) -> list[str]:
    """Why the two are not comparable; empty if they are, or if the recordings do not say."""
    found = [unlike(key, base.conditions, other.conditions) for key in MUST_AGREE]
    base_names, other_names = (set(r.kernels.name) - {WHOLE_GRAPH} for r in (base, other))
    if base_names and other_names and base_names.isdisjoint(other_names):
        found.append(f"no kernel in common ({min(base_names)}, ... against {min(other_names)}, ...)")
    return [text for text in found if text]


def same_work(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs of these conditions did the same work on the same device, as far as known."""
    return not any(unlike(key, one, other) for key in MUST_AGREE)


def unlike(key: str, base: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """How a condition that both know differs, in words; None if it does not."""
    values = base.get(key), other.get(key)
    return None if None in values or values[0] == values[1] else f"{key} {values[0]} against {values[1]}"


def other_work(base: Side, other: Side) -> Refusal | None:
    """A refusal if steps of different phases, or of several engines, would be compared."""
    mixed = dict.fromkeys(r.name for run in (other, base) for r in run.recordings if r.different)
    if mixed:
        why = f"the steps of {' and '.join(mixed)} are of hosts of different rates, whose share in them may differ"
        return Refusal(why, "record one engine in both")
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


def other_tracing(base: Side, other: Side) -> Refusal | None:
    """A refusal if tracing overhead cannot be assumed to be the same in both."""
    found = dict.fromkeys(text for pair in _pairs(base, other) for text in _tracing(*pair))
    return Refusal("; ".join(found), measure_untraced(base, other)) if found else None


def measure_untraced(base: Side, other: Side) -> str:
    """What to do if traced times are inconclusive."""
    rates = " ".join(f"--untraced-tokens-per-s {_rate(run, letter)}" for run, letter in ((base, "X"), (other, "Y")))
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
    The only source of these for the command, the page and the report."""
    found = dict.fromkeys(text for pair in _pairs(base, other) for text in _differences(*pair))
    return [*found, *notes([*base.recordings, *other.recordings])]


def notes(recordings: Iterable[Measured]) -> list[str]:
    """The caveats for the recordings, their steps and their gaps, each one once."""
    runs_by_note: dict[str, list[str]] = {}
    for recording in recordings:
        for warning in filter(None, (*recording.notes, recording.gaps.warning, recording.gaps.left_out)):
            runs_by_note.setdefault(warning, []).append(recording.name)
    return [f"{', '.join(dict.fromkeys(names))}: {warning}" for warning, names in runs_by_note.items()]


def _differences(base: Measured, other: Measured) -> Iterator[str]:
    for key in SHOULD_AGREE:
        if text := unlike(key, other.conditions, base.conditions):
            yield f"{other.name} and {base.name} differ in {text}"
    if ("gpu" in base.conditions) != ("gpu" in other.conditions):
        yield f"it is unknown whether {other.name} and {base.name} ran on the same GPU: only one of them names it"
    unsaid = [key for key in _OF_WORK if key not in base.conditions or key not in other.conditions]
    if "batch" in unsaid and len(base.gained) and len(other.gained):
        unsaid.remove("batch")
        yield (
            f"the batch differs from step to step: a step gains {other.tokens_per_step:.3g} tokens in {other.name} and "
            f"{base.tokens_per_step:.3g} in {base.name} (means), which affects tokens/s and steps/s"
        )
    if unsaid:
        yield f"it is unknown whether {other.name} and {base.name} ran with the same {' and '.join(unsaid)}"
    if not _recorded_alike(base, other):
        yield (
            f"they were recorded differently, so tracing also affects the difference in gaps and kernels: {other.name} "
            f"{_level(other)}, {base.name} {_level(base)}"
        )
    if base.inflated != other.inflated:
        inflated, honest = (base, other) if base.inflated else (other, base)
        yield (
            f"the gap of {inflated.name} is as traced, that of {honest.name} is not inflated: their difference means "
            "nothing without --untraced-tokens-per-s for every run"
        )


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
    found = {phase for recording in run.recordings for phase in recording.phases}
    return {DECODE if by_token and phase == SPECULATIVE else phase for phase in found}


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


def _rate(run: Side, letter: str) -> str:
    """The value of the option for token steps per second, with letters for rates that must be measured."""
    if run.untraced is None:
        return ",".join([letter] * 3)
    rate = run.rates("untraced").get("steps/s")
    return "X" if rate is None else f"{rate:.6g}"
