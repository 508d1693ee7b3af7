"""Run directories: a recording in nsys's parquetdir layout, run.json, and graph.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from executor.run import Result
from executor.run.configuration import Configuration
from executor.run.describe import run_json
from executor.run.describe_graph import run_graph
from tracer.errors import UsageError
from tracer.formats import check_writable, nsys_parquet
from tracer.graph_json import GRAPH_FILE, write_graph
from tracer.output import appearing, blaming_the_choice
from tracer.run_parts import is_part_of_run


def check_runs(runs: Path, configurations: Iterable[Configuration], *, replace: bool) -> None:
    """Check, before running, that a directory can receive the runs of these configurations.

    Raises:
        UsageError: the directory is not writable; or a run exists and `replace` is not given; or something other than
            a run would be overwritten.
    """
    names = [c.name for c in configurations]
    existing = [name for name in names if (runs / name).exists()]
    if existing and not replace:
        raise UsageError(f"{runs} already holds {', '.join(existing)}; choose another directory or use --force")
    with blaming_the_choice():
        for name in names:
            check_writable(runs / name, replace=replace, is_part=is_part_of_run)


def write_run(result: Result, runs: Path, *, replace: bool = True) -> Path:
    """Write one run directory atomically.

    Returns:
        The path of the directory.

    Raises:
        UsageError: it exists and `replace` is False, or it cannot be written.
    """
    target = runs / result.configuration.name
    result.trace.metadata["run"] = run_json(result)
    with blaming_the_choice(), appearing(target, replace=replace) as new:
        nsys_parquet.write(result.trace, new)
        write_graph(run_graph(result.prepared), new / GRAPH_FILE)
    return target
