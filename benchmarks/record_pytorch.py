"""A decode-like loop under PyTorch's profiler, and what intertoken reads from the recording.

A stack of attention and feed-forward layers with a key/value cache produces one token per step: the token and its
position are sent to the device, the graph runs, and the host waits for the next token. On a GPU the recording contains
kernels, copies and syncs (with what they waited for); without a GPU only host events, which show nothing but steps.
Needs PyTorch besides intertoken.

Usage: python benchmarks/record_pytorch.py [-o trace.json.gz] [--steps 32] [--layers 8] [--hidden 512] [--with-stack]
       python benchmarks/record_pytorch.py --read trace.json.gz
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracer import formats
from tracer.analysis.recording import Recording
from tracer.model.trace import Trace

WARMUP = 4
HEADS = 8
VOCABULARY = 1024


def decoder(layers: int, hidden: int, context: int, device: str) -> Callable[[Any, Any], Any]:
    """Return a function (token [1], position [1]) -> next token [1], with random weights scaled to stay finite."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention

    torch.manual_seed(1)
    size = hidden // HEADS

    def weight(*shape: int) -> Any:
        return torch.randn(*shape, device=device) / shape[-1] ** 0.5

    embedding, head = weight(VOCABULARY, hidden), weight(hidden, VOCABULARY)
    stack = [(weight(hidden, 3 * hidden), weight(hidden, hidden), weight(hidden, 4 * hidden),
              weight(4 * hidden, hidden)) for _ in range(layers)]  # fmt: skip
    cache = torch.zeros(layers, 2, 1, HEADS, context, size, device=device)
    cells = torch.arange(context, device=device)

    def decode(token: Any, position: Any) -> Any:
        x = embedding[token]
        seen = (cells <= position).view(1, 1, 1, context)
        for layer, (qkv, out, up, down) in enumerate(stack):
            q, k, v = (part.view(1, HEADS, 1, size) for part in (x @ qkv).chunk(3, dim=-1))
            keys, values = cache[layer]
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            x = x + attention(q, keys, values, attn_mask=seen).reshape(1, hidden) @ out
            x = torch.nn.functional.layer_norm(x + torch.relu(x @ up) @ down, (hidden,))
        return (x @ head).argmax(dim=-1)

    return decode


def record(path: Path, steps: int, layers: int, hidden: int, with_stack: bool) -> None:
    """Decode warm-up steps, then `steps` recorded steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    has_gpu = torch.cuda.is_available()
    device = "cuda" if has_gpu else "cpu"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * has_gpu
    waits = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True) if has_gpu else None
    host = torch.zeros(2, dtype=torch.long, pin_memory=has_gpu)
    with torch.inference_mode():
        decode = decoder(layers, hidden, WARMUP + steps + 1, device)
        with profile(
            activities=activities, schedule=schedule(wait=0, warmup=WARMUP, active=steps, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(path)), with_stack=with_stack,
            experimental_config=waits,
        ) as profiler:  # fmt: skip
            for position in range(WARMUP + steps):
                with record_function("decode"):
                    host[1] = position
                    inputs = host.to(device, non_blocking=True)
                    host[0] = decode(inputs[:1], inputs[1:]).item()
                profiler.step()


def rows(trace: Trace) -> list[tuple[str, str]]:
    """Return the rows of a short table about a recording."""
    marks = trace["nvtx"][trace["nvtx"]["text"].str.startswith("ProfilerStep#")]
    found = Recording(trace).summary
    period = f"{marks['start'].diff().median() / 1e3:.1f} µs" if len(marks) > 1 else "unknown"
    table = [
        ("source", found.source),
        ("events", ", ".join(f"{len(trace[name])} {name}" for name in ("kernels", "memcpys", "api", "syncs", "nvtx"))),
        ("ProfilerSteps", f"{len(marks)}, one per {period}"),
    ]
    if found.steps is not None:
        gap, causes = found.gap_p50_us, ", ".join(f"{name} {us:.1f}" for name, us in found.causes_us.items() if us)
        table += [
            ("token steps", f"{found.steps}, from {found.token_source}"),
            ("class", f"{found.strategy}: {found.signature}"),
            ("per token", f"{found.syncs_per_token} syncs, {found.copies_per_token} copies, "
                          f"{found.launches_per_token} launches"),
            ("gap", "unknown" if gap is None else f"{gap:.1f} µs (p50); mean causes: {causes}"),
        ]  # fmt: skip
    return table + [("problem", problem) for problem in [found.problem] if problem] + [("note", n) for n in trace.notes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="keep the recording here (.json or .json.gz)")
    parser.add_argument("--read", type=Path, help="show this recording instead of making one")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=512, help=f"a multiple of {HEADS}")
    parser.add_argument("--with-stack", action="store_true", help="record Python functions too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = options.read or options.output or Path(directory) / "trace.json.gz"
        if options.read is None:
            record(path, options.steps, options.layers, options.hidden, options.with_stack)
        trace = formats.read(path)
    for name, value in rows(trace):
        print(f"{name:14} {value}")


if __name__ == "__main__":
    main()
