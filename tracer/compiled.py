"""Loops that no array operation expresses, compiled by Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """The loop, compiled when first called; Numba keeps it beside its file or in the user's cache.

    Numba is imported then, too: most commands run none of these loops. For a loop that others call see `inlined`.
    """

    @cache
    def dispatcher() -> Callable[..., Any]:
        return inlined(loop)

    def call(*arguments: Any) -> Any:
        return dispatcher()(*arguments)

    return cast(Loop, update_wrapper(call, loop))


def inlined(loop: Loop, **options: Any) -> Loop:
    """The same at once, as Numba needs it of what a compiled loop calls; options are those of `numba.njit`."""
    import numba

    try:
        return cast(Loop, numba.njit(nogil=True, cache=True, **options)(loop))
    except RuntimeError:  # neither can be written
        return cast(Loop, numba.njit(nogil=True, **options)(loop))
