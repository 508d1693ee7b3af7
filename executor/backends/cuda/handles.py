"""The handles of the CUDA backend: arrays, events, streams, and host memory that the GPU accesses directly."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.backends.cuda.runtime import Cuda
from executor.backends.interface import HostArray

SLOTS: Final = 8


def pinned_array(cuda: Cuda, shape: tuple[int, ...], dtype: str) -> HostArray:
    """Allocate a zeroed array in pinned memory, which is freed with the last array that uses it."""
    size = math.prod(shape)
    memory = cuda.cupy.cuda.alloc_pinned_memory(max(size * np.dtype(dtype).itemsize, 1))
    array: HostArray = np.frombuffer(memory, dtype, size).reshape(shape)
    array[...] = 0
    return array


def address(array: HostArray) -> int:
    """Return the address of the first byte; much cheaper than `array.ctypes.data`."""
    first: int = array.__array_interface__["data"][0]
    return first


class CopyCount:
    """Counts the copies and waits issued to a stream, and those known to be done.

    A wait for a stream that has waited for other streams covers those as well.
    """

    __slots__ = ("_awaited", "done", "issued")

    def __init__(self) -> None:
        self.issued = self.done = 0
        self._awaited: deque[tuple[int, CopyCount, int]] = deque()

    def wait_for(self, other: CopyCount) -> None:
        """Note that the stream waits for everything issued to another one."""
        self.issued += 1
        self._awaited.append((self.issued, other, other.issued))

    def done_to(self, number: int) -> None:
        """Note that copies up to this number are done."""
        self.done = max(self.done, number)
        while self._awaited and self._awaited[0][0] <= number:
            _, other, of_other = self._awaited.popleft()
            other.done_to(of_other)


class Slot:
    """Pinned memory in the shape of one input, and the last copy that read it.

    Attributes:
        values: the memory.
        address: address of its first byte.
        copies: count of the stream that read it last.
        number: number of that copy on its stream; it is done once `copies.done` reaches it.
        stream: that stream.
        next: the slot to take after this one.
    """

    __slots__ = ("address", "copies", "next", "number", "stream", "values")

    def __init__(self, values: HostArray, copies: CopyCount) -> None:
        self.values, self.address, self.copies = values, address(values), copies
        self.number = self.stream = 0
        self.next = self


def staging_ring(cuda: Cuda, shape: tuple[int, ...], dtype: str, slots: int = SLOTS) -> Slot:
    """Create slots for one input, used in turn.

    A slot may be reused only when the copy that read it is done. Usually a sync has already confirmed that, as in any
    decode loop; otherwise the caller waits for the stream.
    """
    memory, nobody = pinned_array(cuda, (slots, *shape), dtype), CopyCount()
    ring = [Slot(memory[i : i + 1].reshape(shape), nobody) for i in range(slots)]
    for i, slot in enumerate(ring):
        slot.next = ring[(i + 1) % slots]
    return ring[0]


@dataclass(eq=False, slots=True)
class CudaArray:
    """A tensor's place in device memory.

    Attributes:
        host_dtype: NumPy dtype, or None for a block format.
        slot: staging slot of the next asynchronous copy to it; set by the first one.
        source: host memory of an earlier copy, which the driver reads directly at `source_ptr`.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    size: int
    nbytes: int
    host_dtype: np.dtype[Any] | None
    slot: Slot | None = None
    source: HostArray | None = None
    source_ptr: int = 0


@dataclass(eq=False, slots=True)
class CudaEvent:
    """An event without timing.

    Attributes:
        stream: stream of the latest record.
        copies: number of copies issued to that stream before the record.
    """

    handle: int
    stream: int = 0
    copies: int = 0


class Streams(dict[int, int]):
    """Maps a stream number to the address of a non-blocking stream, created on first use."""

    def __init__(self, create: Callable[[int], int]) -> None:
        self._create = create

    def __missing__(self, number: int) -> int:
        self[number] = stream = self._create(number)
        return stream
