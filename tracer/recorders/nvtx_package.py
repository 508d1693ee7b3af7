"""Makes ranges that the Python package `nvtx` opens in the default domain visible to CUPTI.

The package asks NVTX whether a domain is enabled, and opens no ranges if it is not. Under CUPTI the default domain is
reported as disabled, while named domains are enabled. So the default domain gets a name while CUPTI records; the trace
removes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nvtx import nvtx as package

STAND_IN: Final = "intertoken.default"
"""The name of the default domain while recording."""

_LOOKUP: Final = "_get_domain_cached"


class NamedDefault:
    """Between `install` and `remove`, ranges that `nvtx` opens without a domain are opened in `STAND_IN`.

    Existing `nvtx.annotate` objects keep their domain. With a version of the package that looks up domains differently,
    nothing happens.
    """

    def __init__(self) -> None:
        self._original: Callable[[str | None], Any] | None = None

    def install(self) -> None:
        """Redirect the default domain; repeated calls do nothing."""
        original = getattr(package, _LOOKUP, None)
        if self._original is not None or original is None:
            return
        self._original = original
        setattr(package, _LOOKUP, lambda name: original(STAND_IN if name is None else name))

    def remove(self) -> None:
        """Restore the default domain."""
        if self._original is not None:
            setattr(package, _LOOKUP, self._original)
            self._original = None
