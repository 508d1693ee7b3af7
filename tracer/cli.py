"""The `intertoken` command: the group that every installed package adds its commands to."""

from __future__ import annotations

import sys
from typing import Final

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


COMMANDS: Final = {
    "info_command:info": "Summarise a recording: source, devices, steps, idle time, gap.",
    "tokens_command:tokens": "List the steps, how they were found, and with what confidence.",
    "syncs_command:syncs": "Count the syncs, copies and launches of a step.",
    "gaps_command:gaps": "How long the device idles within and between steps, and why.",
    "streams_command:streams": "How busy each stream is, and how much streams overlap.",
    "compare_command:compare": "Compare runs with a base, with 95 % intervals.",
    "convert_command:convert": "Write a recording in another format.",
    "path_command:path": "What each step waited for: critical path and slack.",
    "whatif_command:whatif": "Predict the rate with other syncs, copies, launches or kernels.",
    "advise_command:advise": "Rank possible changes by predicted gain, with their conditions.",
    "events_command:events": "Show one table of a recording: kernels, memcpys, syncs, api, ...",
    "check_command:check": "Check a recording against a budget. Exit code 1 if broken.",
    "scrub_command:scrub": "Write a recording without data about the machine and its users.",
    "record_command:record": "Run a command and record its CUDA activity.",
    "watch_command:watch": "Watch programs that are being recorded: steps/s, idle time, gap.",
}
"""Module and command -> its line in the list of commands."""


def register(group: Intertoken) -> None:
    """Add this package's commands to the group."""
    for target, short_help in COMMANDS.items():
        group.add_lazy(f"tracer.{target}", short_help)


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
