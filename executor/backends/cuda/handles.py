"""The handles of the CUDA backend: arrays, events and streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.backends.cuda.staging import Slot
from executor.backends.interface import HostArray


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
