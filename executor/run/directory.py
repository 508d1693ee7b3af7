"""Run directories: a recording in nsys's parquetdir layout, run.json, and graph.json.

run.json holds configuration, machine and measurements, without host names or paths.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from executor.backends import backend_class
from executor.backends.cpu.compiled import default_threads
from executor.planning import Prepared
from executor.planning.concurrency import all_regions
from executor.planning.plans import Subplan
from executor.run import Result
from executor.run.configuration import Configuration
from executor.run.describe_graph import run_graph
from tracer.errors import UsageError
from tracer.files.output import appearing, blaming_the_choice
from tracer.formats import check_writable, nsys_parquet
from tracer.model.graph_json import GRAPH_FILE, write_graph
from tracer.model.run_json import SCHEMA
from tracer.stored.run_directory import is_part_of_run


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
    """Write one run directory atomically.

    Returns:
        The path of the directory.

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
            "host": {
                "name": backend.clock_name,
                "resolution_ns": resolution * 1e9,
            },
            "device": "host",
            **result.trace.metadata.get("clock", {}),
        },
        "measured": measured(result),
        **({"simulated": NO_NUMBERS} if backend.default_profile else {}),
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
    return {
        "median": statistics.median(values), "low": min(values), "high": max(values), "repeats": list(values),
    }  # fmt: skip
