"""The supported engines, one small file each: every `Engine` in a file of this folder is one.

Other distributions add theirs through the entry-point group `intertoken.engines`.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from tracer.engines.engine import Engine
from tracer.extensions import ENGINES as ADDED
from tracer.extensions import extensions


def _shipped() -> Iterator[Engine]:
    for module in sorted(info.name for info in iter_modules(__path__)):
        for value in vars(import_module(f"{__name__}.{module}")).values():
            of_module = value if isinstance(value, tuple) else (value,)
            yield from (engine for engine in of_module if isinstance(engine, Engine))


ENGINES: Final[tuple[Engine, ...]] = tuple(sorted(dict.fromkeys(_shipped()), key=lambda engine: engine.generality))
"""In the order in which their marks are searched for."""


@cache
def engines() -> tuple[Engine, ...]:
    """All known engines, with those of other distributions first, because users install them on purpose."""
    return (*(engine for _, engine in extensions(ADDED, Engine)), *ENGINES)
