"""Products on the host compared with NumPy's, PyTorch's and a plain copy of the same bytes, interleaved in one process.

The rate of a product is the bytes of its weights over its time, for any number of tokens. The rate of the copy, on as
many threads, counts all bytes read and written. NumPy's products use float32 weights of the same values: one
matrix-vector product per token, so that as in ours a token's bits do not depend on other tokens, and one product for
all tokens. PyTorch's, where it is installed, use the weights' own format, except q8_0, which it lacks. Every call uses
the next of several equal matrices, too many for any cache, and copies to separate memory. In each round every
contestant, on each number of threads, makes calls for 20 ms that are not counted and five that are, after a pause in
which the threads of the previous one go to sleep; each round begins with another contestant. The figure of a round is
the median. Rounds slower than a third of the fast ones (90 % are slower) are counted as slow: threads that share a
core. Fast over copy is the rate of the fast rounds over that of the copy's.
Usage: python benchmarks/host_products.py [--shapes 2048x2048,8192x2048,2048x8192,32000x2048] [--tokens 1,4,64]
       [--threads N,...] [--pinned] [--alone] [--rounds 15] [--results DIRECTORY] [--add]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numba
import numpy as np
from gpu_machine import commit
from read_nsys_sqlite import machine

from executor.backends.cpu.compiled import CompiledKernels, default_threads
from executor.backends.weight_formats import Quantised, encoded, floats, quantised
from executor.graph.models import WEIGHTS

MOST_CACHED = 1 << 28
"""Total bytes of all equal matrices."""
NOT_COUNTED_S, COUNTED = 0.02, 5
"""Woken threads may begin on the core that woke them, until the kernel moves them; in a decode that happens once."""
REST_S, AWAKE = 0.02, 0.1
"""A pause lasts until all threads together compute for less than this part of it: OpenBLAS's, which are NumPy's, wait
awake for 0.1 s after a product, and others on their cores share them."""
NUMPY = "numpy f32, token by token"
Calls = dict[tuple[str, int], list[Callable[[], None]]]


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
    values = np.resize(np.random.default_rng(0).standard_normal((64, shape[1]), np.float32), shape)
    data = quantised(values) if format == "q8_0" else encoded(values, WEIGHTS[format])
    copies = [data.copy() for _ in range(MOST_CACHED // data.nbytes + 2)]
    return [Quantised.of(copy, shape) for copy in copies] if format == "q8_0" else copies


def integers(weight: Any) -> Any:
    """View the values of a weight (q8_0 without its scales) as 8-byte integers."""
    return (weight.integers if isinstance(weight, Quantised) else weight).reshape(-1).view(np.int64)


def contestants(weights: list[Any], tokens: int, threads: int, options: argparse.Namespace) -> Calls:
    """Return the call for each matrix, by name and number of threads."""
    kernels, (outputs, inputs) = CompiledKernels(threads, options.pinned), weights[0].shape
    x = np.random.default_rng(1).standard_normal((tokens, inputs), np.float32)
    out = np.empty((tokens, outputs), np.float32)
    calls: dict[str, list[Callable[[], None]]] = {
        "ours": [kernels.bound("mul_mat", out, (w, x)) for w in weights],
        "copy": [partial(copy, np.zeros_like(integers(w)), integers(w), threads) for w in weights],
    }
    if not options.alone:
        plain = [floats(w).copy() for w in weights[: MOST_CACHED // (4 * outputs * inputs) + 2]]
        calls |= by_torch(weights, x, threads) | {
            NUMPY: [partial(by_token, out, w, x) for w in plain],
            "numpy f32, all at once": [partial(at_once, out, w, x) for w in plain],
        }
    return {(name, threads): each for name, each in calls.items()}


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


def rest() -> None:
    """Pause until the threads of the last contestant sleep."""
    awake = True
    while awake:
        begun, cpu = time.perf_counter(), time.process_time()
        time.sleep(REST_S)
        awake = time.process_time() - cpu > AWAKE * (time.perf_counter() - begun)


def seconds(works: Calls, rounds: int) -> dict[tuple[str, int], list[float]]:
    """Return the seconds per call in every round."""
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    calls = {key: cycle(each) for key, each in works.items()}
    for number in range(rounds):
        first = number % len(calls)
        for key in [*calls][first:] + [*calls][:first]:
            rest()
            until = time.perf_counter() + NOT_COUNTED_S
            while time.perf_counter() < until:
                next(calls[key])()
            times = []
            for work in islice(calls[key], COUNTED):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            taken[key].append(statistics.median(times))
    return taken


def spread(rounds: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Return the median of the rounds, and where the middle 80 % of them are."""
    named = zip(("p10", "median", "p90"), np.quantile(rounds, (0.1, 0.5, 0.9)), strict=True)
    return {name: round(float(value), digits) for name, value in named} | {
        "rounds": [round(float(value), digits) for value in rounds]
    }


def slow(rates: Sequence[float]) -> int:
    """Return how many rounds were slower than a third of the fast ones."""
    return int((np.asarray(rates) < np.quantile(rates, 0.9) / 3).sum())


def rows(format: str, shape: tuple[int, int], tokens: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure one product, one row per number of threads."""
    weights, works = matrices(format, shape), Calls()
    for threads in options.threads:
        works |= contestants(weights, tokens, threads, options)
    taken = seconds(works, options.rounds)
    read, copied = weights[0].nbytes, 2 * integers(weights[0]).nbytes
    for threads in options.threads:
        ours, copies = (
            [nbytes / s / 1e9 for s in taken[name, threads]] for name, nbytes in (("ours", read), ("copy", copied))
        )
        yield {
            "format": format, "outputs": shape[0], "inputs": shape[1], "tokens": tokens, "bytes": read,
            "threads": threads, "pinned": options.pinned, "threading_layer": of_numba.threading_layer(),
            "gb_per_s": spread(ours), "copy_gb_per_s": spread(copies),
            "over_copy": spread([a / b for a, b in zip(ours, copies, strict=True)], digits=3),
            "fast_over_copy": round(float(np.quantile(ours, 0.9) / np.quantile(copies, 0.9)), 3),
            "slow_rounds": slow(ours), "slow_copies": slow(copies),
            "gflop_per_s": spread([2 * shape[0] * shape[1] * tokens / s / 1e9 for s in taken["ours", threads]]),
            "over_others": {
                name: spread([b / a for a, b in zip(taken["ours", threads], others, strict=True)], digits=3)
                for (name, count), others in taken.items() if count == threads and name not in ("ours", "copy")
            },
        }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    def said(name: str) -> str:
        return f"{found[name]['median']:7.2f} [{found[name]['p10']:.2f} {found[name]['p90']:.2f}]"

    over = ", ".join(f"{value['median']:.2f} x {name}" for name, value in found["over_others"].items())
    what = f"{found['format']:5}{found['outputs']:7} x {found['inputs']:<6}{found['tokens']:4} tokens"
    what += f" {found['threads']:3} threads ({found['threading_layer']})"
    rates = f"{said('gb_per_s')} GB/s  copy {said('copy_gb_per_s')}  over copy {said('over_copy')}"
    rates += f", fast {found['fast_over_copy']:.2f}, slow rounds {found['slow_rounds']} and {found['slow_copies']}"
    print(f"{what} {rates}  {found['gflop_per_s']['median']:7.1f} GF/s  {over}", flush=True)


def counts(text: str) -> list[int]:
    """Return the numbers of a list."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="2048x2048,8192x2048,2048x8192,32000x2048")
    parser.add_argument("--formats", default=",".join(WEIGHTS))
    parser.add_argument("--tokens", default="1,4,64")
    parser.add_argument("--threads", type=counts, default=[default_threads()], help="numbers of threads, such as 15,16")
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without NumPy and PyTorch")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--results", type=Path, help="save host_products_CORES.json here, anew after each row")
    parser.add_argument("--add", action="store_true", help="keep the rows that it has, such as those of another layer")
    options = parser.parse_args()
    shapes = [(int(o), int(i)) for o, i in (shape.split("x") for shape in options.shapes.split(","))]
    cores = len(os.sched_getaffinity(0))
    target = options.results and options.results / f"host_products_{cores}.json"
    kept = options.add and target and target.exists()
    found: list[dict[str, Any]] = json.loads(target.read_text())["rows"] if kept else []
    for tokens, format, shape in product(map(int, options.tokens.split(",")), options.formats.split(","), shapes):
        for row in rows(format, shape, tokens, options):
            found.append(row)
            show(row)
        if target:
            facts = {
                "benchmark": "host_products", "date": datetime.date.today().isoformat(), "commit": options.commit,
                "rows": found, "machine": machine() | {"usable_cores": cores, "numba": numba.__version__},
            }  # fmt: skip
            target.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
