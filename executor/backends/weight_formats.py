"""Weight formats as the kernels of all backends read them. q8_0: every int8 first, then every f16 scale."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_BLOCK: Final = 32


def encoded(values: Array, dtype: str) -> Array:
    """Values in a dtype; contiguous."""
    return quantised(values) if dtype == "q8_0" else np.ascontiguousarray(values, dtype)


def quantised(values: Array) -> Array:
    """float32 values, whole blocks of 32, as q8_0: every int8 first, then every f16 scale (see kernels/common.cuh).

    As in ggml a block's scale is its greatest magnitude / 127; 34 bytes per block.
    """
    blocks = values.reshape(-1, _BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    integers = np.rint(steps).astype(np.int8)
    return np.concatenate([integers.reshape(-1).view(np.uint8), scales.astype(np.float16).reshape(-1).view(np.uint8)])


def dequantised(data: Array, shape: tuple[int, ...]) -> Array:
    """The float32 values that q8_0 bytes stand for."""
    return Quantised.of(data, shape).floats()


class Quantised:
    """A q8_0 weight in the host's memory: as much of a NumPy array as the kernels and what fills it need.

    Attributes:
        integers: int8, in the weight's shape.
        scales: float16, one for each 32 of a row.
    """

    dtype: ClassVar = "q8_0"

    def __init__(self, integers: Array, scales: Array) -> None:
        self.integers, self.scales = integers, scales
        self.shape, self.size, self.nbytes = integers.shape, integers.size, integers.nbytes + scales.nbytes

    @classmethod
    def of(cls, data: Array, shape: tuple[int, ...]) -> Quantised:
        """View of its bytes."""
        size = int(np.prod(shape))
        scales = data[size:].view(np.float16)
        return cls(data[:size].view(np.int8).reshape(shape), scales.reshape(*shape[:-1], shape[-1] // _BLOCK))

    def reshape(self, *shape: int) -> Quantised:
        """The same memory; (-1,), or rows as long as before."""
        of_scales = shape if shape == (-1,) else (*shape[:-1], shape[-1] // _BLOCK)
        return Quantised(self.integers.reshape(shape), self.scales.reshape(of_scales))

    def __getitem__(self, rows: Any) -> Quantised:
        return Quantised(self.integers[rows], self.scales[rows])

    def __setitem__(self, part: slice, values: Array) -> None:
        """Encode float32 values into whole blocks of a weight of one dimension."""
        taken = Quantised.of(quantised(values), values.shape)
        first = part.start or 0
        self.integers[first : first + values.size] = taken.integers
        self.scales[first // _BLOCK : (first + values.size) // _BLOCK] = taken.scales

    def floats(self) -> Array:
        """The float32 values that it stands for."""
        blocks = self.integers.reshape(-1, _BLOCK).astype(np.float32)
        blocks *= self.scales.reshape(-1, 1).astype(np.float32)
        return blocks.reshape(self.shape)


def floats(weight: Array | Quantised) -> Array:
    """The float32 values of a weight in any format; float32 as it is."""
    return weight.floats() if isinstance(weight, Quantised) else weight.astype(np.float32, copy=False)


def address(array: Array | Quantised) -> int:
    """Where an array begins."""
    memory = array.integers if isinstance(array, Quantised) else array
    return int(memory.__array_interface__["data"][0])
