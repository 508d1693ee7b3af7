"""run.json: what was run, where, and what was measured. Never the name of the host or a path."""

from __future__ import annotations

import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from executor.concurrency import all_regions
from executor.plans import Part
from executor.run import Result
from executor.scheduler import Prepared

SCHEMA: Final = "intertoken.run/1"
_CPUINFO: Final = Path("/proc/cpuinfo")


def run_json(result: Result) -> dict[str, Any]:
    """The content of a run directory's run.json."""
    configuration = asdict(result.configuration) | {"allocator": result.prepared.memory.allocator}
    return {
        "schema": SCHEMA,
        "configuration": configuration,
        "machine": machine(),
        "versions": {"intertoken": version("intertoken"), "numpy": version("numpy")},
        "clocks": {
            "host": {
                "name": "perf_counter_ns",
                "resolution_ns": time.get_clock_info("perf_counter").resolution * 1e9,
            },
            "device": "host",
            **result.trace.metadata.get("clock", {}),
        },
        "measured": measured(result),
        "plan": plan_facts(result.prepared),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def measured(result: Result) -> dict[str, Any]:
    """Rates over the repeats. A step makes one token per sequence: tokens/s = steps/s * batch.

    The host recorder is the light pass on this backend, so the recorded times need no correction.
    """
    steps = [result.configuration.tokens / seconds for seconds in result.seconds]
    batch = result.configuration.batch
    return {
        "tokens_per_s": _spread([rate * batch for rate in steps]),
        "steps_per_s": _spread(steps),
        "pass": "light",
        "traced": False,
    }


def plan_facts(prepared: Prepared) -> dict[str, int | float]:
    """Sizes of the plan.

    `kv_cells` are those that attention goes over for every token. `reuse` is what the tensors would take without it /
    `peak_bytes`; `fragmentation` is the share of `peak_bytes` above `peak_live_bytes`, which no placement can do
    without.
    """
    graph, memory, cache = prepared.step.graph, prepared.memory, prepared.step.cache
    return {
        "splits": 1,
        "nodes": len(prepared.split.nodes),
        "kernels": len(prepared.plan.launches),
        "inputs": len(prepared.split.inputs),
        "streams": prepared.plan.streams,
        "events": prepared.plan.events,
        "regions": len(list(all_regions(prepared.regions))),
        "graphs": sum(isinstance(part, Part) for part in prepared.plan.parts),
        "hazards": len(prepared.hazards),
        "peak_bytes": memory.peak_bytes,
        "peak_live_bytes": memory.peak_live_bytes,
        "reuse": round(memory.tensor_bytes / memory.peak_bytes, 3),
        "fragmentation": round(1 - memory.peak_live_bytes / memory.peak_bytes, 3),
        "weight_bytes": sum(weight.nbytes for weight in graph.weights),
        "kv_cells": cache.cells if cache is not None else 0,
        "state_bytes": sum(state.nbytes for state in graph.state),
    }


def machine() -> dict[str, Any]:
    """The hardware and system, without anything that names this very machine."""
    release = re.match(r"[\d.]*\d", platform.release())
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {release.group() if release else ''}".strip(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    if _CPUINFO.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, and the lowest and highest repeat."""
    return {
        "median": statistics.median(values), "low": min(values), "high": max(values), "repeats": list(values),
    }  # fmt: skip
