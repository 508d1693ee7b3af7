"""Decode on the GPU: tokens/s and gap of every strategy and mode, and each kernel compared with the memory bandwidth.

The floor of a token is the bytes of the weights that it reads (one row of the embedding) over the bandwidth of a large
device-to-device copy, measured in the same run. `gpu` is the time of a step's graph and `gap` the time to the next one,
both from the light pass of the same configurations; tokens/s come from runs without a recorder.
With a batch the rates count the tokens of all sequences. `cuBLAS` is its product of the same matrices and tokens.
Usage: python benchmarks/gpu_decode.py [--model llama-1.1b] [--weights f16] [--batch 1] [--tokens 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, copy_bandwidth, device_us, interval, save

from executor.backends.cuda.backend import CudaBackend
from executor.backends.cuda.kernels import CudaKernel
from executor.backends.cuda.library import gemm
from executor.graph import Tensor
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.devices import Device
from executor.planning.plans import Launch, Plan
from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.run.light_pass import record_light
from executor.scheduling.memory import Weights, load_weights
from executor.scheduling.scheduler import Scheduler
from executor.scheduling.strategies import STRATEGIES
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.step_work import step_spans
from tracer.analysis.tokens import find_steps

MODES = ("sequential", "branches")
DEVICE = Device("cuda")


def build(options: argparse.Namespace, **more: Any) -> Any:
    given = {k: v for k, v in (("weights", options.weights), ("context", options.context)) if v}
    return MODELS[options.model](batch=options.batch, **given, **more)


def ladder(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all repeats interleaved, without a recorder; gpu and gap come from a light pass."""
    base = Configuration(
        "cuda", options.model, batch=options.batch, weights=options.weights, context=options.context,
        tokens=options.tokens, repeats=options.repeats, warmup=20,
    )  # fmt: skip
    chosen = combinations(base, options.strategies.split(","), MODES)
    plain = execute(chosen, make_recorder=lambda: None)
    return [
        {
            "strategy": c.strategy, "mode": c.concurrency, "kernels": len(run.prepared.splits[0].plan.launches),
            "tokens_per_s": interval([c.batch * c.tokens / seconds for seconds in run.seconds]),
            **gpu_and_gap(light.trace),
        }
        for c, run, light in zip(chosen, plain, record_light(chosen), strict=True)
    ]  # fmt: skip


def gpu_and_gap(light: Trace) -> dict[str, Any]:
    """Return the medians of each repeat, µs."""
    steps = find_steps(light)
    spans = step_spans(light, steps).frame().sort_values(["group", "ordinal"])
    gpu = ((spans["end"] - spans["start"]) / 1e3).groupby(spans["group"]).median()
    gaps = gap_report(light, steps).table.merge(spans[["step", "group"]], on="step")
    gap = (gaps["gap"] / 1e3).groupby(gaps["group"]).median()
    return {"gpu_us": interval(gpu.tolist()), "gap_us": interval(gap.tolist())}


def graph_of(backend: CudaBackend, kernels: Sequence[CudaKernel], early: bool) -> Any:
    """Return a graph of kernels in sequence."""
    names = [Tensor(str(i), "none", (1,), "float32") for i in range(len(kernels))]
    plan = Plan(tuple(Launch(0, n) for n in names), 1, 0)
    backend._early = early
    return backend.instantiate(plan, dict(zip(names, kernels, strict=True)))


def per_kernel(backend: CudaBackend, options: argparse.Namespace, weights: Weights) -> list[dict[str, Any]]:
    """Measure each kind of kernel alone, as a graph over all layers in sequence, so that no weights remain in L2."""
    prepared = prepare(fuse(build(options)), "cuda", "sequential")
    scheduler = Scheduler({DEVICE: backend}, prepared, STRATEGIES["sccc"](), "eager", weights)
    arrays = scheduler.pieces[0].arrays
    kinds: dict[tuple[str, tuple[Any, ...]], list[Tensor]] = {}
    for launch in prepared.splits[0].plan.launches:
        shapes = tuple(s.shape for s in launch.node.src if len(s.shape) == 2 and s.name.endswith("weight"))
        kinds.setdefault((launch.node.op, shapes), []).append(launch.node)
    rows = []
    for (op, shapes), nodes in kinds.items():
        if op == "get_rows" or (len(nodes) < 8 and "mul_mat" not in op):
            continue
        nodes = nodes if len(nodes) > 4 else nodes * 16
        matrices = [[s for s in n.src if s.name.endswith("weight") and len(s.shape) == 2] for n in nodes]
        nbytes = sum(m.nbytes for m in matrices[0])
        kernels = [backend.kernel(n, arrays[n], [arrays[s] for s in n.src]) for n in nodes]
        row: dict[str, Any] = {"op": op, "shapes": shapes, "bytes": nbytes, "per_token": len(kinds[op, shapes])}
        row["us"] = round(timed(backend, kernels, early=False), 2)
        row["us_early"] = round(timed(backend, kernels, early=True), 2)
        if len(matrices[0]) == 1 and weights[DEVICE][matrices[0][0].name].dtype != "q8_0":
            row["us_cublas"] = round(cublas_us(backend, matrices, weights[DEVICE], options.batch), 2)
        rows.append(row)
    return rows


def timed(backend: CudaBackend, kernels: Sequence[CudaKernel], early: bool) -> float:
    graph = graph_of(backend, kernels, early)
    times = [device_us(backend._cuda, backend._streams[0], lambda: backend.launch_graph(graph), 10) for _ in range(5)]
    return float(np.median(times)) / len(kernels)


def cublas_us(
    backend: CudaBackend, matrices: Sequence[Sequence[Tensor]], weights: dict[str, Any], tokens: int
) -> float:
    """Measure the product of the same matrices by cuBLAS (f16 activations, f32 sums), without the rounding of x."""
    outputs, inputs = matrices[0][0].shape
    leaves = (Tensor("x", "none", (tokens, n), "float32") for n in (inputs, outputs))
    x, y = (backend.array(backend.alloc(leaf.nbytes), 0, leaf) for leaf in leaves)
    calls = [gemm(backend._library, y, weights[m[0].name], x)[-1] for m in matrices]
    for call in calls[:1]:
        call.issue(backend._cuda, backend._streams[0])
    return timed(backend, [CudaKernel("gemm", [call]) for call in calls], early=False)


def measure(options: argparse.Namespace, backend: CudaBackend) -> dict[str, Any]:
    bandwidth = copy_bandwidth(backend._cuda, backend._streams[0])
    step = build(options)
    start = time.perf_counter()
    weights = load_weights({DEVICE: backend}, [part.split for part in prepare(step, "cuda", "sequential").splits], 0)
    loaded = time.perf_counter() - start
    read = sum(w.nbytes for w in step.graph.weights if w.name != "token_embd.weight")
    floor = read / bandwidth * 1e6
    kernels = per_kernel(backend, options, weights)
    rows = ladder(options)
    best = min(row["gpu_us"]["median"] for row in rows)
    return {
        "model": options.model, "weights": next(w.dtype for w in step.graph.weights if len(w.shape) == 2),
        "batch": options.batch,
        "context": step.context, "tokens": options.tokens, "copy_gb_per_s": round(bandwidth / 1e9, 1),
        "load_s": round(loaded, 1), "weight_bytes_read": read, "floor_us": round(floor, 1),
        "gpu_over_floor": round(best / floor, 3), "ladder": rows, "kernels": kernels,
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['model']} {result['weights']}, batch {result['batch']}, context {result['context']}, "
        f"loaded in {result['load_s']} s; "
        f"copy {result['copy_gb_per_s']} GB/s, floor {result['floor_us']} us/token, "
        f"best gpu/floor {result['gpu_over_floor']}"
    )
    print(
        f"{'strategy':8} {'mode':11} {'kernels':>7}  {'tokens/s':>8} {'[95 %]':>17}   {'gpu us':>7}"
        f"  {'gap us':>6} [95 %]"
    )
    for row in result["ladder"]:
        t, g, p = row["tokens_per_s"], row["gpu_us"], row["gap_us"]
        print(
            f"{row['strategy']:8} {row['mode']:11} {row['kernels']:7}"
            f"  {t['median']:8.1f} [{t['low']:7.1f} {t['high']:7.1f}]"
            f"   {g['median']:7.1f}  {p['median']:6.1f} [{p['low']:.1f} {p['high']:.1f}]"
        )
    for row in result["kernels"]:
        pace = f"{row['bytes'] / row['us'] / 1e3:6.0f} GB/s alone, {row['bytes'] / row['us_early'] / 1e3:6.0f} early"
        rival = f", cuBLAS {row['us_cublas']:.2f} us" if "us_cublas" in row else ""
        print(
            f"{row['op']:36} {row['shapes']!s:32} x{row['per_token']:<3}"
            f" {row['us']:6.2f} us, early {row['us_early']:6.2f} us"
            f"  {pace if row['bytes'] else ''}{rival}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--weights")
    parser.add_argument("--context", type=int)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--commit", default=commit(), help="[default: from git]")
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    backend = CudaBackend()
    result = measure(options, backend)
    show(result)
    if options.json:
        save(options.json, "gpu_decode", backend._cuda, options.commit, result)
    backend.close()


if __name__ == "__main__":
    main()
