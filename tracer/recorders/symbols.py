"""Names of kernels and of functions: as CUPTI and the preloaded library give them, demangled, and as people write them.

The library writes the names of kernels (`native/names.c`) and the call sites (`native/sites.c`) next to a ring. Names
of functions there, including static ones, come from the symbol tables of ELF files (64 bit, little endian). Source:
System V ABI, chapters 4 and 5; elf.h.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.files.bounded import opened
from tracer.model.schema import MISSING
from tracer.model.trace import categorical
from tracer.recorders.light_ring import Ring, lines_beside

_SITE_COLUMNS: Final = ["site", "offset", "file"]
_CHAIN_COLUMNS: Final = ["chain", "depth", "symbol", "module"]
_PARTS: Final = 3
_NUMBER: Final = re.compile("[0-9]{1,18}")
_SECTION: Final = np.dtype([
    ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("address", "<u8"), ("offset", "<u8"), ("size", "<u8"),
    ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entry", "<u8"),
])  # fmt: skip
_SEGMENT: Final = np.dtype([
    ("type", "<u4"), ("flags", "<u4"), ("offset", "<u8"), ("address", "<u8"), ("physical", "<u8"), ("size", "<u8"),
    ("memory", "<u8"), ("align", "<u8"),
])  # fmt: skip
_SYMBOL: Final = np.dtype([
    ("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")
])  # fmt: skip
_LOAD, _SYMTAB, _DYNSYM = 1, 2, 11
_FUNCTIONS: Final = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_MAGIC: Final = b"\x7fELF\x02\x01"
_LONGEST: Final = 4096

_HANDLE: Final = re.compile("[0-9a-f]{1,16}")
_SAME: Final = "="
"""Before the handle of a kernel, whose function a handle is."""


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


def sites_of(ring: Ring) -> NDArray[np.int64]:
    """The call site of each record; MISSING for one without."""
    sequence, site = ring.records["sequence"], np.append(ring.sites["site"].astype(np.int64), MISSING)
    at = np.searchsorted(ring.sites["sequence"], sequence)
    known = np.append(ring.sites["sequence"], 0)[at] == sequence
    return np.where(known, site[at], MISSING)


def chains_beside(ring: Path) -> pd.DataFrame:
    """The functions of each call site of a ring: chain (number of the site), depth, symbol, module, as in `callchains`.

    A function without a symbol has no name. The table is empty if no sites were recorded.
    """
    lines = lines_beside(ring, ".sites")
    rows = [parts for parts in lines if len(parts) == _PARTS and all(map(_NUMBER.fullmatch, parts[:2]))]
    table = pd.DataFrame(rows, columns=_SITE_COLUMNS).astype({"site": "int64", "offset": "int64"})
    table["symbol"] = ""
    for file, mine in table.groupby("file", sort=False):
        places = mine["offset"].to_numpy() - 1  # a return address may be the first of the next function
        table.loc[mine.index, "symbol"] = functions_at(Path(str(file)), places)
    depth = table.groupby("site").cumcount()
    chains = table.assign(chain=table["site"], depth=depth, module=table["file"])
    return chains[_CHAIN_COLUMNS]


def functions_at(path: Path, offsets: NDArray[np.int64]) -> list[str]:
    """The functions in an ELF file that contain these addresses (bytes from the address at which the file was loaded),
    demangled and without their arguments; "" for an address in no function, or if the file cannot be read or is not an
    ELF file."""
    try:
        with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _functions(content, offsets) if content[: len(_MAGIC)] == _MAGIC else [""] * len(offsets)
    except (OSError, ValueError, OverflowError, struct.error, IndexError):
        return [""] * len(offsets)


def _functions(content: mmap.mmap, offsets: NDArray[np.int64]) -> list[str]:
    segments_at, sections_at = struct.unpack_from("<QQ", content, 0x20)
    segment_count, _, section_count = struct.unpack_from("<HHH", content, 0x38)
    segments = _array(content, _SEGMENT, segments_at, segment_count)
    sections = _array(content, _SECTION, sections_at, section_count)
    loaded = segments[segments["type"] == _LOAD]
    base = int((loaded["address"] & ~np.uint64(4095)).min())
    tables = sections[np.isin(sections["type"], [_SYMTAB, _DYNSYM])]
    if not len(tables):
        return [""] * len(offsets)
    table = tables[np.argmin(tables["type"])]  # the whole table, where the file still has it
    symbols = _array(content, _SYMBOL, int(table["offset"]), int(table["size"]) // _SYMBOL.itemsize)
    symbols = symbols[np.isin(symbols["info"] & 15, _FUNCTIONS) & (symbols["section"] != 0)]
    symbols = symbols[np.argsort(symbols["value"], kind="stable")]
    at = np.searchsorted(symbols["value"].astype(np.int64), offsets + base, side="right") - 1
    texts = int(sections[int(table["link"])]["offset"])
    names = []
    for place, row in zip((offsets + base).tolist(), at.tolist(), strict=True):
        is_inside = row >= 0 and place < int(symbols["value"][row]) + max(int(symbols["size"][row]), 1)
        name_at = texts + int(symbols["name"][row])
        name = content[name_at : name_at + _LONGEST].partition(b"\0")[0] if is_inside else b""
        names.append(plain_name(name.decode(errors="replace")))
    return names


def _array(content: mmap.mmap, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    """A copy, so that the mapping can be closed."""
    return np.frombuffer(content[at : at + count * kind.itemsize], kind, count)


def plain_name(symbol: str) -> str:
    """A demangled symbol, without arguments and without the suffixes that compilers add to clones of a function.

    Example:
        >>> plain_name("main"), plain_name("decode.constprop.0")
        ('main', 'decode')
    """
    name = demangled(symbol.partition(".")[0])
    return name.replace("(anonymous namespace)::", "").partition("(")[0]


def kernel_names(ring: Path, launches: NDArray[Any]) -> pd.Categorical:
    """The demangled name of each launch's kernel; "kernel N" for the Nth kernel of which the library saw no name. A
    handle may stand for different kernels in turn: it is the one that was named last before the launch, or first."""
    number, distinct = pd.factorize(launches["object"])
    launched = pd.DataFrame({"handle": launches["object"], "at": launches["sequence"], "row": range(len(launches))})
    said = _said(ring)
    last = pd.merge_asof(launched.sort_values("at"), said, on="at", by="handle", allow_exact_matches=False)
    first = said.drop_duplicates("handle").set_index("handle")["name"]
    names = last.sort_values("row")["name"].astype(object).to_numpy()
    for other in (
        launched["handle"].map(first),
        pd.Series([f"kernel {each + 1}" for each in range(len(distinct))], dtype=object).reindex(number),
    ):
        names = np.where(pd.isna(names), other.astype(object).to_numpy(), names)
    return pd.Categorical(names)


def _said(ring: Path) -> pd.DataFrame:
    """What was said of each handle, in order: at (the number of records before), handle, name."""
    lines = lines_beside(ring, ".names")
    rows = [(int(parts[0]), int(parts[1], 16), parts[2]) for parts in lines if _is_whole(parts)]
    said = pd.DataFrame(rows, columns=["at", "handle", "name"]).astype({"at": "uint64", "handle": "uint64"})
    known = dict(zip(said["handle"], said["name"], strict=True))
    alike = [known.get(int(name[1:], 16), "") if name.startswith(_SAME) else name for name in said["name"]]
    said["name"] = pd.Series(alike, dtype=object).map({name: demangled(name) for name in set(alike)})
    return said[said["name"] != ""].sort_values("at", kind="stable")


def _is_whole(parts: list[str]) -> bool:
    """Whether a line is one of the library's."""
    if len(parts) != _PARTS or not parts[2]:
        return False
    handles = [parts[1], parts[2][1:]] if parts[2].startswith(_SAME) else [parts[1]]
    return _NUMBER.fullmatch(parts[0]) is not None and all(map(_HANDLE.fullmatch, handles))
