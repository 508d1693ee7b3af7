"""Random weights generated on the device."""

from __future__ import annotations

import zlib
from ctypes import c_float, c_int64, c_uint64, c_void_p
from typing import Any

from executor.backends.cuda_library import KernelCall, Library
from executor.graph import Tensor


def random_on_device(library: Library, destination: Any, weight: Tensor, seed: int) -> KernelCall:
    """Return a call that fills a matrix like `random_weight`, but with different random numbers."""
    arguments = (
        c_void_p(destination.ptr), c_uint64(seed << 32 | zlib.crc32(weight.name.encode())),
        c_int64(destination.size), c_float(weight.shape[-1] ** -0.5),
    )  # fmt: skip
    name = {"float32": "normal_f32", "float16": "normal_f16", "q8_0": "normal_q8_0"}[weight.dtype]
    return library.call("random.cu", name, (2048, 1), 256, arguments)
