"""Run directories: a recording in nsys's parquetdir layout, run.json, and graph.json.

run.json holds configuration, machine and measurements, without host names or paths. graph.json (`run_graph`) holds the
graph of a run, its streams and events, and the memory that each allocator would take.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from executor.backends import backend_class
from executor.backends.cpu.compiled import default_threads
from executor.graph import Flag, Tensor
from executor.planning import Prepared
from executor.planning.allocator import ALLOCATORS, Schedule, allocate
from executor.planning.concurrency import all_regions, map_streams
from executor.planning.devices import Device
from executor.planning.hazards import find_hazards
from executor.planning.plans import Launch, Plan, Record, Subplan, Wait
from executor.run import Result
from executor.run.configuration import Configuration
from tracer.errors import UsageError
from tracer.files.output import appearing, blaming_the_choice
from tracer.formats import check_writable, nsys_parquet
from tracer.model.graph_json import GRAPH_FILE, Leaf, Memory, Node, RegionOf, RunGraph, StreamWait, write_graph
from tracer.model.run_json import SCHEMA, UNSAFE, WAITS
from tracer.stored import is_part_of_run


def check_runs(runs: Path, configurations: Iterable[Configuration], *, replace: bool) -> None:
    """Check, before running, that a directory can receive the runs of these configurations.

    Raises:
        UsageError: the directory is not writable; or a run exists and `replace` is not given; or something other than
            a run would be overwritten.
    """
    names = [c.name for c in configurations]
    existing = [name for name in names if (runs / name).exists()]
    if existing and not replace:
        raise UsageError(f"{runs} already holds {', '.join(existing)}; choose another directory or use --force")
    with blaming_the_choice():
        for name in names:
            check_writable(runs / name, replace=replace, is_part=is_part_of_run)


def write_run(result: Result, runs: Path, *, replace: bool = True) -> Path:
    """Write one run directory atomically; return its path.

    Raises:
        UsageError: it exists and `replace` is False, or it cannot be written.
    """
    target = runs / result.configuration.name
    result.trace.metadata["run"] = run_json(result)
    with blaming_the_choice(), appearing(target, replace=replace) as new:
        nsys_parquet.write(result.trace, new)
        write_graph(run_graph(result.prepared), new / GRAPH_FILE)
    return target


NO_NUMBERS: Final = "times are predicted from a cost profile; nothing was computed: logits and tokens are zeros"
_CPUINFO: Final = Path("/proc/cpuinfo")


def run_json(result: Result) -> dict[str, Any]:
    """Return the contents of a run directory's run.json."""
    backend = backend_class(result.configuration.backend)
    profile = Path(result.configuration.profile).stem if result.configuration.profile else backend.default_profile
    chosen = {"allocator": result.prepared.allocator, "profile": profile, "threads": _threads(result)}
    resolution = 1e-9 if backend.default_profile else time.get_clock_info("perf_counter").resolution
    return {
        "schema": SCHEMA,
        "configuration": asdict(result.configuration) | chosen,
        "machine": machine(),
        "versions": {"intertoken": version("intertoken"), "numpy": version("numpy")},
        "clocks": {
            "host": {"name": backend.clock_name, "resolution_ns": resolution * 1e9},
            "device": "host",
            **result.trace.metadata.get("clock", {}),
        },
        "measured": measured(result),
        **({"simulated": NO_NUMBERS} if backend.default_profile else {}),
        **({UNSAFE: list(result.planned.races)} if result.planned.races else {}),
        **({WAITS: [asdict(wait) for wait in result.planned.waits]} if result.planned.waits else {}),
        "plan": plan_facts(result.prepared) | {"graph_plans": result.graphs},
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _threads(result: Result) -> int | None:
    """Return the number of threads that compute on the host, or None."""
    devices = {part.split.device for part in result.prepared.splits}
    here = [d for d in devices if d.profile is None and (d.is_host or d.backend == "cpu")]
    return (result.configuration.threads or default_threads()) if here else result.configuration.threads


def measured(result: Result) -> dict[str, Any]:
    """Return the rates over the repeats. A step produces one token per sequence: tokens/s = steps/s * batch."""
    return rates([result.configuration.tokens / seconds for seconds in result.seconds], result.configuration.batch)


def rates(steps: Sequence[float], batch: int) -> dict[str, Any]:
    """Return the part of run.json for these steps per second, one per repeat."""
    return {
        "tokens_per_s": _spread([rate * batch for rate in steps]),
        "steps_per_s": _spread(steps),
        "pass": "light",
        "traced": False,
    }


def plan_facts(prepared: Prepared) -> dict[str, Any]:
    """Return the sizes of the plan.

    `kv_cells` are the cells of a stream of the KV cache, `attended_cells` the sizes that attention covers as it fills;
    all other figures are for the last of these sizes. `reuse` is the memory without reuse / `peak_bytes`.
    `fragmentation` is the share of `peak_bytes` above `peak_live_bytes`, the minimum of any placement. `devices` are
    those of the splits, in order. run.json also has the outcomes of the graphs of each.
    """
    splits = prepared.splits
    memory, cache = [part.memory for part in splits], prepared.step.cache
    peak, live = sum(m.peak_bytes for m in memory), sum(m.peak_live_bytes for m in memory)
    return {
        "splits": len(splits),
        "nodes": sum(len(part.split.nodes) for part in splits),
        "kernels": sum(len(part.plan.launches) for part in splits),
        "inputs": sum(len(part.split.inputs) for part in splits),
        "streams": max(part.plan.streams for part in splits),
        "events": sum(part.plan.events for part in splits),
        "regions": sum(len(list(all_regions(part.regions))) for part in splits),
        "graphs": sum(
            isinstance(each, Subplan) for part in splits if not part.split.device.is_host for each in part.plan.parts
        ),
        "hazards": sum(len(part.hazards) for part in splits),
        "peak_bytes": peak,
        "peak_live_bytes": live,
        "reuse": round(sum(m.tensor_bytes for m in memory) / peak, 3),
        "fragmentation": round(1 - live / peak, 3),
        "weight_bytes": sum(weight.nbytes for part in splits for weight in part.split.weights),
        "kv_cells": cache.cells if cache is not None else 0,
        "attended_cells": [*prepared.step.sizes],
        "state_bytes": sum(state.nbytes for part in splits for state in part.split.state),
        "devices": [str(part.split.device) for part in splits],
    }


def machine() -> dict[str, Any]:
    """Return hardware and operating system, without anything that identifies this machine."""
    release = re.match(r"[\d.]*\d", platform.release())
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {release.group() if release else ''}".strip(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    if _CPUINFO.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if model:
            return model.group(1).strip()
    return platform.processor() or platform.machine()


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Return the median, and the lowest and highest repeat."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "repeats": list(values)}


def run_graph(prepared: Prepared) -> RunGraph:
    """Return the contents of a run directory's graph.json. Streams are numbered consecutively over the devices."""
    graph = prepared.step.graph
    nodes, leaves = graph.nodes, [*graph.inputs, *graph.state]
    index = {tensor: i for i, tensor in enumerate(nodes)}
    leaf_index = {leaf: i for i, leaf in enumerate(leaves)}
    used: dict[Device, int] = {}  # streams of every device
    for part in prepared.splits:
        used[part.split.device] = max(used.get(part.split.device, 0), part.plan.streams)
    first = dict(zip(used, accumulate(used.values(), initial=0), strict=False))  # stream of every device
    streams, region_of = dict[int, int](), dict[int, int]()
    regions, launches, waits, events = list[RegionOf](), list[int](), list[StreamWait](), 0
    for part in prepared.splits:
        split, plan, base = part.split, part.plan, first[part.split.device]
        whole = {new: index[old] for old, new in split.results.items() if old in index and new.op != "none"}
        at = [whole[node] for node in split.nodes]
        own = map_streams(split.nodes, part.regions)
        streams |= {at[i]: base + own[i] for i, node in enumerate(split.nodes) if node.has_kernel}
        for region, level in all_regions(part.regions):  # inner regions come later and take precedence
            region_of |= {at[i]: len(regions) for branch in region.branches for i in branch.nodes}
            regions.append(RegionOf(at[region.fork], at[region.join], len(region.branches), level))
        launches += [whole[item.node] for sub in plan.parts if isinstance(sub, Subplan) for item in sub.plan.launches]
        waits += [
            replace(
                wait, event=wait.event + events, source_stream=wait.source_stream + base,
                target_stream=wait.target_stream + base,
                source=None if wait.source is None else at[wait.source],
                target=None if wait.target is None else at[wait.target],
            )
            for wait in stream_waits(plan, split.nodes)
        ]  # fmt: skip
        events += plan.events
    return RunGraph(
        nodes=tuple(
            Node(
                n.name, n.op, n.shape, n.dtype, n.nbytes, streams.get(i),
                tuple(index[s] for s in n.src if s in index),
                tuple(leaf_index[s] for s in n.src if s in leaf_index),
                sum(s.nbytes for s in n.src if s.flags & Flag.WEIGHT),
                region_of.get(i),
            )
            for i, n in enumerate(nodes)
        ),
        leaves=tuple(
            Leaf(t.name, "input" if t.flags & Flag.INPUT else "state", t.shape, t.dtype, t.nbytes) for t in leaves
        ),
        regions=tuple(regions),
        launches=tuple(launches),
        waits=tuple(waits),
        streams=max(streams.values(), default=0) + 1,
        weights=len(graph.weights),
        weight_bytes=sum(weight.nbytes for weight in graph.weights),
        memory=tuple(_memory(prepared)),
        allocator=prepared.allocator,
        devices=tuple(str(device) for device, count in used.items() for _ in range(count)) if len(used) > 1 else (),
    )  # fmt: skip


def stream_waits(plan: Plan, nodes: Sequence[Tensor]) -> Iterator[StreamWait]:
    """Yield every wait in issue order, with the kernel before the record and the kernel after the wait."""
    index = {node: i for i, node in enumerate(nodes)}
    last: dict[int, int] = {}
    recorded: dict[int, tuple[int | None, int]] = {}
    waiting: dict[int, list[int]] = {}
    for instruction in plan.instructions:
        stream = instruction.stream
        if isinstance(instruction, Launch):
            last[stream] = index[instruction.node]
            for event in waiting.pop(stream, ()):
                yield StreamWait(event, *recorded[event], last[stream], stream)
        elif isinstance(instruction, Record):
            recorded[instruction.event] = (last.get(stream), stream)
        elif isinstance(instruction, Wait):
            waiting.setdefault(stream, []).append(instruction.event)
    for stream, events in waiting.items():
        for event in events:
            yield StreamWait(event, *recorded[event], None, stream)


def _memory(prepared: Prepared) -> Iterator[Memory]:
    for allocator in ALLOCATORS:
        peak = live = hazards = 0
        for part in prepared.splits:
            streams = map_streams(part.split.nodes, part.regions)
            buffers = allocate(Schedule(part.split, part.regions, streams, part.plan), allocator)
            peak, live = peak + buffers.peak_bytes, live + buffers.peak_live_bytes
            hazards += len(find_hazards(part.split, part.plan, buffers.offsets))
        yield Memory(allocator, peak, live, hazards)
