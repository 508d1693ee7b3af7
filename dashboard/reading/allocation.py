"""How the C library returns freed memory (mallopt(3)); C libraries other than glibc are not changed."""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_MAX: Final = -4
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_ARENAS: Final = 2
_LARGE: Final = 256 * 1024  # bytes
_NEVER: Final = 2**31 - 1  # bytes; a C int holds no more


def give_memory_back() -> None:
    """Make the C library return freed memory to the system; call it before threads are started.

    glibc gives each thread a separate arena, up to eight per core, and memory freed in one arena serves no other.
    With a server's threads the heap then grows for hours though the memory in use does not. Two arenas for all threads,
    and a separate mapping for each large block, with a fixed threshold, which glibc would otherwise raise when one is
    freed.
    """
    _set((_ARENA_MAX, _ARENAS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE))


def keep_memory() -> None:
    """Make the C library reuse the memory of large arrays, until `trim`; call it before threads are started.

    By default each is a separate mapping, whose pages the system zeroes each time: that was half of the processor time
    of reading ten million events.
    """
    _set((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER))


def trim() -> None:
    """Return what is free now to the system."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _set(*options: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)
