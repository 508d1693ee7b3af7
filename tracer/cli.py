"""The `intertoken` command: the group that every installed package adds its commands to."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tracer.command_group import Intertoken

EXAMPLES = """
\b
Examples:
  intertoken run -o runs                           record every strategy on the CPU backend
  intertoken syncs rep.sqlite                      the syncs of a token
  intertoken gaps rep.sqlite --untraced-tokens-per-s 748.7
  intertoken compare base.sqlite new.sqlite        what changed, with intervals
  intertoken whatif rep.sqlite --without-syncs     predict the rate without syncs
  intertoken check rep.sqlite --budget budget.toml exit code 1 if a token exceeds the budget
  intertoken dashboard runs rep.sqlite             view recordings side by side
\b
Tab completion (bash): eval "$(_INTERTOKEN_COMPLETE=bash_source intertoken)"
"""


def register(group: Intertoken) -> None:
    """Add this package's commands to the group: those of the files of `tracer/commands`."""
    for path in (Path(__file__).parent / "commands").glob("[!_]*.py"):
        with path.open(encoding="utf-8") as file:
            short_help = file.readline().strip().strip('"')
        group.add_lazy(f"tracer.commands.{path.stem}:{path.stem}", short_help)


@click.command(
    cls=Intertoken,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="intertoken", prog_name="intertoken")
def main() -> None:
    """Show what happens between two tokens of an LLM decode loop, and predict what would shorten it.

    TRACE is a run directory, an export of Nsight Systems (.sqlite, a parquetdir or arrowdir; .nsys-rep if nsys is
    on PATH), or Chrome JSON of PyTorch's profiler (.json, .json.gz).
    """


if __name__ == "__main__":
    sys.exit(main())
