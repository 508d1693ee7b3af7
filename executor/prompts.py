"""Prompts: what the sequences hold before the first token step, and the micro-batches that compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.backends.interface import Array, Backend, HostArray
from executor.concurrency import MAIN_STREAM
from executor.graph import Tensor
from executor.kv_cache import KvCache, RowCopy
from executor.models.step import DecodeStep, random_tokens
from executor.scheduler import Prepared, Scheduler
from executor.strategies import Strategy
from tracer.errors import ExecutionError

MICRO_BATCH: Final = 512
"""The most tokens of a step, llama.cpp's default n_ubatch."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of all sequences, and how steps take them.

    Attributes:
        lengths: tokens of each sequence's prompt; 0 for none.
        shared: all have the same prompt, which is computed once; each goes on with a token of its own.
    """

    lengths: tuple[int, ...]
    shared: bool = False

    @property
    def together(self) -> bool:
        """Whether every step takes tokens of all sequences: their prompts are of one length."""
        return len(set(self.lengths)) == 1 and not self.shared

    @property
    def groups(self) -> list[list[int]]:
        """The sequences whose prompts are computed together, group after group."""
        if self.together:
            return [[*range(len(self.lengths))]]
        filled = [[sequence] for sequence, length in enumerate(self.lengths) if length]
        return filled[:1] if self.shared else filled

    def steps(self, group: Sequence[int]) -> list[tuple[int, int]]:
        """Position and tokens of each sequence in each step of a group: all steps are full but the last."""
        length, most = self.lengths[group[0]], max(MICRO_BATCH // len(group), 1)
        return [(start, min(most, length - start)) for start in range(0, length, most)]

    def tokens(self, vocabulary: int, seed: int) -> tuple[list[HostArray], HostArray]:
        """Seeded prompts of all sequences, and the token each begins with where its prompt does not say which."""
        counts = [self.lengths[0], *(1 for _ in self.lengths)] if self.shared else [max(n, 1) for n in self.lengths]
        parts = np.split(random_tokens(vocabulary, seed, sum(counts)), np.cumsum(counts)[:-1])
        if self.shared:
            return [parts[0]] * len(self.lengths), np.concatenate(parts[1:])
        return parts, np.array([part[-1] for part in parts])


class Prefill:
    """Computes the prompts, on the memory that the token steps go on with.

    Args:
        prompts: what to compute; at least one sequence has a prompt.
        build: (batch, prompt, sequences) -> step, see `models.decoder.build`.
        prepare: the passes over a step.
        seed: of the prompts.
    """

    def __init__(
        self, prompts: Prompts, build: Callable[..., DecodeStep], prepare: Callable[[DecodeStep], Prepared], seed: int
    ) -> None:
        self._prompts = prompts
        groups = prompts.groups
        self._taken = [*groups[0]]  # of the step at hand; the steps' feeds read it
        sizes = {size for group in groups for _, size in prompts.steps(group)}
        sequences = None if prompts.together else self._taken
        self._prepared = {n: prepare(build(batch=len(groups[0]), prompt=n, sequences=sequences)) for n in sorted(sizes)}
        step = next(iter(self._prepared.values())).step
        if step.cache is None:
            raise ExecutionError("a model without KV cache takes no prompts")
        self._cache: KvCache = step.cache
        self._rows = [node.root for node in step.graph.nodes if node.op.endswith("set_rows")]  # every K and V tensor
        self._tokens, self._first = prompts.tokens(step.vocabulary, seed)

    def place(self, backend: Backend, strategy: Strategy, launch: str, weights: Mapping[str, Array]) -> Scheduler:
        """Take memory; returns the scheduler whose state the token steps share."""
        self._backend, self._schedulers = backend, dict[int, Scheduler]()
        last = None
        for size, prepared in self._prepared.items():
            last = self._schedulers[size] = Scheduler(backend, prepared, strategy, launch, weights, prefill=last)
        self._state = self._schedulers[max(self._schedulers)].state
        return self._schedulers[max(self._schedulers)]

    def run(self) -> HostArray:
        """Compute all prompts anew; returns the token that each sequence goes on with, (S,) int32."""
        self._cache.clear()
        first = self._first.copy()
        for group in self._prompts.groups:
            self._taken[:] = group
            for position, size in self._prompts.steps(group):
                scheduler = self._schedulers[size]
                chunk = [self._tokens[sequence][position : position + size] for sequence in group]
                scheduler.begin(np.concatenate(chunk), position)
                scheduler.step(last=True)
            if not self._prompts.shared:
                first[group] = scheduler.tokens
        if self._prompts.shared:
            self._share()
        return first

    def _share(self) -> None:
        """Give every sequence what the first one holds."""
        for sequence in range(1, self._cache.sequences):
            if (rows := self._cache.copy(0, sequence)) is not None:
                self._copy(rows)
        self._backend.synchronize(MAIN_STREAM)

    def _copy(self, rows: RowCopy) -> None:
        """Copy rows of every K and V tensor."""
        for tensor in self._rows:
            part = Tensor(tensor.name, "none", (rows.count, tensor.shape[1]), tensor.dtype)
            buffer, row = self._state[tensor.name], part.nbytes // rows.count
            source, target = (self._backend.array(buffer, first * row, part) for first in (rows.source, rows.target))
            self._backend.copy_on_device(part, target, source, MAIN_STREAM)
