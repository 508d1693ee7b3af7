"""What threads have freed is not spread over many arenas."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from dashboard.reading.readers import give_memory_back

if sys.argv[1] == "given":
    give_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
together = threading.Barrier(8)

def work():
    libc.malloc(ctypes.c_size_t(1000))
    together.wait()

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no arenas")
def test_threads_share_two_arenas() -> None:
    def arenas(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert arenas("given") <= 2 < arenas("left")
