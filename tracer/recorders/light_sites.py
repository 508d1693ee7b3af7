"""Converts the call sites that the preloaded library wrote next to a ring (`native/sites.c`) to call chains.

Names of functions, including static ones, come from the symbol tables of ELF files (64 bit, little endian). Source:
System V ABI, chapters 4 and 5; elf.h.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.schema import MISSING
from tracer.recorders.cupti_names import demangled
from tracer.recorders.light_ring import Ring, lines_beside

_COLUMNS: Final = ["site", "offset", "file"]
_CHAIN: Final = ["chain", "depth", "symbol", "module"]
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
    table = pd.DataFrame(rows, columns=_COLUMNS).astype({"site": "int64", "offset": "int64"})
    table["symbol"] = ""
    for file, mine in table.groupby("file", sort=False):
        places = mine["offset"].to_numpy() - 1  # a return address may be the first of the next function
        table.loc[mine.index, "symbol"] = functions_at(Path(str(file)), places)
    depth = table.groupby("site").cumcount()
    found = table.assign(chain=table["site"], depth=depth, module=table["file"])
    return found[_CHAIN]


def functions_at(path: Path, offsets: NDArray[np.int64]) -> list[str]:
    """The functions that contain these addresses, demangled and without their arguments.

    Args:
        path: an ELF file.
        offsets: addresses, in bytes from the address at which the file was loaded.

    Returns:
        One name per address; "" if it is in no function, or if the file cannot be read or is not an ELF file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _functions(content, offsets) if content[: len(_MAGIC)] == _MAGIC else [""] * len(offsets)
    except (OSError, ValueError, struct.error, IndexError):
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
    found = []
    for place, row in zip((offsets + base).tolist(), at.tolist(), strict=True):
        is_inside = row >= 0 and place < int(symbols["value"][row]) + max(int(symbols["size"][row]), 1)
        found.append(_text(content, texts + int(symbols["name"][row])) if is_inside else "")
    return [plain_name(text) for text in found]


def _array(content: mmap.mmap, kind: np.dtype[Any], at: int, count: int) -> NDArray[Any]:
    """Return a copy, so that the mapping can be closed."""
    return np.frombuffer(content[at : at + count * kind.itemsize], kind, count)


def _text(content: mmap.mmap, at: int) -> str:
    return content[at : at + _LONGEST].partition(b"\0")[0].decode(errors="replace")


def plain_name(symbol: str) -> str:
    """A demangled symbol, without arguments and without the suffixes that compilers add to clones of a function.

    Example:
        >>> plain_name("main"), plain_name("decode.constprop.0")
        ('main', 'decode')
    """
    name = demangled(symbol.partition(".")[0])
    return name.replace("(anonymous namespace)::", "").partition("(")[0]
