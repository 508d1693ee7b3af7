"""One traced pass in a separate process: `python -m executor.run.traced_pass LEVEL DIRECTORY`, the request on stdin.

LEVEL is graph or node; with `none` nothing is recorded, for a profiler that traces from outside.

CUPTI at graph level must be enabled before the first CUDA call of the process, and a profiler must not disturb the
light pass, so the parent (`executor.run.passes`) starts one process per pass. The request is one JSON object:
`configuration` (the fields of `Configuration`), `run` (the contents of run.json) and `kinds` (a name of
`cupti_layout.SETS`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import tracer
from executor.run import execute
from executor.run.configuration import Configuration
from tracer.errors import IntertokenError
from tracer.formats import nsys_parquet
from tracer.recorders.cupti_layout import SETS
from tracer.trace import Trace


def record_pass(level: str, directory: Path, order: dict[str, Any]) -> None:
    """Run the configuration under CUPTI at a level and write the recording."""
    configuration = Configuration(**order["configuration"])
    if level == "none":
        unrecorded_pass(configuration)
        return
    trace, _ = recorded_pass(level, configuration, SETS[order["kinds"]])
    trace.metadata["run"] = order["run"]
    nsys_parquet.write(trace, directory)


def recorded_pass(level: str, configuration: Configuration, kinds: Sequence[str]) -> tuple[Trace, list[float]]:
    """Run the configuration under CUPTI; return the recording and the seconds of each repeat."""
    with tracer.record("cupti", graph_trace="graph" if level == "graph" else "node", kinds=kinds) as recording:
        seconds = unrecorded_pass(configuration)
    return recording.trace, seconds


def unrecorded_pass(configuration: Configuration) -> list[float]:
    """Run the configuration without recording; return the seconds of each repeat."""
    (result,) = execute([configuration], make_recorder=lambda: None)
    return result.seconds


def main(arguments: list[str], stdin: IO[str]) -> int:
    """Return the exit code: 2, with one line on stderr, for errors of the input or the machine."""
    level, directory = arguments
    try:
        record_pass(level, Path(directory), json.load(stdin))
    except IntertokenError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
