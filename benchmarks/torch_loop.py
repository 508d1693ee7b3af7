"""A decode loop in plain PyTorch, like gpt-fast: one CUDA graph per token, inputs before it and a result after it.

Prints steps/s of five windows without a profiler. With --window, a profiler started with capture-range records 100
more steps (cudaProfilerStart). `record_pairs.py` records it as one of its programs.
Usage: python benchmarks/torch_loop.py [--layers N] [--width N] [--inputs N] [--fetch item|event] [--around N] [--eager]
    [--window]
"""

from __future__ import annotations

import argparse
import time

import torch

STEPS = 100


class Decoder:
    """Layers of matrix-vector products, in a CUDA graph or launched one by one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        draw = torch.Generator("cuda").manual_seed(0)
        width = options.width
        size = (2, width, width)
        self.layers = [
            torch.randn(size, generator=draw, device="cuda", dtype=torch.bfloat16) / width**0.5
            for _ in range(options.layers)
        ]
        self.hidden = torch.ones(1, width, device="cuda", dtype=torch.bfloat16)
        self.given = [torch.zeros(64, device="cuda", dtype=torch.bfloat16) for _ in range(options.inputs)]
        self.hosts = [torch.zeros(64, dtype=torch.bfloat16).pin_memory() for _ in range(options.inputs)]
        self.token = torch.zeros(1, device="cuda", dtype=torch.int64)
        self.fetched = [torch.zeros(1, dtype=torch.int64).pin_memory() for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)]
        self._pass()
        torch.cuda.synchronize()
        self.graph = None if options.eager else torch.cuda.CUDAGraph()
        if self.graph is not None:
            with torch.cuda.graph(self.graph):
                self._pass()

    def _pass(self) -> None:
        hidden = self.hidden + sum(given[:1] for given in self.given)
        for first, second in self.layers:
            hidden = torch.tanh(hidden @ first) @ second
        self.token.copy_(hidden.argmax(dim=-1))

    def step(self, number: int) -> None:
        """Run one token: inputs, graph, eager work around it, and the fetch of this or the previous token."""
        for given, host in zip(self.given, self.hosts, strict=True):
            given.copy_(host, non_blocking=True)
        if self.graph is None:
            self._pass()
        else:
            self.graph.replay()
        for _ in range(self.options.around):
            self.token.add_(1).remainder_(self.options.width)
        if self.options.fetch == "item":
            self.token.item()
            return
        self.fetched[number % 2].copy_(self.token, non_blocking=True)
        self.events[number % 2].record()
        if number:
            self.events[(number - 1) % 2].synchronize()

    def run(self, steps: int = STEPS) -> float:
        """Steps/s."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(steps):
            self.step(number)
        torch.cuda.synchronize()
        return steps / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--around", type=int, default=0, help="small kernels launched after the graph, two each")
    parser.add_argument("--fetch", choices=("item", "event"), default="item")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--window", action="store_true")
    options = parser.parse_args()
    decoder = Decoder(options)
    decoder.run()
    for _ in range(5):
        print(f"steps/s {decoder.run():.2f}", flush=True)
    if options.window:
        torch.cuda.profiler.start()
        decoder.run()
        torch.cuda.profiler.stop()
        time.sleep(1)


if __name__ == "__main__":
    main()
