"""What a model builder returns: the graph of a step, and how the host drives it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.graph import Graph, Tensor
from executor.kv_cache import KvCache, Position

_PART: Final = 1 << 18
"""Numbers that are made at a time: few enough for a core's cache."""

Floats = np.ndarray[Any, np.dtype[np.float32]]
HostArrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
StepValues = Callable[[Position, np.ndarray[Any, Any]], HostArrays]
"""(position, tokens) -> values by name."""


@dataclass(frozen=True)
class History:
    """Where a step that advances on the device keeps what the host will read late.

    Attributes:
        tokens: (steps, N) int32, row s written in step s.
        logits: (steps, N * vocabulary), or None where nobody asked.
    """

    tokens: Tensor
    logits: Tensor | None


@dataclass(frozen=True)
class DecodeStep:
    """One step of N independent sequences: the next token of each, or their prompts.

    Attributes:
        graph: its tensors; `graph.inputs` are what the host sends before the step, in that order.
        logits: the output, (N, vocabulary).
        context: how many tokens of the longest sequence fit.
        feed: (position, tokens (N * prompt,) int32) -> the inputs' values by name; position is how many tokens each
            sequence holds, one number for all or one each. It hands `tokens` on without looking at its values, so it
            may be called before they are known. It may overwrite what it returned before: call it only when the copies
            of the step before are done or staged.
        start: (position, tokens) -> the state to load before the first step; other state stays, zeros at first.
        history: set if the step advances on the device: then there are no inputs.
        late: names of the inputs that hold sampled tokens; the others are known a step ahead.
        sampled: the next tokens, (N,) int32, if the device samples and the host need not fetch the logits.
        prompt: tokens of each sequence that the step takes at once.
        cache: where the sequences' K and V are, if it has any.
        attended: over how many cells of each stream attention goes; None for all.
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
        """Over how many cells attention goes as the sequences grow; over all at once if the step advances by itself."""
        if self.cache is None:
            return ()
        return self.cache.sizes if self.history is None else (self.cache.cells,)

    def room(self, position: Position) -> int:
        """How many more steps fit: into the context, and into the cells over which attention goes."""
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
        """The number of different tokens."""
        return self.logits.shape[-1]


def random_weights(graph: Graph, seed: int) -> HostArrays:
    """The values of every weight, see `random_weight`."""
    return {w.name: random_weight(w, seed) for w in graph.weights}


def random_weight(weight: Tensor, seed: int) -> Floats:
    """Seeded values, the same for a name, a shape and a seed in every graph; float32 whatever the dtype.

    Matrices are scaled by their row length, so that activations keep their size; norms and biases lie around 1, the
    decay rates of a delta net around -1.
    """
    values = np.empty(weight.shape, np.float32)
    write_random(values, weight, seed)
    return values


def write_random(destination: Any, weight: Tensor, seed: int) -> None:
    """Write the values of `random_weight` into contiguous memory of any format, with little memory besides.

    NumPy makes them without the interpreter's lock, so threads can write several weights at a time.

    Args:
        destination: a NumPy array, or what takes float32 values as one: parts of multiples of 32, and what is left.
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
    """What each sequence starts from: a token, or a prompt; sequence by sequence."""
    return random_tokens(step.vocabulary, seed, step.batch * step.prompt)


def random_tokens(vocabulary: int, seed: int, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Seeded tokens, (count,)."""
    return np.random.default_rng([seed, 0]).integers(vocabulary, size=count, dtype=np.int32)
