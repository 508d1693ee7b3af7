"""The result of a model builder: the graph of a step, and how the host drives it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.graph import Graph, Tensor
from executor.graph.models.kv_cache import KvCache, Position

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

    NumPy generates them without the GIL, so threads can write several weights at a time.

    Args:
        destination: a NumPy array, or an object that takes float32 values like one, in parts of multiples of 32.
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


def first_tokens(step: DecodeStep, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the token or prompt that each sequence starts from, sequence by sequence."""
    return random_tokens(step.vocabulary, seed, step.batch * step.prompt)


def random_tokens(vocabulary: int, seed: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return seeded tokens, (count,)."""
    return np.random.default_rng([seed, 0]).integers(vocabulary, size=count, dtype=np.int32)
