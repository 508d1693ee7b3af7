"""Decode loops in PyTorch with one flaw each, and the same loops without it; `advice_measure.py` records and runs them.

Prints the steps/s of several windows, in which both variants of a loop alternate, and a digest of the first tokens,
which the change must not alter. Where a recorder of ours is preloaded, recording is paused in these windows, and each
pair has a third one in its middle, the loop before the change, which is recorded: its rate, and when it ran, are
printed too.

needless-sync   two syncs per step that nothing needs       changed: without them
pageable-copies inputs are copied from pageable memory      changed: pinned memory, asynchronous copies
host-sampling   the host takes the argmax of the logits     changed: the device does; the host reads one step late
eager           kernels are launched one by one             changed: one CUDA graph per step
late-launch     the host's own work comes before the launch  changed: behind it, while the device computes
many-copies     six small asynchronous copies before it     changed: one copy of all inputs
late-copies     the same, of inputs that are known before   changed: behind the launch of the step before
dynamic-cache   transformers: `generate`, dynamic cache     changed: static cache, compiled into CUDA graphs
Usage: python benchmarks/advice_loops.py LOOP,... [--layers N] [--width N] [--steps N] [--windows N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from light_blocks import switch
from light_turns import now

from tracer.recorders.light import FOLDER

VOCABULARY: Final = 32000
INPUTS: Final = 6
WORDS: Final = 400
"""Tokens that are formatted in each step of late-launch, which takes the host some 50 µs."""
WARM_UPS: Final = 3
Loop = Callable[[int], list[int]]
"""Decodes so many steps; returns their tokens."""


class Decoder:
    """Layers of matrix-vector products over the embedding of the last token and some inputs.

    Args:
        options: layers, width, device.
        sampled: whether the pass takes the argmax itself, and its next step starts from that.
    """

    def __init__(self, options: argparse.Namespace, *, sampled: bool = True) -> None:
        self.device, self.sampled = options.device, sampled
        draw = torch.Generator(self.device).manual_seed(0)

        def weights(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=draw, device=self.device, dtype=torch.bfloat16) / size[0] ** 0.5

        self.layers = [(weights(options.width, options.width), weights(options.width, options.width))
                       for _ in range(options.layers)]  # fmt: skip
        self.embedding, self.head = weights(VOCABULARY, options.width), weights(options.width, VOCABULARY)
        self.token = torch.zeros(1, device=self.device, dtype=torch.int64)
        self.given = torch.zeros((INPUTS, 64), device=self.device, dtype=torch.bfloat16)
        self.logits = torch.zeros((1, VOCABULARY), device=self.device, dtype=torch.bfloat16)
        self.graph: Any = None

    def forward(self) -> None:
        """Launch one step, kernel by kernel."""
        hidden = self.embedding[self.token] * VOCABULARY**0.5 + self.given[:, :1].sum()
        for first, second in self.layers:
            hidden = hidden + torch.tanh(hidden @ first) @ second
        torch.mm(hidden / hidden.norm(), self.head, out=self.logits)
        if self.sampled:
            self.token.copy_(self.logits.argmax(dim=-1))

    def capture(self) -> None:
        """Put `forward` into a CUDA graph, where there are CUDA graphs."""
        self.forward()
        if self.device == "cuda":
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.forward()
        self.token.zero_()

    def launch(self) -> None:
        """One step."""
        if self.graph is None:
            self.forward()
        else:
            self.graph.replay()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def pinned(self, *size: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that asynchronous copies use."""
        return torch.zeros(size, dtype=dtype, pin_memory=self.device == "cuda")


def needless_sync(options: argparse.Namespace) -> Loop:
    """Wait behind the copy of the inputs and behind the launch; only the fetch of the token needs to wait."""
    decoder = Decoder(options)
    decoder.capture()
    host = decoder.pinned(INPUTS, 64, dtype=torch.bfloat16)

    def decode(steps: int) -> list[int]:
        tokens = []
        for step in range(steps):
            host.fill_(step % 7)
            decoder.given.copy_(host, non_blocking=True)
            if not options.changed:
                decoder.synchronize()
            decoder.launch()
            if not options.changed:
                decoder.synchronize()
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def pageable_copies(options: argparse.Namespace) -> Loop:
    """Copy every input on its own, from pageable memory, so that each copy waits."""
    decoder = Decoder(options)
    decoder.capture()
    hosts = [decoder.pinned(64, dtype=torch.bfloat16) if options.changed else torch.zeros(64, dtype=torch.bfloat16)
             for _ in range(INPUTS)]  # fmt: skip

    def decode(steps: int) -> list[int]:
        tokens = []
        for step in range(steps):
            for given, host in zip(decoder.given, hosts, strict=True):
                host.fill_(step % 7)
                given.copy_(host, non_blocking=options.changed)
            decoder.launch()
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def host_sampling(options: argparse.Namespace) -> Loop:
    """Fetch all logits, choose the token on the host and send it back."""
    decoder = Decoder(options, sampled=options.changed)
    decoder.capture()
    return _read_late(decoder) if options.changed else _sampled_by_host(decoder)


def _sampled_by_host(decoder: Decoder) -> Loop:
    logits = decoder.pinned(1, VOCABULARY, dtype=torch.bfloat16)
    chosen = decoder.pinned(1, dtype=torch.int64)

    def decode(steps: int) -> list[int]:
        tokens = []
        for _ in range(steps):
            decoder.launch()
            logits.copy_(decoder.logits)
            chosen[0] = logits.argmax()
            decoder.token.copy_(chosen, non_blocking=True)
            tokens.append(int(chosen[0]))
        return tokens

    return decode


def _read_late(decoder: Decoder) -> Loop:
    """Launch the next step before the token of this one is read."""
    fetched = [decoder.pinned(1, dtype=torch.int64) for _ in range(2)]
    events = [torch.cuda.Event() if decoder.device == "cuda" else None for _ in range(2)]

    def read(step: int) -> int:
        event = events[step % 2]
        if event is not None:
            event.synchronize()
        return int(fetched[step % 2][0])

    def decode(steps: int) -> list[int]:
        tokens = []
        for step in range(steps):
            decoder.launch()
            fetched[step % 2].copy_(decoder.token, non_blocking=True)
            event = events[step % 2]
            if event is not None:
                event.record()
            if step:
                tokens.append(read(step - 1))
        return [*tokens, read(steps - 1)]

    return decode


def eager(options: argparse.Namespace) -> Loop:
    """Launch kernels one by one."""
    decoder = Decoder(options)
    if options.changed:
        decoder.capture()

    def decode(steps: int) -> list[int]:
        tokens = []
        for _ in range(steps):
            decoder.launch()
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def late_launch(options: argparse.Namespace) -> Loop:
    """Format the last token, and what came before it, before the next step is launched."""
    decoder = Decoder(options)
    decoder.capture()

    def formatted(tokens: list[int]) -> str:
        return "".join(f"{token:>8}" for token in tokens[-WORDS:])

    def decode(steps: int) -> list[int]:
        tokens: list[int] = []
        for _ in range(steps):
            if not options.changed:
                formatted(tokens)
            decoder.launch()
            if options.changed:
                formatted(tokens)
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def many_copies(options: argparse.Namespace) -> Loop:
    """Copy six small inputs from pinned memory, one by one or all at once."""
    decoder = Decoder(options)
    decoder.capture()
    host = decoder.pinned(INPUTS, 64, dtype=torch.bfloat16)
    rows = list(zip(decoder.given, host, strict=True))

    def decode(steps: int) -> list[int]:
        tokens = []
        for step in range(steps):
            host.fill_(step % 7)
            if options.changed:
                decoder.given.copy_(host, non_blocking=True)
            else:
                for given, row in rows:
                    given.copy_(row, non_blocking=True)
            decoder.launch()
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def late_copies(options: argparse.Namespace) -> Loop:
    """Copy what was known a step before when the token has been read, or behind the launch of the step before.

    The stream orders those copies behind the graph, and the fetch of its token waits for them.
    """
    decoder = Decoder(options)
    decoder.capture()
    host = decoder.pinned(INPUTS, 64, dtype=torch.bfloat16)
    rows = list(zip(decoder.given, host, strict=True))

    def give(step: int) -> None:
        host.fill_(step % 7)
        for given, row in rows:
            given.copy_(row, non_blocking=True)

    def decode(steps: int) -> list[int]:
        tokens = []
        give(0)
        for step in range(steps):
            if step and not options.changed:
                give(step)
            decoder.launch()
            if options.changed:
                give(step + 1)
            tokens.append(int(decoder.token.item()))
        return tokens

    return decode


def dynamic_cache(options: argparse.Namespace) -> Loop:
    """`generate` with a dynamic cache, which no CUDA graph can hold."""
    from transformers import AutoModelForCausalLM, CompileConfig, LlamaConfig

    torch.manual_seed(0)
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(hidden_size=options.width, intermediate_size=11 * options.width // 4,
                        num_hidden_layers=options.layers, num_attention_heads=options.width // 64,
                        num_key_value_heads=max(options.width // 512, 1), vocab_size=VOCABULARY),
            dtype=torch.float32,  # so that kernels of another kind choose the same tokens
        ).eval()  # fmt: skip
    model.generation_config.update(eos_token_id=None, pad_token_id=0, do_sample=False)
    prompt = torch.arange(10, 26, device=options.device)[None]
    cache: dict[str, Any] = {"disable_compile": True}
    if options.changed:
        cache = {"cache_implementation": "static", "compile_config": CompileConfig(mode="reduce-overhead")}

    def decode(steps: int) -> list[int]:
        done = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=steps, **cache)
        return [int(token) for token in done[0, prompt.shape[1] :]]

    return decode


LOOPS: Final = {
    "needless-sync": needless_sync, "pageable-copies": pageable_copies, "host-sampling": host_sampling, "eager": eager,
    "late-launch": late_launch, "many-copies": many_copies, "late-copies": late_copies, "dynamic-cache": dynamic_cache,
}  # fmt: skip


def turns(windows: int, *, recorded: bool) -> list[tuple[str, bool]]:
    """The variants in the order in which they run, and whether each is recorded: the recorded one lies amid each pair,
    whose order alternates, so that what changes with time changes all of them."""
    found = []
    for window in range(windows):
        first, second = ("after", "before") if window % 2 else ("before", "after")
        found += [(first, False), *([("before", True)] if recorded else []), (second, False)]
    return found


def run(loop: str, options: argparse.Namespace) -> None:
    """Warm up, and run the variants of a loop in turn."""
    recorded = FOLDER in os.environ
    decodes = {variant: LOOPS[loop](argparse.Namespace(**vars(options), changed=variant == "after"))
               for variant in ("before", "after")}  # fmt: skip
    for variant, decode in decodes.items():
        first = [decode(options.steps) for _ in range(WARM_UPS)]
        print(f"{loop} {variant} result {hashlib.sha256(repr(first).encode()).hexdigest()[:16]}", flush=True)
    for variant, on in turns(options.windows, recorded=recorded):
        if recorded:
            switch(on=on)
        since, start = now(), time.perf_counter()
        decodes[variant](options.steps)
        rate = options.steps / (time.perf_counter() - start)
        print(f"{loop} {'recorded' if on else variant} steps/s {rate:.2f}", flush=True)
        if on:
            print(f"{loop} span {json.dumps([since, now()])}", flush=True)
    if recorded:
        switch(on=True)  # for the graphs of the next loop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loops", type=lambda text: text.split(","))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    with torch.no_grad():
        for loop in options.loops:
            try:
                run(loop, options)
            except Exception as problem:  # the other loops are measured all the same, and this line says it
                print(f"{loop} failed {type(problem).__name__}: {problem}", flush=True)


if __name__ == "__main__":
    main()
