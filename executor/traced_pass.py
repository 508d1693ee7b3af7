"""One traced pass, in a process of its own: `python -m executor.traced_pass LEVEL DIRECTORY`, the order on stdin.

LEVEL is graph or node; with `none` nothing is recorded, for a profiler that watches from outside.

CUPTI at graph level must be switched on before the process' first CUDA call, and a profiler must not disturb the light
pass; so the parent (`executor.passes`) starts one process for each. The order is one JSON object: `configuration`
(the fields of `Configuration`) and `run` (what becomes run.json).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Any

import tracer
from executor.run import Configuration, execute
from tracer.errors import IntertokenError
from tracer.formats import nsys_parquet


def record_pass(level: str, directory: Path, order: dict[str, Any]) -> None:
    """Run the configuration under CUPTI at that level and write the recording."""
    configurations = [Configuration(**order["configuration"])]
    if level == "none":
        execute(configurations, make_recorder=lambda: None)
        return
    with tracer.record("cupti", graph_trace="graph" if level == "graph" else "node") as recording:
        execute(configurations, make_recorder=lambda: None)
    trace = recording.trace
    trace.metadata["run"] = order["run"]
    nsys_parquet.write(trace, directory)


def main(arguments: list[str], stdin: IO[str]) -> int:
    """Returns the exit code: 2 with one line on stderr for what is the input's or the machine's fault."""
    level, directory = arguments
    try:
        record_pass(level, Path(directory), json.load(stdin))
    except IntertokenError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
