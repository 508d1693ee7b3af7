"""Parallel analysis of many reports on Dask: one task per report, on local processes or the workers of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from tracer.batch import problem_row, report_rows, table_of_reports
from tracer.errors import UsageError

try:
    from distributed import Client, KilledWorker, LocalCluster, as_completed
except ImportError as missing:
    raise UsageError("comparing a directory needs Dask: pip install 'intertoken[dask]'") from missing

_CONNECT_S = 10


@contextmanager
def connected(scheduler: str | None, workers: int | None) -> Iterator[Client]:
    """A client of the scheduler at this address, or of a cluster of local processes.

    Raises:
        UsageError: no scheduler answers.
    """
    if scheduler is None:
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",  # its default is one port, which two commands at once cannot both have
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
        )
        with cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--scheduler {scheduler}: no Dask scheduler answers there: {problem}") from None
    with client:
        yield client


def analyse(
    paths: Sequence[Path], root: Path, client: Client, *, tell: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> pd.DataFrame:  # fmt: skip
    """The table of `reports.COLUMNS` over reports that every worker can read at these paths.

    If a worker is lost, another one takes its report. A report that keeps killing workers becomes a row with its
    problem, like any that cannot be read.

    Args:
        paths: the reports.
        root: the names of the reports are relative to it.
        client: a Dask client.
        tell: called with the number of finished reports and of all reports.
        options: `within` and `bounds` of `report_rows`.
    """
    futures = client.map(report_rows, list(paths), root=root, pure=False, **options)
    path_of = {future.key: path for future, path in zip(futures, paths, strict=True)}
    rows: list[dict[str, Any]] = []
    for done, future in enumerate(as_completed(futures), start=1):
        problem = future.exception()
        if problem is None:
            rows += future.result()
        else:
            rows.append(problem_row(path_of[future.key], root, _words(problem)))
        tell(done, len(futures))
    return table_of_reports(rows)


def _words(problem: BaseException) -> str:
    if isinstance(problem, KilledWorker):
        return "every worker that read it was lost; the report may need more memory than the workers have"
    return f"{type(problem).__name__}: {problem}"
