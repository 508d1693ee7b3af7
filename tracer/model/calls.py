"""The vocabulary of host calls: which launch, copy, synchronise, poll or order work, each kind with its letter; which
build graphs, and which allocate memory.

This and `calls.toml` are the only places that list their names. A name is looked up without its suffixes, see `plain`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tracer.files.bounded import toml_of

if TYPE_CHECKING:
    import pandas as pd

SYNC, COPY, BLOCKING_COPY, LAUNCH, GRAPH_LAUNCH, EVENT, WAIT, POLL = "s", "a", "c", "k", "g", "e", "w", "q"
HOST_FUNCTION, MEMORY_OPERATION = "h", "v"
"""The letters of a sync signature: sync, asynchronous copy, blocking copy, kernel launch, graph launch, event record,
stream wait, query whether work has completed; host function put on a stream, and wait for or write of a value in memory
by a stream."""

CALLBACK: Final = " callback"
"""The end of the name of a host function's own run, on a thread of the driver (`cuLaunchHostFunc callback`)."""

BEGIN_CAPTURE: Final = "<"
END_CAPTURE: Final = ">"

LAUNCHES: Final = (LAUNCH, GRAPH_LAUNCH)
COPIES: Final = (COPY, BLOCKING_COPY)
CALLS: Final = (SYNC, *COPIES, *LAUNCHES, EVENT, WAIT, HOST_FUNCTION, MEMORY_OPERATION)
"""The calls that `analysis.calls.host_calls` finds."""

MEANING: Final = {
    SYNC: "sync", COPY: "asynchronous copy", BLOCKING_COPY: "blocking copy", GRAPH_LAUNCH: "graph launch",
    LAUNCH: "kernel launch", EVENT: "event record", WAIT: "stream wait", POLL: "polling loop",
    HOST_FUNCTION: "host function", MEMORY_OPERATION: "stream memory operation",
}  # fmt: skip
"""The meaning of each letter of a signature."""

_NAMES: Final = toml_of(Path(__file__).with_name("calls.toml"))
LETTERS: Final[Mapping[str, str]] = {name: letter for letter, names in _NAMES.items() for name in names.split()}
"""Name -> its letter."""

SUFFIX: Final = r"(?:_v\d+|_ptsz|_ptds|_spt)"
"""The expression for one suffix of a call's name: its version, and the per-thread default streams of CUDA and HIP."""
_SUFFIXES: Final = re.compile(rf"(?<=.){SUFFIX}+$")
_TELLING: Final = re.compile(r"aunch|emcpy|ynchronize")
_ON_GRAPHS: Final = re.compile(r"(cuda|cu|hip|hipDrv)Graph(?!Launch)\w+")
_SETUP: Final = re.compile(r"graph.*|stream(begin|end|update)capture.*")
_ALLOCATION: Final = re.compile(
    r"(m?alloc|free).*|host(alloc|malloc|free|register|unregister)"
    r"|mem(alloc|free|hostalloc|hostregister|hostunregister|create|release|map|unmap|address|setaccess|pool).*"
)
_PREFIX: Final = re.compile(r"^(cuda|cu|hip)(?=[A-Z])")


def plain(name: str) -> str:
    """A call's name without the suffixes for its version and for per-thread default streams.

    Example:
        >>> plain("cudaMemcpyAsync_ptsz_v7000"), plain("hipLaunchKernel_spt"), plain("cuMemcpyDtoH_v2")
        ('cudaMemcpyAsync', 'hipLaunchKernel', 'cuMemcpyDtoH')
    """
    return _SUFFIXES.sub("", name)


def letter(name: str) -> str:
    """The letter of an API call's name, or "" for any other kind of call.

    Example:
        >>> letter("cudaMemcpyAsync_v3020"), letter("hipExtModuleLaunchKernel"), letter("cudaMalloc_v3020")
        ('a', 'k', '')
    """
    return LETTERS.get(plain(name), "")


def is_unknown(name: str) -> bool:
    """Whether the name of an unlisted call (of a newer or another driver) suggests a launch, copy or synchronization.

    Example:
        >>> is_unknown("hipLaunchKernelTwice"), is_unknown("cudaLaunchKernel"), is_unknown("cudaFuncSetAttribute")
        (True, False, False)
    """
    known = plain(name) in LETTERS or name.endswith(CALLBACK) or _ON_GRAPHS.fullmatch(name) is not None
    return not known and _TELLING.search(name) is not None


def _bare(name: str) -> str:
    return _PREFIX.sub("", plain(name)).casefold()


def is_setup(name: str) -> bool:
    """Whether a call builds, instantiates, updates, uploads or destroys a CUDA graph."""
    return _SETUP.fullmatch(_bare(name)) is not None and letter(name) != GRAPH_LAUNCH


def is_allocation(name: str) -> bool:
    """Whether a call allocates, registers, maps or frees device or host memory.

    Example:
        >>> is_allocation("cudaMallocAsync_v11020"), is_allocation("cuMemHostRegister_v2"), is_allocation("cuMemsetD8")
        (True, True, False)
    """
    return _ALLOCATION.fullmatch(_bare(name)) is not None


def letters_of(names: pd.Series) -> NDArray[np.str_]:
    """The letter for each row of a categorical name column; each distinct name is looked up once."""
    if not len(names):
        return np.zeros(0, dtype="U1")
    table = np.array([letter(str(name)) for name in names.cat.categories] or [""], dtype="U1")
    return np.asarray(table[names.cat.codes.to_numpy()])
