"""Host time to plan, allocate and check a decode step, compared with networkx on the same plan.

Dependencies are compared with networkx's transitive closure and reduction. The hazard check is compared with networkx's
transitive closure over stream order and events, followed by every pair of kernels that access overlapping tensors. Both
must give the same answer as ours, also for the allocator with data races. The size of the arena is compared with its
lower bound.
Usage: python benchmarks/plan_passes.py [--model llama-8b] [--batch 1] [--fused] [--repeats 9] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx

from executor.graph import Tensor, memory_order
from executor.graph.fusion import fuse
from executor.graph.models import MODELS
from executor.planning.allocator import ALLOCATORS, Schedule, allocate
from executor.planning.concurrency import find_dependencies, find_regions, map_streams
from executor.planning.devices import assign_devices, only, split_graph
from executor.planning.hazards import find_hazards
from executor.planning.plans import Launch, Plan, Record, make_plan
from executor.run.directory import machine


def timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """Return the result and the median time, ms."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times) * 1e3


def networkx_dependencies(nodes: tuple[Tensor, ...]) -> tuple[nx.DiGraph, nx.DiGraph]:
    """Return the transitive closure and reduction over the kernels, passing through other nodes."""
    order = nx.DiGraph()
    through: list[set[int]] = []
    for i, before in enumerate(memory_order(nodes)):
        kernels = {k for b in before for k in ({b} if nodes[b].has_kernel else through[b])}
        through.append(kernels)
        if nodes[i].has_kernel:
            order.add_node(i)
            order.add_edges_from((k, i) for k in kernels)
    return nx.transitive_closure_dag(order), nx.transitive_reduction(order)


def networkx_hazards(plan: Plan, offsets: dict[Tensor, int]) -> set[frozenset[str]]:
    """Return pairs of kernels, without copies, which are at the ends of the main stream."""
    order, last, recorded = nx.DiGraph(), dict[int, Any](), dict[int, Any]()
    for number, instruction in enumerate(plan.instructions):
        step = instruction.node if isinstance(instruction, Launch) else number
        order.add_node(step)
        if instruction.stream in last:
            order.add_edge(last[instruction.stream], step)
        if isinstance(instruction, Record):
            recorded[instruction.event] = step
        elif not isinstance(instruction, Launch):
            order.add_edge(recorded[instruction.event], step)
        last[instruction.stream] = step
    closure = nx.transitive_closure_dag(order)
    return {
        frozenset((a.name, b.name))
        for a, b in combinations((launch.node for launch in plan.launches), 2)
        if not closure.has_edge(a, b) and (clash(a, b, offsets) or clash(b, a, offsets))
    }


def clash(writer: Tensor, other: Tensor, offsets: dict[Tensor, int]) -> bool:
    start = offsets.get(writer.root)
    for tensor in (other, *other.src):
        if start is None or tensor.root not in offsets:
            if tensor.root is writer.root:
                return True
        elif start < offsets[tensor.root] + tensor.nbytes and offsets[tensor.root] < start + writer.nbytes:
            return True
    return False


def measure(model: str, batch: int, fused: bool, repeats: int) -> dict[str, Any]:
    step = MODELS[model](batch=batch)
    step = fuse(step) if fused else step
    (split,) = split_graph(step.graph, assign_devices(step.graph, only("cpu")))
    order, dependencies_ms = timed(lambda: find_dependencies(split.nodes), repeats)
    plain = find_dependencies(split.nodes, tie=False)
    (closure, reduction), rival_ms = timed(lambda: networkx_dependencies(split.nodes), 3)
    for masks, rival in ((plain.before, closure), (plain.needs, reduction)):
        assert sum(mask.bit_count() for i, mask in enumerate(masks) if plain.kernels >> i & 1) == rival.size()
    regions, regions_ms = timed(lambda: find_regions(split.nodes, order), repeats)
    streams = map_streams(split.nodes, regions)
    plan, plan_ms = timed(lambda: make_plan(split.nodes, order, streams), repeats)
    passes = {"dependencies": dependencies_ms, "regions": regions_ms, "plan": plan_ms}
    allocators = {}
    for name in ALLOCATORS:
        schedule = Schedule(split, regions, streams, plan)
        memory, allocation_ms = timed(partial(allocate, schedule, name), repeats)
        hazards, hazards_ms = timed(partial(find_hazards, split, plan, memory.offsets), repeats)
        expected, networkx_ms = timed(partial(networkx_hazards, plan, dict(memory.offsets)), 3)
        assert {frozenset((h.first.name, h.second.name)) for h in hazards} == expected
        allocators[name] = {
            "allocation_ms": allocation_ms, "hazards_ms": hazards_ms, "hazards_networkx_ms": networkx_ms,
            "hazards": len(hazards), "peak_bytes": memory.peak_bytes, "peak_live_bytes": memory.peak_live_bytes,
        }  # fmt: skip
    return {
        "model": model, "batch": batch, "fused": fused, "kernels": len(plan.launches), "streams": plan.streams,
        "events": plan.events, "passes_ms": passes, "dependencies_networkx_ms": rival_ms, "allocators": allocators,
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    print("{model}, batch {batch}: {kernels} kernels, {streams} streams, {events} events".format(**found))
    ours, rival = found["passes_ms"]["dependencies"], found["dependencies_networkx_ms"]
    print(f"dependencies {ours:7.1f} ms, networkx {rival:7.0f} ms: {rival / ours:.0f}x")
    print("regions {regions:12.1f} ms\nstreams and plan {plan:3.1f} ms".format(**found["passes_ms"]))
    for name, row in found["allocators"].items():
        ratio = row["hazards_networkx_ms"] / row["hazards_ms"]
        print(
            f"{name:14} allocation {row['allocation_ms']:5.1f} ms, arena {row['peak_bytes']:,} of at least "
            f"{row['peak_live_bytes']:,} bytes; check {row['hazards_ms']:5.1f} ms, "
            f"networkx {row['hazards_networkx_ms']:6.0f} ms: {ratio:.0f}x, {row['hazards']} hazards"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-8b", choices=MODELS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.model, options.batch, options.fused, options.repeats)
    show(found)
    if options.json:
        about = {
            "benchmark": "plan_passes", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(),
            "versions": {"networkx": version("networkx")},
        }  # fmt: skip
        options.json.write_text(json.dumps(about | found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
