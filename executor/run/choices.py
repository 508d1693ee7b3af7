"""The possible values of the options of `run`, for programs that offer them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Any, Final

import click

from executor.backends import BACKENDS, open_backend
from executor.backends.sim.profiles import SHIPPED
from executor.graph.models import MODELS, WEIGHTS
from executor.graph.models.kv_cache import KINDS
from executor.planning.allocator import ALLOCATORS
from executor.planning.concurrency import MODES
from executor.run.configuration import EXPERTS, SAMPLING
from executor.run.passes import LIGHT, TRACED
from executor.scheduling.launchers import LAUNCHERS
from executor.scheduling.strategies import STRATEGIES
from tracer.errors import ExecutionError

SCHEMA: Final = "intertoken.choices/1"
_DESCRIBED: Final[Mapping[str, Mapping[str, Any]]] = {
    "strategies": STRATEGIES, "concurrency": MODES, "allocator": ALLOCATORS, "launch": LAUNCHERS,
}  # fmt: skip
NAMES: Final[Mapping[str, Collection[str]]] = {
    **_DESCRIBED,
    "backend": BACKENDS, "model": MODELS, "profile": SHIPPED, "weights": WEIGHTS, "kv": KINDS, "sampling": SAMPLING,
    "experts": EXPERTS, "passes": (LIGHT, *TRACED),
}  # fmt: skip
_SEVERAL: Final = ("strategies", "concurrency", "passes", "prompt")
_OWN: Final = ("runs", "force", "as_json", "progress", "lists", "plans", "help")
"""Options that concern the command and not the run."""


def choices(command: click.Command) -> dict[str, Any]:
    """Describe the options of a command as one JSON object.

    Each has `name`, `flag`, `off` (the negating flag, or null), `help`, `default` (null if it depends on others),
    `least` (or null) and `kind`: `name` and `names` (comma-separated) from its `choices`, `number`, `numbers`, `flag`.
    A choice has `name`, `about`, and `lacks`: what this machine lacks to use it, or null.
    """
    parameters = [p for p in command.params if isinstance(p, click.Option) and p.name not in _OWN]
    return {"schema": SCHEMA, "options": [_option(p) for p in parameters]}


def _option(parameter: click.Option) -> dict[str, Any]:
    name = str(parameter.name)
    names = parameter.type.choices if isinstance(parameter.type, click.Choice) else NAMES.get(name, ())
    kind = "flag" if parameter.is_flag else ("name" if names else "number") + ("s" if name in _SEVERAL else "")
    least = {"number": getattr(parameter.type, "min", None), "numbers": 0}.get(kind)
    return {
        "name": name,
        "flag": parameter.opts[0],
        "off": next(iter(parameter.secondary_opts), None),
        "help": parameter.help,
        "default": parameter.default if isinstance(parameter.default, str | int) else None,
        "least": least,
        "kind": kind,
        "choices": [
            {"name": each, "about": _about(name, each), "lacks": _lacks(each) if name == "backend" else None}
            for each in names
        ],
    }


def _about(option: str, name: str) -> str:
    """Return the first line of its docstring."""
    described = _DESCRIBED.get(option, {}).get(name)
    return (inspect.getdoc(described) or "").partition("\n")[0] if described is not None else ""


def _lacks(backend: str) -> str | None:
    """Return why the backend cannot be started here, or None if it can."""
    try:
        with closing(open_backend(backend)):
            return None
    except ExecutionError as problem:
        return str(problem)
