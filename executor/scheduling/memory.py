"""Device memory of a prepared step: weights, state, and the arenas of its splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from executor.backends.interface import Array, Backend, Buffer, HostArray
from executor.graph import BLOCK_FORMATS, Tensor
from executor.graph.models.step import write_random
from executor.planning.allocator import BufferPlan
from executor.planning.devices import Device
from executor.planning.splits import Split
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
