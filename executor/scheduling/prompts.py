"""Prompts: the tokens of the sequences before the first token step, and the micro-batches that compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.backends.interface import HostArray
from executor.graph import Tensor
from executor.graph.models.kv_cache import KvCache, RowCopy
from executor.graph.models.step import DecodeStep, random_tokens
from executor.planning import Prepared
from executor.planning.concurrency import MAIN_STREAM
from executor.scheduling.scheduler import Scheduler
from tracer.errors import ExecutionError

MICRO_BATCH: Final = 512
"""Maximum tokens per step, llama.cpp's default n_ubatch."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of all sequences, and their division into steps.

    Attributes:
        lengths: prompt tokens of each sequence; 0 for none.
        shared: all sequences have the same prompt, computed once; each continues with its own token.
        micro_batch: maximum tokens per step.
    """

    lengths: tuple[int, ...]
    shared: bool = False
    micro_batch: int = MICRO_BATCH

    @property
    def together(self) -> bool:
        """Whether every step takes tokens of all sequences, as their prompts have equal lengths."""
        return len(set(self.lengths)) == 1 and not self.shared

    @property
    def groups(self) -> list[list[int]]:
        """The groups of sequences whose prompts are computed together."""
        if self.together:
            return [[*range(len(self.lengths))]]
        filled = [[sequence] for sequence, length in enumerate(self.lengths) if length]
        return filled[:1] if self.shared else filled

    def steps(self, group: Sequence[int]) -> list[tuple[int, int]]:
        """Return position and tokens per sequence for each step of a group; all steps except the last are full."""
        length, most = self.lengths[group[0]], max(self.micro_batch // len(group), 1)
        return [(start, min(most, length - start)) for start in range(0, length, most)]

    def tokens(self, vocabulary: int, seed: int) -> tuple[list[HostArray], HostArray]:
        """Return seeded prompts of all sequences, and a first token for sequences whose prompt does not give one."""
        counts = [self.lengths[0], *(1 for _ in self.lengths)] if self.shared else [max(n, 1) for n in self.lengths]
        parts = np.split(random_tokens(vocabulary, seed, sum(counts)), np.cumsum(counts)[:-1])
        if self.shared:
            return [parts[0]] * len(self.lengths), np.concatenate(parts[1:])
        return parts, np.array([part[-1] for part in parts])


class Prefill:
    """Computes the prompts, of which there is at least one, in the memory that the token steps use."""

    def __init__(
        self, prompts: Prompts, build: Callable[..., DecodeStep], prepare: Callable[[DecodeStep], Prepared], seed: int
    ) -> None:
        self._prompts = prompts
        groups = prompts.groups
        self._taken = [*groups[0]]  # sequences of the current step; the feeds read this
        sizes = {size for group in groups for _, size in prompts.steps(group)}
        sequences = None if prompts.together else self._taken
        self._by_size = {n: prepare(build(batch=len(groups[0]), prompt=n, sequences=sequences)) for n in sorted(sizes)}
        step = self.prepared[0].step
        if step.cache is None:
            raise ExecutionError("a model without a KV cache takes no prompts")
        self._cache: KvCache = step.cache
        self._tokens, self._first = prompts.tokens(step.vocabulary, seed)

    @property
    def prepared(self) -> list[Prepared]:
        """The plans of the steps, one per size."""
        return [*self._by_size.values()]

    def place(self, make: Callable[..., Scheduler]) -> Scheduler:
        """Allocate memory; return the scheduler whose state the token steps share."""
        self._schedulers: dict[int, Scheduler] = {}
        last = None
        for size, prepared in self._by_size.items():
            last = self._schedulers[size] = make(prepared=prepared, prefill=last)
        return self._schedulers[max(self._schedulers)]

    def run(self) -> HostArray:
        """Compute all prompts; return the token that each sequence continues with, (S,) int32."""
        self._cache.truncate(0)
        first = self._first.copy()
        for group in self._prompts.groups:
            self._taken[:] = group
            scheduler = self._submit(group)
            scheduler.fetch()
            if not self._prompts.shared:
                first[group] = scheduler.tokens
        if self._prompts.shared:
            self._share()
        return first

    def _submit(self, group: list[int]) -> Scheduler:
        """Submit the micro-batches of a group in sequence; return the scheduler of the last one."""
        before = None
        for position, size in self._prompts.steps(group):
            scheduler = self._schedulers[size]
            chunk = np.concatenate([self._tokens[sequence][position : position + size] for sequence in group])
            if scheduler is before:
                scheduler.follow(chunk)
            else:
                scheduler.begin(chunk, position)
            scheduler.submit()
            before = scheduler
        return scheduler

    def _share(self) -> None:
        """Give every sequence the tokens of the first one."""
        scheduler = self._schedulers[max(self._schedulers)]
        for sequence in range(1, self._cache.sequences):
            if (rows := self._cache.copy(0, sequence)) is not None:
                self._copy(rows, scheduler)
        scheduler.finish()

    def _copy(self, rows: RowCopy, scheduler: Scheduler) -> None:
        """Copy rows of every K and V tensor."""
        for piece in scheduler.pieces:
            for tensor in (node.root for node in piece.split.nodes if node.op.endswith("set_rows")):
                part = Tensor(tensor.name, "none", (rows.count, tensor.shape[1]), tensor.dtype)
                buffer, row = piece.places[tensor][0][0], part.nbytes // rows.count
                source, target = (
                    piece.backend.array(buffer, first * row, part) for first in (rows.source, rows.target)
                )
                piece.backend.activate()
                piece.backend.copy_on_device(part, target, source, MAIN_STREAM)
