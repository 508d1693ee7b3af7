"""The `run` command."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from executor.run import Result

EXAMPLES = """
\b
Examples:
  intertoken run -o runs                                       every strategy, one stream
  intertoken run --sync sccc,ggg --concurrency sequential,branches -o runs
  intertoken run --backend sim --profile wddm --model llama-1.1b -o runs
  intertoken run --sync aaag --launch eager --batch 4 --json -o runs
  intertoken run --sync aaag --batch 32 --prompt 0,64,200 --kv unified -o runs
  intertoken run --gpu-layers 3 -o runs                        the first layers stay on the host
  intertoken run --model moe-tiny --experts copy -o runs
  intertoken run --devices 2 --prompt 200 --micro-batch 32 -o runs
"""


def _names(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Comma-separated names, each once."""
    return tuple(dict.fromkeys(name.strip() for name in (value or "").split(",") if name.strip()))


def _lengths(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int | tuple[int, ...]:
    """One number, or several with commas between them."""
    try:
        lengths = tuple(int(length) for length in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers") from None
    return lengths if len(lengths) > 1 else lengths[0]


def _list(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """What the options can be, instead of a run."""
    if value:
        from executor.choices import choices

        click.echo(json.dumps(choices(ctx.command)))
        ctx.exit()


@click.command(epilog=EXAMPLES)
@click.option(
    "--backend",
    default="cpu",
    show_default=True,
    help="Device: cpu, cuda, sim. sim computes nothing: it predicts times from a cost profile, in virtual time.",
)
@click.option(
    "--model", default="tiny", show_default=True,
    help="Model shape, with seeded random weights: tiny, qwen3-tiny, moe-tiny, gdn-tiny, llama-1.1b, llama-3b, "
    "llama-8b, qwen3-1.7b, qwen3-4b, moe-7b, gdn-2b, gdn-4b.",
)  # fmt: skip
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Cost profile of sim: h200-linux, wddm, hip, or what `calibrate` wrote.  [default: h200-linux]",
)
@click.option("--weights", help="Weight format: f32, f16 or q8_0.  [default: the model's]")
@click.option("--context", type=click.IntRange(1), help="The most tokens of a sequence.  [default: the model's]")
@click.option(
    "--sync", "strategies", metavar="NAME,...", callback=_names,
    help="Synchronisation strategies: sccc, saaas, aaas, aaag, aaeg, aga, ggg.  [default: all that fit]",
)  # fmt: skip
@click.option(
    "--concurrency", metavar="MODE,...", callback=_names, default="sequential", show_default=True,
    help="Streams inside a token: sequential, branches, subgraphs.",
)  # fmt: skip
@click.option(
    "--allocator",
    help="sequential, interleaved, no_alloc_free, stream_aware.  [default: what the concurrency mode needs]",
)
@click.option("--allow-hazards", is_flag=True, help="Run plans in which streams race for bytes; others are refused.")
@click.option(
    "--launch", default="graph", show_default=True,
    help="graph: one call per step; rebuild: the same, built anew for every step; eager: one call per kernel.",
)  # fmt: skip
@click.option(
    "--fusion/--no-fusion", default=None, help="Fuse chains of nodes into kernels.  [default: on cuda and sim]"
)
@click.option(
    "--sampling", default="host", show_default=True,
    help="host: fetch logits, take the greatest; device: sample in the graph, fetch tokens.",
)  # fmt: skip
@click.option(
    "--gpu-layers", type=click.IntRange(0),
    help="How many of the last layers the backend gets, the output being one; the others stay on the host.  "
    "[default: all]",
)  # fmt: skip
@click.option(
    "--experts",
    default="device",
    show_default=True,
    help="device; cpu: they stay on the host; copy: only their weights do.",
)
@click.option(
    "--staging/--no-staging", default=True, show_default=True,
    help="Whether asynchronous copies read staging memory, or the host's own, which it must not overwrite meanwhile.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1),
    help="Threads that compute the products of cpu and of the host.  [default: one per core, less one of many]",
)  # fmt: skip
@click.option(
    "--pinned/--not-pinned", default=False, show_default=True, help="Whether these threads stay on cores of their own."
)
@click.option("--devices", type=click.IntRange(1), default=1, show_default=True, help="Devices that share the layers.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Independent sequences.")
@click.option(
    "--prompt", metavar="N,...", callback=_lengths, default="0", show_default=True,
    help="Tokens of each sequence before the first token step; of several lengths each sequence takes the next.",
)  # fmt: skip
@click.option(
    "--micro-batch",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="The most prompt tokens of a step, or one of each sequence if these are more.",
)
@click.option("--shared-prompt", is_flag=True, help="All sequences have the same prompt, which is computed once.")
@click.option(
    "--kv", default="streams", show_default=True,
    help="KV cache: streams (one per sequence) or unified (one for all, masked).",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), default=32, show_default=True, help="Token steps per repeat.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Repeats, interleaved.")
@click.option("--warmup", type=click.IntRange(0), default=4, show_default=True, help="Steps before the first repeat.")
@click.option(
    "--passes", metavar="NAME,...", callback=_names,
    help="light, graph, node: without a profiler, then under CUPTI at either level.  [default: all the backend has]",
)  # fmt: skip
@click.option(
    "--trace-kinds", default="lean", show_default=True, type=click.Choice(["lean", "all"]),
    help="What the traced passes record: lean is kernels, graphs and API calls; all adds copies, syncs, events.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and first tokens.")
@click.option(
    "-o", "--output", "runs", metavar="RUNS_DIR", required=True,
    type=click.Path(file_okay=False, path_type=Path), help="Gets one run directory per combination.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace run directories that exist.")
@click.option(
    "--progress", type=click.Choice(["bar", "json", "none"]), default="bar", show_default=True,
    help="How far it is, on stderr: a bar if that is a terminal, or a JSON object per line.",
)  # fmt: skip
@click.option("--dry-run", "plans", is_flag=True, help="Only plan and name the runs; refuses what a run would refuse.")
@click.option(
    "--choices", "lists", is_flag=True, is_eager=True, expose_value=False, callback=_list,
    help="Print what the options can be, and what this machine lacks, as one JSON object.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(
    strategies: tuple[str, ...],
    concurrency: tuple[str, ...],
    passes: tuple[str, ...],
    trace_kinds: str,
    runs: Path,
    force: bool,
    progress: str,
    plans: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a decode loop under every combination of strategy and concurrency mode, and record each.

    Repeats are interleaved: the first of every combination, then the second, so that drift hits all alike.
    """
    from executor.configuration import Configuration, combinations, fitting_strategies
    from executor.passes import chosen_passes, pass_figures, record_traced
    from executor.progress import metered, units_of
    from executor.run import execute, prepare_configuration
    from executor.run_directory import check_runs, write_run

    base = Configuration(**options)
    chosen = combinations(base, strategies or fitting_strategies(base), concurrency or ("sequential",))
    check_runs(runs, chosen, replace=force)
    traced = chosen_passes(options["backend"], passes)
    if plans:
        for configuration in chosen:
            prepare_configuration(configuration)
        names = [c.name for c in chosen]
        click.echo(json.dumps({"schema": "intertoken.plan/1", "runs": names}) if as_json else "\n".join(names))
        return
    figures = []
    how = "none" if as_json and progress == "bar" else progress
    with metered(how, units_of(chosen, len(traced)), len(chosen)) as meter:
        results = execute(chosen, progress=meter.advance)
        written = [write_run(result, runs, replace=force) for result in results]
        for result, path in zip(results, written, strict=True):
            if traced:
                of_passes = record_traced(result.configuration, path, traced, kinds=trace_kinds, progress=meter.advance)
            else:
                of_passes = {"light": pass_figures(result.trace)}
            figures.append(of_passes)
            meter.finish(path.name)
    if as_json:
        click.echo(json.dumps(_as_json(results, written, figures)))
    else:
        _show(results, figures, runs)


def _as_json(results: list[Result], written: list[Path], figures: list[dict[str, Any]]) -> dict[str, Any]:
    from executor.describe import measured, plan_facts

    return {
        "schema": "intertoken.runs/1",
        "runs": [
            {
                "path": str(path),
                "configuration": asdict(r.configuration) | {"allocator": r.prepared.allocator},
                "measured": measured(r),
                "passes": passes,
                "plan": plan_facts(r.prepared),
            }
            for r, path, passes in zip(results, written, figures, strict=True)
        ],
    }


def _show(results: list[Result], figures: list[dict[str, Any]], runs: Path) -> None:
    """A table: rates with their spread, speed-up over the first row, gap, distortion of the traced passes, plan."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from executor.describe import measured, plan_facts

    traced = [name for name in figures[0] if name != "light"]
    headings = [
        "tokens/s",
        "low-high",
        "speed-up",
        "gap µs",
        *(f"{name} ×" for name in traced),
        "streams",
        "buffer KiB",
    ]
    table = Table("run", *headings, box=SIMPLE, padding=(0, 0, 0, 1))
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    base = measured(results[0])["tokens_per_s"]["median"]
    for result, passes in zip(results, figures, strict=True):
        rate, plan = measured(result)["tokens_per_s"], plan_facts(result.prepared)
        table.add_row(
            result.configuration.name, f"{rate['median']:.1f}", f"{rate['low']:.0f}-{rate['high']:.0f}",
            f"{rate['median'] / base:.3f}", _figure(passes["light"].get("gap_us", {}).get("p50"), 1),
            *(_figure(passes[name].get("distortion"), 2) for name in traced),
            str(plan["streams"]), f"{plan['peak_bytes'] / 1024:.1f}",
        )  # fmt: skip
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    if traced:
        console.print("×: period of that traced pass / period of the light pass", style="dim", highlight=False)
    console.print(f"{len(results)} run directories in {runs}", highlight=False, markup=False)


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
