"""Steps, gaps, critical path and a what-if of a trace with a million API calls, and of one with ten million events.

The traces repeat the steady token steps of real traces of llama.cpp under sccc (traced by graph and by node). Each is
analysed in a separate process, for its peak memory (VmHWM). The comparison is the longest path by
`networkx.dag_longest_path_length` over the same graph of causes, in ns per edge.
Usage: python benchmarks/million_calls.py [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
from read_nsys_sqlite import machine
from ten_million import long_trace, table_bytes

from tracer.analysis.gaps import gap_report
from tracer.analysis.path.paths import Causality, StepEnds, call_slack, critical_path
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import find_steps
from tracer.whatif.base import Base
from tracer.whatif.edits import FollowStrategy
from tracer.whatif.prediction import predict

SAMPLES = Path(__file__).parents[1] / "sample_traces"
CASES = {
    "a million API calls": ("llama1b-sccc-graph", 2_000_000),
    "ten million events": ("llama1b-sccc-node", 10_000_000),
}
RIVAL_EVENTS = 20_000


def analyse(source: str, events: int) -> dict[str, Any]:
    trace = long_trace(events, SAMPLES / source)
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = work()
        seconds[name] = round(time.perf_counter() - start, 2)
        return found

    steps = timed("steps", lambda: find_steps(trace))
    timed("gaps", lambda: gap_report(trace, steps))
    causality = timed("causality", lambda: Causality.of(trace))

    def path() -> None:
        ends = StepEnds.of(causality, steps)
        call_slack(causality, ends, critical_path(causality, ends), steps)

    timed("critical path and slack", path)
    timed(
        "what-if",
        lambda: predict(
            Base.of(causality, Recording.of_steps(trace, steps, rates=(748.7,))), [FollowStrategy("saaas")]
        ),
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "api_calls": len(trace["api"]),
        "events": len(trace),
        "edges": len(causality.dag.edges),
        "seconds": seconds,
        "total_s": round(sum(seconds.values()), 2),
        "peak_over_table_bytes": round(peak / table_bytes(trace), 1),
        "peak_gb": round(peak / 1e9, 2),
    }


def against_networkx() -> dict[str, float]:
    """Return ns per edge of one pass over the longest paths."""
    dag = Causality.of(long_trace(RIVAL_EVENTS, SAMPLES / "llama1b-sccc-graph")).dag
    dag.replayed()  # compiled
    start = time.perf_counter()
    dag.replayed()
    ours = time.perf_counter() - start
    graph = networkx.DiGraph()
    edges = dag.edges
    graph.add_weighted_edges_from(
        (f"{s}", f"{t}", w) for s, t, w in zip(edges.source, edges.target, edges.weight.tolist(), strict=True)
    )
    start = time.perf_counter()
    networkx.dag_longest_path_length(graph)
    theirs = time.perf_counter() - start
    return {
        "ours_ns_per_edge": round(ours / len(edges) * 1e9, 1),
        "networkx_ns_per_edge": round(theirs / len(edges) * 1e9, 1),
        "ratio": round(theirs / ours, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    context, found = multiprocessing.get_context("spawn"), {}
    for name, case in CASES.items():
        with context.Pool(1) as pool:
            found[name] = pool.apply(analyse, case)
        print(f"{name}: {found[name]['total_s']} s  {found[name]}", flush=True)
    found["longest path"] = against_networkx()
    print(f"longest path: {found['longest path']}")
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        text = json.dumps({"benchmark": "million_calls", "date": date, **found, "machine": machine()}, indent=2)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
