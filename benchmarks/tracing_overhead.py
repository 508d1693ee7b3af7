"""Tracing overhead of a profiler: pairs of runs, and what the correction by a rate needs to know in addition.

A pair is a recording and the same program's rate without a profiler. The untraced idle time is 1 / rate - the device's
busy time, at node level from the graph-level recording of the same program. Its uncertainty is that of the rate, from
the slowest to the fastest repeat. Pairs come from `record_pairs.py` (PAIRS: directories of recordings and their rates,
whose figures are kept in the result and taken from there without PAIRS) and from `sample_traces/`.

Measured from these: by how much node-level tracing stretches CUDA graphs, from the same graph at both levels; and which
causes shrink, from passes of our own loop. The constants are in `tracer/analysis/fits.toml`.
Usage: python benchmarks/tracing_overhead.py [PAIRS] [--json FILE]      needs no GPU
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from math import floor
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from gpu_machine import commit

import tracer
from tracer.analysis.bounds import ALL_STEPS
from tracer.analysis.causes import CAUSES
from tracer.analysis.distortion import untraced_causes
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import choose_steps
from tracer.errors import TraceError
from tracer.formats.chrome import PYTORCH
from tracer.model.fits import fits_of
from tracer.model.trace import Trace

GPU: Final = "NVIDIA H200"
ROOT: Final = Path(__file__).parents[1]
RESULT: Final = ROOT / "benchmarks" / "results" / "tracing_overhead.json"
SAMPLES: Final = ROOT / "sample_traces"
LOOP: Final = {  # period of the CuPy loop without a profiler, µs, fastest and slowest
    "run sccc concurrent": (286, 294), "run saaas concurrent": (260, 267), "run aaag concurrent": (253, 262),
    "run sccc sequential": (455, 463), "run saaas sequential": (429, 439), "run aaag sequential": (424, 434),
}  # fmt: skip
ENGINES: Final = {"llama1b": "llama.cpp", "llamacpp": "llama.cpp", "loop": "PyTorch loop"}


def of_pairs(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of recordings made by `record_pairs.py`."""
    for path in sorted(directory.rglob("*.sqlite")):
        found = re.fullmatch(r"(.+)-(graph|node)\d?(?:\.(\d))?\.sqlite", path.name)
        if found is None:
            continue
        pair = json.loads((path.parent / f"{found[1]}.json").read_text(encoding="utf-8"))
        window = int(found[3] or 1) - 1
        several = max(map(len, pair["untraced_steps_per_s"])) > 1
        rates = [run[window if several else 0] for run in pair["untraced_steps_per_s"]]
        name = f"{found[1]} {window + 1}" if several else found[1]
        yield from _row(name, found[1].split("-")[0], "nsys", tracer.read(path), [1e6 / rate for rate in rates])


def of_samples() -> Iterator[dict[str, Any]]:
    """Yield the rows of bundled recordings whose untraced rate was measured separately."""
    for path in sorted(SAMPLES.glob("*/")):
        trace = tracer.read(path)
        measured = (trace.metadata.get("run") or {}).get("measured", {}).get("steps_per_s")
        engine = path.name.split("-")[0]
        by = "PyTorch" if str(trace.metadata.get("source", "")).startswith(PYTORCH) else "nsys"
        if measured and trace.metadata.get("source") != "host":
            yield from _row(re.sub("-(graph|node).*", "", path.name), engine, by, trace,
                            [1e6 / rate for rate in measured["repeats"]])  # fmt: skip
    loop = tracer.read(SAMPLES / "six-strategies")
    for within, periods in LOOP.items():
        yield from _row(f"CuPy {within}", "CuPy loop", "nsys", loop, periods, within)


def _row(
    name: str, engine: str, by: str, trace: Trace, periods: Sequence[float], within: str | None = None
) -> Iterator[dict[str, Any]]:
    """Return the figures of a pair; None if the recording has no steps."""
    try:
        steps = choose_steps(trace, within, ALL_STEPS)
        found = gap_report(trace, steps)
    except TraceError as problem:
        print(f"{name}: {problem}")
        return
    idle = found.idle.steps
    yield {
        "recording": name, "program": ENGINES.get(engine, engine), "by": by, "level": found.graph_trace,
        "period_us": [round(f(periods), 1) for f in (min, statistics.median, max)], "steps": len(idle),
        "busy_us": _mean(idle["busy"]), "idle_us": _mean(idle["idle"]), **_graph(trace),
    }  # fmt: skip


def _mean(ns: pd.Series) -> float:
    return round(float(ns.mean() / 1e3), 2)


def _graph(trace: Trace) -> dict[str, float]:
    """Return the duration of the graph that takes most of the time, and if its nodes were traced, the number, the
    summed durations and the union of its kernels, µs.
    """
    launches, kernels = trace["graph_launches"], trace["kernels"]
    if len(launches):
        length = launches["end"] - launches["start"]
        return {"graph_us": round(float(length[length > length.max() / 2].median() / 1e3), 2)}
    nodes = kernels[kernels["graph_node"] >= 0]
    if not len(nodes):
        return {}
    nodes = nodes.assign(length=nodes["end"] - nodes["start"]).sort_values("start", kind="stable")
    of_one = ["process", "correlation"]
    reach = nodes.groupby(of_one)["end"].cummax().groupby([nodes[key] for key in of_one]).shift(fill_value=0)
    nodes["alone"] = np.maximum(nodes["end"] - np.maximum(nodes["start"], reach), 0)
    each = nodes.groupby(of_one).agg(
        count=("start", "size"), start=("start", "min"), end=("end", "max"), length=("length", "sum"),
        union=("alone", "sum"),
    )  # fmt: skip
    each["span"] = each["end"] - each["start"]
    main = each[each["count"] == each.groupby("count")["span"].sum().idxmax()]
    return {"kernels": float(main["count"].iloc[0]), "span_us": round(float(main["span"].median() / 1e3), 2),
            "kernels_us": round(float(main["length"].median() / 1e3), 2),
            "union_us": round(float(main["union"].median() / 1e3), 2)}  # fmt: skip


def with_truth(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the untraced idle time: median, minimum and maximum, from the device's busy time at graph level."""
    busy = {row["recording"]: row["busy_us"] for row in rows if row["level"] != "node"}
    found = []
    for row in rows:
        periods = [p - busy.get(row["recording"], row["busy_us"]) for p in row["period_us"]]
        truth = [round(max(t, 0.0), 1) for t in (periods[1], periods[0], periods[2])]
        found.append(row | {"truth_us": truth})
    return found


def stretch(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return `fits.Stretch`: ns per kernel as a line over kernel duration; its error by leaving out programs."""
    graphs = {row["recording"]: row["graph_us"] for row in rows if "graph_us" in row}
    pairs = [
        {"recording": row["recording"], "program": row["program"], "kernels": row["kernels"],
         "kernel_us": round(row["kernels_us"] / row["kernels"], 2),
         "union": round(row["union_us"] / row["kernels_us"], 3),
         "ns_per_kernel": round((row["span_us"] - graphs[row["recording"]]) / row["kernels"] * 1e3, 1)}
        for row in rows if "kernels" in row and row["recording"] in graphs
    ]  # fmt: skip

    def line(of: Sequence[dict[str, Any]]) -> tuple[float, float]:
        programs = [pair["program"] for pair in of]
        weights = [programs.count(program) ** -0.5 for program in programs]
        slope, base = np.polyfit([p["kernel_us"] for p in of], [p["ns_per_kernel"] for p in of], 1, w=weights)
        return float(base), float(slope)

    errors = []
    for pair in pairs:
        base, slope = line([other for other in pairs if other["program"] != pair["program"]])
        errors.append(abs(pair["ns_per_kernel"] - base - slope * pair["kernel_us"]))
    base, slope = line(pairs)
    constants = {"per_kernel": round(base, 1), "share": round(slope / 1e3, 5),
                 "error": round(float(np.quantile(errors, 0.95)), 1),
                 "union": floor(100 * min(pair["union"] for pair in pairs)) / 100}  # fmt: skip
    return {"pairs": pairs, "constants": constants}


def causes() -> list[dict[str, Any]]:
    """Compare the causes of our own loop under a profiler, corrected by its rate, with its light pass: errors, µs."""
    found = []
    for path in sorted(SAMPLES.glob("llama-1.1b-*/run.json")):
        passes = json.loads(path.read_text(encoding="utf-8"))["passes"]
        light = dict.fromkeys(CAUSES.values(), 0.0) | passes["light"]["causes_us"]
        for level in [level for level in ("graph", "node") if level in passes]:
            traced = dict.fromkeys(CAUSES.values(), 0.0) | passes[level]["causes_us"]
            corrected = untraced_causes(traced, traced["launch"], fits_of(GPU).launch_left(level), sum(light.values()))
            shares = {name: us * sum(light.values()) / sum(traced.values()) for name, us in traced.items()}
            found.append({"run": path.parent.name, "level": level, "gap_us": round(sum(light.values()), 1)} | {
                how: round(max(abs(each[name] - light[name]) for name in CAUSES.values()), 1)
                for how, each in (("corrected", corrected), ("proportional", shares))
            })  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, nargs="?")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    rows = list(of_pairs(options.pairs)) if options.pairs else [r for r in kept["rows"] if r["from"] == "pairs"]
    rows = [row | {"from": "pairs"} for row in rows] + [row | {"from": "samples"} for row in of_samples()]
    rows = with_truth(rows)
    found: dict[str, Any] = {
        "benchmark": "tracing_overhead", "rows": rows, "stretch": stretch(rows), "causes": causes(),
    }  # fmt: skip
    for name in ("rows", "causes"):
        print(pd.DataFrame(found[name]).to_string(index=False), "\n")
    print(pd.DataFrame(found["stretch"]["pairs"]).to_string(index=False), found["stretch"]["constants"])
    if options.json:
        about = {"date": "2026-11-22", "commit": commit(), "machine": {"gpu": GPU, "driver": "580.159.04"}}
        options.json.write_text(json.dumps(found | about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
