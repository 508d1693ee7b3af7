"""Run directories: a recording in nsys's parquetdir layout, run.json, and graph.json."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from executor.configuration import Configuration
from executor.describe import run_json
from executor.describe_graph import run_graph
from executor.run import Result
from tracer.errors import UsageError
from tracer.formats import nsys_parquet
from tracer.graph_json import GRAPH_FILE, write_graph


def refuse_existing(runs: Path, configurations: Iterable[Configuration]) -> None:
    """Raise UsageError if a run directory of these configurations is there already."""
    taken = [c.name for c in configurations if (runs / c.name).exists()]
    if taken:
        raise UsageError(f"{runs} already holds {', '.join(taken)}; choose another directory or give --force")


def write_run(result: Result, runs: Path) -> Path:
    """Write one run directory, whole or not at all; one of that name is replaced.

    Returns:
        its path.
    """
    target = runs / result.configuration.name
    result.trace.metadata["run"] = run_json(result)
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.new")
    try:
        runs.mkdir(parents=True, exist_ok=True)
        nsys_parquet.write(result.trace, new)
        write_graph(run_graph(result.prepared), new / GRAPH_FILE)
        _replace(target, new)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return target


def _replace(target: Path, new: Path) -> None:
    """Put `new` where `target` is; the old one goes away only after the new one stands."""
    if not target.exists():
        new.rename(target)
        return
    old = new.with_suffix(".old")
    target.rename(old)
    new.rename(target)
    shutil.rmtree(old) if old.is_dir() else old.unlink()
