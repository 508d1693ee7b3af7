"""Token steps in two halves of the sequences, whose parts on the host and on the devices alternate.

While the host computes its part for one half, the devices compute theirs for the other: layers on both, or experts on
the host and attention on the devices. Each half has its own memory and graphs; they share weights and state, of which
each touches only what belongs to its sequences. Both read all weights, so this pays off if the time of a part grows
with the number of sequences: with many of them, or if each uses different experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from executor.backends.interface import HostArray
from executor.graph.models.kv_cache import KvCache, Position
from executor.scheduling.growing import GrowingScheduler
from executor.scheduling.piece import Piece
from executor.scheduling.scheduler import Scheduler


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
