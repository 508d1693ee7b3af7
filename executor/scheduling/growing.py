"""Token steps whose attention grows with the filled part of the KV cache, like llama.cpp's n_kv: one step per size."""

from __future__ import annotations

from collections.abc import Sequence

from executor.backends.interface import HostArray
from executor.graph.models.kv_cache import Position
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
