"""Names in CUPTI's records: pointers to C strings, mangled kernel names, and ids of API calls; and their sources."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from tracer.errors import RecordError
from tracer.model.trace import categorical


@dataclass(frozen=True, slots=True)
class Sources:
    """The data needed in addition to the records to build tables.

    Attributes:
        origin: the time that becomes 0, in CUPTI's clock (ns of CLOCK_REALTIME).
        process: this process's id, which device records lack.
        text: address of a C string -> the string.
        call_name: (callback domain, callback id) -> name of the API call.
        program: the process's name.
        threads: the names of its threads, by id, as far as known.
    """

    origin: int
    process: int
    text: Callable[[int], str]
    call_name: Callable[[int, int], str]
    program: str = ""
    threads: Mapping[int, str] = field(default_factory=dict)


def c_string(address: int) -> str:
    """The text at an address in this process; "" for NULL."""
    return ctypes.string_at(address).decode("utf-8", "replace") if address else ""


def named(keys: NDArray[Any], name: Callable[[int], str]) -> pd.Categorical:
    """Keys (pointers, ids) as a categorical of their names; `name` is called once per distinct key."""
    codes, distinct = pd.factorize(keys)
    return categorical(codes, [name(int(key)) for key in distinct])


def renamed(names: pd.Categorical, change: Callable[[str], str]) -> pd.Categorical:
    """The rows with every category changed; categories that become equal are merged."""
    return categorical(names.codes, [change(str(word)) for word in names.categories])


@cache
def _demangler() -> Any:
    """`__cxa_demangle` of the C++ library; None without one."""
    for library in ("libstdc++.so.6", "libc++abi.so.1", ctypes.util.find_library("stdc++")):
        try:
            function = ctypes.CDLL(library).__cxa_demangle if library else None
        except (OSError, AttributeError):
            continue
        if function is not None:
            function.restype = ctypes.c_void_p
            function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
            return function
    return None


def demangled(name: str) -> str:
    """A kernel's name as C++ writes it, with its arguments; the name itself if it is not mangled.

    Example:
        >>> demangled("_Z3addPfi"), demangled("gemv")
        ('add(float*, int)', 'gemv')
    """
    function = _demangler() if name.startswith("_Z") else None
    if function is None:
        return name
    status = ctypes.c_int(-1)
    text = function(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return c_string(text)
    finally:
        libc = ctypes.CDLL(None)
        libc.free.argtypes = [ctypes.c_void_p]
        libc.free(text)


def short_name(name: str) -> str:
    """A kernel's bare name without return type, namespaces, template arguments and parameters, as in nsys.

    Example:
        >>> short_name("void at::native::reduce<float, (int)4>(T1*)"), short_name("(anonymous namespace)::k<1>(int)")
        ('reduce', 'k')
    """
    plain, depth = [], 0
    for letter in name.replace("(anonymous namespace)", "").replace("operator()", "operator"):
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif depth == 0:
            if letter == "(":
                break
            plain.append(letter)
    words = "".join(plain).split()
    bare = words[-1].rpartition("::")[2] if words else ""
    return bare or name


class CallNames:
    """Names of API calls from libcupti.

    Args:
        library: libcupti, or None for names that only contain the id (tests).
    """

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library

    def __call__(self, domain: int, cbid: int) -> str:
        """The name with CUPTI's version suffix, such as "cudaMemcpyAsync_v3020".

        Args:
            domain: 1 driver, 2 runtime (`CUpti_CallbackDomain`).
            cbid: the call's id in that domain.
        """
        if self._library is not None:
            name = ctypes.c_char_p()
            if self._library.cuptiGetCallbackName(domain, cbid, ctypes.byref(name)) == 0 and name.value:
                return name.value.decode()
        return f"{'cuda' if domain == 2 else 'cu'} call {cbid}"

    def known(self, domain: int) -> dict[int, str]:
        """All calls of a domain: id -> name.

        Raises:
            RecordError: libcupti returns no names.
        """
        names = {cbid: self(domain, cbid) for cbid in range(1, 1200)}
        found = {cbid: name for cbid, name in names.items() if " call " not in name and name != "INVALID"}
        if not found:
            raise RecordError("libcupti returns no names of API calls")
        return found
