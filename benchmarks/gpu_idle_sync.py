"""Does a sync cost as much as it takes? Three CuPy decode loops that differ in one sync, measured and recorded.

`beside`: while the graph computes, the host waits for the copies before it, off the critical path. `idle`: after the
sync that fetches the result, the host syncs again with nothing to wait for, on the critical path. `none`: neither.
Blocks of tokens of the three alternate in one process without a profiler. Then each is recorded by CUPTI (graph level)
in a separate process, from which `intertoken whatif --without-sync` predicts the difference
(`whatif_prediction.py`).
Usage: python benchmarks/gpu_idle_sync.py -o DIRECTORY [--blocks 30]        needs a GPU
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from cupti_program import Loop
from gpu_machine import commit, interval, machine

import tracer
from executor.backends.cuda.library import load_cuda

VARIANTS = ("none", "beside", "idle")
TOKENS, WARM_UP = 100, 3


class AsyncLoop(Loop):
    """The loop of `cupti_program`, with asynchronous copies."""

    def __init__(self, variant: str = "none") -> None:
        super().__init__()
        self.variant, self.copied = variant, self.cp.cuda.Event(disable_timing=True)

    def token(self) -> None:
        """Run one token: copies, an event after them, the graph, the result."""
        host, stream = self.pinned.ptr, self.main
        for number, target in enumerate(self.inputs):
            self.runtime.memcpyAsync(target.data.ptr, host + 4096 * number, 4096, 1, stream.ptr)
        self.copied.record(stream)
        self.graph.launch(stream)
        if self.variant == "beside":
            self.copied.synchronize()
        self.runtime.memcpyAsync(host + 4096 * len(self.inputs), self.x[-1].data.ptr, 4096, 2, stream.ptr)
        stream.synchronize()
        if self.variant == "idle":
            stream.synchronize()


def block(loop: AsyncLoop, variant: str) -> float:
    """Return µs per token."""
    loop.variant = variant
    start = time.perf_counter_ns()
    for number in range(TOKENS):
        with tracer.annotate("token", index=number):
            loop.token()
    return (time.perf_counter_ns() - start) / TOKENS / 1e3


def record(variant: str, path: Path) -> None:
    with tracer.record("cupti", graph_trace="graph") as recording:
        loop = AsyncLoop()
        block(loop, variant)
    tracer.write(recording.trace, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--record", choices=VARIANTS)
    parser.add_argument("--commit", default=commit())
    options = parser.parse_args()
    if options.record:
        record(options.record, options.output)
        return
    loop = AsyncLoop()
    rounds = [{variant: block(loop, variant) for variant in VARIANTS} for _ in range(options.blocks + WARM_UP)]
    took = {variant: [r[variant] for r in rounds[WARM_UP:]] for variant in VARIANTS}
    options.output.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        command = [sys.executable, __file__, "--record", variant, "-o", str(options.output / variant)]
        subprocess.run(command, check=True)
    speedup = {
        variant: interval([with_it / none for with_it, none in zip(took[variant], took["none"], strict=True)], digits=4)
        for variant in VARIANTS[1:]
    }
    facts = {
        "commit": options.commit,
        "machine": machine(load_cuda()),
        "us_per_token": {variant: interval(values) for variant, values in took.items()},
        "speedup_without": speedup,
    }
    (options.output / "measured.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps({name: found["median"] for name, found in (facts["us_per_token"] | speedup).items()}))


if __name__ == "__main__":
    main()
