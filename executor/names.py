"""Look up entries by user-supplied names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from tracer.errors import UsageError

T = TypeVar("T")


def lookup(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return the entry with this name.

    Raises:
        UsageError: no such entry; the message lists the known names and suggests the closest.
    """
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"unknown {kind} {name!r}; choose from {', '.join(known)}.{meant}")
