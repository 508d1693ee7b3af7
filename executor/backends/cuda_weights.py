"""Weight formats as the kernels read them, and random weights."""

from __future__ import annotations

import zlib
from ctypes import c_float, c_int64, c_uint64, c_void_p
from typing import Any, Final

import numpy as np

from executor.backends.cuda_library import KernelCall, Library
from executor.graph import Tensor

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
    size = int(np.prod(shape))
    integers = data[:size].view(np.int8).reshape(-1, _BLOCK).astype(np.float32)
    return (integers * data[size:].view(np.float16).astype(np.float32)[:, None]).reshape(shape)


def random_on_device(library: Library, destination: Any, weight: Tensor, seed: int) -> KernelCall:
    """A call that fills a matrix as `random_weight` would, but with other random numbers."""
    arguments = (
        c_void_p(destination.ptr), c_uint64(seed << 32 | zlib.crc32(weight.name.encode())),
        c_int64(destination.size), c_float(weight.shape[-1] ** -0.5),
    )  # fmt: skip
    name = {"float32": "normal_f32", "float16": "normal_f16", "q8_0": "normal_q8_0"}[weight.dtype]
    return library.call("random.cu", name, (2048, 1), 256, arguments)
