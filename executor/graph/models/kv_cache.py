"""The KV cache as plain data: the cells of each sequence's tokens, the cells for new tokens, and what each token sees.

There are two kinds, as in llama.cpp: `unified` is one stream of cells for all sequences, in which sequences may share a
cell; `streams` gives every sequence its own stream. A cell is row `stream * cells + cell` of the K and V tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.names import lookup
from tracer.errors import UsageError

PADDING: Final = 256
"""The number of attended cells is a multiple of this, like llama.cpp's n_kv (llama_kv_cache::get_n_kv)."""
KINDS: Final = ("unified", "streams")

Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]
Position = int | Ints
"""Tokens that sequences hold: one number for all, or one per sequence."""


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Rows of every K and V tensor to copy: `count` rows from row `source` to row `target`."""

    source: int
    target: int
    count: int


class KvCache:
    """The KV cache, see the module's docstring. Free cells are taken in order, lowest first.

    Attributes:
        cells: cells per stream.
        context: maximum tokens of the longest sequence.
        sizes: possible numbers of attended cells, ascending; the last is `cells`.
        lengths: tokens that each sequence holds.

    Example:
        >>> cache = KvCache("unified", sequences=2, cells=8)
        >>> cache.place([0, 1], [0, 0], 2)
        array([[0, 1],
               [2, 3]])
        >>> cache.copy(0, 1)
        >>> cache.place([0, 1], [2, 2], 1), cache.users.tolist()
        (array([[2],
               [3]]), [[2, 2, 1, 1, 0, 0, 0, 0]])
    """

    def __init__(
        self, kind: str, sequences: int, cells: int, context: int | None = None, sizes: Sequence[int] = ()
    ) -> None:  # fmt: skip
        lookup("KV cache", kind, dict.fromkeys(KINDS))
        self.kind, self.sequences, self.cells = kind, sequences, cells
        self.context = cells if context is None else context
        self.sizes = (*(size for size in sizes if size < cells), cells)
        self.streams = 1 if kind == "unified" else sequences
        self.users = np.zeros((self.streams, cells), np.int32)
        """(streams, cells): number of sequences that a cell belongs to."""
        self.removals = 0
        """Number of removals of cells from a sequence; while it is constant, sequences only grow."""
        self.lengths = [0] * sequences
        self._table = np.zeros((sequences, cells), np.int64)
        self._lowest = [0] * self.streams  # all cells below are in use

    @property
    def stride(self) -> int:
        """Cells between consecutive tokens of a sequence when all sequences take one token each in turn."""
        return self.sequences if self.kind == "unified" else 1

    @property
    def held(self) -> int:
        """Cells of the fullest stream up to the last one in use."""
        used = np.flatnonzero(self.users.any(axis=0))
        return int(used[-1]) + 1 if used.size else 0

    @property
    def rows(self) -> int:
        """Rows of a K or V tensor."""
        return self.streams * self.cells

    def stream(self, sequence: int) -> int:
        """Return the stream of a sequence."""
        return 0 if self.kind == "unified" else sequence

    def seen(self, sequence: int, count: int | None = None) -> Ints:
        """Return the cells of a sequence's first tokens (all tokens if None), oldest first."""
        return self._table[sequence, : self.lengths[sequence] if count is None else count]

    def place(self, sequences: Sequence[int], positions: Sequence[int], count: int) -> Ints:
        """Take cells for `count` new tokens of each sequence from its position on; return them, (sequences, count).

        Tokens from that position on are removed first. Missing tokens before it get cells too.

        Raises:
            UsageError: no cell is free.
        """
        for sequence, position in zip(sequences, positions, strict=True):
            self.remove(sequence, position)
        for sequence, position in zip(sequences, positions, strict=True):
            self._extend(sequence, position + count)
        cells: Ints = self._table[np.array(sequences)[:, None], np.array(positions)[:, None] + np.arange(count)]
        return cells

    def remove(self, sequence: int, first: int = 0) -> None:
        """Remove a sequence's tokens from position `first` on and free the cells that no other sequence uses."""
        if self.lengths[sequence] <= first:
            return
        stream, cells = self.stream(sequence), self._table[sequence, first : self.lengths[sequence]]
        self.users[stream, cells] -= 1
        self._lowest[stream] = min(self._lowest[stream], int(cells.min()))
        self.lengths[sequence] = first
        self.removals += 1

    def truncate(self, position: Position) -> None:
        """Limit the sequences to this many tokens, one number for all or one per sequence."""
        for sequence, first in enumerate(np.broadcast_to(position, self.sequences).tolist()):
            self.remove(sequence, first)

    def copy(self, source: int, target: int) -> RowCopy | None:
        """Give `target` the tokens of `source`: in `unified` by sharing its cells, in `streams` by copying rows.

        Return the rows that the device must copy, if any.
        """
        if source == target:
            return None
        self.remove(target)
        if not (count := self.lengths[source]):
            return None
        if self.kind == "unified":
            self._table[target, :count] = self.seen(source)
            self.users[0, self.seen(source)] += 1
            self.lengths[target] = count
            return None
        self._extend(target, count)
        return RowCopy(source * self.cells, target * self.cells, count)

    def _extend(self, sequence: int, length: int) -> None:
        have, stream = self.lengths[sequence], self.stream(sequence)
        if (missing := length - have) <= 0:
            return
        lowest, users = self._lowest[stream], self.users[stream]
        if missing == 1 and lowest < self.cells and not users[lowest]:  # the usual case in a token step
            users[lowest] = 1
            self._table[sequence, have] = lowest
        else:
            cells = lowest + np.flatnonzero(users[lowest:] == 0)[:missing]
            if len(cells) < missing:
                raise UsageError(f"the {self.kind} KV cache of {self.cells} cells is full: choose a larger context")
            users[cells] = 1
            self._table[sequence, have:length] = cells
            lowest = int(cells[-1])
        self.lengths[sequence] = length
        self._lowest[stream] = lowest + 1


def plan_cache(kind: str, prompts: Sequence[int], tokens: int, context: int, *, shared: bool = False) -> KvCache:
    """Create the cache of a run in which every sequence takes `tokens` tokens after its prompt.

    A stream has as many cells as the run uses, padded: those of the longest sequence, or in `unified` of all together.
    Attention covers the cells used so far, padded as well (`sizes`), so that the graph changes as they grow.

    Args:
        prompts: prompt tokens of each sequence.
        context: maximum tokens per sequence.
        shared: whether in `unified` all sequences share the prompt's cells.

    Raises:
        UsageError: a sequence does not fit the context.
    """
    lookup("KV cache", kind, dict.fromkeys(KINDS))
    sequences, longest = len(prompts), max(prompts)
    if longest + tokens > context:
        raise UsageError(f"the model has a context of {context}, too small for {longest + tokens} tokens")
    if kind == "streams":
        cells = min(context, _padded(longest + tokens))
        return KvCache(kind, sequences, cells, sizes=range(_padded(longest + 1), cells, PADDING))
    held = longest if shared else sum(prompts)
    cells = min(sequences * context, _padded(held + sequences * tokens))
    sizes = range(_padded(held + sequences), cells, PADDING)
    return KvCache(kind, sequences, cells, min(context, longest + (cells - held) // sequences), sizes)


def _padded(cells: int) -> int:
    return -(-cells // PADDING) * PADDING
