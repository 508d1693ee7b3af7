"""What a recording tells of each block of `light_blocks.py`, and what its rings hold."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.model.trace import Trace
from tracer.recorders.light import read_rings
from tracer.recorders.light_work import stamped_work
from tracer.recorders.window import TimeRange, within

FIRST = 2  # steps of a block that are not compared: the prefill, and the first decode step
LONG = 3  # times the median; longer periods have a pause in them

Spans = list[list[dict[str, int]]]  # begin and end of blocks, as told by `now`


def since_origin(trace: Trace, spans: Spans) -> list[TimeRange]:
    """Return spans in the time of a recording."""
    clock = trace.metadata["clock"]
    return [TimeRange(*(int(each[clock["name"]]) - clock["origin_ns"] for each in span)) for span in spans]


def part_of(trace: Trace, spans: Spans) -> Trace:
    """Return the parts of a recording."""
    return within(Trace(dict(trace.tables), trace.metadata, list(trace.notes)), since_origin(trace, spans))


def told(trace: Trace, spans: Spans) -> dict[str, Any]:
    """Return the figures of a recording, µs: means over the steps of each span, and the median gap."""
    part = part_of(trace, spans)
    steps = find_steps(part)
    report = gap_report(part, steps)
    found = report.idle.steps.merge(steps.table[["step", "start"]], on="step").sort_values("start")
    begins = [span.since for span in since_origin(trace, spans)]
    found["block"] = np.searchsorted(begins, found["start"], side="right") - 1
    late = found.groupby("block").cumcount() >= FIRST
    found = found[late & (found["period"] < LONG * found["period"].median())]
    means = found.groupby("block")[["period", "busy", "idle"]].mean().reindex(range(len(spans))) / 1e3
    graphs = part["graph_launches"]
    return {
        "gap_us": report.gap_us, "steps": len(found), "kernels": len(part["kernels"]),
        "graph_launches": len(graphs), "graph_us": float((graphs["end"] - graphs["start"]).median()) / 1e3,
        **{f"{name}_us": [None if value != value else round(value, 2) for value in means[name]] for name in means},
    }  # fmt: skip


def stamps_us(rings: Path) -> float:
    """Return the time that the two stamps of a graph take on the device, from the longest ring."""
    ring = max(read_rings(rings), key=lambda each: len(each.records))
    costs = [cost.stamp + cost.step for cost in stamped_work(ring).costs if cost is not None]
    return 2 * costs[0] / 1e3 if costs else 0.0


def keep(rings: Path, target: Path) -> None:
    """Copy the rings, and what CUPTI wrote beside them, compressed."""
    target.mkdir(parents=True, exist_ok=True)
    for ring in rings.glob("*.ring*"):
        with ring.open("rb") as source, gzip.open(target / f"{ring.name}.gz", "wb", compresslevel=1) as copy:
            shutil.copyfileobj(source, copy)
