"""What the product says of a recording, held against the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple

from tests.engines.truth import (
    ARGUABLE,
    DECODE,
    DIFFUSION,
    OTHER,
    PREFILL,
    SPECULATIVE,
    TRAINING,
    Reading,
    Truth,
)
from tracer import Trace
from tracer.analysis.recording import Recording
from tracer.analysis.steps import UNSURE
from tracer.errors import TraceError

RIGHT, DOUBTED, REFUSED, WRONG = "right", "doubted", "refused", "confident wrong"
VERDICTS = (RIGHT, DOUBTED, REFUSED, WRONG)
CLOSE, CLOSE_US = 0.05, 3.0
"""How far a figure may be off: a share of it, or so many µs."""
CLOSE_COUNT = 0.25
"""How far the number of syncs of a step may be off."""
OF_RUNS = 0.02
"""A light recording does not tell when the device idles in a run of eager launches: up to this share of a period."""

SAYS_MORE = "no call and nothing on the device"
"""A note on pauses, which makes nothing else doubtful."""
UNTOLD = ("iteration", "forward", "eager")
"""What steps are called of which nothing else is known."""
SAID_AS = {
    DECODE: (DECODE, SPECULATIVE), SPECULATIVE: (SPECULATIVE, DECODE), TRAINING: (TRAINING, *UNTOLD),
    DIFFUSION: (DIFFUSION, *UNTOLD), OTHER: UNTOLD,
}  # fmt: skip
"""What steps of a phase may be called."""


@dataclass(frozen=True)
class Judged:
    """A verdict, what is wrong, what was said, and why it was doubted."""

    verdict: str
    wrong: str = ""
    said: str = ""
    doubts: tuple[str, ...] = ()


def judge(trace: Trace, truth: Truth) -> Judged:
    """Right, doubted where wrong, refused, or wrong without a doubt."""
    recording = Recording(trace, "simulated")
    summary = recording.summary
    try:
        steps = recording.steps
    except TraceError as error:
        return Judged(REFUSED, said=str(error))
    every = recording.engines or (recording,)
    try:
        wrong = _wrong(every, truth)
    except TraceError as error:
        return Judged(REFUSED, said=str(error))
    doubts = tuple(doubt for each in every for doubt in _doubts(each, wrong.is_of_steps))
    said = f"{steps.what} ({steps.confidence:.2f}; {steps.detail}), period {summary.period_us}, idle {summary.idle_us}"
    if not wrong.what:
        return Judged(RIGHT, said=said, doubts=doubts)
    return Judged(DOUBTED if doubts else WRONG, wrong.what, said, doubts)


class _Wrong(NamedTuple):
    """What is wrong, "" if nothing is; whether it is which steps there are, or only a figure of them."""

    what: str = ""
    is_of_steps: bool = False


def _doubts(recording: Recording, of_steps: bool) -> Iterator[str]:
    """What is stated that may make the steps wrong, or else their figures."""
    steps, trace = recording.steps, recording.trace
    if steps.confidence < UNSURE:
        yield f"confidence {steps.confidence:.2f}"
    yield from (doubt for doubt in steps.doubts if not doubt.startswith(SAYS_MORE))
    yield from trace.notes
    for said in (steps.rate_doubt, recording.summary.problem, None if of_steps else recording.summary.left_out):
        if said:
            yield said


def _wrong(every: tuple[Recording, ...], truth: Truth) -> _Wrong:
    """What is wrong by every reading of the truth."""
    if len(every) > 1 and len(every) != len(truth.engines):
        return _Wrong(f"{len(every)} engines, not {len(truth.engines)}", True)
    return next((wrong for recording in every if (wrong := _wrong_of(recording, truth)).what), _Wrong())


def _wrong_of(recording: Recording, truth: Truth) -> _Wrong:
    steps, phases = recording.steps, recording.steps.phases
    is_told = not set(phases) <= set(UNTOLD)
    said = sum(phases.get(phase, 0) for phase in (SAID_AS[truth.phase] if is_told else phases))
    if truth.phase not in (DECODE, SPECULATIVE) and (tokens := phases.get(DECODE, 0) + phases.get(SPECULATIVE, 0)):
        return _Wrong(f"{tokens} decode steps, where nothing decodes", True)
    prompts, most = phases.get(PREFILL, 0), truth.count(PREFILL, *ARGUABLE)
    if prompts > most:
        return _Wrong(f"{prompts} prefill steps, not {truth.count(PREFILL)}", True)
    wholes, regime = truth.readings(of_any=not is_told), steps.regime
    parts = wholes if regime is None else truth.readings(slice(regime.first, regime.last), not is_told)
    wrong = []
    for whole, shown in zip(wholes, parts, strict=True):
        if not whole.fewest <= said <= whole.steps:
            wrong.append(_Wrong(f"{said} steps, not {whole.steps}", True))
        elif not (figure := _wrong_figure(recording, shown)):
            return _Wrong()
        else:
            wrong.insert(0, _Wrong(figure))
    return wrong[0]


def _wrong_figure(recording: Recording, reading: Reading) -> str:
    """The figure that is not the reading's, as both."""
    summary = recording.summary
    if not reading.periods:
        return ""
    if summary.period_us is not None and _differ(summary.period_us, reading.period_us):
        return f"period {summary.period_us:,.1f} µs, not {reading.period_us:,.1f}"
    true = median(reading.syncs), fmean(reading.syncs)
    if (said := summary.syncs_per_token) is not None and all(abs(said - each) > CLOSE_COUNT for each in true):
        return f"{said:.2f} syncs a step, not {true[1]:.2f}"
    unseen_us = OF_RUNS * reading.period_us * recording.trace.has_runs
    if summary.idle_us and _differ(summary.idle_us["mean"], reading.idle_us, unseen_us):
        return f"idle {summary.idle_us['mean']:,.1f} µs, not {reading.idle_us:,.1f}"
    if summary.idle_us and reading.causes_us:
        said_us = sum((Counter(of) for of in recording.idle.causes_us.values()), Counter[str]())
        for cause, true_us in reading.causes_us.items():
            if abs(said_us[cause] - true_us) > max(CLOSE_US, CLOSE * reading.idle_us):
                return f"{said_us[cause]:,.1f} µs of the idle time for {cause}, not {true_us:,.1f}"
    return ""


def _differ(said: float, true: float, unseen: float = 0) -> bool:
    return abs(said - true) > max(CLOSE_US, CLOSE * abs(true)) + unseen
