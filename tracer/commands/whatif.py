"""Predict the rate with other syncs, copies, launches or kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracer.command_options import Bounds, emit, load, no_nan, trace_options, untraced_option
from tracer.errors import UsageError
from tracer.files.output import OR_FORCE, blaming_the_choice
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.text import spelled

MARGIN: Final = "model margin"

_ROWS: Final = {
    "tokens_per_s": "tokens/s", "steps_per_s": "steps/s", "period_us": "token to token, µs",
    "idle_us": "idle a step p50, µs", "gap_us": "gap p50, µs", "speed-up": "speed-up", "margin": MARGIN,
}  # fmt: skip
"""Key of a prediction -> label of its row."""

if TYPE_CHECKING:
    from tracer.whatif.prediction import Prediction


def _positions(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        positions = tuple(int(part) for part in value.split(",")) if value else ()
    except ValueError:
        positions = (0,)
    if any(position < 1 for position in positions):
        raise click.BadParameter(f"{value!r} is not a list of positions such as 2,3 (1 is a step's first sync)")
    return positions


def _scaled(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> list[tuple[str, float]]:
    scaled = []
    for value in values:
        pattern, equals, factor = value.rpartition("=")
        try:
            number = float(factor)
        except ValueError:
            equals = ""
        if not equals or not 0 <= number < 1e6:
            raise click.BadParameter(f"{value!r} is not REGEX=FACTOR, such as mul_mat=0.5")
        scaled.append((pattern, number))
    return scaled


@click.command()
@trace_options
@untraced_option
@click.option("--sync", "strategies", metavar="NAME,...", help="Use another strategy: saaas, aaas, aaag or ggg.")
@click.option("--without-syncs", is_flag=True, help="Remove all syncs that data flow does not need.")
@click.option(
    "--without-sync", "positions", metavar="N,...", callback=_positions,
    help="Remove these syncs from every step (1 is the first); refused if data flow needs one.",
)  # fmt: skip
@click.option("--graph", "one_graph", is_flag=True, help="Launch individually launched kernels as one CUDA graph.")
@click.option("--early-starts", is_flag=True, help="For --graph: kernels start early (programmatic launch).")
@click.option("--eager-into-graph", is_flag=True, help="Move kernels launched one by one outside a CUDA graph into it.")
@click.option("--merge-copies", is_flag=True, help="Merge the copies before each launch into one.")
@click.option("--launch-first", is_flag=True, help="Run the host code that precedes a step's launch after it.")
@click.option("--copies-behind", is_flag=True, help="Enqueue known inputs after the launch of the previous step.")
@click.option("--read-later", is_flag=True, help="Sample on the device, and read each result a step later.")
@click.option(
    "--scale-kernels", "kernels", metavar="REGEX=F", multiple=True, callback=_scaled,
    help="Multiply the duration of kernels with matching names by F.",
)  # fmt: skip
@click.option("--scale-host", type=click.FloatRange(0, 1e6), callback=no_nan, metavar="F",
              help="Multiply the time of host code by F.")  # fmt: skip
@click.option(
    "--scale-host-compute", type=click.FloatRange(0, 1e6), callback=no_nan, metavar="F",
    help="Multiply the time of the products and attention that the host computes (layers or experts on it) by F.",
)  # fmt: skip
@click.option(
    "--sync-latency-us", type=click.FloatRange(-1e6, 1e6), callback=no_nan, metavar="X",
    help="Let every sync return X µs later (negative: earlier), as on another platform.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the predicted timeline in the format of the suffix."
)
@click.option("--force", is_flag=True, help="Replace OUTPUT.")
def whatif(
    path: Path, within: str | None, bounds: Bounds, as_json: bool, untraced_steps_per_s: float | None,
    strategies: str | None, output: Path | None, force: bool, **different: Any,
) -> None:  # fmt: skip
    """Predict the recording with changes to its syncs, launches, kernels or host code.

    The recording is replayed: every call, kernel and copy starts when what it waited for has ended. Edits are
    combined; several strategies are predicted separately. Removing a sync is refused if the host or a stream
    would then read data that has not arrived yet.

    \b
    Examples:
      intertoken whatif runs/tiny-sccc-sequential --sync saaas,aaas,aaag,ggg
      intertoken whatif rep.sqlite --without-syncs --untraced-tokens-per-s 748.7
      intertoken whatif rep.sqlite --without-sync 14       does the last sync cost anything?
      intertoken whatif rep.sqlite --scale-kernels 'mul_mat=0.5' -o faster.sqlite
    """
    from tracer.analysis.path.paths import Causality
    from tracer.reporting.exports import write
    from tracer.whatif.base import Base
    from tracer.whatif.edits import FollowStrategy, edits_of
    from tracer.whatif.prediction import predict

    common = edits_of(**different)
    chosen = [name.strip() for name in strategies.split(",")] if strategies else []
    if not (common or chosen):
        raise UsageError("no change given; use --sync, --without-syncs, --graph, ... (see --help)")
    if output is not None:
        _check_output(output, len(chosen), force)
    recording = load(path, within, bounds, untraced_steps_per_s)
    variants = [[FollowStrategy(name), *common] for name in chosen] or [common]
    with report.working("replaying"):
        base = Base.of(Causality.of(recording.trace), recording)
        predictions = [predict(base, variant) for variant in variants]
    if output is not None:
        with report.working(f"writing {output}"), blaming_the_choice():
            write(predictions[0].trace, output, replace=force)
    rows = [_facts(one) for one in predictions]
    facts = {"schema": "intertoken.whatif/1", **rows[0], "steps": len(recording.steps), "predictions": rows}
    emit(as_json, facts, _show, recording.notes)


def _check_output(output: Path, predictions: int, force: bool) -> None:
    from tracer.formats import check_writable

    if predictions > 1:
        raise UsageError("-o writes one prediction; give --sync only one strategy")
    with blaming_the_choice():
        check_writable(output, replace=force, advice=OR_FORCE)


def _facts(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON; figures of the engine are null if only the engine under its profiler was predicted."""
    of_engine = prediction.of_engine
    return {
        "edit": prediction.label,
        "speedup": of_engine and asdict(of_engine),
        "bounds": MARGIN,
        "tokens_per_s": of_engine and prediction.predicted.tokens_per_s,
        "steps_per_s": of_engine and prediction.predicted.steps_per_s,
        "period_us": prediction.predicted.period_us,
        "idle_us": prediction.predicted.idle_us,
        "gap_us": prediction.predicted.gap_us,
        "recorded": asdict(prediction.recorded),
        "corrected": prediction.corrected and asdict(prediction.corrected),
        "base": "traced" if of_engine is None else "measured",
        "assumptions": prediction.notes,
    }


def _show(facts: dict[str, Any]) -> None:
    columns = {"as recorded": facts["recorded"], "corrected": facts["corrected"]}
    columns = {name: figures for name, figures in columns.items() if figures}
    before = list(columns)[-1]
    under = "" if facts["speedup"] else ", still under the profiler"
    predictions = {f"{one['edit']}{under}": one for one in facts["predictions"]}
    unknown = "steps_per_s" if facts["recorded"]["tokens_per_s"] is not None else "tokens_per_s"
    rows = [
        {"": heading, **{name: _cell(one, key) for name, one in (columns | predictions).items()}}
        for key, heading in _ROWS.items()
        if key != unknown
    ]
    rows[-2] |= {before: "1"}
    for name, one in predictions.items():
        speedup = one["speedup"]
        rows[-2][name] = f"{speedup['estimate']:.4f}" if speedup else "withheld"
        known = speedup and speedup["low"] is not None
        rows[-1][name] = f"{speedup['low']:.3f} to {speedup['high']:.3f}" if known else "–"
    report.show_table(rows, {name: name for name in rows[0]})
    for one in facts["predictions"]:
        if one["speedup"] and one["speedup"]["low"] is not None and one["speedup"]["low"] < 1 < one["speedup"]["high"]:
            click.echo(f"  {spelled(one['edit'])}: no difference shown, the margin includes 1")
    for note in dict.fromkeys(note for one in facts["predictions"] for note in one["assumptions"]):
        click.echo(f"  {spelled(note)}")
    if not facts["speedup"]:
        from tracer.whatif.prediction import WITHOUT_RATE

        click.echo(f"  {WITHOUT_RATE}")


def _cell(one: dict[str, Any], key: str) -> str:
    value = one.get(key)
    value = value.get("p50") if isinstance(value, dict) else value
    return "–" if value is None else number(value)
