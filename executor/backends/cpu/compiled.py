"""Chooses which kernels are compiled, and runs them on several threads.

Products with small matrices, attention with few heads and ops on short rows stay in NumPy (`kernels`), so that
nothing is compiled for a small model.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.backends.cpu.kernels import BoundKernel
from executor.backends.weight_formats import Array, Quantised, as_bits
from tracer.errors import UsageError

LEAST_VALUES: Final = 1 << 19
"""Minimum number of values of a matrix for its products to be compiled."""
BLOCK: Final = 32
"""The row length of a compiled product is a multiple of this."""
LEAST_QUERY: Final = 1024
"""Minimum number of values of a token's query for attention to be compiled."""
LEAST_ROW: Final[Mapping[str, int]] = {
    "rms_norm": 1024, "mul": 1024, "add": 1024, "swiglu": 1024, "moe_expert_reduce": 1024, "rope": 512,
    "set_rows": 512, "soft_max": 32, "top_k": 32,
}  # fmt: skip
"""Minimum number of values of a token for an op on its row to be compiled."""
FEW_CORES: Final = 4
"""With up to this many cores, all of them compute. With more, one is left to other threads, because the others saturate
the memory bandwidth.
"""

_ATTENTION_WORTH_SHARING: Final = 1 << 16
"""Minimum number of multiplications in attention for all threads to take part. It is always all threads or one: an
OpenMP team that shrinks ends its other threads and starts them again for the next product.
"""
_ROWS_WORTH_SHARING: Final = 1 << 15
"""Minimum size of an op on rows, in values, for all threads to take part."""
_SPINS: Final = "100000"
"""Spin count of an idle GNU OpenMP thread, equal to some milliseconds: longer than the device's part of a step. A
thread that sleeps may wake up on another thread's core. The default is three times as long."""
_TBB: Final = "libtbb.so.12"
_LONG_S: Final = 1.0
_one_at_a_time: Final = threading.Lock()  # a kernel uses all threads, and not every threading layer allows two callers
_TASKS: Final = Path("/proc/self/task")
_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")


def is_compiled(op: str, src: Sequence[Any]) -> bool:
    """Whether a node's kernel is compiled. The choice does not depend on the batch size, so that all batches agree."""
    if op in ("mul_mat", "mul_mat_id"):
        outputs, inputs = src[0].shape[-2:]
        return bool(outputs * inputs >= LEAST_VALUES and inputs % BLOCK == 0)
    if op in LEAST_ROW:
        return _is_row_op(op, src) and bool(np.prod(src[0].shape[1:]) >= LEAST_ROW[op])
    return bool(op == "flash_attn_ext" and np.prod(src[0].shape[1:]) >= LEAST_QUERY)


def _is_row_op(op: str, src: Sequence[Any]) -> bool:
    """Whether the loops on rows take these sources."""
    if op in ("mul", "add"):
        return src[0].dtype == np.float32 and src[1].shape in (src[0].shape, src[0].shape[-1:])
    return bool(src[0].dtype == np.float32 and (op != "set_rows" or src[0].ndim == 2))


def default_threads() -> int:
    """Default number of compute threads: the cores that this process may use, see `FEW_CORES`."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, _, period = _CPU_LIMIT.read_text(encoding="ascii").partition(" ")
        cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup, or no limit
        pass
    return cores if cores <= FEW_CORES else cores - 1


class CompiledKernels:
    """Binds compiled kernels to their memory.

    Args:
        threads: number of compute threads, including the calling thread; None for `default_threads`.
        pinned: whether each of the other threads is pinned to its own core. The calling thread never is: it launches.
            They are OpenMP's threads, even if oneTBB is installed.
    """

    def __init__(self, threads: int | None = None, pinned: bool = False) -> None:
        self._threads, self._pinned = threads or default_threads(), pinned
        self._callers = threading.local()
        self._untold: dict[str, float] = {}

    def bound(self, op: str, out: Array, src: Sequence[Any], **params: Any) -> BoundKernel:
        """Compile and bind the kernel of a node that `is_compiled`.

        Raises:
            UsageError: more threads than this process may use.
        """
        if op == "flash_attn_ext":
            return self._attention(out, *src, **params)
        if op in LEAST_ROW:
            return self._rows(op, out, src, params)
        return self._product(out, *src)

    def _rows(self, op: str, out: Array, src: Sequence[Array], params: Mapping[str, Any]) -> BoundKernel:
        from executor.backends.cpu.loops import ARGUMENTS

        loop, arranged = ARGUMENTS[op]
        arguments = arranged(out, *src, **params)
        shared = self._threads > 1 and src[0].size >= _ROWS_WORTH_SHARING
        kernel = loop.shared if shared else loop.alone
        self._compile(op, kernel, *arguments, self._threads)
        return partial(self._run, kernel, *arguments) if shared else partial(kernel, *arguments, 1)

    def _product(self, out: Array, weight: Array | Quantised, x: Array, ids: Array | None = None) -> BoundKernel:
        from executor.backends.cpu.loops import products

        outputs, inputs = weight.shape[-2:]
        flat = weight.reshape(-1, inputs)
        if isinstance(flat, Quantised):
            values, scales = flat.integers, flat.scales.view(np.uint16)
        else:
            values, scales = as_bits(flat), np.zeros((1, 0), np.uint16)
        none = np.zeros((0, inputs), np.float32), np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
        self._warm_up(f"{weight.dtype} products", products, values, scales, *none)
        rows, results = x.reshape(-1, inputs), out.reshape(-1, outputs)
        if ids is None:
            return partial(self._run, products, values, scales, rows, results, np.zeros(len(rows), np.int64))
        return partial(self._of_experts, partial(self._run, products, values, scales), rows, results, ids)

    def _of_experts(self, run: Callable[..., None], x: Array, out: Array, ids: Array) -> None:
        """Compute every token's chosen experts, grouped by expert."""
        order = np.argsort(ids, axis=None, kind="stable")
        experts = ids.reshape(-1)[order].astype(np.int64)
        result = np.empty_like(out)
        run(x[order * len(x) // len(order)], result, experts)
        out[order] = result

    def _attention(
        self, out: Array, q: Array, k: Array, v: Array, mask: Array, streams: Array | None = None, *, scale: float
    ) -> BoundKernel:
        from executor.backends.cpu.loops import attention

        streams = np.arange(len(k), dtype=np.int32) if streams is None else streams
        arrays = out.reshape(q.shape), q, as_bits(k), as_bits(v)
        factor = np.float32(scale)
        self._warm_up(f"attention over {k.dtype}", attention, *arrays, mask[:, :0], streams[:0], factor)
        shared = q.size * mask.shape[1] >= _ATTENTION_WORTH_SHARING
        return partial(self._run, attention, *arrays, mask, streams, factor, threads=None if shared else 1)

    def _run(self, kernel: Callable[..., None], *arguments: Any, threads: int | None = None) -> None:
        import numba

        threads = threads or self._threads
        with _one_at_a_time:
            numba.set_num_threads(threads)  # of the calling thread; others that use Numba may have set it
            if not self._pinned or hasattr(self._callers, "pinned"):
                kernel(*arguments, threads)
                return
            before = _tasks()
            kernel(*arguments, threads)
            if threads == self._threads:
                self._callers.pinned = pin(_tasks() - before)

    def _warm_up(self, what: str, kernel: Any, *arguments: Any) -> None:
        """Compile for the argument types, and start the threads by a call with these arguments."""
        self._compile(what, kernel, *arguments, self._threads)
        self._run(kernel, *arguments)

    def _compile(self, what: str, kernel: Any, *arguments: Any) -> None:
        """Compile for the argument types or load from the cache; report compilations that together took long."""
        import numba

        if not self._pinned:
            _load_tbb()
        if "OMP_WAIT_POLICY" not in os.environ:  # read when the first parallel loop is loaded
            os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
        config: Any = numba.config
        if self._threads > (most := config.NUMBA_NUM_THREADS):
            raise UsageError(f"{self._threads} threads are too many: choose at most {most}")
        misses, start = sum(kernel.stats.cache_misses.values()), time.perf_counter()
        typeof: Any = numba.typeof
        kernel.compile(tuple(map(typeof, arguments)))
        if sum(kernel.stats.cache_misses.values()) > misses:
            self._untold[what] = time.perf_counter() - start
        if sum(self._untold.values()) > _LONG_S:
            told, seconds = ", ".join(self._untold), sum(self._untold.values())
            print(f"compiled {told} of the host in {seconds:.1f} s, once for all runs", file=sys.stderr)
            self._untold.clear()


@cache
def _load_tbb() -> None:
    """Load oneTBB if it is installed: Numba prefers it to OpenMP, but the loader does not search where pip puts it.

    If two threads share a core, as when another process uses the others, an OpenMP thread that has ended its part spins
    until its time slice ends, while the other waits. TBB's thread yields, and other threads take the parts of one that
    has not yet begun: products of 0.2 ms then take 0.4 ms instead of 2.6 (docs/how-to/run.md).
    """
    try:
        places = [file.locate() for file in files("tbb") or () if file.name == _TBB]
    except PackageNotFoundError:
        return
    for place in places:
        with suppress(OSError):  # then Numba takes OpenMP
            ctypes.CDLL(str(place))


def _tasks() -> set[int]:
    """Return the threads of this process that Python did not start."""
    known = {thread.native_id for thread in threading.enumerate()}
    return {int(task.name) for task in _TASKS.iterdir()} - known


def pin(tasks: set[int]) -> int:
    """Pin each thread to its own core, leaving the first core to the caller; return how many were pinned."""
    pairs = list(zip(sorted(tasks), sorted(os.sched_getaffinity(0))[1:], strict=False))
    for task, core in pairs:
        os.sched_setaffinity(task, {core})
    return len(pairs)
