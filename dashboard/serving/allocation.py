"""How the C library returns freed memory."""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_ARENAS: Final = 2
_LARGE: Final = 256 * 1024  # bytes


def give_memory_back() -> None:
    """Make the C library return freed memory to the system; call it before threads are started.

    glibc gives each thread an arena of its own, up to eight per core, and memory freed in one arena serves no other.
    With a server's threads the heap then grows for hours though the memory in use does not. Two arenas for all threads,
    and a mapping of its own for each large block, with a fixed threshold, which glibc would otherwise raise when one is
    freed (mallopt(3)). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_ARENA_MAX, _ARENAS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE)):
            mallopt(option, value)
