"""Pass 8: record the work that the host would issue over several steps, without running it, and check it for hazards.

The plan of each split has been checked separately, so a split's launch is one piece of work here. What remains is the
order of launches, copies and syncs on all devices, and of the host's own reads and writes of its buffers. The actual
schedulers issue the work, to devices that only record it, so no action or omission of a strategy is missed:
micro-batches of the prompts first, then token steps on the same state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final

import numpy as np

from executor.backends.interface import Guarantee, HostArray
from executor.backends.tape import Tape, TapeBackend
from executor.planning import Prepared
from executor.planning.devices import Device
from executor.planning.hazards import HOST_STREAM, Hazard, happens_before, unordered
from executor.scheduling.memory import COPIED, ExpertCopies, Weights
from executor.scheduling.scheduler import Scheduler, alternate
from executor.scheduling.strategies import Strategy, check_needs, for_prompts, lacks
from tracer.errors import UnsafePlanError

_STEPS: Final = 6  # of each plan


class _TapedExperts(ExpertCopies):
    """Records that the host reads the expert numbers to choose what to copy."""

    def __init__(self, tape: Tape, experts: ExpertCopies) -> None:
        vars(self).update(vars(experts))
        self._tape = tape

    def choose(self) -> HostArray:
        read = self._tape.host_span(self.used, "numbers of the experts", writes=False)
        self._tape.note("choosing the experts", HOST_STREAM, [read], "host")
        return super().choose()


class _TapedScheduler(Scheduler):
    """Records the host's accesses to its own memory."""

    def __init__(self, tape: Tape, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._tape = tape
        for piece in self.pieces:
            piece.experts = [_TapedExperts(tape, experts) for experts in piece.experts]

    def start(self, *, from_zero: bool) -> None:
        """Begin with arbitrary tokens, at the start or after one token per sequence."""
        step, position, cache = self.step_taken, 0 if from_zero else 1, self.step_taken.cache
        if cache is not None:
            cache.truncate(0)
            cache.place(range(cache.sequences), [0] * cache.sequences, position)
        self.begin(self._tokens, position)
        if cache is not None:  # a unified cache has fewer cells than all contexts together
            growing = cache.sequences if self._alternates else step.batch  # the other half grows as well
            self.room = min(self.room, (cache.rows - cache.sequences * position) // (growing * step.prompt))

    def go_on(self) -> None:
        """Give the next step arbitrary tokens."""
        self.follow(self._tokens)

    def note(self, name: str, arrays: Mapping[str, HostArray], writes: bool) -> None:
        spans = [self._tape.host_span(values, key, writes) for key, values in arrays.items()]
        self._tape.note(name, HOST_STREAM, spans, "host")

    def _prepare_copies(self) -> None:
        super()._prepare_copies()
        made = {name: values for name, values in self._values.items() if name not in self._prepared.step.late}
        if made:
            self.note("making the inputs", made, writes=True)

    def _keep(self) -> None:
        super()._keep()
        if self._kept:
            self.note("keeping the inputs", self._values, writes=False)
            self.note("keeping the inputs", self._kept[self._steps % len(self._kept)], writes=True)

    def fetch(self) -> None:
        super().fetch()
        read = {"logits": self._logits} if self._sampled is None else {"sampled": self._sampled}
        self.note("sampling", read, writes=False)
        self.note("sampling", {"inp_tokens": self._tokens}, writes=True)


def refuse_hazards(
    sizes: Sequence[Prepared], strategy: Strategy, *, prefill: Sequence[Prepared] = (),
    others: Sequence[Sequence[Prepared]] = (),
) -> Tape:  # fmt: skip
    """Reject a run with data races within or between steps, see `find_run_hazards`; return its tape.

    Raises:
        UnsafePlanError: names the first hazard.
    """
    for own, backend, guarantees, several, cut in _asked(sizes, strategy, prefill, others):
        check_needs(own, backend, guarantees, several=several, cut=cut)
    tape = record_tape(sizes, type(strategy)(), prefill=prefill, others=others)
    if hazards := hazards_of(tape):
        raise UnsafePlanError(f"{_told(strategy, hazards)}. Choose another strategy; --unsafe runs it anyway")
    return tape


def run_races(
    sizes: Sequence[Prepared], strategy: Strategy, *, prefill: Sequence[Prepared] = (),
    others: Sequence[Sequence[Prepared]] = (),
) -> tuple[list[str], Tape]:  # fmt: skip
    """Return the reasons for which `refuse_hazards` would reject a run, a sentence each, and its tape."""
    asked = _asked(sizes, strategy, prefill, others)
    reasons = [lacks(own, backend, guarantees, several=several) for own, backend, guarantees, several, _ in asked]
    tape = record_tape(sizes, type(strategy)(), prefill=prefill, others=others)
    if hazards := hazards_of(tape):
        reasons.append(_told(strategy, hazards))
    return [*dict.fromkeys(reason for reason in reasons if reason)], tape


def _told(strategy: Strategy, hazards: Sequence[Hazard]) -> str:
    return f"strategy {strategy.name!r} has data races between steps ({len(hazards)}): {hazards[0]}"


def _asked(
    sizes: Sequence[Prepared], strategy: Strategy, prefill: Sequence[Prepared], others: Sequence[Sequence[Prepared]]
) -> Iterator[tuple[Strategy, str, frozenset[Guarantee], bool, bool]]:
    """Yield the strategy, the backend and its guarantees, for each device of each plan; whether the step uses several
    devices, and whether it is cut into splits."""
    for prepared in (*prefill, *sizes, *(prepared for own in others for prepared in own)):
        own = for_prompts(strategy) if prepared.step.history is None else strategy
        devices = _devices([prepared])
        several = sum(not device.is_host for device in devices) > 1
        for device in devices:
            yield own, device.backend, TapeBackend(Tape(), device).guarantees, several, len(prepared.splits) > 1


def find_run_hazards(
    sizes: Sequence[Prepared], strategy: Strategy, *, prefill: Sequence[Prepared] = (),
    others: Sequence[Sequence[Prepared]] = (),
) -> list[Hazard]:  # fmt: skip
    """Find all hazards between splits, devices, copies and the host over several steps of a run, see `record_tape`."""
    return hazards_of(record_tape(sizes, strategy, prefill=prefill, others=others))


def hazards_of(tape: Tape) -> list[Hazard]:
    """Find all hazards of a tape."""
    return unordered(happens_before(tape.program), {})


def record_tape(
    sizes: Sequence[Prepared], strategy: Strategy, *, prefill: Sequence[Prepared] = (),
    others: Sequence[Sequence[Prepared]] = (),
) -> Tape:  # fmt: skip
    """Record the work of several steps of a run, without running it.

    Args:
        sizes: the token step for each number of attended cells; see `GrowingScheduler`.
        strategy: a new instance.
        prefill: the preceding micro-batches on the same state, smallest first, as planned by `Prefill`. They run in
            sequence without a fetch, and their result is fetched once.
        others: the same token steps of other sequences, if the steps are run in halves that alternate.
    """
    tape, numbers = Tape(), count()
    every = [*prefill, *sizes, *(prepared for own in others for prepared in own)]
    backends = {device: TapeBackend(tape, device) for device in _devices(every)}
    weights = _weights(backends, every)
    make = partial(_TapedScheduler, tape, backends, launch="graph", weights=weights, allow_hazards=True)
    prompts: list[_TapedScheduler] = []
    for prepared in prefill:
        before = prompts[-1] if prompts else None
        prompts.append(make(prepared=prepared, strategy=for_prompts(strategy), prefill=before))
    for scheduler in reversed(prompts):
        scheduler.start(from_zero=scheduler is prompts[-1])
        for number in range(min(_STEPS, scheduler.room)):
            tape.step = next(numbers)
            if number:
                scheduler.go_on()
            scheduler.submit()
    if prompts:
        prompts[0].fetch()
    strategies = [strategy, *(type(strategy)() for _ in others)]
    smaller: list[_TapedScheduler] = []
    for of_size in zip(sizes, *others, strict=True):
        schedulers: list[_TapedScheduler] = []
        for number, prepared in enumerate(of_size):
            before = smaller[number] if smaller else None
            shared = schedulers[-1] if schedulers else prompts[-1] if prompts else None
            scheduler = make(
                prepared=prepared, strategy=strategies[number], prefill=shared, smaller=before, alternates=bool(others)
            )
            if before is not None:
                before.finish()
                scheduler.take_over()
            schedulers.append(scheduler)
        for scheduler in schedulers:
            scheduler.start(from_zero=not prompts and not smaller)
        for _ in range(min(_STEPS, *(scheduler.room for scheduler in schedulers))):
            tape.step, start = next(numbers), len(tape.program)
            if others:
                alternate(schedulers)
            else:
                schedulers[0].step()
            if not smaller:
                tape.steps.append((start, len(tape.program)))
        smaller = schedulers
    return tape


def _devices(every: Sequence[Prepared]) -> list[Device]:
    return list(dict.fromkeys(part.split.device for prepared in every for part in prepared.splits))


def _weights(backends: Mapping[Device, TapeBackend], every: Sequence[Prepared]) -> Weights:
    """Return empty memory for all weights, in the form of `memory.load_weights`."""
    weights: Weights = {device: {} for device in (*backends, COPIED)}
    for split in (part.split for prepared in every for part in prepared.splits):
        backend, arrays = backends[split.device], weights[split.device]
        for weight in split.weights:
            if weight.name not in arrays:
                arrays[weight.name] = backend.array(backend.alloc(weight.nbytes), 0, weight)
        weights[COPIED] |= {weight.name: np.empty((weight.shape[0], 0)) for weight in split.copied}
    return weights
