"""Compare runs with a base, with 95 % intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from tracer import progress
from tracer.analysis.bounds import RATES
from tracer.command_options import Bounds, Save, emit, load, most_at_once, saver, step_options, verbose_option
from tracer.errors import IncomparableError, UsageError, naming, printable
from tracer.reporting import console as report
from tracer.text import json_rows

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.compare import Side
    from tracer.batch import Overview

Rates = tuple[float, ...]
_MOST_LINES: Final = 20


def parse_rates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Rates, ...]:
    """Parse `748.7` or, for several repeats, `748.7,750.1,746.0`, given once per run."""
    return tuple(tuple(_rate(text) for text in value.split(",")) for value in values)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not RATES[0] <= rate <= RATES[1]:
        raise click.BadParameter(f"{text!r} is not a rate from {RATES[0]:g} to {RATES[1]:g} per second")
    return rate


@click.command()
@click.argument("paths", metavar="BASE OTHER... | DIR", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@verbose_option
@step_options
@click.option(
    "--range", "ranges", multiple=True, metavar="TEXT",
    help="Only inside NVTX ranges with this text (or regex); give it once, or once per run.",
)  # fmt: skip
@click.option(
    "--untraced-tokens-per-s", "--untraced-steps-per-s", "rates", multiple=True, callback=parse_rates,
    metavar="X[,X...]",
    help="Steps per second of the engine's own benchmark, without a profiler (tokens/s of one sequence); once per run, "
    "base first. Several repeats, separated by commas, give an interval.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Compare runs even if not comparable, without a verdict, and replace FILE.")
@click.option("--scheduler", metavar="ADDRESS", help="With DIR: the Dask scheduler to use.  [default: this machine]")
@click.option(
    "--workers", type=click.IntRange(1, 1024), metavar="N",
    help="With DIR: number of processes on this machine.  [default: one per core]",
)  # fmt: skip
@click.option(
    "-o", "--table", metavar="FILE", type=click.Path(path_type=Path),
    help="Also write a table (.csv or .parquet): one row per other run and figure, with run, figure, base, other, and "
    "estimate, low and high of their ratio (tokens/s) or difference. With DIR: one row per report and device.",
)  # fmt: skip
def compare(
    paths: tuple[str, ...], as_json: bool, bounds: Bounds, ranges: tuple[str, ...], rates: tuple[Rates, ...],
    force: bool, scheduler: str | None, workers: int | None, table: Path | None,
) -> None:  # fmt: skip
    """Compare runs with a base, with 95 % intervals.

    BASE and OTHER are each a recording, or several of the same configuration separated by commas. Runs on a different
    GPU, model or batch are refused. If the profiler may have caused the difference there is no verdict; the output then
    gives the reason, what is still known, and what to measure.

    DIR holds reports and runs at any depth, possibly of several ranks (rank3 in a path, or as stored in the report).
    Dask reads them in parallel; a report that cannot be read does not stop the others. FILE gets the table of all.

    \b
    Examples:
      intertoken compare llama1b-sccc-graph llama1b-saaas-graph
      intertoken compare base-1,base-2,base-3 new-1,new-2,new-3
      intertoken compare nightly/ -o results.parquet --workers 16
    """
    save = saver(table, force)
    if len(paths) == 1:
        directory = _directory(paths[0])
        if len(ranges) > 1 or rates:
            raise UsageError(
                f"{directory}: with a directory, give --range at most once; untraced rates come from each run.json"
            )
        _compare_reports(directory, within=next(iter(ranges), None), bounds=bounds, scheduler=scheduler,
                         workers=workers, as_json=as_json, save=save)  # fmt: skip
        return
    if scheduler is not None or workers is not None:
        raise UsageError("--scheduler and --workers need a directory of reports")
    runs = _load(paths, bounds, ranges, rates)
    from tracer.analysis.compare import best_basis
    from tracer.analysis.compare import compare as compare_runs
    from tracer.reporting.compare import compare_table, comparison_facts, run_facts, show_comparison

    base, *others = runs
    with report.working("comparing"):
        try:
            comparisons = [compare_runs(base, other, force=force) for other in others]
        except IncomparableError as problem:
            raise UsageError(f"{problem} (--force compares them anyway)") from None
    save(compare_table(comparisons))
    unity = {"speedup": {"estimate": 1.0, "low": 1.0, "high": 1.0}}
    facts = {
        "schema": "intertoken.compare/1",
        "basis": best_basis(*runs),
        "base": base.name,
        "runs": [run_facts(base) | unity, *(run_facts(c.other) | comparison_facts(c) for c in comparisons)],
    }
    emit(as_json, facts, lambda _: show_comparison(base, comparisons, most_at_once()), [])


def _directory(path: str) -> Path:
    """The only argument, which must be a directory of reports."""
    from tracer.formats import is_trace

    directory = Path(path)
    if not directory.is_dir() or is_trace(directory):
        raise UsageError(f"{path}: give a second run to compare it with, or a directory of reports")
    return directory


def _load(paths: Sequence[str], bounds: Bounds, ranges: Sequence[str], rates: Sequence[Rates]) -> list[Side]:
    """Read and measure the runs."""
    from tracer.analysis.compare import Side

    if len(ranges) not in (0, 1, len(paths)):
        raise UsageError(f"--range is given {len(ranges)} times for {len(paths)} runs; give it once, or once for each")
    if len(rates) not in (0, len(paths)):
        raise UsageError(f"--untraced-tokens-per-s is given {len(rates)} times for {len(paths)} runs; give it for each")
    within = ranges if len(ranges) == len(paths) else [next(iter(ranges), None)] * len(paths)
    parts = [_parts(text) for text in paths]
    names = Counter(part.name for paths_of_run in parts for part in paths_of_run)
    runs = []
    for text, paths_of_run, each_within, each_rates in zip(
        paths, parts, within, rates or [()] * len(paths), strict=True
    ):
        recordings = []
        for part in paths_of_run:
            name = printable(part.name if names[part.name] == 1 else str(part))
            name = f"{name} · {each_within}" if len(ranges) > 1 else name
            with naming(part):
                recordings.append(load(part, each_within, bounds, *each_rates, name=name).measured)
        runs.append(Side.of(*recordings, place=printable(text)))
    return runs


def _parts(text: str) -> list[Path]:
    """The recordings of a run: a path, or several separated by commas."""
    return [Path(text)] if Path(text).exists() or "," not in text else [Path(part) for part in text.split(",")]


def _compare_reports(
    directory: Path, *, within: str | None, bounds: Bounds, scheduler: str | None, workers: int | None, as_json: bool,
    save: Save,
) -> None:  # fmt: skip
    """Analyse all reports below a directory on Dask, save their table, and print the overview.

    Raises:
        UsageError: there is no report, no Dask, or no scheduler.
    """
    from tracer.batch import analyse, connected, find_reports, overview

    root = directory.resolve()
    paths = find_reports(root)
    if not paths:
        raise UsageError(f"{directory}: no reports in or below this directory")
    with report.working(f"reading {len(paths)} reports"), connected(scheduler, workers) as client:
        table = analyse(paths, root, client, tell=progress.tell, within=within, bounds=bounds)
    save(table)
    summary = overview(table)
    facts = {
        "schema": "intertoken.reports/1",
        "reports": len(paths),
        "rows": len(table),
        **{name: json_rows(part) for name, part in vars(summary).items()},
    }
    emit(as_json, facts, lambda _: _show(summary, len(paths), table), [])


def _show(summary: Overview, reports: int, table: pd.DataFrame) -> None:
    import pandas as pd

    headings = {
        "run": "run", "reports": "reports", "ranks": "ranks", "recorded_steps_per_s": "steps/s recorded",
        "gap_p50_us": "gap p50 µs", "busy_us": "GPU busy µs", "syncs_per_token": "syncs",
        "slowest_rank": "slowest rank", "slowest_ratio": "its period ×", "waited_for_rank": "others wait for rank",
        "waited_for_share": "share of waiting", "outliers": "outliers", "unread": "unread",
    }  # fmt: skip
    report.show(report.table_of(json_rows(summary.runs), headings))
    if len(summary.ranks):
        headings = {
            "run": "run", "rank": "rank", "step_idle_us": "idle µs a step", "step_communication_us": "communicates µs",
            "waiting_us": "waits µs a collective", "caused_share": "share of waiting for it",
        }  # fmt: skip
        report.show(Text(), report.table_of(json_rows(summary.ranks.head(_MOST_LINES)), headings))
        report.show(Text("from the durations of collectives; clocks of different recordings are not compared", "dim"))
    if len(summary.outliers):
        headings = {
            "report": "outlier", "rank": "rank", "device": "device", "recorded_steps_per_s": "steps/s recorded",
            "of_run": "of its run", "z": "modified z",
        }  # fmt: skip
        report.show(Text(), report.table_of(json_rows(summary.outliers.head(_MOST_LINES)), headings))
    for problem in summary.problems.head(_MOST_LINES).to_dict("records"):
        unread = "unread: " if pd.isna(problem["steps"]) else ""
        words = f"{unread}{problem['report']}: {printable(str(problem['problem']), 200)}"
        report.show(report.styled(words, "yellow"))
    report.show(Text(f"{reports} reports, {len(table)} rows; medians over reports and devices", "dim"))
