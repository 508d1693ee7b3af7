"""Host memory that the GPU reads and writes by itself: pinned arrays, and rings of slots for asynchronous copies."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final

import numpy as np

from executor.backends.cuda_runtime import Cuda

SLOTS: Final = 8

Array = np.ndarray[Any, np.dtype[Any]]


def pinned_array(cuda: Cuda, shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros in pinned memory, which is freed when the last array over it is gone."""
    size = math.prod(shape)
    memory = cuda.cupy.cuda.alloc_pinned_memory(max(size * np.dtype(dtype).itemsize, 1))
    array: Array = np.frombuffer(memory, dtype, size).reshape(shape)
    array[...] = 0
    return array


def address(array: Array) -> int:
    """Of the first byte; much cheaper than `array.ctypes.data`."""
    first: int = array.__array_interface__["data"][0]
    return first


class CopyCount:
    """How many copies and waits a stream was given, and how many of them are known to be done.

    Whoever waits for a stream that itself waited for others knows of these, too.
    """

    __slots__ = ("_awaited", "done", "issued")

    def __init__(self) -> None:
        self.issued = self.done = 0
        self._awaited: deque[tuple[int, CopyCount, int]] = deque()

    def wait_for(self, other: CopyCount) -> None:
        """The stream waits for all that another one was given."""
        self.issued += 1
        self._awaited.append((self.issued, other, other.issued))

    def done_to(self, number: int) -> None:
        """So many are done."""
        self.done = max(self.done, number)
        while self._awaited and self._awaited[0][0] <= number:
            _, other, of_other = self._awaited.popleft()
            other.done_to(of_other)


class Slot:
    """Pinned memory in the shape of one input, and the last copy that read it.

    Attributes:
        values: the memory.
        address: of its first byte.
        copies: of the stream that read it last.
        number: that copy's number on its stream; it is done if `copies.done` reaches it.
        stream: that stream.
        next: the slot to take after this one.
    """

    __slots__ = ("address", "copies", "next", "number", "stream", "values")

    def __init__(self, values: Array, copies: CopyCount) -> None:
        self.values, self.address, self.copies = values, address(values), copies
        self.number = self.stream = 0
        self.next = self


def staging_ring(cuda: Cuda, shape: tuple[int, ...], dtype: str, slots: int = SLOTS) -> Slot:
    """Slots for one input, taken in turn.

    A slot may be taken again only when the copy that read it is done. A sync after the copy says so, and in a decode
    loop there always was one; only where there was none must the stream be waited for then.
    """
    memory, nobody = pinned_array(cuda, (slots, *shape), dtype), CopyCount()
    ring = [Slot(memory[i : i + 1].reshape(shape), nobody) for i in range(slots)]
    for i, slot in enumerate(ring):
        slot.next = ring[(i + 1) % slots]
    return ring[0]
