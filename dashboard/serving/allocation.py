"""How the C library keeps what the server has freed."""

from __future__ import annotations

import ctypes
from typing import Final

_ARENA_MAX: Final = -8
_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_ARENAS: Final = 2
_LARGE: Final = 256 * 1024  # bytes


def give_memory_back() -> None:
    """Have the C library give freed memory back to the system; to be called before threads are started.

    glibc gives each thread an arena of its own, up to eight a core, and what lies freed in one arena serves no other.
    With the threads of a server, that is a heap that grows for hours though what is in use does not. Two arenas for all
    threads, and a mapping of its own for each large block, whose threshold glibc else raises when one is freed
    (mallopt(3)). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((_ARENA_MAX, _ARENAS), (_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _LARGE)):
            mallopt(option, value)
