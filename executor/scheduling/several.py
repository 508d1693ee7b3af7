"""Several schedulers as one: for the sizes of a growing KV cache, or for two halves of the sequences.

Attention grows with the filled part of the cache, like llama.cpp's n_kv, with one step per size. In halves, while the
host computes its part for one half, the devices compute theirs for the other: layers on both, or experts on the host
and attention on the devices. Each half has its own memory and graphs; they share weights and state, of which each
touches only what belongs to its sequences. Both read all weights, so this pays off if the time of a part grows with the
number of sequences: with many of them, or if each uses different experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.backends.interface import HostArray
from executor.graph.models.kv_cache import KvCache, Position
from executor.scheduling.piece import Piece
from executor.scheduling.scheduler import Scheduler
from tracer.recorders import annotate


class GrowingScheduler:
    """Continues with the scheduler of the next size when the cells of one are full.

    All sizes are planned before the first step. They share one graph, which is updated in place on a change of size, or
    instantiated again where that is not possible. All devices are idle then, because inputs and results move.

    Args:
        schedulers: schedulers of the same steps, fewest cells first, each created from the previous one.

    Attributes:
        now: the current scheduler.
    """

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers, self.now = schedulers, schedulers[0]

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences, see `Scheduler.begin`. The cache drops all tokens from the position on."""
        cache = self.now.step_taken.cache
        if cache is not None:
            cache.truncate(position)
        self.start(tokens, position)

    def start(self, tokens: HostArray, position: Position) -> None:
        """Start its sequences; the sequences of all schedulers of the cache must have the lengths given by their
        positions."""
        fitting = self._fitting(position)
        if fitting is not self.now:
            self._become(fitting)
        self.now.begin(tokens, position)

    def step(self) -> None:
        """Run one step, of the size that it needs."""
        self.grow()
        self.now.step()

    def grow(self) -> None:
        """Become the scheduler of the size that the next step needs."""
        if not self.now.room and (larger := self._fitting(self.now.position)) is not self.now:
            tokens, position = self.now.tokens, self.now.position
            self._become(larger)
            self.now.begin(tokens, position)

    def _fitting(self, position: Position) -> Scheduler:
        """Return the first scheduler with enough room, else the last one."""
        having = (s for s in self._schedulers if s.step_taken.room(position))
        return next(having, self._schedulers[-1])

    def _become(self, other: Scheduler) -> None:
        with annotate(f"n_kv {other.step_taken.attended}"):
            self.now.finish()
            other.take_over()
            self.now = other


def halves_of(batch: int) -> tuple[range, range]:
    """Return the numbers of the sequences in each half."""
    return range((batch + 1) // 2), range((batch + 1) // 2, batch)


def alternate(schedulers: Sequence[Scheduler]) -> None:
    """Run a step of each scheduler, alternating after every stage."""
    running = [scheduler.stages() for scheduler in schedulers]
    while running:
        running = [stages for stages in running if next(stages, "done") != "done"]
    for scheduler in schedulers:
        scheduler.take()


class Halves:
    """Two schedulers as one, with the interface of `GrowingScheduler` and of its current scheduler (`now`).

    Args:
        cache: the KV cache of all sequences.
        schedulers: the scheduler of each half.
    """

    def __init__(self, cache: KvCache | None, schedulers: Sequence[GrowingScheduler]) -> None:
        self._cache, self._schedulers = cache, schedulers

    @property
    def now(self) -> Halves:
        """Itself."""
        return self

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences, see `Scheduler.begin`."""
        if self._cache is not None:
            self._cache.truncate(position)
        positions = np.broadcast_to(position, len(tokens))
        for half, scheduler in zip(halves_of(len(tokens)), self._schedulers, strict=True):
            scheduler.start(tokens[half], positions[half].copy())

    def step(self) -> None:
        """Run one step of all sequences."""
        for scheduler in self._schedulers:
            scheduler.grow()
        alternate([scheduler.now for scheduler in self._schedulers])

    @property
    def tokens(self) -> HostArray:
        """The tokens sampled by the last step, (S,)."""
        return np.concatenate([scheduler.now.tokens for scheduler in self._schedulers])

    @property
    def logits(self) -> HostArray:
        """The logits of the last step, (S, vocabulary)."""
        return np.concatenate([scheduler.now.logits for scheduler in self._schedulers])

    @property
    def pieces(self) -> list[Piece]:
        """The splits of both halves."""
        return [piece for scheduler in self._schedulers for piece in scheduler.now.pieces]

    def finish(self) -> None:
        """Wait for all steps."""
        for scheduler in self._schedulers:
            scheduler.now.finish()
