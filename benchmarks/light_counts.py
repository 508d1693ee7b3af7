"""Compares counts of the light recorder and nsys: graph launches, launches, copies and syncs per step of one command.

The command runs once under each. Only whole steps count, from the start of the first to the start of the last step
found by both.
Usage: python benchmarks/light_counts.py [-o FILE] -- COMMAND...
"""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path
from typing import Any

import pandas as pd
from record_engines import machine
from under_nsys import profile

from tracer.analysis.tokens import find_steps
from tracer.model.calls import GRAPH_LAUNCH, LAUNCH, LETTERS, plain
from tracer.model.trace import Trace
from tracer.recorders.light import record
from tracer.recorders.light_ring import folder


def per_step(trace: Trace) -> dict[str, float]:
    """Return how often each call occurs per step, over the middle half of the steps."""
    steps = find_steps(trace).table.sort_values("start")
    quarter = len(steps) // 4
    first, last = steps["start"].iloc[quarter], steps["start"].iloc[-1 - quarter]
    count = len(steps) - 1 - 2 * quarter
    process = steps["process"].iloc[0]
    api = trace["api"][(trace["api"]["process"] == process) & trace["api"]["start"].between(first, last - 1)]
    of_calls = set(api["correlation"])
    found: dict[str, float] = {"steps": len(steps)}
    if trace.has_runs:
        letters = api["name"].astype(str).map(plain).map(LETTERS)
        found["graph launches"] = int((letters == GRAPH_LAUNCH).sum())
        found["kernel launches"] = int((letters == LAUNCH).sum())
    else:
        kernels = trace["kernels"]
        of_nodes = kernels.loc[kernels["correlation"].isin(of_calls) & (kernels["graph_node"] >= 0), "correlation"]
        whole = int(trace["graph_launches"]["correlation"].isin(of_calls).sum())
        found["graph launches"] = whole or of_nodes.nunique()
        found["kernel launches"] = int((kernels["correlation"].isin(of_calls) & (kernels["graph_node"] < 0)).sum())
    for table, column in (("memcpys", "kind"), ("memsets", None), ("syncs", "type")):
        rows: pd.DataFrame = trace[table]
        rows = rows[(rows["process"] == process) & rows["correlation"].isin(of_calls)]
        names = rows[column].astype(str) if column else pd.Series("", index=rows.index)
        for name, number in names.value_counts().items():
            found[f"{table} {name}".strip()] = int(number)
    return {name: value if name == "steps" else round(value / count, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with folder() as rings:
        told = record(options.command, rings)
    if told.trace is None:
        raise SystemExit(told.why)
    traced, _ = profile(options.command, "graph")
    counts: dict[str, Any] = {"light": per_step(told.trace), "nsys": per_step(traced)}
    for name in sorted(counts["light"] | counts["nsys"]):
        print(f"{name:24}" + "".join(f"{counts[who].get(name, 0):>12}" for who in counts))
    if options.output:
        facts = {"date": datetime.date.today().isoformat(), **machine(), "per_step": counts}
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
