"""The `intertoken` command: the group in which every installed package registers its commands."""

from __future__ import annotations

import sys
from typing import Final

import click

from tracer.command_group import Intertoken

EXAMPLES = """
\b
Examples:
  intertoken run -o runs                           record every strategy on the CPU backend
  intertoken syncs rep.sqlite                      which syncs a token makes
  intertoken gaps rep.sqlite --untraced-tokens-per-s 748.7
  intertoken compare base.sqlite new.sqlite        did it change, with intervals
  intertoken whatif rep.sqlite --without-syncs     what would it take to remove the gap
  intertoken check rep.sqlite --budget budget.toml exit code 1 where a token costs more than that
  intertoken dashboard runs rep.sqlite             see them side by side
\b
Tab completion (bash): eval "$(_INTERTOKEN_COMPLETE=bash_source intertoken)"
"""


COMMANDS: Final = {
    "info_command:info": "What a recording holds: source, devices, steps, idle time, gap.",
    "tokens_command:tokens": "The steps, how they were found, and how sure that is.",
    "syncs_command:syncs": "Which syncs, copies and launches a step makes.",
    "gaps_command:gaps": "How long the device idles in a step and between two, and why.",
    "streams_command:streams": "How busy each stream is, and how much streams overlap.",
    "compare_command:compare": "Did it change? Runs against a base, with 95 % intervals.",
    "convert_command:convert": "Write a recording in another format.",
    "path_command:path": "What each step waited for: critical path and slack.",
    "whatif_command:whatif": "Predict it with other syncs, copies, launches or kernels.",
    "advise_command:advise": "What to change, by predicted gain, and what must be true for it.",
    "events_command:events": "One table of a recording: kernels, memcpys, syncs, api, nvtx, ...",
    "check_command:check": "Does a recording keep a budget? Exit code 1 where it does not.",
    "scrub_command:scrub": "Write a recording without what tells of the machine and its user.",
    "record_command:record": "Run a command and record its CUDA activity.",
    "watch_command:watch": "What runs under the recorder now: steps/s, idle time, gap.",
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
    """What happens between two tokens of an LLM decode loop, and what it would take to remove it.

    TRACE is a run directory, what Nsight Systems wrote (.sqlite, a parquetdir or arrowdir; .nsys-rep where nsys is
    on PATH), or Chrome JSON of PyTorch's profiler (.json, .json.gz).
    """


if __name__ == "__main__":
    sys.exit(main())
