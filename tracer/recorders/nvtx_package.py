"""Lets CUPTI see the ranges that the Python package `nvtx` opens in the default domain.

The package asks NVTX whether a domain is enabled and makes no ranges in one that is not. Under CUPTI the default domain
is said not to be, though named ones are. So while CUPTI records, the default domain gets a name; the trace drops it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nvtx import nvtx as package

STAND_IN: Final = "intertoken.default"
"""The name, in the recording only."""

_LOOKUP: Final = "_get_domain_cached"


class NamedDefault:
    """Between `install` and `remove`, what opens a range by `nvtx` without a domain opens it in `STAND_IN`.

    Objects of `nvtx.annotate` made before keep the domain they got then. With a version of the package that looks
    domains up in another way nothing happens.
    """

    def __init__(self) -> None:
        self._original: Callable[[str | None], Any] | None = None

    def install(self) -> None:
        """Begin; once is enough."""
        original = getattr(package, _LOOKUP, None)
        if self._original is not None or original is None:
            return
        self._original = original
        setattr(package, _LOOKUP, lambda name: original(STAND_IN if name is None else name))

    def remove(self) -> None:
        """End."""
        if self._original is not None:
            setattr(package, _LOOKUP, self._original)
            self._original = None
