"""Analysis tables as files for other programs: CSV, guarded by `without_formulas`, or Parquet, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from tracer.files.output import check_output, write_output
from tracer.text import without_formulas

if TYPE_CHECKING:
    import pandas as pd

Command = TypeVar("Command", bound=Callable[..., Any])
Save = Callable[["pd.DataFrame"], None]
"""Saves the table of a command."""


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    with path.open("wb") as file:  # Arrow cannot open paths that are not UTF-8
        table.to_parquet(file, index=False)


_WRITERS: Final[dict[str, Callable[[pd.DataFrame, Path], None]]] = {
    ".csv": lambda table, path: without_formulas(table).to_csv(path, index=False),
    ".parquet": _write_parquet,
}


def table_option(holds: str) -> Callable[[Command], Command]:
    """Add --table and --force to a command, which gets `save` to call with its table; `holds` describes the table."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def saving(*args: Any, table: Path | None, force: bool, **options: Any) -> None:
            command(*args, save=saver(table, force), **options)

        options = (
            click.option("--force", is_flag=True, help="Replace the table's FILE."),
            click.option("--table", metavar="FILE", type=click.Path(path_type=Path),
                         help=f"Also write a table (.csv or .parquet): {holds}."),
        )  # fmt: skip
        decorated = saving
        for option in options:
            decorated = option(decorated)
        return cast(Command, decorated)

    return decorate


def saver(path: Path | None, replace: bool) -> Save:
    """A function that writes a table to the path, which is checked immediately; without a path it does nothing."""
    if path is None:
        return lambda table: None
    check_output(path, "a table", _WRITERS, replace=replace)
    write = _WRITERS[path.suffix.lower()]
    return lambda table: write_output(path, partial(write, table), replace=replace)
