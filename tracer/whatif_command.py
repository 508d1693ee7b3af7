"""`intertoken whatif`: what a recording would have been with another strategy, without a sync, as one graph, ..."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracer import report
from tracer.commands import Bounds, emit, load, no_nan, trace_options, untraced_option
from tracer.errors import UsageError
from tracer.output import OR_FORCE, blaming_the_choice
from tracer.report import number
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.analysis.whatif.edits import Edit
    from tracer.analysis.whatif.prediction import Prediction
    from tracer.trace import Trace


def _positions(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in value.split(",")) if value else ()
    except ValueError:
        found = (0,)
    if any(position < 1 for position in found):
        raise click.BadParameter(f"{value!r} is not a list of positions such as 2,3 (1 is a step's first sync)")
    return found


def _scaled(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[tuple[str, float]]:
    found = []
    for value in values:
        pattern, equals, factor = value.rpartition("=")
        try:
            number = float(factor)
        except ValueError:
            equals = ""
        if not equals or not 0 <= number < 1e6:
            raise click.BadParameter(f"{value!r} is not REGEX=FACTOR, such as mul_mat=0.5")
        found.append((pattern, number))
    return found


@click.command()
@trace_options
@untraced_option
@click.option("--sync", "strategies", metavar="NAME,...", help="Another strategy: saaas, aaas, aaag or ggg.")
@click.option("--without-syncs", is_flag=True, help="Without all syncs that data flow does not need.")
@click.option(
    "--without-sync", "positions", metavar="N,...", callback=_positions,
    help="Without these syncs of every step (1 is its first); refused where data flow needs one.",
)  # fmt: skip
@click.option("--graph", "one_graph", is_flag=True, help="Kernels launched one by one as one graph launch.")
@click.option("--early-starts", is_flag=True, help="For --graph: its kernels begin early (programmatic launch).")
@click.option("--concurrent", is_flag=True, help="Independent kernels on several streams (runs with graph.json).")
@click.option("--streams", type=click.IntRange(2, 64), default=4, show_default=True, help="For --concurrent: at most.")
@click.option(
    "--learn-from", metavar="DIRECTORY", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="For --concurrent: what kernels on several streams lose and hide, learned from the runs below it that were "
    "made on one stream (with graph.json and node/) and, beside it, on several (--concurrency branches). The pair of "
    "TRACE itself is left out, so that no prediction is of what was learned. [default: numbers of an H200]",
)  # fmt: skip
@click.option(
    "--scale-kernels", "kernels", metavar="REGEX=F", multiple=True, callback=_scaled,
    help="Kernels of these names take F times as long.",
)  # fmt: skip
@click.option(
    "--scale-host", type=click.FloatRange(0, 1e6), callback=no_nan, metavar="F", help="Host code takes F times as long."
)
@click.option(
    "--sync-latency-us", type=click.FloatRange(-1e6, 1e6), callback=no_nan, metavar="X",
    help="Every sync returns X µs later (negative: earlier), as on another platform.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the new timeline, as OUTPUT's suffix says."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT.")
def whatif(
    path: Path, within: str | None, bounds: Bounds, as_json: bool, untraced_tokens_per_s: float | None,
    strategies: str | None, concurrent: bool, streams: int, learn_from: tuple[Path, ...], output: Path | None,
    force: bool, **different: Any,
) -> None:  # fmt: skip
    """What the recording would have been, had something been different.

    The recording is replayed: every call, kernel and copy begins when what it waited for has ended. Edits
    add up; several strategies are predicted one by one. A removal that would let the host or a stream read what
    is not there yet is refused.

    \b
    Examples:
      intertoken whatif runs/tiny-sccc-sequential --sync saaas,aaas,aaag,ggg
      intertoken whatif rep.sqlite --without-syncs --untraced-tokens-per-s 748.7
      intertoken whatif rep.sqlite --without-sync 14       does the last one cost anything?
      intertoken whatif rep.sqlite --scale-kernels 'mul_mat=0.5' -o faster.sqlite
      intertoken whatif runs/tiny-aaag-sequential --concurrent --learn-from runs
    """
    from tracer.analysis.causality.paths import Causality
    from tracer.analysis.whatif import edits, prediction
    from tracer.analysis.whatif.choice import edits_of
    from tracer.formats import write

    common = edits_of(**different)
    chosen = [name.strip() for name in strategies.split(",")] if strategies else []
    if not (common or chosen or concurrent):
        raise UsageError("nothing is different; give --sync, --without-syncs, --graph, ... (see --help)")
    if learn_from and not concurrent:
        raise UsageError("--learn-from is for --concurrent")
    if output is not None:
        _check_output(output, len(chosen), force)
    trace, steps = load(path, within, bounds)
    if concurrent:
        common.append(_concurrent(path, within, streams, learn_from, trace))
    variants = [[edits.Strategy(name), *common] for name in chosen] or [common]
    with report.working("replaying"):
        causality = Causality.of(trace)
        found = [prediction.predict(causality, steps, variant, untraced_tokens_per_s, within) for variant in variants]
    if output is not None:
        with report.working(f"writing {output}"), blaming_the_choice():
            write(found[0].trace, output, replace=force)
    rows = [_facts(one) for one in found]
    facts = {"schema": "intertoken.whatif/1", **rows[0], "steps": len(steps), "predictions": rows}
    emit(as_json, facts, _show, trace.notes)


def _check_output(output: Path, predictions: int, force: bool) -> None:
    from tracer.formats import check_writable

    if predictions > 1:
        raise UsageError("-o takes one prediction; give --sync one strategy")
    with blaming_the_choice():
        check_writable(output, replace=force, advice=OR_FORCE)


def _concurrent(path: Path, within: str | None, streams: int, learn_from: tuple[Path, ...], trace: Trace) -> Edit:
    """The edit, with the graph of the run and the pass that has its kernels."""
    from tracer import run_json, stream_pairs
    from tracer.analysis.steps import ALL_STEPS
    from tracer.analysis.whatif.learning import H200
    from tracer.analysis.whatif.streams import Concurrent
    from tracer.graph_json import GRAPH_FILE, read_graph

    graph, node_pass = path / GRAPH_FILE, path / stream_pairs.NODE_PASS
    if not graph.is_file():
        raise UsageError(
            f"{path}: has no {GRAPH_FILE}; a recording of one stream does not tell which kernels are independent"
        )
    node, steps = load(node_pass if node_pass.is_dir() else path, within, ALL_STEPS)
    learned = H200
    if learn_from:
        with report.working("learning from other runs"):
            learned = stream_pairs.learn_from(learn_from, run_json.configuration(trace), stream_pairs.gpu_of(trace))
    return Concurrent(read_graph(graph), node, steps, streams, learned)


def _facts(found: Prediction) -> dict[str, Any]:
    return {
        "edit": found.label,
        "speedup": asdict(found.speedup),
        "tokens_per_s": found.tokens_per_s,
        "gap_us": found.gap_us,
        "period_us": found.period_us,
        "recorded": {
            "tokens_per_s": found.base_tokens_per_s,
            "gap_us": found.base_gap_us,
            "period_us": found.base_period_us,
        },
        "base": found.base,
        "assumptions": found.notes,
    }


def _show(facts: dict[str, Any]) -> None:
    rows = [_row({"edit": "as recorded", **facts["recorded"]})]
    rows += [_row(one) for one in facts["predictions"]]
    headings = {"edit": "", "tokens_per_s": "tokens/s", "speedup": "speed-up [95 %]", "gap": "gap p50, µs"}
    report.show_table(rows, headings)
    for one in facts["predictions"]:
        if one["speedup"]["low"] < 1 < one["speedup"]["high"]:
            click.echo(f"  {spelled(one['edit'])}: no difference shown, the interval holds 1")
    for note in dict.fromkeys(note for one in facts["predictions"] for note in one["assumptions"]):
        click.echo(f"  {spelled(note)}")
    if facts["base"] != "measured":
        how = "what its profiler adds is estimated" if facts["base"] == "estimated" else "it is slowed by its profiler"
        click.echo(f"  of the recording {how}: give --untraced-tokens-per-s for the engine's own rate")


def _row(one: dict[str, Any]) -> dict[str, str]:
    speedup = one.get("speedup")
    return {
        "edit": one["edit"],
        "tokens_per_s": number(one["tokens_per_s"]),
        "speedup": f"{speedup['estimate']:.4f} [{speedup['low']:.3f}, {speedup['high']:.3f}]" if speedup else "1",
        "gap": number(one["gap_us"]["p50"]),
    }
