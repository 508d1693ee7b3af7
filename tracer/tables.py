"""Analysis tables as files for other programs: CSV or Parquet, whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click
import pandas as pd

from tracer.errors import TraceError, UsageError
from tracer.formats.partial import appearing

Command = TypeVar("Command", bound=Callable[..., Any])
Save = Callable[[pd.DataFrame], None]
"""What a command with a table calls once its table is known."""

_WRITERS: Final[dict[str, Callable[[pd.DataFrame, Path], None]]] = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
}


def table_option(holds: str) -> Callable[[Command], Command]:
    """--table and --force for a command, which gets `save`, to be called with its table; `holds` says what is in it."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def saving(*args: Any, table: Path | None, force: bool, **options: Any) -> None:
            command(*args, save=_saver(table, force), **options)

        options = (
            click.option("--force", is_flag=True, help="Replace the table's FILE."),
            click.option("--table", metavar="FILE", type=click.Path(path_type=Path),
                         help=f"Also write a table, as FILE's suffix says (.csv or .parquet): {holds}."),
        )  # fmt: skip
        decorated = saving
        for option in options:
            decorated = option(decorated)
        return cast(Command, decorated)

    return decorate


def write_table(table: pd.DataFrame, path: Path, *, replace: bool = False) -> None:
    """Write a table in the format that the path's suffix names.

    Raises:
        UsageError: another suffix, the file exists and `replace` is not given, or it cannot be written.
    """
    _check(path, replace)
    try:
        with appearing(path, replace=replace) as partial:
            _WRITERS[path.suffix.lower()](table, partial)
    except TraceError as problem:  # the path is the user's choice, and no recording is at fault
        raise UsageError(str(problem)) from None


def _saver(path: Path | None, replace: bool) -> Save:
    """What writes a table to the path, checked before anything is read; without a path it does nothing."""
    if path is None:
        return lambda table: None
    _check(path, replace)
    return lambda table: write_table(table, path, replace=replace)


def _check(path: Path, replace: bool) -> None:
    if path.suffix.lower() not in _WRITERS:
        raise UsageError(f"{path}: a table ends with {' or '.join(_WRITERS)}")
    if path.exists() and not replace:
        raise UsageError(f"{path}: exists already; choose another name or --force")
