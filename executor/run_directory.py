"""Run directories: a recording in nsys's parquetdir layout, run.json, and graph.json."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from executor.configuration import Configuration
from executor.describe import run_json
from executor.describe_graph import run_graph
from executor.run import Result
from tracer.errors import UsageError
from tracer.formats import check_writable, nsys_parquet
from tracer.graph_json import GRAPH_FILE, write_graph
from tracer.output import appearing, blaming_the_choice
from tracer.run_parts import is_part_of_run


def check_runs(runs: Path, configurations: Iterable[Configuration], *, replace: bool) -> None:
    """Refuse a directory that cannot get the runs of these configurations; worth asking before they run.

    Raises:
        UsageError: it cannot be written to; or a run is there already, and `replace` is not given or something else
            than a run would be lost.
    """
    names = [c.name for c in configurations]
    taken = [name for name in names if (runs / name).exists()]
    if taken and not replace:
        raise UsageError(f"{runs} already holds {', '.join(taken)}; choose another directory or give --force")
    with blaming_the_choice():
        for name in names:
            check_writable(runs / name, replace=replace, is_part=is_part_of_run)


def write_run(result: Result, runs: Path, *, replace: bool = True) -> Path:
    """Write one run directory, whole or not at all.

    Returns:
        its path.

    Raises:
        UsageError: it exists and is not to be replaced, or cannot be written.
    """
    target = runs / result.configuration.name
    result.trace.metadata["run"] = run_json(result)
    with blaming_the_choice(), appearing(target, replace=replace) as new:
        nsys_parquet.write(result.trace, new)
        write_graph(run_graph(result.prepared), new / GRAPH_FILE)
    return target
