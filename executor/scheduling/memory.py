"""Device memory of a prepared step: weights, state, and the arenas of its splits.

Experts may stay on the host: the rows that a step uses are then copied to the device before its products. This follows
ggml's scheduler for batches worth computing on the device: the expert numbers are fetched to the host first, and
adjacent experts are copied together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from executor.backends.interface import Array, Backend, Buffer, HostArray
from executor.graph import BLOCK_FORMATS, Tensor
from executor.graph.models.step import write_random
from executor.planning.allocator import BufferPlan
from executor.planning.concurrency import MAIN_STREAM
from executor.planning.devices import Device, Split
from executor.scheduling.strategies import Copy
from tracer.errors import ExecutionError

Backends = Mapping[Device, Backend]
Weights = dict[Device, dict[str, Array]]
State = dict[tuple[Device, str], Buffer]
COPIED: Final = Device("copied")
"""Stands for expert weights that stay on the host, in the dtype of the device that they are copied to."""
Place = tuple[Buffer, int]
"""The buffer and offset of a tensor."""


def load_weights(backends: Backends, splits: Sequence[Split], seed: int, loaded: Weights | None = None) -> Weights:
    """Load seeded random weights on the devices that read them, each in a separate buffer.

    Several threads generate the weights that stay on the host, in place.

    Args:
        loaded: the weights already loaded; new ones are added.

    Raises:
        ExecutionError: a backend has no kernels for the dtype, or too little memory.
    """
    loaded = {} if loaded is None else loaded
    on_host: list[Callable[[], None]] = []
    for split in splits:
        backend, arrays = backends[split.device], loaded.setdefault(split.device, {})
        host = loaded.setdefault(COPIED, {}) if split.copied else {}
        for weight in split.copied:
            if weight.name not in host:
                host[weight.name] = _kept_on_host(backend, weight)
                on_host.append(partial(write_random, host[weight.name], weight, seed))
        for weight in split.weights:
            if weight.name not in arrays:
                array = arrays[weight.name] = _place(backend, weight)
                if split.device.is_host:
                    on_host.append(partial(backend.load_random, array, weight, seed))
                else:
                    backend.load_random(array, weight, seed)
    with ThreadPoolExecutor() as pool:
        for written in [pool.submit(write) for write in on_host]:
            written.result()
    return loaded


def _kept_on_host(backend: Backend, weight: Tensor) -> HostArray:
    """Allocate host memory suited to fast copies for a weight in the device's dtype."""
    if weight.dtype in BLOCK_FORMATS:
        raise ExecutionError(f"experts in {weight.dtype} cannot be copied: their rows are not contiguous")
    return backend.host_array(weight.shape, weight.dtype)


def _place(backend: Backend, weight: Tensor) -> Array:
    """Allocate memory for a weight on a device."""
    if weight.dtype not in backend.weight_dtypes:
        known = ", ".join(sorted(backend.weight_dtypes))
        raise ExecutionError(f"backend {backend.name!r} has no kernels for {weight.dtype} weights, only for {known}")
    return backend.array(backend.alloc(weight.nbytes), 0, weight)


def bind_memory(
    backend: Backend, split: Split, memory: BufferPlan, weights: Mapping[str, Array], state: State,
    arena: Buffer, elsewhere: Mapping[Tensor, Place],
) -> tuple[dict[Tensor, Array], dict[Tensor, Place]]:  # fmt: skip
    """Return every tensor's array, and the places of all tensors except weights.

    Weights are as given, state has separate buffers (new ones are added to `state`), all else is in the arena.

    Args:
        arena: a buffer of `memory.peak_bytes` for this split alone.
        elsewhere: leaves in other memory.
    """
    places: dict[Tensor, Place] = {}
    for leaf in split.state:
        key = (split.device, leaf.name)
        if key not in state:
            state[key] = backend.alloc(leaf.nbytes)
        places[leaf] = (state[key], 0)
    places |= {tensor: (arena, offset) for tensor, offset in memory.offsets.items()}
    places |= elsewhere
    arrays: dict[Tensor, Array] = {leaf: weights[leaf.name] for leaf in split.weights}
    for tensor in (*split.leaves, *split.nodes):
        if tensor not in arrays and tensor.root in places:
            places[tensor] = places[tensor.root]
            arrays[tensor] = backend.array(*places[tensor], tensor)
    return arrays, places


@dataclass(frozen=True)
class CopiedWeights:
    """A weight of all experts, (E, O, I): its leaf, its place on the device, and its values on the host."""

    weight: Tensor
    place: Place
    values: HostArray


class ExpertCopies:
    """The copies of expert weights that a split needs.

    Args:
        ids: numbers of the experts that a step uses, on the device.
        shape: shape of `ids`, which is int32.
        weights: the copied weights of the split.

    Attributes:
        used: the numbers on the host, once fetched.
    """

    def __init__(self, backend: Backend, ids: Array, shape: tuple[int, ...], weights: list[CopiedWeights]) -> None:
        self._backend, self._ids, self._weights = backend, ids, weights
        self.used = backend.host_array(shape, "int32")
        self._made: dict[tuple[int, int, int], Copy] = {}

    def copies(self) -> list[Copy]:
        """Return the copies for this step, after waiting for the choice of experts."""
        self.fetch()
        runs = list(_runs(self.choose()))
        return [self._copy(number, *run) for number in range(len(self._weights)) for run in runs]

    def fetch(self) -> None:
        """Fetch the expert numbers to the host and wait for them."""
        self._backend.copy_to_host(self.used, self._ids, MAIN_STREAM)
        self._backend.synchronize(MAIN_STREAM)

    def choose(self) -> HostArray:
        """Return the numbers of the experts used, ascending."""
        return np.unique(self.used)

    def _copy(self, number: int, first: int, last: int) -> Copy:
        key = (number, first, last)
        if key not in self._made:
            weights, backend = self._weights[number], self._backend
            part = replace(weights.weight, shape=(last - first, *weights.weight.shape[1:]))
            buffer, offset = weights.place
            each = weights.weight.nbytes // weights.weight.shape[0]
            array = backend.array(buffer, offset + first * each, part)
            send = partial(backend.copy_constant_to_device, array, weights.values[first:last], MAIN_STREAM)
            self._made[key] = Copy(send, backend)
        return self._made[key]


def _runs(numbers: HostArray) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of every run of consecutive numbers in an ascending list."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    for part in np.split(numbers, breaks):
        yield int(part[0]), int(part[-1]) + 1
