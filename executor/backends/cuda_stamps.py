"""The GPU's clock at the head and tail of every step, written by the GPU into a history that is read later.

Separate kernels have the same resolution as stamps inside the first and last kernel or event-record nodes (32 ns on an
H200) and add the least: 2.0 us per token, against 2.3 and 2.7 (benchmarks/gpu_stamps.py). Events keep only one time.
"""

from __future__ import annotations

from ctypes import c_uint64, c_void_p
from typing import Any

import numpy as np

from executor.backends.cuda_kernels import CudaKernel
from executor.backends.cuda_library import Library


class Stamps:
    """Two single-thread kernels and the history they write, shared by all graphs of a backend.

    Args:
        steps: how many steps are kept; older ones are overwritten.

    Attributes:
        kernels: the kernels for head and tail.
    """

    def __init__(self, library: Library, steps: int) -> None:
        cupy = library.cuda.cupy
        self._steps, self._library = steps, library
        self._history, self._step = cupy.zeros((steps, 2), np.uint64), cupy.zeros(1, np.uint64)
        library.cuda.runtime.deviceSynchronize()
        kept = (self._history, self._step)
        head, tail = (
            CudaKernel(name, [library.call(
                "stamp.cu", name, (1, 1), 1,
                (c_void_p(self._history.data.ptr), c_void_p(self._step.data.ptr), c_uint64(steps)), kept=kept,
            )]) for name in ("stamp_head", "stamp_tail")
        )  # fmt: skip
        self.kernels = head, tail

    def restart(self) -> None:
        """Discard all steps. The device must be idle."""
        self._step.fill(0)
        self._library.cuda.runtime.deviceSynchronize()

    def read(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return head and tail of the last steps, (n, 2) in ns of `%globaltimer`, oldest first."""
        self._library.cuda.runtime.deviceSynchronize()
        done = int(self._step.get()[0])
        history = np.roll(self._history.get(), -done if done > self._steps else 0, axis=0)
        stamps: np.ndarray[Any, np.dtype[np.int64]] = history[: min(done, self._steps)].astype(np.int64)
        return stamps
