"""The device's busy time by the light recorder's stamps and by CUPTI: of the same launches, and between processes.

Truths of the light recorder subtract the busy time that CUPTI reports in another process from an untraced period. This
tells how far that can be wrong. A command runs in turn with the light recorder, with graph-level CUPTI as `intertoken
record --passes graph` sets it up, and with both in one process (`both`; `both lean`: CUPTI records nothing but the
device's work, of which only the stamps tell anything). Of `both` the same launches have two durations. Figures are of
the last seconds, in which the program is warm.

Usage: python benchmarks/light_beside_cupti.py -o FILE [--rounds N] [--modes MODE,...] [--case NAME[,VARIABLE=VALUE]...]
           [--keep FOLDER] -- COMMAND...
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from light_told import keep as keep_files
from light_told import stamps_us
from record_engines import machine

from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.errors import TraceError
from tracer.model.trace import Trace
from tracer.recorders import cupti_library, cupti_run, light
from tracer.recorders import cupti_records as activity
from tracer.recorders.light_ring import SETTINGS, folder
from tracer.recorders.window import TimeRange, within

LIMIT = 300  # s per run
LAST_NS = 1_500_000_000
MODES = ("light", "cupti", "both", "both lean")
DEVICE = (activity.GRAPH_TRACE, *(kind for name in ("kernels", "memcpys", "memsets") for kind in activity.KINDS[name]))


def settings(mode: str) -> str:
    """Return the library's configuration."""
    lines = cupti_run.settings("graph", cupti_library.find()).splitlines()
    if "lean" in mode:
        wanted = {f"kind {kind}" for kind in DEVICE}
        lines = [line for line in lines if not line.startswith("kind") or line in wanted]
    return "\n".join([*lines, *(["wrap driver"] if "both" in mode else []), ""])


def durations(trace: Trace) -> np.ndarray:
    """Return the durations of the graph that was launched most, in order, ns."""
    launches = trace["graph_launches"]
    if not len(launches):
        return np.array([])
    most = launches["graph"].value_counts().index[0]
    usual = launches[launches["graph"] == most].sort_values("start")
    return np.asarray(usual["end"] - usual["start"], np.int64)


def told(whole: Trace) -> tuple[dict[str, Any], np.ndarray]:
    """Return the figures of the end of a recording, µs, and the durations of its graph."""
    end = max(int(whole[name]["end"].max()) for name in ("kernels", "graph_launches") if len(whole[name]))
    trace = within(whole, [TimeRange(end - LAST_NS, end)])
    spans = durations(trace)
    found: dict[str, Any] = {"graphs": len(spans)}
    if len(spans):
        found["graph_us"] = round(float(np.median(spans)) / 1e3, 3)
    try:
        steps = find_steps(trace)
        report = gap_report(trace, steps)
    except TraceError as problem:
        return found | {"nothing": str(problem)}, spans
    each = report.idle.steps
    usual = each[each["period"] < 3 * each["period"].median()]
    kernels = trace["kernels"]
    took = (kernels["end"] - kernels["start"]).sum() / max(len(each), 1)
    found |= {"steps": len(each), "kernels_us": round(float(took) / 1e3, 3), "gap_us": report.gap_us["p50"]}
    return found | {name: round(float(usual[name].mean()) / 1e3, 3) for name in ("period", "busy", "idle")}, spans


def run(mode: str, command: list[str], base: dict[str, str], keep: Path | None) -> dict[str, Any]:
    """Run once; return the figures of each recorder."""
    found: dict[str, Any] = {"mode": mode}
    with folder() as rings:
        ours = light.library()
        environment = light.environment(ours, rings, base)
        if mode != "light":
            (rings / SETTINGS).touch(mode=0o600)
            (rings / SETTINGS).write_text(settings(mode))
            environment = cupti_run.environment(ours, rings, base)
        subprocess.run(command, env=environment, timeout=LIMIT, check=True, stdout=subprocess.DEVNULL)
        spans = {}
        if mode == "light" or "both" in mode:
            trace = light.read_folder(rings)
            if trace is not None:
                found["light"], spans["light"] = told(trace)
                found["stamps_us"] = stamps_us(rings)
        if mode != "light":
            trace = cupti_run.read_folder(rings)
            if trace is not None:
                found["cupti"], spans["cupti"] = told(trace)
        if keep:
            keep_files(rings, keep)
    if "both" in mode and len(spans) == 2 and all(len(each) for each in spans.values()):
        last = min(len(each) for each in spans.values())
        beyond = (spans["cupti"][-last:] - spans["light"][-last:]) / 1e3
        found["longer_by_cupti_us"] = [round(float(each), 3) for each in np.quantile(beyond, (0.5, 0.1, 0.9))]
    print(json.dumps(found), flush=True)
    return found


def case_of(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Make all runs of a case."""
    name, *variables = name.split(",")
    base = {**os.environ, **dict(each.split("=", 1) for each in variables)}
    runs = [
        run(mode, options.command, base, options.keep / f"{name}-{mode.replace(' ', '-')}" if options.keep else None)
        for turn in range(options.rounds)
        for mode in options.modes[:: -1 if turn % 2 else 1]
    ]
    medians: dict[str, Any] = {}
    for mode in options.modes:
        of_mode = [each for each in runs if each["mode"] == mode]
        for recorder in ("light", "cupti"):
            values = [each[recorder]["graph_us"] for each in of_mode if "graph_us" in each.get(recorder, {})]
            if values:
                medians[f"{mode}: graph by {recorder}, us"] = [np.median(values), min(values), max(values)]
    for what, values in medians.items():
        print(f"{name}: {what}: {values[0]:.2f} [{values[1]:.2f}, {values[2]:.2f}]", flush=True)
    return {"case": name, "medians": medians, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--keep", type=Path, help="keep the files of each case's last run of a mode, compressed")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    cases = [case_of(each, options) for each in options.case or ["as it is"]]
    facts = {"date": datetime.date.today().isoformat(), **machine(), "command": Path(options.command[0]).name}
    options.output.write_text(json.dumps({**facts, "cases": cases}, indent=1, default=float) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
