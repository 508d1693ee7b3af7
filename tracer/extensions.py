"""What installed distributions add to intertoken through entry points: commands, formats, engines and analyses."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tracer.errors import ExtensionError

COMMANDS: Final = "intertoken.commands"
"""Functions that get the click group and add commands to it."""
FORMATS: Final = "intertoken.formats"
"""`tracer.formats.Format`."""
ENGINES: Final = "intertoken.engines"
"""`tracer.engines.engine.Engine`."""
ANALYSES: Final = "intertoken.analyses"
"""Functions of a trace and its steps; `tracer.analyse(path)[name]` is what they return."""


@cache
def extensions(group: str, kind: Any) -> tuple[tuple[str, Any], ...]:
    """The name and the object of every entry point of a group, imported once.

    Args:
        group: one of the groups above.
        kind: the class that they must be of.

    Raises:
        ExtensionError: one cannot be imported, or is something else.
    """
    return tuple((entry.name, _loaded(entry, kind)) for entry in _installed().select(group=group))


@cache
def _installed() -> Any:
    """Read once for all groups: it opens a file of every distribution."""
    return entry_points()


def _loaded(entry: EntryPoint, kind: Any) -> Any:
    try:
        found = entry.load()
    except Exception as problem:  # whatever the code of others raises
        raise ExtensionError(_said(entry, f"cannot be loaded: {type(problem).__name__}: {problem}")) from problem
    if not isinstance(found, kind):
        raise ExtensionError(_said(entry, f"is of type {type(found).__name__}, not {kind.__name__}"))
    return found


def _said(entry: EntryPoint, what: str) -> str:
    owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "a distribution without a name"
    return f"{owner}: its entry point {entry.name!r} of {entry.group} {what}; update or uninstall it"
