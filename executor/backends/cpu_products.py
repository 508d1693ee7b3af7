"""Which products are compiled, and the threads that compute them.

Products with small matrices stay in NumPy (`cpu_kernels`), so that nothing is compiled for a small model.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.backends.cpu_handles import Work
from executor.backends.weight_formats import Array, Quantised
from tracer.errors import UsageError

LEAST_VALUES: Final = 1 << 19
"""Of a matrix, from which on its products are compiled."""
BLOCK: Final = 32
"""Values of which a compiled product's rows are whole multiples."""
FEW_CORES: Final = 4
"""Up to so many, all of them compute; else one is left to other threads, as bandwidth does not need it."""

_one_at_a_time: Final = threading.Lock()  # a product has all threads, and not every threading layer takes two callers
_TASKS: Final = Path("/proc/self/task")
_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def is_large(op: str, src: Sequence[Any]) -> bool:
    """Whether a node is a product that is compiled: by the size of the matrix, so that all batches agree."""
    if op not in ("mul_mat", "mul_mat_id"):
        return False
    outputs, inputs = src[0].shape[-2:]
    return bool(outputs * inputs >= LEAST_VALUES and inputs % BLOCK == 0)


def default_threads() -> int:
    """Threads that compute unless the user says otherwise: the cores that this process may use, see `FEW_CORES`."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, _, period = _CPU_LIMIT.read_text(encoding="ascii").partition(" ")
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group, or no limit
        pass
    return cores if cores <= FEW_CORES else cores - 1


class Products:
    """Binds large products to their memory.

    Args:
        threads: how many compute, the calling one among them; None for `default_threads`.
        pinned: whether each of the others stays on a core of its own. The calling one is never pinned: it launches.
    """

    def __init__(self, threads: int | None = None, pinned: bool = False) -> None:
        self._threads, self._pinned = threads or default_threads(), pinned
        self._callers = threading.local()

    def bound(self, op: str, out: Array, src: Sequence[Any]) -> Work:
        """What computes a product that `is_large`; compiled when this returns.

        Raises:
            UsageError: more threads than this process may have.
        """
        weight, x, *ids = src
        outputs, inputs = weight.shape[-2:]
        flat = weight.reshape(-1, inputs)
        if isinstance(flat, Quantised):
            values, scales = flat.integers, flat.scales.view(np.uint16)
        else:
            values, scales = flat.view(np.uint16) if flat.dtype == np.float16 else flat, np.zeros((1, 1), np.uint16)
        self._warm_up(values, scales, str(weight.dtype))
        rows = x.reshape(-1, inputs)
        if op == "mul_mat":
            return partial(self._run, values, scales, rows, out.reshape(-1, outputs), np.zeros(len(rows), np.int64))
        return partial(self._of_experts, values, scales, rows, out.reshape(-1, outputs), ids[0])

    def _of_experts(self, values: Array, scales: Array, x: Array, out: Array, ids: Array) -> None:
        """Every token's chosen experts; those of one expert together."""
        order = np.argsort(ids, axis=None, kind="stable")
        experts = ids.reshape(-1)[order].astype(np.int64)
        if experts[0] < 0 or experts[-1] >= len(values) // out.shape[1]:
            raise IndexError(f"there is no expert {experts[0] if experts[0] < 0 else experts[-1]}")
        result = np.empty_like(out)
        self._run(values, scales, x[order * len(x) // len(order)], result, experts)
        out[order] = result

    def _run(self, values: Array, scales: Array, x: Array, out: Array, matrices: Array) -> None:
        from executor.backends.cpu_tile import products

        with _one_at_a_time:
            if not self._pinned or hasattr(self._callers, "pinned"):
                products(values, scales, x, out, matrices, self._threads)
                return
            before = _tasks()
            products(values, scales, x, out, matrices, self._threads)
            self._callers.pinned = pin(_tasks() - before)

    def _warm_up(self, values: Array, scales: Array, format: str) -> None:
        """Compile for a format, or find it in the cache; say so where it took its time."""
        from executor.backends.cpu_tile import most_threads, times_compiled

        if self._threads > most_threads():
            raise UsageError(f"{self._threads} threads are too many: this process may have {most_threads()}")
        known, start = times_compiled(), time.perf_counter()
        nothing = np.zeros((0, values.shape[1]), np.float32)
        self._run(values, scales, nothing, np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
        if times_compiled() > known:
            seconds = time.perf_counter() - start
            print(f"compiled the host's {format} products in {seconds:.1f} s, for all later runs", file=sys.stderr)


def _tasks() -> set[int]:
    """The threads of this process that are not Python's."""
    known = {thread.native_id for thread in threading.enumerate()}
    return {int(task.name) for task in _TASKS.iterdir()} - known


def pin(tasks: set[int]) -> int:
    """Give each thread a core of its own, the first core left to the caller; returns how many have one."""
    cores: Sequence[Any] = sorted(os.sched_getaffinity(0))[1:]
    pairs = list(zip(sorted(tasks), cores, strict=False))
    for task, core in pairs:
        os.sched_setaffinity(task, {core})
    return len(pairs)
