"""`intertoken compare`: runs against a base, or every report below a directory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer import report
from tracer.analysis.distortion import RATES
from tracer.commands import Bounds, emit, load, step_options
from tracer.errors import IncomparableError, TraceError, UsageError, printable
from tracer.tables import saver

if TYPE_CHECKING:
    from tracer.analysis.compare import Run
    from tracer.analysis.recorded import Recording

Rates = tuple[float, ...]


def parse_rates(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[Rates, ...]:
    """`748.7` or, of several repeats, `748.7,750.1,746.0`; once per run."""
    return tuple(tuple(_rate(text) for text in value.split(",")) for value in values)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not RATES[0] <= rate <= RATES[1]:
        raise click.BadParameter(f"{text!r} is no rate of {RATES[0]:g} to {RATES[1]:g} per second")
    return rate


@click.command()
@click.argument("paths", metavar="BASE OTHER... | DIR", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@step_options
@click.option(
    "--range",
    "ranges",
    multiple=True,
    metavar="TEXT",
    help="Only inside the NVTX ranges of that text (or regex); once for all runs, or once for each.",
)
@click.option(
    "--untraced-tokens-per-s",
    "--untraced-steps-per-s",
    "rates",
    multiple=True,
    callback=parse_rates,
    metavar="X[,X...]",
    help="Steps per second by the engine's own benchmark, without a profiler (tokens/s of one sequence); once for "
    "each run, base first. Several repeats, joined by commas, give an interval.",
)
@click.option("--force", is_flag=True, help="Compare what is not comparable, without a verdict, and replace FILE.")
@click.option("--scheduler", metavar="ADDRESS", help="With DIR: the Dask scheduler to use.  [default: this machine]")
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="With DIR: how many processes of this machine.  [default: one per core]",
)
@click.option(
    "-o",
    "--table",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write a table, as FILE's suffix says (.csv or .parquet): one row per other run and figure: run, figure, "
    "base, other, and estimate, low, high of their ratio (tokens/s) or difference. With DIR: one row per report and "
    "device.",
)
def compare(
    paths: tuple[str, ...], as_json: bool, bounds: Bounds, ranges: tuple[str, ...], rates: tuple[Rates, ...],
    force: bool, scheduler: str | None, workers: int | None, table: Path | None,
) -> None:  # fmt: skip
    """Did it change? Runs against a base, with 95 % intervals.

    Each of BASE and OTHER is a recording, or several of the same configuration, joined by commas. Runs of another GPU,
    model or batch are refused. Where a profiler may have made the difference there is no verdict: it is said why, what
    can be said all the same, and what to measure.

    DIR holds reports and runs at any depth, of several ranks maybe (rank3 in a path, or as the report says). They
    are read on Dask, and one that cannot be read does not stop the others; the table of all goes to FILE.

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
                f"{directory}: of many reports --range is one, and untraced rates are those of their run.json"
            )
        from tracer.reports_command import compare_reports

        compare_reports(directory, within=next(iter(ranges), None), bounds=bounds, scheduler=scheduler,
                        workers=workers, as_json=as_json, save=save)  # fmt: skip
        return
    if scheduler is not None or workers is not None:
        raise UsageError("--scheduler and --workers are for a directory of many reports")
    runs = _load(paths, bounds, ranges, rates)
    from tracer.analysis.compare import best_basis
    from tracer.analysis.compare import compare as compare_runs
    from tracer.compare_report import compare_table, comparison_facts, run_facts, show_comparison

    base, *others = runs
    with report.working("comparing"):
        try:
            found = [compare_runs(base, other, force=force) for other in others]
        except IncomparableError as problem:
            raise UsageError(f"{problem} (--force compares all the same)") from None
    save(compare_table(found))
    unity = {"speedup": {"estimate": 1.0, "low": 1.0, "high": 1.0}}
    facts = {
        "schema": "intertoken.compare/1",
        "basis": best_basis(*runs),
        "base": base.name,
        "runs": [run_facts(base) | unity, *(run_facts(c.other) | comparison_facts(c) for c in found)],
    }
    emit(as_json, facts, lambda _: show_comparison(base, found), [])


def _directory(path: str) -> Path:
    """The one argument, if it holds reports."""
    from tracer.formats import is_trace

    directory = Path(path)
    if not directory.is_dir() or is_trace(directory):
        raise UsageError(f"{path}: what is it to be compared with? name another run, or a directory of reports alone")
    return directory


def _load(paths: Sequence[str], bounds: Bounds, ranges: Sequence[str], rates: Sequence[Rates]) -> list[Run]:
    """The runs, read and measured."""
    from tracer.analysis.compare import Run

    if len(ranges) not in (0, 1, len(paths)):
        raise UsageError(f"--range is given {len(ranges)} times for {len(paths)} runs; give it once, or once for each")
    if len(rates) not in (0, len(paths)):
        raise UsageError(f"--untraced-tokens-per-s is given {len(rates)} times for {len(paths)} runs; give it for each")
    within = ranges if len(ranges) == len(paths) else [next(iter(ranges), None)] * len(paths)
    parts = [_parts(text) for text in paths]
    twins = Counter(part.name for mine in parts for part in mine)
    runs = []
    for text, mine, each_within, each_rates in zip(paths, parts, within, rates or [()] * len(paths), strict=True):
        recordings = []
        for part in mine:
            name = printable(part.name if twins[part.name] == 1 else str(part))
            name = f"{name} · {each_within}" if len(ranges) > 1 else name
            recordings.append(_measure(part, name, each_within, bounds, each_rates))
        runs.append(Run.of(*recordings, place=printable(text)))
    return runs


def _parts(text: str) -> list[Path]:
    """The recordings of a run: a path, or several joined by commas."""
    return [Path(text)] if Path(text).exists() or "," not in text else [Path(part) for part in text.split(",")]


def _measure(path: Path, name: str, within: str | None, bounds: Bounds, rates: Rates) -> Recording:
    from tracer.analysis.recorded import measure

    try:
        trace, steps = load(path, within, bounds)
        return measure(trace, steps, name, within=within, untraced_tokens_per_s=rates)
    except TraceError as problem:
        text = str(problem)
        raise type(problem)(text if text.startswith(str(path)) else f"{path}: {text}") from None
