"""The untraced gap estimated from traced recordings alone, against what was measured without a profiler.

Every recording of ours is estimated with constants fitted to the other runs (all recordings of one run are left out
together); those of other programs, llama.cpp and a CuPy loop under nsys, are never fitted. The constants fitted to all
of ours are what `tracer.analysis.distortion.INFLATIONS` must hold. Bundled recordings are read; of passes that left
only figures (gpu_gaps.json, run.json) there are the gap, its launch cause and the calls that the same run makes in it.
The truth is the gap of the light pass; for other programs untraced period minus compute, or stamps of the GPU.
Date, commit and machine of the result are those of the passes, from gpu_gaps.json.
Usage: python benchmarks/gap_estimate.py [--json FILE]      needs no GPU
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

import tracer
from tracer.analysis.distortion import COUNTED, INFLATIONS, Inflation, estimated_gap, is_estimable, launch_us
from tracer.analysis.gaps import gap_report
from tracer.analysis.interval import Interval
from tracer.analysis.tokens import find_steps

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
SAMPLES: Final = ROOT / "sample_traces"
OTHERS: Final = {
    "llama1b-sccc-graph": 77.0, "llama1b-saaas-graph": 60.0, "llama1b-sccc-node": 77.0, "llama1b-saaas-node": 60.0,
    "six-strategies run sccc concurrent": 70.0, "six-strategies run saaas concurrent": 44.0,
    "six-strategies run aaag concurrent": 45.0,
}  # fmt: skip
"""Recording of another program, and its NVTX range -> the gap without a profiler, µs."""
LEVELS: Final = {("graph", True): "graph", ("graph", False): "graph, no copies", ("node", True): "node",
                 ("node", False): "node, no copies"}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """One traced recording.

    Attributes:
        run: what ran; by: whose recording it is.
        key: of `INFLATIONS`.
        table: its gaps, as `GapReport.table`, or one row for all of them.
        truth_us: the untraced gap.
        light_launch_us: the launch cause in the light pass; None where there is no such pass.
    """

    run: str
    by: str
    key: tuple[str, bool]
    table: pd.DataFrame
    truth_us: float
    light_launch_us: float | None

    @property
    def traced_us(self) -> float:
        """The median gap."""
        return float(self.table["gap"].median() / 1e3)

    @property
    def fits(self) -> bool:
        """Whether constants can be learnt from it: it has a light pass, and calls in its gap."""
        known = self.light_launch_us is not None and is_estimable(self.table)
        return known and float(self.table["calls"].median()) > 0

    def per_call_us(self, share: float) -> float:
        """What tracing added per call if that share of the graph launch is tracing."""
        rest = self.traced_us - self.truth_us - share * float(launch_us(self.table).median())
        return rest / float(self.table["calls"].median())


def recordings() -> list[Recording]:
    """All there are, ours first."""
    found = list(_bundled())
    calls = {r.run: float(r.table["calls"].median()) for r in found}
    for run in sorted(r.run for r in found if is_estimable(r.table)):
        passes = json.loads((SAMPLES / run / "run.json").read_text(encoding="utf-8"))["passes"]
        found.append(_from_figures(run, "our graph pass", ("graph", True), passes, "graph", calls[run]))
    for row in json.loads((RESULTS / "gpu_gaps.json").read_text(encoding="utf-8"))["runs"]:
        run = row["run"].removesuffix("-sampled")
        for name in set(row["passes"]) - {"light"}:
            by = name if "nsys" in name else f"our {name} pass"
            key = (name.split()[-1], "nsys" in name)
            found.append(_from_figures(row["run"], f"{by}, gpu_gaps", key, row["passes"], name, calls[run]))
    return sorted(found, key=lambda r: (r.key, r.run, r.by)) + list(_of_others())


def _bundled() -> Iterator[Recording]:
    for directory in sorted(SAMPLES.glob("*/node")):
        trace = tracer.read(directory)
        passes = json.loads((directory.parent / "run.json").read_text(encoding="utf-8"))["passes"]
        light = passes["light"]
        table = gap_report(trace, find_steps(trace)).table
        yield Recording(directory.parent.name, "our node pass", ("node", True), table, light["gap_us"]["p50"],
                        light["causes_us"]["launch"])  # fmt: skip


def _of_others() -> Iterator[Recording]:
    for name, truth in OTHERS.items():
        directory, _, within = name.partition(" ")
        trace = tracer.read(SAMPLES / directory)
        report = gap_report(trace, find_steps(trace, within=within or None))
        yield Recording(name, "nsys", (report.graph_trace, True), report.table, truth, None)


def _from_figures(
    run: str, by: str, key: tuple[str, bool], passes: dict[str, Any], name: str, calls: float
) -> Recording:
    """A recording that is gone: one gap, of the median length, with the mean's share of launches."""
    light, traced = passes["light"], passes[name]
    p50, mean = traced["gap_us"]["p50"], traced["gap_us"]["mean"]
    row = dict.fromkeys(COUNTED, 0) | {
        "gap": round(p50 * 1e3), "launch_call": round(traced["causes_us"]["launch"] * p50 / mean * 1e3),
        "graph_launch": int(calls > 0), "calls": calls,
    }  # fmt: skip
    return Recording(run, by, key, pd.DataFrame([row]), light["gap_us"]["p50"], light["causes_us"]["launch"])


def constants(among: Sequence[Recording]) -> Inflation:
    """Fitted to recordings of one key: medians, and Student's prediction interval of the cost of a call."""
    share = 1 - statistics.median((r.light_launch_us or 0.0) / float(launch_us(r.table).median()) for r in among)
    costs = [r.per_call_us(share) for r in among]
    mean, reach = statistics.mean(costs), statistics.stdev(costs) * math.sqrt(1 + 1 / len(costs))
    reach *= student(len(costs) - 1)
    return Inflation(*(round(x, 3) for x in (share, statistics.median(costs), mean - reach, mean + reach)))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; Abramowitz and Stegun 26.7.5, exact to 0.001 from 8 degrees on."""
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def row_of(recording: Recording, estimate: Interval | None) -> dict[str, Any]:
    facts = {
        "run": recording.run, "by": recording.by, "level": LEVELS[recording.key],
        "ours": recording.light_launch_us is not None,
        "traced_us": round(recording.traced_us, 1), "truth_us": round(recording.truth_us, 1),
    }  # fmt: skip
    if estimate is None:
        return facts | {"estimate": None}
    holds = estimate.holds(recording.truth_us)
    return facts | {"estimate": {k: round(v, 1) for k, v in asdict(estimate).items()}, "holds": holds}


def measure() -> dict[str, Any]:
    """Estimate, interval and truth of every recording, and the constants."""
    every = recordings()
    fitted = {key: constants([r for r in every if r.key == key and r.fits]) for key in LEVELS}
    rows = []
    for recording in every:
        others = [r for r in every if r.key == recording.key and r.fits and r.run != recording.run]
        estimable = is_estimable(recording.table)
        rows.append(row_of(recording, estimated_gap(recording.table, constants(others)) if estimable else None))
    return {"constants": [{"level": LEVELS[key]} | asdict(value) for key, value in fitted.items()], "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    found = measure()
    for row in found["constants"]:
        print(row)
    print(f"in INFLATIONS: {[asdict(value) for value in INFLATIONS.values()]}")
    for row in found["rows"]:
        shown = row["estimate"] and "{estimate:6.1f} [{low:6.1f}, {high:6.1f}]".format(**row["estimate"])
        mark = " " if row.get("holds", True) else "!"
        print(f"{row['run']:46} {row['by']:24} {row['level']:16} traced {row['traced_us']:7.1f}   "
              f"truth {row['truth_us']:7.1f} {mark} {shown or 'no estimate: mostly compute elsewhere'}")  # fmt: skip
    for own in (True, False):
        held = [r["holds"] for r in found["rows"] if r["estimate"] and r["ours"] == own]
        print(f"{'our runs' if own else 'other programs'}: the interval holds {sum(held)} of {len(held)} truths")
    if options.json:
        machine = json.loads((RESULTS / "gpu_gaps.json").read_text(encoding="utf-8"))
        head = {"benchmark": "gap_estimate"} | {name: machine[name] for name in ("date", "commit")}
        text = json.dumps(head | found | {"machine": machine["machine"]}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
