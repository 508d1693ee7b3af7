"""The result of a model builder: the graph of a step, its inputs that change with every step, and how it is driven."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.graph import Flag, Graph, Tensor
from executor.graph.models.kv_cache import Ints, KvCache, Position
from tracer.errors import ExecutionError

_PART: Final = 1 << 18
"""Numbers generated at a time: few enough for a core's cache."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
HostArrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
StepValues = Callable[[Position, np.ndarray[Any, Any]], HostArrays]
"""(position, tokens) -> values by name."""


@dataclass(frozen=True)
class History:
    """Results that a step that advances on the device keeps for the host to read later.

    Attributes:
        tokens: (steps, N) int32, row s written in step s.
        logits: (steps, N * vocabulary), or None if not kept.
    """

    tokens: Tensor
    logits: Tensor | None


@dataclass(frozen=True)
class DecodeStep:
    """One step of N independent sequences: the next token of each, or their prompts.

    Attributes:
        graph: its tensors; the host sends `graph.inputs` before the step, in that order.
        logits: the output, (N, vocabulary).
        context: maximum tokens of the longest sequence.
        feed: (position, tokens (N * prompt,) int32) -> the inputs' values by name. The position is the number of tokens
            that each sequence holds, one for all or one per sequence. `tokens` is passed on without reading its values,
            so feed may be called before they are known. It may overwrite earlier results: call it only when the copies
            of the previous step are done or staged.
        start: (position, tokens) -> the state to load before the first step; other state is kept, initially zeros.
        history: set if the step advances on the device; it then has no inputs.
        late: names of the inputs that hold sampled tokens; the others are known a step ahead.
        sampled: the next tokens, (N,) int32, if the device samples and the host need not fetch the logits.
        prompt: tokens that the step takes per sequence.
        cache: the KV cache of the sequences, if any.
        attended: number of cells of each stream that attention covers; None for all.
    """

    graph: Graph
    logits: Tensor
    context: int
    feed: StepValues
    start: StepValues
    history: History | None = None
    late: frozenset[str] = frozenset({"inp_tokens"})
    sampled: Tensor | None = None
    prompt: int = 1
    cache: KvCache | None = None
    attended: int | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of attended cells as the sequences grow; only the total if the step advances on the device."""
        if self.cache is None:
            return ()
        return self.cache.sizes if self.history is None else (self.cache.cells,)

    def room(self, position: Position) -> int:
        """Return how many more steps fit into the context and the attended cells."""
        steps = max(self.context - int(np.max(position)), 0) // self.prompt
        if self.cache is None or self.attended is None or self.attended == self.cache.cells:
            return steps
        cells = max(self.attended - self.cache.held, 0)
        return min(steps, cells // (self.cache.stride * self.prompt))

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return self.logits.shape[0]

    @property
    def vocabulary(self) -> int:
        """The number of distinct tokens."""
        return self.logits.shape[-1]


def random_weight(weight: Tensor, seed: int) -> Floats:
    """Return seeded values, the same for equal name, shape and seed in every graph; float32 for every dtype.

    Matrices are scaled by their row length, so that activations keep their magnitude. Norms and biases are around 1,
    the decay rates of a delta net around -1.
    """
    values = np.empty(weight.shape, np.float32)
    write_random(values, weight, seed)
    return values


def write_random(destination: Any, weight: Tensor, seed: int) -> None:
    """Write the values of `random_weight` to contiguous memory of any format, using little extra memory.

    The destination takes float32 values like a NumPy array, in parts of multiples of 32. NumPy generates them without
    the GIL, so threads can write several weights at a time.
    """
    numbers, flat = np.random.default_rng([seed, zlib.crc32(weight.name.encode())]), destination.reshape(-1)
    memory = np.empty(min(_PART, flat.size), np.float32)
    for begin in range(0, flat.size, _PART):
        values = memory[: flat.size - begin]
        numbers.standard_normal(dtype=np.float32, out=values)
        if len(weight.shape) == 1:
            values *= np.float32(0.1)
            values += np.float32(1)
            if weight.name.endswith("ssm_a"):
                np.negative(values, out=values)
        else:
            values /= np.float32(weight.shape[-1] ** 0.5)
        flat[begin : begin + _PART] = values


def random_tokens(vocabulary: int, seed: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return seeded tokens, (count,)."""
    return np.random.default_rng([seed, 0]).integers(vocabulary, size=count, dtype=np.int32)


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


def step_tensors(graph: Graph, cache: KvCache, sequences: int, tokens: int, attended: int, flags: Flag) -> StepTensors:
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
