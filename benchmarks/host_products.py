"""Products on the host compared with NumPy's, PyTorch's and a plain copy of the same bytes, interleaved in one process.

The rate of a product is the bytes of its weights over its time, for any number of tokens. The rate of the copy, on as
many threads, counts all bytes read and written. NumPy's products use float32 weights of the same values: one
matrix-vector product per token, so that as in ours a token's bits do not depend on other tokens, and one product for
all tokens. PyTorch's, where it is installed, use the weights' own format, except q8_0, which it lacks. Every call uses
the next of several equal matrices, too many for any cache, and copies to separate memory. In each round every
contestant makes several calls, the first of which are not counted, after a pause in which the threads of the previous
one go to sleep. The figure of a round is the median.
Usage: python benchmarks/host_products.py [--shapes 2048x2048,8192x2048,2048x8192,32000x2048] [--tokens 1,4,64]
       [--threads N] [--pinned] [--rounds 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numba
import numpy as np
from gpu_machine import commit, interval
from read_nsys_sqlite import machine

from executor.backends.cpu_compiled import CompiledKernels, default_threads
from executor.backends.weight_formats import Quantised, encoded, floats, quantised
from executor.models import WEIGHTS

MOST_CACHED = 1 << 28
"""Total bytes of all equal matrices."""
NOT_COUNTED, COUNTED, REST_S = 2, 5, 0.05
NUMPY = "numpy f32, token by token"


def _copied(target: Any, source: Any, threads: int) -> None:
    part = len(source) // threads
    for thread in numba.prange(threads):
        target[thread * part : (thread + 1) * part] = source[thread * part : (thread + 1) * part]


of_numba: Any = numba
_compiled_copy: Any = numba.njit(_copied, parallel=True, nogil=True)


def copy(target: Any, source: Any, threads: int) -> None:
    """Copy plainly, with equal bytes per thread."""
    numba.set_num_threads(threads)
    _compiled_copy(target, source, threads)


def by_token(out: Any, weight: Any, x: Any) -> None:
    for token in range(len(x)):
        np.matmul(weight, x[token], out=out[token])


def at_once(out: Any, weight: Any, x: Any) -> None:
    np.matmul(x, weight.T, out=out)


def matrices(format: str, shape: tuple[int, int]) -> list[Any]:
    """Return equal matrices in a format."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)

    data = quantised(values) if format == "q8_0" else encoded(values, WEIGHTS[format])
    copies = [data.copy() for _ in range(MOST_CACHED // data.nbytes + 2)]
    return [Quantised.of(copy, shape) for copy in copies] if format == "q8_0" else copies


def integers(weight: Any) -> Any:
    """View the values of a weight (q8_0 without its scales) as 8-byte integers."""
    return (weight.integers if isinstance(weight, Quantised) else weight).reshape(-1).view(np.int64)


def contestants(weights: list[Any], tokens: int, threads: int, pinned: bool) -> dict[str, list[Callable[[], None]]]:
    """Return the call for each matrix, by name."""
    kernels, (outputs, inputs) = CompiledKernels(threads, pinned), weights[0].shape
    x = np.random.default_rng(1).standard_normal((tokens, inputs), np.float32)
    out = np.empty((tokens, outputs), np.float32)
    plain = [floats(w).copy() for w in weights[: MOST_CACHED // (4 * outputs * inputs) + 2]]
    return by_torch(weights, x, threads) | {
        "ours": [kernels.bound("mul_mat", out, (w, x)) for w in weights],
        "copy": [partial(copy, np.zeros_like(integers(w)), integers(w), threads) for w in weights],
        NUMPY: [partial(by_token, out, w, x) for w in plain],
        "numpy f32, all at once": [partial(at_once, out, w, x) for w in plain],
    }


def by_torch(weights: list[Any], x: Any, threads: int) -> dict[str, list[Callable[[], None]]]:
    """Return the calls of PyTorch, or none."""
    if isinstance(weights[0], Quantised) or find_spec("torch") is None:
        return {}
    torch: Any = import_module("torch")
    torch.set_num_threads(threads)
    tensors = [torch.from_numpy(w) for w in weights]
    inputs = torch.from_numpy(x).to(tensors[0].dtype)
    if len(x) == 1:
        return {"torch": [partial(torch.mv, tensor, inputs[0]) for tensor in tensors]}
    return {"torch": [partial(torch.nn.functional.linear, inputs, tensor) for tensor in tensors]}


def seconds(works: dict[str, list[Callable[[], None]]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds per call in every round."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    calls = {name: cycle(each) for name, each in works.items()}
    for _ in range(rounds):
        for name, row in calls.items():
            time.sleep(REST_S)
            times = []
            for work in islice(row, NOT_COUNTED + COUNTED):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            taken[name].append(statistics.median(times[NOT_COUNTED:]))
    return taken


def row(format: str, shape: tuple[int, int], tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    weights = matrices(format, shape)
    taken = seconds(contestants(weights, tokens, options.threads, options.pinned), options.rounds)
    read, copied = weights[0].nbytes, 2 * integers(weights[0]).nbytes
    rates = {"ours": [read / s / 1e9 for s in taken["ours"]], "copy": [copied / s / 1e9 for s in taken["copy"]]}
    return {
        "format": format, "outputs": shape[0], "inputs": shape[1], "tokens": tokens, "bytes": read,
        "gb_per_s": interval(rates["ours"]), "copy_gb_per_s": interval(rates["copy"]),
        "over_copy": interval([a / b for a, b in zip(rates["ours"], rates["copy"], strict=True)], digits=3),
        "gflop_per_s": interval([2 * shape[0] * shape[1] * tokens / s / 1e9 for s in taken["ours"]]),
        "over_others": {
            name: interval([b / a for a, b in zip(taken["ours"], taken[name], strict=True)], digits=3)
            for name in taken if name not in ("ours", "copy")
        },
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    def said(name: str) -> str:
        return f"{found[name]['median']:7.2f} [{found[name]['low']:.2f} {found[name]['high']:.2f}]"

    over = ", ".join(f"{value['median']:.2f} x {name}" for name, value in found["over_others"].items())
    what = f"{found['format']:5}{found['outputs']:7} x {found['inputs']:<6}{found['tokens']:4} tokens"
    rates = f"{said('gb_per_s')} GB/s  copy {said('copy_gb_per_s')}  over copy {said('over_copy')}"
    print(f"{what} {rates}  {found['gflop_per_s']['median']:7.1f} GF/s  {over}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="2048x2048,8192x2048,2048x8192,32000x2048")
    parser.add_argument("--formats", default=",".join(WEIGHTS))
    parser.add_argument("--tokens", default="1,4,64")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here, anew after each row")
    options = parser.parse_args()
    shapes = [(int(o), int(i)) for o, i in (shape.split("x") for shape in options.shapes.split(","))]
    rows: list[dict[str, Any]] = []
    for tokens, format, shape in product(map(int, options.tokens.split(",")), options.formats.split(","), shapes):
        rows.append(row(format, shape, tokens, options))
        show(rows[-1])
        if options.json:
            facts = {
                "benchmark": "host_products", "date": datetime.date.today().isoformat(), "commit": options.commit,
                "threads": options.threads, "pinned": options.pinned, "rounds": options.rounds,
                "threading_layer": of_numba.threading_layer(), "rows": rows,
                "machine": machine() | {"usable_cores": len(os.sched_getaffinity(0)), "numba": numba.__version__},
            }  # fmt: skip
            options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
