"""The duration of a program's CUDA graphs without a profiler, from what `graph_events.c` wrote."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

PROCESSES = 3


def measured(command: Sequence[str], variables: Mapping[str, str], path: Path, limit_s: float) -> dict[str, Any]:
    """Run a command several times with the library preloaded; return the graph's duration in each process and the
    medians of the intervals, µs. A process that fails is said and left out; empty if all do.

    Args:
        command, variables: what to run; it lets the library write to `path`.
        path: removed afterwards.
        limit_s: of each process.
    """
    found = []
    for process in range(PROCESSES):
        code = subprocess.run(command, env=variables, timeout=limit_s, check=False).returncode
        if code or not path.exists() or not path.stat().st_size:
            print(f"no events of process {process}, exit code {code}", flush=True)
        else:
            found.append(pd.read_csv(path, sep=" ", names=["a", "b", "c", "d"]))
        path.unlink(missing_ok=True)
    if not found:
        return {}
    medians = pd.DataFrame([rows.median() for rows in found])
    node = (medians["d"] - medians["b"]) / 2  # at most, for it contains the step to the next node
    graph = medians["a"] - medians["c"] + node / 2
    return {"graph_events": graph.round(3).tolist(), "launches": sum(map(len, found)),
            "events": medians.round(3).to_dict("list")}  # fmt: skip
