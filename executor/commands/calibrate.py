"""The `calibrate` command."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracer.command_options import untraced_option
from tracer.errors import naming

if TYPE_CHECKING:
    from executor.backends.sim.profiles import Profile

EXAMPLES = """
\b
Examples:
  intertoken calibrate runs/llama-1.1b-sccc-sequential-cuda -o h200.json --fits h200.toml
  intertoken run --backend sim --profile h200.json --model llama-1.1b -o predicted
"""


@click.command(epilog=EXAMPLES)
@click.argument("path", metavar="TRACE", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", metavar="PROFILE", required=True, type=click.Path(path_type=Path),
    help="JSON file to write. Its name without suffix is the name of the profile.",
)  # fmt: skip
@click.option(
    "--fits", metavar="FILE", type=click.Path(path_type=Path),
    help="Also write the model's constants that the recording shows, as a TOML file for INTERTOKEN_FITS.",
)  # fmt: skip
@click.option("--range", "within", metavar="TEXT", help="Use only steps inside NVTX ranges with this text (or regex).")
@untraced_option
@click.option("--force", is_flag=True, help="Replace PROFILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the profile as one JSON object.")
def calibrate(path: Path, output: Path, fits: Path | None, force: bool, as_json: bool, **options: Any) -> None:
    """Create a cost profile for `run --backend sim` from one recording.

    TRACE is ideally the run directory of a run with one stream and a node pass. Other recordings, such as an nsys
    export of another engine, give the costs of host calls, latencies and copies, but only the time per step for
    kernels.
    """
    from rich.console import Console

    from executor.backends.sim.profiles import SCHEMA, write_profile
    from executor.calibration import calibrate as profile_of
    from executor.calibration import fits_toml
    from tracer import read
    from tracer.files.output import check_output, write_output

    check_output(output, "a profile", (".json",), replace=force)
    if fits is not None:
        check_output(fits, "a file of constants", (".toml",), replace=force)
    console = Console(stderr=True, quiet=as_json or not sys.stderr.isatty())
    with console.status(f"reading {path}"), naming(path):
        trace = read(path, whole=False)
        beside = path / "node"
        node = read(beside, whole=False) if beside.is_dir() else trace
        profile = profile_of(trace, node, output.stem, **options)
    if fits is not None:
        constants = fits_toml(profile, trace, path.name)
        write_output(fits, lambda partial: partial.write_text(constants, encoding="utf-8"), replace=force)
    write_profile(profile, output)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA} | asdict(profile)))
    else:
        _show(profile, output)


def _show(profile: Profile, output: Path) -> None:
    """Print every figure with its source."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from tracer.reporting.console import styled

    table = Table("figure", "value", "from", box=SIMPLE, padding=(0, 0, 0, 1))
    table.columns[1].justify = "right"
    for name, value in profile.figures.items():
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        table.add_row(name, styled(shown), styled(profile.source(name) or ""))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"profile {profile.name!r} in {output}", highlight=False, markup=False)
