"""What is true of a machine's steps, from what each step launched. It shares no code with the analyses."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from statistics import fmean, median

from tests.engines.machine import Machine, Ran
from tests.engines.recorded import GRAPH
from tests.engines.waited import Waited
from tracer.model.trace import LIGHT

Span = tuple[int, int]

DECODE, PREFILL, MIXED, SPECULATIVE = "decode", "prefill", "mixed", "speculative"
TRAINING, DIFFUSION, OTHER = "training", "diffusion", "other"
WARM_UP, CAPTURE, EAGER, BEGUN, ENDED = "warm-up", "capture", "eager", "begun", "ended"
SYNCS = ("sync", "device sync", "event sync")
MAIN = (DECODE, SPECULATIVE, TRAINING, DIFFUSION, OTHER)
"""Phases of which figures are asked; the first of them that occurs is that of a recording."""
ARGUABLE = (MIXED, WARM_UP, EAGER, BEGUN, ENDED)
"""May count as decode: a step with a prompt beside tokens, a token of a warm-up, one without a graph, a part of one."""


@dataclass(frozen=True)
class Step:
    """A true step: what it is, and the compute that it launched on each device, ns; the syncs of its host."""

    number: int
    phase: str
    engine: str
    start: int
    compute: dict[int, list[Span]]
    syncs: int


@dataclass(frozen=True)
class Reading:
    """One way to count the steps.

    Attributes:
        fewest, steps: their number; of warm-ups some may be missing.
        periods: ns, from the first compute of a step to that of the next, where the next is one of them, too.
        idle: ns of each period in which its device computes nothing.
        syncs: of the host of each step.
        causes_us: what the device waits for in a period, the mean; empty where that is not known.
    """

    fewest: int
    steps: int
    periods: list[int]
    idle: list[int]
    syncs: list[int]
    causes_us: dict[str, float]

    @property
    def period_us(self) -> float:
        """The median."""
        return median(self.periods) / 1e3

    @property
    def idle_us(self) -> float:
        """The mean."""
        return fmean(self.idle) / 1e3


@dataclass(frozen=True)
class Truth:
    """What is true of a recording.

    Attributes:
        steps: all, in order.
        larger: the same, or larger ones of several that may be counted as one.
        phase: the main one.
        busy: when each device computes, ns.
        waited: what for it waits; None where that is not known.
    """

    steps: list[Step]
    larger: list[Step]
    phase: str
    busy: dict[int, list[Span]] = field(repr=False)
    waited: Waited | None = field(repr=False, compare=False)

    @property
    def engines(self) -> list[str]:
        """Which engines have steps of the main phase."""
        return list(dict.fromkeys(step.engine for step in self.steps if step.phase == self.phase))

    def count(self, *phases: str) -> int:
        """How many steps are of these phases."""
        return sum(step.phase in phases for step in self.steps)

    def reading(
        self, steps: list[Step], phases: Collection[str], engine: str | None = None, part: slice = slice(None)
    ) -> Reading:
        """The steps of some phases, of one engine or of all, or a part of them."""
        periods, idle, every, warm_ups, causes = [], [], list[Step](), 0, Counter[str]()
        for each in [engine] if engine is not None else self.engines:
            mine = [step for step in steps if step.engine == each]
            of_phases = [step for step in mine if step.phase in phases][part]
            chosen = {step.number for step in of_phases}
            every += of_phases
            warm_ups += sum(step.phase == WARM_UP for step in of_phases)
            for this, following in pairwise(mine):
                if this.number not in chosen or following.number not in chosen:
                    continue
                for at, compute in this.compute.items():
                    if at in following.compute:
                        begin = min(start for start, _ in compute)
                        until = min(start for start, _ in following.compute[at])
                        periods.append(until - begin)
                        holes = _holes(self.busy[at], begin, until)
                        idle.append(sum(end - start for start, end in holes))
                        if self.waited is not None:
                            for hole in holes:
                                causes.update(self.waited.causes(at, *hole))
        causes_us = {cause: ns / len(periods) / 1e3 for cause, ns in causes.items()}
        return Reading(len(every) - warm_ups, len(every), periods, idle, [step.syncs for step in every], causes_us)

    def readings(self, part: slice = slice(None), of_any: bool = False) -> list[Reading]:
        """Every way to count the main steps that is right; `of_any` if it is not said what they are."""
        served = [DECODE, SPECULATIVE, PREFILL, MIXED, EAGER]
        every = [served, [*served, WARM_UP], [*served, WARM_UP, CAPTURE, *MAIN]]
        extra = [phase for phase in ARGUABLE if self.count(phase)] if self.phase in (DECODE, SPECULATIVE) else []
        ways = [[self.phase], *([self.phase, phase] for phase in extra), [self.phase, *extra]]
        engines: list[str | None] = [None, *self.engines] if len(self.engines) > 1 else [None]
        sizes = [self.steps] if self.steps == self.larger else [self.steps, self.larger]
        return [
            self.reading(steps, way, engine, part)
            for steps in sizes
            for way in (ways + every if of_any else ways)
            for engine in engines
        ]


def truth_of(machine: Machine, level: str) -> Truth:
    """The truth of a machine as a recorder of this level can see it: inside graphs it may see nothing."""
    is_opaque = level in (GRAPH, LIGHT)
    compute: list[dict[int, list[Span]]] = [{} for _ in machine.steps]
    every: dict[int, list[Ran]] = {}
    for ran in machine.ran:
        for work in _compute(ran, is_opaque):
            every.setdefault(ran.device, []).append(work)
            if ran.step >= 0 and not _communicates(work):
                compute[ran.step].setdefault(ran.device, []).append((work.start, work.end))
    syncs = Counter(call.step for call in machine.calls if call.what in SYNCS)
    steps = [
        Step(number, begun.phase, begun.engine, begun.start, compute[number], syncs[number])
        for number, begun in enumerate(machine.steps)
    ]
    present = {step.phase for step in steps}
    phase = next(phase for phase in MAIN if phase in present)
    wholes = [begun.whole if begun.whole >= 0 else -1 - number for number, begun in enumerate(machine.steps)]
    larger = [_joined([*of]) for _, of in groupby(steps, lambda step: wholes[step.number])]
    busy = {at: _union([(ran.start, ran.end) for ran in of]) for at, of in every.items()}
    hosts, waited = {(call.process, call.thread) for call in machine.calls}, None
    communicates = any(_communicates(ran) for of in every.values() for ran in of)
    if len(hosts) == 1 and not machine.waits_unseen and not communicates and level != LIGHT:
        waited = Waited(machine, {at: sorted(of, key=lambda ran: ran.start) for at, of in every.items()})
    return Truth(steps, larger, phase, busy, waited)


def _joined(parts: list[Step]) -> Step:
    """One step of several."""
    compute: dict[int, list[Span]] = {}
    for part in parts:
        for at, of in part.compute.items():
            compute.setdefault(at, []).extend(of)
    return replace(parts[0], compute=compute, syncs=sum(part.syncs for part in parts))


def _compute(ran: Ran, is_opaque: bool) -> Sequence[Ran]:
    if ran.what == "copy":
        return []
    return ran.nodes if ran.what == "graph" and not is_opaque else [ran]


def _communicates(ran: Ran) -> bool:
    return ran.name.startswith("ncclDevKernel")


def _union(spans: list[Span]) -> list[Span]:
    """The times in which any of these spans is, in order and apart."""
    union: list[Span] = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def _holes(union: list[Span], begin: int, until: int) -> list[Span]:
    """When none of the spans of a union is in this time."""
    first = max(bisect_left(union, (begin, begin)) - 1, 0)
    last = bisect_left(union, (until, until))
    holes = []
    for start, end in union[first:last]:
        if start > begin:
            holes.append((begin, start))
        begin = max(begin, end)
    return [*holes, (begin, until)] if begin < until else holes
