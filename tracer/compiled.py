"""Numba compilation of loops that cannot be expressed as array operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, TypeVar, cast

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(loop: Loop) -> Loop:
    """Compile the loop on its first call; Numba caches it next to its file or in the user's cache.

    Numba is not imported before that: most commands run none of these loops. For a loop called by others see `inlined`.
    """

    @cache
    def dispatcher() -> Callable[..., Any]:
        return inlined(loop)

    def call(*arguments: Any) -> Any:
        return dispatcher()(*arguments)

    return cast(Loop, update_wrapper(call, loop))


def inlined(loop: Loop, **options: Any) -> Loop:
    """Compile a loop immediately, as Numba requires for loops that a compiled loop calls; takes `numba.njit`'s
    options."""
    import numba

    try:
        return cast(Loop, numba.njit(nogil=True, cache=True, **options)(loop))
    except RuntimeError:  # neither cache directory is writable
        return cast(Loop, numba.njit(nogil=True, **options)(loop))
