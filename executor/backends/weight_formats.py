"""Weight formats in the layout that the kernels of all backends read. q8_0: all int8 first, then all f16 scales."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_BLOCK: Final = 32


def encoded(values: Array, dtype: str) -> Array:
    """Return the values in a dtype, contiguous."""
    return quantised(values) if dtype == "q8_0" else np.ascontiguousarray(values, dtype)


def quantised(values: Array) -> Array:
    """Quantise whole blocks of 32 float32 values to q8_0: all int8 first, then all f16 scales (common.cuh).

    As in ggml, the scale of a block is its largest magnitude / 127; a block takes 34 bytes.
    """
    blocks = values.reshape(-1, _BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales > 0)
    integers = np.rint(steps).astype(np.int8)
    return np.concatenate([integers.reshape(-1).view(np.uint8), scales.astype(np.float16).reshape(-1).view(np.uint8)])


class Quantised:
    """A q8_0 weight in host memory, with the part of NumPy's array interface that its users need.

    Attributes:
        integers: int8, in the weight's shape.
        scales: float16, one per 32 values of a row.
    """

    dtype: ClassVar = "q8_0"

    def __init__(self, integers: Array, scales: Array) -> None:
        self.integers, self.scales = integers, scales
        self.shape, self.size, self.nbytes = integers.shape, integers.size, integers.nbytes + scales.nbytes

    @classmethod
    def of(cls, data: Array, shape: tuple[int, ...]) -> Quantised:
        """Create a view of q8_0 bytes."""
        size = int(np.prod(shape))
        scales = data[size:].view(np.float16)
        return cls(data[:size].view(np.int8).reshape(shape), scales.reshape(*shape[:-1], shape[-1] // _BLOCK))

    def reshape(self, *shape: int) -> Quantised:
        """Return a view with a different shape: (-1,), or the same row length."""
        of_scales = shape if shape == (-1,) else (*shape[:-1], shape[-1] // _BLOCK)
        return Quantised(self.integers.reshape(shape), self.scales.reshape(of_scales))

    def __getitem__(self, rows: Any) -> Quantised:
        return Quantised(self.integers[rows], self.scales[rows])

    def __setitem__(self, part: slice, values: Array) -> None:
        """Encode float32 values into whole blocks of a one-dimensional weight."""
        taken = Quantised.of(quantised(values), values.shape)
        first = part.start or 0
        self.integers[first : first + values.size] = taken.integers
        self.scales[first // _BLOCK : (first + values.size) // _BLOCK] = taken.scales

    def floats(self) -> Array:
        """Convert the weight to float32."""
        blocks = self.integers.reshape(-1, _BLOCK).astype(np.float32)
        blocks *= self.scales.reshape(-1, 1).astype(np.float32)
        return blocks.reshape(self.shape)


def floats(weight: Array | Quantised) -> Array:
    """Convert a weight of any format to float32; return float32 unchanged."""
    return weight.floats() if isinstance(weight, Quantised) else weight.astype(np.float32, copy=False)


def address(array: Array | Quantised) -> int:
    """Return the address of the first byte."""
    memory = array.integers if isinstance(array, Quantised) else array
    return int(memory.__array_interface__["data"][0])


def as_bits(values: Array) -> Array:
    """View float16 as its bits: Numba has no float16 on the host."""
    return values.view(np.uint16) if values.dtype == np.float16 else values
