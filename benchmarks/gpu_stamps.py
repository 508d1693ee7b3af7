"""Three ways to stamp head and tail of a CUDA graph: the time that each adds to a token, and its resolution.

A token is a graph of 56 matrix-vector kernels, launched repeatedly without copies or syncs. `kernels` are two
single-thread kernels that write `%globaltimer` to a history (as in the light pass); `inside` does the same within the
first and the last kernel, whose last block writes the tail; `events` are event-record nodes around the graph, which
keep one time each and must be read before the next launch. Variants are interleaved.
Usage: python benchmarks/gpu_stamps.py [--rounds 15] [--json FILE]      needs a GPU
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, interval, save

from executor.backends.cuda_runtime import Cuda, load_cuda

WIDTH, KERNELS, LAUNCHES = 2048, 56, 200
VARIANTS = ("none", "kernels", "inside", "events")
_EXTERNAL = 1  # cudaEventRecordExternal: a node of the graph, not a dependency of the capture
SOURCE = r"""
typedef unsigned long long u64;
__device__ u64 now() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
struct Log { u64 step, times[2 * 512]; unsigned done; };
extern "C" __global__ void head(Log* log) { log->times[2 * (log->step % 512)] = now(); }
extern "C" __global__ void tail(Log* log) { log->times[2 * (log->step++ % 512) + 1] = now(); }
template <int STAMP> __global__ void gemv(const unsigned short* w, const float* x, float* y, int n, Log* log) {
    if (STAMP == 1 && !blockIdx.x && !threadIdx.x) log->times[2 * (log->step % 512)] = now();
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = lane; i < n; i += 32) sum += w[(size_t)row * n + i] * x[i];
    for (int o = 16; o; o /= 2) sum += __shfl_down_sync(~0u, sum, o);
    if (!lane) y[row] = sum;
    if (STAMP == 2) {
        __syncthreads();
        if (!threadIdx.x) {
            __threadfence();
            if (atomicAdd(&log->done, 1) == gridDim.x - 1) {
                log->done = 0;
                log->times[2 * (log->step++ % 512) + 1] = now();
            }
        }
    }
}
"""


class Loop:
    """One graph per variant, over the same weights."""

    def __init__(self, cuda: Cuda) -> None:
        from cuda.bindings import runtime as bindings

        self.cuda, self.bindings, cp = cuda, bindings, cuda.cupy
        names = [f"gemv<{stamp}>" for stamp in range(3)]
        module = cp.RawModule(code=SOURCE, options=("--std=c++17",), name_expressions=names)
        self.gemv = [module.get_function(name) for name in names]
        self.head, self.tail = module.get_function("head"), module.get_function("tail")
        self.weights = [cp.ones((WIDTH, WIDTH), cp.uint16) for _ in range(8)]
        self.x = [cp.ones(WIDTH, cp.float32) for _ in range(KERNELS + 1)]
        self.log = cp.zeros(1026, cp.uint64)
        self.stream = cp.cuda.Stream(non_blocking=True)
        self.events = [cp.cuda.Event() for _ in range(2)]
        self.graphs = {variant: self._captured(variant) for variant in VARIANTS}
        cp.cuda.Device().synchronize()

    def _captured(self, variant: str) -> Any:
        with self.stream:
            self.stream.begin_capture()
            self._edge(variant, 0)
            for i in range(KERNELS):
                stamp = {0: 1, KERNELS - 1: 2}.get(i, 0) if variant == "inside" else 0
                arguments = (self.weights[i % 8], self.x[i], self.x[i + 1], WIDTH, self.log)
                self.gemv[stamp]((WIDTH // 8,), (256,), arguments)
            self._edge(variant, 1)
            return self.stream.end_capture()

    def _edge(self, variant: str, side: int) -> None:
        if variant == "kernels":
            (self.head, self.tail)[side]((1,), (1,), (self.log,))
        if variant == "events":
            (code,) = self.bindings.cudaEventRecordWithFlags(self.events[side].ptr, self.stream.ptr, _EXTERNAL)
            assert code == 0, code

    def back_to_back(self, variant: str) -> float:
        """Return µs per launch, over many launches without syncs in between."""
        graph, stream = self.graphs[variant], self.stream
        start = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            graph.launch(stream)
        stream.synchronize()
        return (time.perf_counter_ns() - start) / LAUNCHES / 1e3

    def durations_ns(self, variant: str) -> list[float]:
        """Return head to tail of single launches, as measured by the variant."""
        self.log[0] = 0
        found = []
        for _ in range(LAUNCHES):
            self.graphs[variant].launch(self.stream)
            self.stream.synchronize()
            if variant == "events":
                found.append(self.cuda.cupy.cuda.get_elapsed_time(*self.events) * 1e6)
        if variant == "events":
            return found
        times = self.log.get()[1 : 1 + 2 * LAUNCHES].reshape(-1, 2).astype(np.int64)
        return [float(d) for d in times[:, 1] - times[:, 0]]

    def gaps_ns(self, variant: str) -> float:
        """Return the median time from tail to next head of launches without syncs, from the history."""
        self.log[0] = 0
        self.back_to_back(variant)
        times = self.log.get()[1 : 1 + 2 * LAUNCHES].reshape(-1, 2).astype(np.int64)
        return float(np.median(times[1:, 0] - times[:-1, 1]))


def tick(durations: list[float]) -> float:
    """Return the smallest nonzero difference between two durations, ns."""
    steps = np.diff(np.unique(np.round(durations, 1)))
    return float(steps.min()) if len(steps) else 0.0


def host_us(work: Callable[[], Any], times: int = 2000) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        work()
    return (time.perf_counter_ns() - start) / times / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    cuda = load_cuda()
    loop = Loop(cuda)
    periods: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for variant in VARIANTS:
        loop.back_to_back(variant)
    for _ in range(options.rounds):
        for variant in VARIANTS:
            periods[variant].append(loop.back_to_back(variant))
    result: dict[str, Any] = {}
    for variant in VARIANTS:
        added = [period - none for period, none in zip(periods[variant], periods["none"], strict=True)]
        result[variant] = {"us_per_token": interval(periods[variant]), "added_us": interval(added)}
        if variant == "none":
            continue
        durations = loop.durations_ns(variant)
        result[variant] |= {"tick_ns": tick(durations), "duration_us": statistics.median(durations) / 1e3}
        if variant != "events":
            result[variant]["gap_us"] = loop.gaps_ns(variant) / 1e3
    result["events"]["read_us"] = host_us(lambda: cuda.cupy.cuda.get_elapsed_time(*loop.events))
    for variant, facts in result.items():
        added = facts["added_us"]
        rest = "  ".join(f"{k} {v:.3f}" for k, v in facts.items() if isinstance(v, float))
        print(f"{variant:8} {facts['us_per_token']['median']:7.2f} us, added {added['median']:+.2f} "
              f"[{added['low']:+.2f} {added['high']:+.2f}]  {rest}")  # fmt: skip
    if options.json:
        save(options.json, "gpu_stamps", cuda, options.commit, {"rounds": options.rounds, "variants": result})


if __name__ == "__main__":
    main()
