"""The small input tensors that change with every step, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.graph import Flag, Graph, Tensor
from executor.graph.models.kv_cache import Ints, KvCache, Position
from executor.graph.models.step import HostArrays
from tracer.errors import ExecutionError


@dataclass(frozen=True)
class StepTensors:
    """The inputs of llama.cpp's steps, and the streams; N = G * T tokens, T of each of G sequences, see `ops`.

    Attributes:
        tokens: (N,) int32.
        positions: (N,) int32.
        k_rows: (N,) int64, the row of the K cache that each token writes.
        v_rows: the same for V.
        mask: (N, attended), 0 for cells that a token may attend to, -inf elsewhere.
        outputs: (G,) int32, the rows to compute logits for: the last of each sequence.
        streams: (G,) int32, the stream of cells that each sequence's tokens see; None if the order implies it.
    """

    tokens: Tensor
    positions: Tensor
    k_rows: Tensor
    v_rows: Tensor
    mask: Tensor
    outputs: Tensor
    streams: Tensor | None


def step_tensors(
    graph: Graph, cache: KvCache, sequences: int, tokens: int, attended: int, flags: Flag
) -> StepTensors:  # fmt: skip
    """Add leaves for `tokens` tokens of each of several sequences, with `attended` cells of each stream."""
    n = sequences * tokens
    return StepTensors(
        tokens=graph.leaf("inp_tokens", (n,), "int32", flags),
        positions=graph.leaf("inp_pos", (n,), "int32", flags),
        k_rows=graph.leaf("k_idxs", (n,), "int64", flags),
        v_rows=graph.leaf("v_idxs", (n,), "int64", flags),
        mask=graph.leaf("kq_mask", (n, attended), "float32", flags),
        outputs=graph.leaf("inp_out_ids", (sequences,), "int32", flags),
        streams=graph.leaf("inp_streams", (sequences,), "int32", flags) if _chooses_streams(cache, sequences) else None,
    )


def _chooses_streams(cache: KvCache, sequences: int) -> bool:
    """Whether a step takes only some of several streams and must name them."""
    return cache.streams not in (1, sequences)


class Feed:
    """Values of the step tensors, in arrays that are overwritten for every step.

    Args:
        cache: assigns cells to the tokens.
        sequences: numbers of the sequences that the step takes; they may change between steps.
        tokens: tokens per sequence.
        attended: cells of each stream that the mask covers; None for all.
    """

    def __init__(self, cache: KvCache, sequences: Sequence[int], tokens: int, attended: int | None = None) -> None:
        n = len(sequences) * tokens
        self._cache, self._sequences, self._tokens = cache, sequences, tokens
        self._offsets = np.arange(tokens)
        self._order = np.arange(len(sequences))
        self._shown: tuple[list[int], list[int], int] | None = None
        self._opened: list[slice | Ints] = [slice(None)] * len(sequences)
        self._arrays: HostArrays = {
            "inp_tokens": np.zeros(n, np.int32),
            "inp_pos": np.zeros(n, np.int32),
            "k_idxs": np.zeros(n, np.int64),
            "v_idxs": np.zeros(n, np.int64),
            "kq_mask": np.full((n, attended or cache.cells), -np.inf, np.float32),
            "inp_out_ids": np.arange(tokens - 1, n, tokens, dtype=np.int32),
        }
        if _chooses_streams(cache, len(sequences)):
            self._arrays["inp_streams"] = np.zeros(len(sequences), np.int32)
        self._mask = self._arrays["kq_mask"].reshape(len(sequences), tokens, -1)

    def inputs(self, position: Position, tokens: np.ndarray[Any, Any]) -> HostArrays:
        """Return the inputs of the step that starts at this position; every token sees its sequence up to itself."""
        arrays, cache, sequences = self._arrays, self._cache, self._sequences
        numbers, positions = np.array(sequences), np.broadcast_to(position, len(sequences))
        cells = cache.place(sequences, positions.tolist(), self._tokens)
        arrays["inp_tokens"] = tokens
        arrays["inp_pos"][:] = (positions[:, None] + self._offsets).ravel()
        streams = numbers if cache.streams > 1 else 0 * numbers
        if "inp_streams" in arrays:
            arrays["inp_streams"][:] = streams
        arrays["k_idxs"][:] = arrays["v_idxs"][:] = (cells + streams[:, None] * cache.cells).ravel()
        self._show([*sequences], positions.tolist(), cells)
        return arrays

    def _show(self, sequences: list[int], positions: list[int], cells: Ints) -> None:
        """Set the mask. If all sequences have grown by one new token, only one cell per sequence changes."""
        cache, tokens = self._cache, self._tokens
        if tokens > 1 or self._shown != (sequences, positions, cache.removals):
            for i, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
                self._mask[i, :, self._opened[i]] = -np.inf
                self._mask[i, :, cache.seen(sequence, position)] = 0
                if tokens > 1:
                    self._opened[i] = cache.seen(sequence, position + tokens).copy()
        for t in range(tokens):
            self._mask[self._order, t:, cells[:, t]] = 0
        self._shown = (sequences, [position + 1 for position in positions], cache.removals)

    def start(self, position: Position, tokens: np.ndarray[Any, Any], steps: int) -> HostArrays:
        """Return the state for steps that advance on the device, which then unmask each next cell themselves.

        Raises:
            ExecutionError: the cells of the following steps are not evenly spaced.
        """
        arrays, cache = self.inputs(position, tokens), self._cache
        started = {name: values.copy() for name, values in arrays.items()}
        own = arrays["k_idxs"] % cache.cells
        positions = np.broadcast_to(position, len(own))
        for further in range(1, min(steps, cache.context - int(positions.max()))):
            cells = cache.place(self._sequences, (positions + further).tolist(), 1)[:, 0]
            if not np.array_equal(cells, own + further * cache.stride):
                raise ExecutionError("the KV cache's next free cells are not evenly spaced: clear the cache")
        return started | {
            "kq_mask_idxs": np.arange(len(own)) * cache.cells + own,
            "one": np.ones(1, np.int32), "step": np.zeros(1, np.int64), "stride": np.full(1, cache.stride, np.int32),
        }  # fmt: skip
