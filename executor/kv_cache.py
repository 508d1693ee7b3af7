"""The KV cache as plain data: which cells hold the tokens of which sequence, where new ones go, what each token sees.

Two kinds, as in llama.cpp: `unified` is one stream of cells for all sequences, in which a cell may belong to several;
`streams` gives every sequence a stream of its own. Row `stream * cells + cell` of the K and V tensors is a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.names import lookup
from tracer.errors import UsageError

PADDING: Final = 256
"""Attended cells come in multiples of this, as llama.cpp's n_kv (llama_kv_cache::get_n_kv)."""
KINDS: Final = ("unified", "streams")

Ints = np.ndarray[Any, np.dtype[np.integer[Any]]]
Position = int | Ints
"""Tokens that sequences hold: one number for all, or one each."""


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Rows of every K and V tensor that must be copied: `count` from row `source` on, to row `target` on."""

    source: int
    target: int
    count: int


class KvCache:
    """See the module's docstring. Free cells are taken in order, the lowest first.

    Attributes:
        kind: a name of `KINDS`.
        sequences: how many there are.
        cells: per stream.
        context: how many tokens the longest sequence may have.
        sizes: over how many cells attention may go, the least first; the last is `cells`.
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
        """(streams, cells): how many sequences a cell belongs to."""
        self.removals = 0
        """How often cells were taken from a sequence; while this stays, sequences have only grown."""
        self.lengths = [0] * sequences
        self._table = np.zeros((sequences, cells), np.int64)
        self._lowest = [0] * self.streams  # no cell below is free

    @property
    def stride(self) -> int:
        """By how many cells a sequence moves on when all take one token after the other."""
        return self.sequences if self.kind == "unified" else 1

    @property
    def held(self) -> int:
        """Cells of the fullest stream up to the last that is used."""
        used = np.flatnonzero(self.users.any(axis=0))
        return int(used[-1]) + 1 if used.size else 0

    @property
    def rows(self) -> int:
        """Of a K or V tensor."""
        return self.streams * self.cells

    def stream(self, sequence: int) -> int:
        """The stream that holds a sequence."""
        return 0 if self.kind == "unified" else sequence

    def seen(self, sequence: int, count: int | None = None) -> Ints:
        """Cells of a sequence's first tokens (of all, if None), the oldest first."""
        return self._table[sequence, : self.lengths[sequence] if count is None else count]

    def place(self, sequences: Sequence[int], positions: Sequence[int], count: int) -> Ints:
        """Cells for `count` new tokens of each sequence, behind the tokens before its position; (sequences, count).

        What a sequence held from there on is removed first. Tokens that it lacks before get cells too.

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
        """Take a sequence's tokens from position `first` on away; cells that nobody uses then are free."""
        if self.lengths[sequence] <= first:
            return
        stream, cells = self.stream(sequence), self._table[sequence, first : self.lengths[sequence]]
        self.users[stream, cells] -= 1
        self._lowest[stream] = min(self._lowest[stream], int(cells.min()))
        self.lengths[sequence] = first
        self.removals += 1

    def clear(self) -> None:
        """Free all sequences."""
        self.truncate(0)

    def truncate(self, position: Position) -> None:
        """Let sequences hold no more than so many tokens, one number for all or one each."""
        for sequence, first in enumerate(np.broadcast_to(position, self.sequences).tolist()):
            self.remove(sequence, first)

    def copy(self, source: int, target: int) -> RowCopy | None:
        """Make `target` hold what `source` holds: in `unified` by sharing its cells, in `streams` by copying rows.

        Returns:
            what the device must copy, if anything.
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
        if missing == 1 and lowest < self.cells and not users[lowest]:  # nearly always in a token step
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
    """The cache of a run in which every sequence takes `tokens` tokens behind its prompt.

    A stream has as many cells as the run uses, padded: the longest sequence's, or in `unified` the sum of all.
    Attention goes over those that are used so far, padded as well (`sizes`), so that the graph changes as they grow.

    Args:
        kind: a name of `KINDS`.
        prompts: tokens of each sequence's prompt.
        tokens: more of each sequence.
        context: the most tokens of a sequence.
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
