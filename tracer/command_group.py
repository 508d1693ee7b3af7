"""The group of the commands of all installed packages, which are imported on use."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from tracer.errors import ExtensionError, IntertokenError
from tracer.extensions import COMMANDS, extensions
from tracer.text import spelled

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
        """Add a command that is imported on use.

        Args:
            target: "MODULE:NAME"; the command has the function's name.
            short_help: its line in the list of commands.
        """
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
