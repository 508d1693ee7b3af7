"""Loops that no array operation expresses, compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The loop, compiled when first called. Numba keeps it beside its file or in the user's cache."""
    try:
        return cast(Loop, numba.njit(nogil=True, cache=True)(loop))
    except RuntimeError:  # neither can be written
        return cast(Loop, numba.njit(nogil=True)(loop))
