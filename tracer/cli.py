"""The `intertoken` command: the group in which every installed package registers its commands."""

from __future__ import annotations

import errno
import io
import sys
from importlib.metadata import entry_points, version
from typing import Any

import click

from tracer.errors import IntertokenError
from tracer.text import spelled

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


class Intertoken(click.Group):
    """Loads the commands of all installed packages and maps errors to exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for entry in entry_points(group="intertoken.commands"):
            entry.load()(self)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of the input or the system, or a lack of memory, becomes one line and exit code 2."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without µ or × gets ?, not a traceback
        try:
            return super().invoke(ctx)
        except IntertokenError as problem:
            click.echo(f"intertoken: {spelled(str(problem))}", err=True)
            ctx.exit(2)
        except OSError as problem:
            if problem.errno == errno.EPIPE:  # click ends quietly
                raise
            what = f"{problem.filename or 'the output'}: {problem.strerror or problem}"
            click.echo(f"intertoken: {spelled(what)}", err=True)
            ctx.exit(2)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(130)  # as shells number SIGINT
        except MemoryError as problem:
            click.echo(f"intertoken: too little memory on the host: {problem or 'choose smaller numbers'}", err=True)
            ctx.exit(2)


def register(group: click.Group) -> None:
    """Add this package's commands to the group."""
    from tracer import (
        check_command,
        compare_command,
        convert_command,
        events_command,
        gaps_command,
        info_command,
        path_command,
        record_command,
        scrub_command,
        streams_command,
        syncs_command,
        tokens_command,
        watch_command,
        whatif_command,
    )

    for command in (
        info_command.info,
        tokens_command.tokens,
        syncs_command.syncs,
        gaps_command.gaps,
        streams_command.streams,
        compare_command.compare,
        convert_command.convert,
        path_command.path,
        whatif_command.whatif,
        events_command.events,
        check_command.check,
        scrub_command.scrub,
        record_command.record,
        watch_command.watch,
    ):
        group.add_command(command)


@click.command(
    cls=Intertoken,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version("intertoken"), prog_name="intertoken")
def main() -> None:
    """What happens between two tokens of an LLM decode loop, and what it would take to remove it.

    TRACE is a run directory, what Nsight Systems wrote (.sqlite, a parquetdir or arrowdir; .nsys-rep where nsys is
    on PATH), or Chrome JSON of PyTorch's profiler (.json, .json.gz).
    """


if __name__ == "__main__":
    sys.exit(main())
