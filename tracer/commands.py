"""The commands that read recordings: info, tokens, syncs, gaps, streams, convert.

Each prints a table for people, or with --json one object whose `schema` key names its form; --table writes the rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from tracer import report
from tracer.analysis.steps import Bounds as Bounds
from tracer.engines.engine import PHASES
from tracer.errors import TraceError, UnsafePlanError, printable
from tracer.output import OR_FORCE
from tracer.tables import Save, table_option

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.tokens import Steps
    from tracer.trace import Trace

Command = TypeVar("Command", bound=Callable[..., Any])


def parse_slice(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """`A:B` as two ints, either may be left out."""
    first, colon, last = (value or ":").partition(":")
    try:
        bounds = (int(first) if first else None, int(last) if last else None)
    except ValueError:
        colon = ""
    if not colon:
        raise click.BadParameter(f"{value!r} is not A:B (such as 5:20, :10 or -8:)")
    return bounds


def trace_options(command: Command) -> Command:
    """TRACE, the options that say which steps, and --json, which every analysis takes."""
    command = step_options(_naming_the_file(command))
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
        click.option("--range", "within", metavar="TEXT", help="Only inside the NVTX ranges of that text (or regex)."),
        click.argument("path", metavar="TRACE", type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def step_options(command: Command) -> Command:
    """--steps, --phase and --pattern, which the command gets as `bounds`."""
    command = _bounded(command)
    for option in (
        click.option("--steps", "part", callback=parse_slice, metavar="A:B", help="Only steps A to B-1."),
        click.option(
            "--phase", type=click.Choice([*PHASES, "all"]), metavar="PHASE",
            help=f"Only steps of this phase: {', '.join(PHASES)} or all. [default: decode, or all where there is none]",
        ),
        click.option(
            "--pattern", metavar="REGEX",
            help="What begins a step: NVTX ranges of such a text, else API calls or kernels of such a name.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _bounded(command: Command) -> Command:
    """Gather --steps, --phase and --pattern as the one argument `bounds`."""

    @wraps(command)
    def bounded(part: tuple[int | None, int | None], phase: str | None, pattern: str | None, **options: Any) -> None:
        command(bounds=Bounds(*part, phase, pattern), **options)

    return cast(Command, bounded)


def no_nan(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """What `click.FloatRange` lets through."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number")
    return value


untraced_option = click.option(
    "--untraced-tokens-per-s", type=click.FloatRange(1e-3, 1e9), callback=no_nan, metavar="X",
    help="Token steps per second by the engine's own benchmark, without a profiler: corrects the gap.",
)  # fmt: skip


def _naming_the_file(command: Command) -> Command:
    """Let every error that a recording causes begin with its path."""

    @wraps(command)
    def named(path: Path, **options: Any) -> None:
        try:
            command(path=path, **options)
        except (TraceError, UnsafePlanError) as problem:
            text = str(problem)
            raise type(problem)(text if text.startswith(str(path)) else f"{path}: {text}") from None

    return cast(Command, named)


def load(path: Path, within: str | None, bounds: Bounds) -> tuple[Trace, Steps]:
    """The trace and the chosen token steps; what must be known about these is added to its notes."""
    from tracer.analysis.tokens import choose_steps
    from tracer.formats import read

    with report.reading(path):
        trace = read(path, whole=False)
    steps = choose_steps(trace, within, bounds)
    trace.notes += steps.notes
    return trace, steps


def emit(as_json: bool, facts: dict[str, Any], show: Callable[[dict[str, Any]], None], notes: list[str]) -> None:
    """Print the facts as JSON or through `show`; notes (doubts, partial results) go to stderr before."""
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)
    if as_json:
        click.echo(json.dumps(facts | ({"notes": notes} if notes else {})).replace("\x7f", "\\u007f"))
    else:
        show(facts)


@click.command()
@trace_options
def info(path: Path, within: str | None, bounds: Bounds, as_json: bool) -> None:
    """What a recording holds: source, devices, events, token steps, and the main figures.

    Also for a recording without kernels or token steps, which the other commands refuse.
    """
    from tracer.analysis.summary import analyse
    from tracer.formats import read

    with report.reading(path):
        trace = read(path, whole=False)
    start, end = trace.span
    found = analyse(trace, path.name, within, bounds)
    facts = {
        "schema": "intertoken.info/1",
        "duration_ms": (end - start) / 1e6,
        "events": {name: len(frame) for name, frame in trace.tables.items() if "start" in frame},
        **asdict(found.summary),
    }
    emit(as_json, facts, report.show_info, [*(found.steps.notes if found.steps else []), *trace.notes])


@click.command()
@trace_options
@table_option(
    "one row per step and device that computes for it: step, process, thread, group, phase, device, and in ns "
    "start and end on the host, start_compute and end_compute there"
)
def tokens(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """The token steps, how they were found, and how sure that is.

    \b
    Examples:
      intertoken tokens rep.sqlite --phase all           prefill steps as well
      intertoken tokens rep.sqlite --pattern embedding   a step begins with each launch of such a kernel
    """
    from tracer.analysis.step_work import step_spans

    trace, steps = load(path, within, bounds)
    spans = step_spans(trace, steps)
    table = steps.table.merge(
        spans[["step", "device", "start", "end"]], on="step", how="left", suffixes=("", "_compute")
    ).astype({"device": "Int64", "start_compute": "Int64", "end_compute": "Int64"})
    save(table)
    facts = {
        "schema": "intertoken.tokens/1",
        "steps": len(steps),
        "token_source": steps.source,
        "detail": steps.detail,
        "confidence": steps.confidence,
        "prefill_steps": steps.prefills,
        "what": steps.what,
        "phases": steps.phases,
        "regimes": [asdict(regime) for regime in steps.regimes],
        "regime": asdict(steps.regime) if steps.regime else None,
        "steps_per_s": steps.steps_per_s,
        "table": json.loads(table.to_json(orient="records")),
    }
    emit(as_json, facts, report.show_tokens, trace.notes)


@click.command()
@trace_options
@table_option(
    "one row per wait of a step, its syncs in their order, then blocking copies and polling loops: what, position, "
    "name, stream, steps (that have it), median_us, max_us, waiting_share (of the steps in which the device was still "
    "busy), queries, waits_for"
)
def syncs(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """Which host synchronisations, copies and launches a token makes, and how far the host runs ahead.

    \b
    Example:
      intertoken syncs llama1b-sccc-node.sqlite        class sccc, 14 syncs per token
    """
    from tracer.analysis.syncs import sync_report

    trace, steps = load(path, within, bounds)
    found = sync_report(trace, steps)
    inventory = found.inventory()
    save(inventory)
    facts = {
        "schema": "intertoken.syncs/1",
        "class": found.strategy if steps.decodes else None,
        "share": found.share if steps.decodes else None,
        "signature": found.signature,
        "signature_share": found.signature_share,
        "steps": len(steps),
        "syncs_per_token": found.syncs_per_token,
        "copies_per_token": found.copies_per_token,
        "launches_per_token": found.launches_per_token,
        "blocking_copies_per_token": found.blocking_copies_per_token,
        "polls_per_token": found.polls_per_token,
        "fetch_lag": asdict(found.fetch_lag) if found.fetch_lag else None,
        "token_source": steps.source,
        "inventory": json.loads(inventory.to_json(orient="records")),
    }
    emit(as_json, facts, report.show_syncs, trace.notes)


@click.command()
@trace_options
@untraced_option
@table_option(
    "one row per gap, as recorded: the step before it, device, and in ns start, end, gap, its causes communication, "
    "sync, copy, launch, host and other (process or thread), which add up to gap, and the parts of each, as sync_wait; "
    "calls counts the CUDA calls in it, graph_launch is 1 where a CUDA graph ends it"
)
@click.option("--bubbles", "inside", is_flag=True, help="Also the idle time inside the steps, and of each stream.")
def gaps(
    path: Path,
    within: str | None,
    bounds: Bounds,
    as_json: bool,
    untraced_tokens_per_s: float | None,
    save: Save,
    inside: bool,
) -> None:
    """How long the device idles in a step and between two, and what the time between is made of.

    A profiler lengthens what it shows. With the engine's own rate, measured without one, the idle time and the gap are
    corrected; without it no recording tells them.

    \b
    Examples:
      intertoken gaps llama1b-sccc-graph.sqlite --untraced-tokens-per-s 748.7
      intertoken gaps llama1b-sccc-node.sqlite --bubbles
    """
    from tracer.analysis.bubbles import bubble_report
    from tracer.analysis.causes import present
    from tracer.analysis.gaps import gap_report, measured_rate
    from tracer.gaps_report import idle_facts, show_gaps

    trace, steps = load(path, within, bounds)
    found = gap_report(trace, steps, untraced_tokens_per_s or measured_rate(trace, steps, within))
    save(found.table)
    shown = found.corrected() if untraced_tokens_per_s else found
    facts = {
        "schema": "intertoken.gaps/1",
        **idle_facts(found),
        "gap_us": shown.gap_us,
        "causes_us": present(shown.causes_us),
        "parts_us": {cause: shown.parts_us[cause] for cause in present(shown.causes_us)},
        "steps": len(steps),
        "gaps": len(found.table),
        "steps_per_s": steps.steps_per_s,
        "graph_trace": found.graph_trace,
        "distortion": found.distortion,
        "period_us": found.period_us,
        "compute_us": found.compute_us,
        "traced_gap_us": found.gap_us,
        "untraced_gap_us": found.untraced_gap_us,
        "estimated_untraced_gap_us": asdict(found.estimated) if found.estimated else None,
        "token_source": steps.source,
        "warning": shown.warning,
    }
    facts |= {"bubbles": bubble_report(trace, steps).records()} if inside else {}
    facts |= _rank_facts(trace, steps, found.table)
    unused = ["nothing was traced, so --untraced-tokens-per-s changes nothing"] if found.warning is None else []
    emit(as_json, facts, show_gaps, trace.notes + (unused if untraced_tokens_per_s else []))


@click.command()
@trace_options
@table_option(
    "one row per stream: device, process, stream, kernels, copies, bytes (copied), busy_us, compute_us, "
    "communication_us, busy_share"
)
def streams(path: Path, within: str | None, bounds: Bounds, as_json: bool, save: Save) -> None:
    """How busy each stream is, and how much streams overlap."""
    from tracer.analysis.streams import stream_report

    trace, steps = load(path, within, bounds)
    found = stream_report(trace, steps)
    save(found.streams)
    facts = {
        "schema": "intertoken.streams/1",
        "steps": len(steps),
        "streams": json.loads(found.streams.to_json(orient="records")),
        "devices": json.loads(found.devices.to_json(orient="records")),
    }
    facts |= _rank_facts(trace, steps)
    emit(as_json, facts, report.show_streams, trace.notes)


def _rank_facts(trace: Trace, steps: Steps, gaps: pd.DataFrame | None = None) -> dict[str, Any]:
    """What `gaps` and `streams` say of ranks, where there are several or any communication; adds to the notes."""
    from tracer.analysis.ranks import gaps_of, has_ranks, rank_report

    if not has_ranks(trace, steps):
        return {}
    found = rank_report(trace, steps)
    trace.notes += found.notes
    records = found.records(None if gaps is None else gaps_of(gaps, steps))
    each = [row["communication_us"] for row in records["ranks"] if row["collectives_us"]]
    return records | ({"communication_us": sum(each) / len(each)} if each else {})


class _NamingTheFormats(click.Command):
    """A command whose help ends with the formats that can be written."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tracer.formats import registered

        with formatter.section("Formats"):
            formatter.write_dl(
                [(", ".join(filter(None, f.suffixes)) or "none", f.name) for f in registered() if f.write is not None]
            )


@click.command(cls=_NamingTheFormats)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace OUT, once the new recording is complete.")
@click.option(
    "--python-functions", is_flag=True, help="Keep the Python functions of a PyTorch trace (with_stack=True)."
)
def convert(source: Path, target: Path, force: bool, python_functions: bool) -> None:
    """Write a recording in another format, chosen by OUT's suffix; IN may be of any, judged by its content.

    \b
    Examples:
      intertoken convert rep.nsys-rep rep.sqlite       for nsys stats, nsys analyze and our commands
      intertoken convert rep.sqlite rep.json.gz        for chrome://tracing, Perfetto, HolisticTraceAnalysis
      intertoken convert trace.json.gz trace           a parquetdir, our native form
      touch x.nsys-rep && intertoken convert runs/tiny-aaag-sequential x_pqtdir
                                                       for nsys recipe NAME --input x.nsys-rep

    It never overwrites without --force, and OUT appears whole or not at all. What a format has no place
    for is listed.
    """
    from tracer.formats import beside, check_writable, read, write

    check_writable(target, replace=force, advice=OR_FORCE)
    with report.reading(source):
        trace = read(source, python_functions=python_functions)
    others = ", ".join(path.name for path in beside(source))
    with report.working(f"writing {target}"):
        notes = write(trace, target, replace=force)
    notes += [f"left out is what stands beside the recording: {others}"] if others else []
    emit(False, {"events": len(trace), "target": str(target)}, report.show_converted, trace.notes + notes)
