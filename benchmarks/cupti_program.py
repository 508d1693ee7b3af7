"""The program recorded by cupti_truth.py and cupti_overhead.py: a decode-like CuPy loop with a known count of calls.

A token is 6 input copies, a CUDA graph of 56 matrix-vector kernels in three branches, and a copy back. `steps` adds
everything that a token lacks: eager kernels, fills, device copies, events, all kinds of syncs, NVTX of other libraries.

Usage: python benchmarks/cupti_program.py [--record none|node|graph] [--tokens 64] [--times 0] [-o TRACE]
Prints one JSON object: µs per token of `--times` blocks of tokens, and the program's own counts in the window.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import nvtx

import tracer
from tracer.recorders.cupti_records import KINDS

WIDTH, LAYERS, INPUTS, BLOCK = 2048, 14, 6, 50
SOURCE = r"""
extern "C" __global__ void gemv(const unsigned short* w, const float* x, float* y, int n) {
    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = lane; i < n; i += 32) sum += w[(size_t)row * n + i] * x[i];
    for (int o = 16; o; o /= 2) sum += __shfl_down_sync(~0u, sum, o);
    if (!lane) y[row] = sum;
}
template <typename T> __global__ void scale(T* x, T by) { x[blockIdx.x * blockDim.x + threadIdx.x] *= by; }
"""


class Loop:
    """Buffers, streams and the instantiated graph."""

    def __init__(self) -> None:
        import cupy as cp

        self.cp, self.runtime = cp, cp.cuda.runtime
        module = cp.RawModule(code=SOURCE, name_expressions=["scale<float>"])
        self.gemv, self.scale = module.get_function("gemv"), module.get_function("scale<float>")
        self.weights = [cp.ones((WIDTH, WIDTH), cp.uint16) for _ in range(8)]
        self.x = [cp.ones(WIDTH, cp.float32) for _ in range(LAYERS * 4 + 1)]
        self.main = cp.cuda.Stream(non_blocking=True)
        self.branches = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
        self.fork = cp.cuda.Event(disable_timing=True)
        self.joins = [cp.cuda.Event(disable_timing=True) for _ in range(2)]
        self.inputs = [cp.empty(1024, cp.float32) for _ in range(INPUTS)]
        self.pinned = cp.cuda.alloc_pinned_memory(4096 * (INPUTS + 2))
        self.graph = self._captured()
        cp.cuda.Device().synchronize()

    def _captured(self) -> Any:
        self.main.begin_capture()
        for layer in range(LAYERS):
            self.fork.record(self.main)
            for branch, join in zip(self.branches, self.joins, strict=True):
                branch.wait_event(self.fork)
                self._matvec(layer, 1 + self.branches.index(branch), branch)
                join.record(branch)
            self._matvec(layer, 0, self.main)
            for join in self.joins:
                self.main.wait_event(join)
            self._matvec(layer, 3, self.main)
        return self.main.end_capture()

    def _matvec(self, layer: int, part: int, stream: Any) -> None:
        number = layer * 4 + part
        with stream:
            arguments = (self.weights[number % 8], self.x[layer * 4], self.x[number + 1], WIDTH)
            self.gemv((WIDTH // 8,), (256,), arguments)

    def token(self) -> None:
        """Run one token as under sccc: copy and sync per input, launch, copy back, sync."""
        host, stream = self.pinned.ptr, self.main
        for number, target in enumerate(self.inputs):
            self.runtime.memcpyAsync(target.data.ptr, host + 4096 * number, 4096, 1, stream.ptr)
            stream.synchronize()
        self.graph.launch(stream)
        self.runtime.memcpyAsync(host + 4096 * INPUTS, self.x[-1].data.ptr, 4096, 2, stream.ptr)
        stream.synchronize()

    def extras(self) -> None:
        """Run one of each call that a token lacks."""
        cp, runtime, stream = self.cp, self.runtime, self.main
        cp.cuda.nvtx.RangePush("extras of cupy")
        with stream:
            self.scale((8,), (256,), (self.x[0], cp.float32(1)))
        runtime.memsetAsync(self.inputs[0].data.ptr, 0, 4096, stream.ptr)
        runtime.memcpyAsync(self.inputs[1].data.ptr, self.inputs[2].data.ptr, 2048, 3, stream.ptr)
        self.fork.record(stream)
        self.branches[0].wait_event(self.fork)
        self.fork.synchronize()
        runtime.memcpy(self.pinned.ptr, self.inputs[3].data.ptr, 1024, 2)
        cp.cuda.nvtx.Mark("mark of cupy", 3)
        nvtx.push_range("extras of nvtx", color="red", payload=7)
        nvtx.pop_range()
        cp.cuda.nvtx.RangePop()
        cp.cuda.Device().synchronize()

    def window(self, tokens: int) -> None:
        """Run the counted part: a range `window` with `tokens` tokens, and extras at every eighth token."""
        with tracer.annotate("window"):
            for number in range(tokens):
                with tracer.annotate("token", index=number):
                    self.token()
                if number % 8 == 7:
                    with tracer.annotate("extras", domain="intertoken", color="green"):
                        self.extras()
            self.cp.cuda.Device().synchronize()

    def times(self, blocks: int) -> list[float]:
        """Return µs per token of each block of tokens."""
        found = []
        for _ in range(blocks):
            start = time.perf_counter_ns()
            for number in range(BLOCK):
                with tracer.annotate("token", index=number):
                    self.token()
            found.append((time.perf_counter_ns() - start) / BLOCK / 1e3)
        return found


@contextmanager
def recorded(level: Any, kinds: str) -> Iterator[Any]:
    """Yield the CUPTI recorder at a level, or None for "none"."""
    chosen = kinds.split(",") if kinds else tuple(KINDS)
    with tracer.record("cupti", graph_trace=level, kinds=chosen) if level != "none" else nullcontext() as recording:
        yield recording


def built(recording: Any) -> Any:
    """Convert CUPTI's buffers to a trace again."""
    recording._trace = None
    return recording.trace


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", choices=("none", "node", "graph"), default="none")
    parser.add_argument("--kinds", default="", help="comma-separated; all by default")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--times", type=int, default=0, help="blocks to time after the window")
    parser.add_argument("--parse", type=int, default=0, help="how many times to build the trace, timed")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    with recorded(options.record, options.kinds) as recording:
        loop = Loop()
        loop.window(options.tokens)
        times = loop.times(options.times)
        facts: dict[str, Any] = {"us_per_token": times}
    if recording is not None:
        facts["parse_s"] = [seconds(lambda: built(recording)) for _ in range(options.parse)]
        trace = recording.trace
        facts |= {"records": sum(map(len, trace.tables.values())), "notes": trace.notes}
        if options.output:
            tracer.write(trace, options.output)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
