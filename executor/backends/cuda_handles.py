"""What the CUDA backend hands out: arrays, events and streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.backends.cuda_staging import Slot
from executor.backends.interface import HostArray


@dataclass(eq=False, slots=True)
class CudaArray:
    """A tensor's place in device memory.

    Attributes:
        host_dtype: NumPy's dtype, None for a block format.
        slot: where the next asynchronous copy to it is staged, once there was one.
        source: host memory that it was copied from before and that the driver reads directly, at `source_ptr`.
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
        stream: where it was recorded last.
        copies: how many copies that stream had been given then.
    """

    id: int
    handle: int
    stream: int = 0
    copies: int = 0


class Streams(dict[int, int]):
    """Stream number -> address of a non-blocking stream, made when first asked for."""

    def __init__(self, create: Callable[[int], int]) -> None:
        self._create = create

    def __missing__(self, number: int) -> int:
        self[number] = stream = self._create(number)
        return stream
