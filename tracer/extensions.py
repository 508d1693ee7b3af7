"""Extensions by installed distributions through entry points: commands, formats, engines, analyses and views."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from tracer.errors import ExtensionError

COMMANDS: Final = "intertoken.commands"
"""Functions that take the click group and add commands to it."""
FORMATS: Final = "intertoken.formats"
"""`tracer.formats.Format`."""
ENGINES: Final = "intertoken.engines"
"""`tracer.engines.engine.Engine`."""
ANALYSES: Final = "intertoken.analyses"
"""Functions that take a trace and its steps; `tracer.analyse(path)[name]` returns their result."""
VIEWS: Final = "intertoken.views"
"""What notebooks show: `timeline` draws a trace, `trace` and `comparisons` are HTML of one and of several."""


@cache
def extensions(group: str, kind: Any) -> tuple[tuple[str, Any], ...]:
    """Import the entry points of one of the groups above, once, and return their names and objects. Raises
    ExtensionError if one cannot be imported, or is not of the class `kind`."""
    return tuple((entry.name, _loaded(entry, kind)) for entry in _installed().select(group=group))


def view(name: str) -> Callable[..., Any] | None:
    """The function that an installed distribution registers in `VIEWS` under this name; None if none does."""
    return next((entry.load() for entry in entry_points(group=VIEWS, name=name)), None)


_installed = cache(entry_points)
"""All entry points, read once: this opens a file of every distribution."""


def _loaded(entry: EntryPoint, kind: Any) -> Any:
    try:
        loaded = entry.load()
    except Exception as problem:  # extensions may raise anything
        raise ExtensionError(_message(entry, f"cannot be loaded: {type(problem).__name__}: {problem}")) from problem
    if not isinstance(loaded, kind):
        raise ExtensionError(_message(entry, f"is of type {type(loaded).__name__}, not {kind.__name__}"))
    return loaded


def _message(entry: EntryPoint, what: str) -> str:
    owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed distribution"
    return f"{owner}: entry point {entry.name!r} of {entry.group} {what}; update or uninstall the distribution"
