"""The `run` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from executor.run import Result

EXAMPLES = """
\b
Examples:
  intertoken run -o runs                                       all strategies, one stream
  intertoken run --sync sccc,ggg --concurrency sequential,branches -o runs
  intertoken run --backend sim --profile wddm --model llama-1.1b -o runs
  intertoken run --sync aaag --launch eager --batch 4 --json -o runs
  intertoken run --sync aaag --batch 32 --prompt 0,64,200 --kv unified -o runs
  intertoken run --gpu-layers 3 -o runs                        the first layers stay on the host
  intertoken run --model moe-tiny --experts copy -o runs
  intertoken run --devices 2 --prompt 200 --micro-batch 32 -o runs
"""


class _Named(click.Option):
    """An option whose help has the names of its table for `{}`; the tables are imported when somebody asks for help."""

    @property
    def help(self) -> str:
        """The text with the names."""
        from executor.backends import BACKENDS
        from executor.backends.sim.profiles import SHIPPED
        from executor.graph.models import MODELS
        from executor.planning.allocator import ALLOCATORS
        from executor.planning.concurrency import MODES
        from executor.scheduling.strategies import STRATEGIES

        names: dict[str | None, Collection[str]] = {
            "backend": BACKENDS, "model": MODELS, "profile": SHIPPED, "strategies": STRATEGIES, "concurrency": MODES,
            "allocator": ALLOCATORS,
        }  # fmt: skip
        return self._text.format(", ".join(names[self.name]))

    @help.setter
    def help(self, text: str) -> None:
        self._text = text


def _names(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse comma-separated names, dropping duplicates."""
    return tuple(dict.fromkeys(name.strip() for name in (value or "").split(",") if name.strip()))


def _lengths(_ctx: click.Context, _parameter: click.Parameter, value: str) -> int | tuple[int, ...]:
    """Parse one number, or several separated by commas."""
    try:
        lengths = tuple(int(length) for length in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number nor numbers separated by commas") from None
    return lengths if len(lengths) > 1 else lengths[0]


@contextmanager
def _progress(units: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on stderr, if that is a terminal; what it yields counts one more of the units as completed."""
    if not (is_shown and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=units)
        yield lambda: bar.advance(task)


@click.command(epilog=EXAMPLES, context_settings={"show_default": True})
@click.option(
    "--backend", cls=_Named, default="cpu",
    help="Device: {}. sim computes nothing: it predicts times from a cost profile, in virtual time.",
)  # fmt: skip
@click.option("--model", cls=_Named, default="tiny", help="Model shape, with seeded random weights: {}.")
@click.option(
    "--profile", cls=_Named, metavar="NAME|FILE",
    help="Cost profile of sim: {}, or a JSON file of your own.  [default: h200-linux]",
)  # fmt: skip
@click.option("--weights", help="Weight format: f32, f16 or q8_0.  [default: the model's]")
@click.option("--context", type=click.IntRange(1), help="Maximum tokens per sequence.  [default: the model's]")
@click.option(
    "--sync", "strategies", cls=_Named, metavar="NAME,...", callback=_names,
    help="Synchronisation strategies: {}.  [default: all that are safe]",
)  # fmt: skip
@click.option(
    "--concurrency", cls=_Named, metavar="MODE,...", callback=_names, default="sequential",
    help="Streams inside a token: {}.",
)  # fmt: skip
@click.option("--allocator", cls=_Named, help="{}.  [default: that of the concurrency mode]")
@click.option(
    "--allow-hazards", "--unsafe", "allow_hazards", is_flag=True,
    help="Run what has data races, with a warning and a note in the recording; default: refuse.",
)  # fmt: skip
@click.option(
    "--launch", default="graph",
    help="graph: one call per step; rebuild: the same, rebuilt for every step; eager: one call per kernel.",
)  # fmt: skip
@click.option(
    "--fusion/--no-fusion", default=None, help="Fuse chains of nodes into kernels.  [default: on cuda and sim]"
)
@click.option(
    "--sampling", default="host",
    help="host: fetch the logits and take the largest; device: sample in the graph and fetch the tokens.",
)  # fmt: skip
@click.option(
    "--gpu-layers", type=click.IntRange(0),
    help="Number of layers on the backend, counted from the last, including the output; the others stay on the host, "
    "with 0 all of them.  [default: all]",
)  # fmt: skip
@click.option(
    "--experts", default="device",
    help="Place of the experts. device; cpu: on the host; copy: weights on the host, computed on the device.",
)  # fmt: skip
@click.option(
    "--staging/--no-staging", default=True,
    help="Whether asynchronous copies read staging memory, or the host's own, which must not change until they end.",
)  # fmt: skip
@click.option(
    "--halves/--no-halves", default=False,
    help="Whether each token step is run in two halves of its sequences, so that host and device compute concurrently.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1),
    help="Threads for matrix products on cpu and on the host.  [default: one per core, minus one above 4 cores]",
)  # fmt: skip
@click.option("--pinned/--not-pinned", default=False, help="Whether each of these threads has its own core.")
@click.option("--devices", type=click.IntRange(1), default=1, help="Devices that share the layers.")
@click.option("--batch", type=click.IntRange(1), default=1, help="Independent sequences.")
@click.option(
    "--prompt", metavar="N,...", callback=_lengths, default="0",
    help="Prompt tokens per sequence. Several lengths are assigned to the sequences in turn.",
)  # fmt: skip
@click.option(
    "--micro-batch", type=click.IntRange(1), default=512,
    help="Maximum prompt tokens per step, but at least one per sequence.",
)  # fmt: skip
@click.option("--shared-prompt", is_flag=True, help="Give all sequences the same prompt, computed once.")
@click.option("--kv", default="streams", help="KV cache: streams (one per sequence) or unified (one for all, masked).")
@click.option("--tokens", type=click.IntRange(1), default=32, help="Token steps per repeat.")
@click.option("--repeats", type=click.IntRange(1), default=3, help="Repeats, interleaved.")
@click.option("--warmup", type=click.IntRange(0), default=4, help="Steps before the first repeat.")
@click.option(
    "--passes", metavar="NAME,...", callback=_names,
    help="light (no profiler), graph and node (CUPTI at that level).  [default: all that the backend has]",
)  # fmt: skip
@click.option(
    "--trace-kinds", default="lean", type=click.Choice(["lean", "all"]),
    help="Contents of the traced passes: lean is kernels, graphs and API calls; all adds copies, syncs and events.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of weights and first tokens.")
@click.option(
    "-o", "--output", "runs", metavar="RUNS_DIR", required=True,
    type=click.Path(file_okay=False, path_type=Path), help="Directory that receives one run directory per combination.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace existing run directories.")
@click.option("--dry-run", "plans", is_flag=True, help="Only plan, check and name the runs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(
    strategies: tuple[str, ...], concurrency: tuple[str, ...], passes: tuple[str, ...], trace_kinds: str, runs: Path,
    force: bool, plans: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Run and record a decode loop for every combination of strategy and concurrency mode.

    Repeats are interleaved: the first of every combination, then the second, so that drift affects all equally.
    """
    from executor.run import plan_configuration
    from executor.run.configuration import Configuration, combinations, fitting_strategies
    from executor.run.directory import check_runs, write_run
    from executor.run.light_pass import record_light
    from executor.run.passes import chosen_passes, pass_figures, record_traced

    base = Configuration(**options)
    chosen = combinations(base, strategies or fitting_strategies(base), concurrency or ("sequential",))
    check_runs(runs, chosen, replace=force)
    traced = chosen_passes(base, passes)
    if plans or base.allow_hazards:
        for configuration in chosen:
            for reason in plan_configuration(configuration).races:
                click.echo(f"warning: {configuration.name}: {reason}", err=True)
    if plans:
        names = [c.name for c in chosen]
        click.echo(json.dumps({"schema": "intertoken.plan/1", "runs": names}) if as_json else "\n".join(names))
        return
    figures = []
    units = sum(1 + configuration.repeats + len(traced) for configuration in chosen)  # the first is the warm-up
    with _progress(units, is_shown=not as_json) as advance:
        results = record_light(chosen, progress=advance)
        written = [write_run(result, runs, replace=force) for result in results]
        for result, path in zip(results, written, strict=True):
            if traced:
                of_passes = record_traced(result.configuration, path, traced, kinds=trace_kinds, progress=advance)
            else:
                of_passes = {"light": pass_figures(result.trace)}
            figures.append(of_passes)
    if as_json:
        click.echo(json.dumps(_as_json(results, written, figures)))
    else:
        _show(results, figures, runs)


def _as_json(results: list[Result], written: list[Path], figures: list[dict[str, Any]]) -> dict[str, Any]:
    from executor.run.directory import measured, plan_facts

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
    """Print a table: rates with spread, speed-up over the first row, gap, overhead of the traced passes, plan."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from executor.run.directory import measured, plan_facts

    traced = [name for name in figures[0] if name != "light"]
    of_passes = (f"{name} ×" for name in traced)
    headings = ("tokens/s", "low-high", "speed-up", "gap µs", *of_passes, "streams", "buffer KiB")
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
        console.print("×: period of the traced pass / period of the light pass", style="dim", highlight=False)
    console.print(f"{len(results)} run directories in {runs}", highlight=False, markup=False)


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
