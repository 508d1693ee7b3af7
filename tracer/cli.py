"""The `intertoken` command: the group that every installed package adds its commands to, which are imported on use."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tracer.errors import ExtensionError, IntertokenError
from tracer.extensions import COMMANDS, extensions
from tracer.text import spelled

EXAMPLES: Final = """
\b
Examples:
  intertoken run -o runs                           record every strategy on the CPU backend
  intertoken syncs rep.sqlite                      the syncs of a token
  intertoken gaps rep.sqlite --untraced-tokens-per-s 748.7
  intertoken compare base.sqlite new.sqlite        what changed, with intervals
  intertoken ab -- ./old -m gguf --- ./new -m gguf measure two commands in turns
  intertoken whatif rep.sqlite --without-syncs     predict the rate without syncs
  intertoken check rep.sqlite --budget budget.toml exit code 1 if a token exceeds the budget
  intertoken dashboard runs rep.sqlite             view recordings side by side
\b
Tab completion (bash): eval "$(_INTERTOKEN_COMPLETE=bash_source intertoken)"
"""

_GARBAGE: Final = 50_000
"""Number of new objects between two garbage collections. Python's default took 3 % of a command's CPU time; arrays and
tables are freed without a collection."""


class Intertoken(click.Group):
    """The commands of all installed packages; maps errors to exit codes.

    A command is imported on use: help and completion import none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy: dict[str, tuple[str, str]] = {}
        self._is_complete = False

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line; an extension that cannot be loaded ends it with one line and exit code 2."""
        gc.set_threshold(_GARBAGE)
        atexit.register(gc.freeze)  # the collections at exit would visit every object: a tenth of the CPU time
        try:
            self._complete()
        except ExtensionError as problem:
            click.echo(f"intertoken: {spelled(str(problem))}", err=True)
            sys.exit(2)
        return super().main(*args, **kwargs)

    def _complete(self) -> None:
        """Add the commands of all installed packages, once."""
        if not self._is_complete:
            for _, register in extensions(COMMANDS, Callable):
                register(self)
            self._is_complete = True

    def add_lazy(self, target: str, short_help: str) -> None:
        """Add a command that is imported on use. The target is "MODULE:NAME"; the command has the function's name."""
        self._lazy[target.partition(":")[2]] = target, short_help

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        self._complete()
        return sorted({*self.commands, *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of a name."""
        self._complete()
        if cmd_name in self._lazy and cmd_name not in self.commands:
            module, _, name = self._lazy[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(module), name))
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._in_short(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that start with this text."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return [CompletionItem(name, help=self._in_short(name)) for name in names] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def _in_short(self, name: str) -> str:
        return self._lazy[name][1] if name in self._lazy else self.commands[name].get_short_help_str(80)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors of the input or the system, including lack of memory, become one line and exit code
        2."""
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
            click.echo(f"intertoken: out of memory on the host: {problem or 'choose smaller numbers'}", err=True)
            ctx.exit(2)


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
