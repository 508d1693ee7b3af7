"""Converts the call sites that the preloaded library wrote next to a ring (`native/sites.c`) to call chains."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.model.schema import MISSING
from tracer.recorders.elf_symbols import functions_at, plain_name
from tracer.recorders.light_ring import Ring

_COLUMNS: Final = ["site", "offset", "symbol", "file"]
_CHAIN: Final = ["chain", "depth", "symbol", "module"]
_PARTS: Final = 4


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
    path = next((p for p in (ring, ring.parent.parent / ring.name) if _beside(p).is_file()), None)
    lines = _beside(path).read_text(errors="replace").splitlines() if path else []
    rows = [parts for line in lines if len(parts := line.split("\t")) == _PARTS and (parts[0] + parts[1]).isdecimal()]
    table = pd.DataFrame(rows, columns=_COLUMNS).astype({"site": "int64", "offset": "int64"})
    table["named"] = [plain_name(symbol) for symbol in table["symbol"]]
    for file, mine in table.groupby("file", sort=False):
        places = mine["offset"].to_numpy() - 1  # a return address may be the first of the next function
        names = pd.Series(functions_at(Path(str(file)), places), index=mine.index)
        table.loc[mine.index, "named"] = names.where(names != "", mine["named"])
    depth = table.groupby("site").cumcount()
    found = table.assign(chain=table["site"], depth=depth, symbol=table["named"], module=table["file"])
    return found[_CHAIN]


def _beside(ring: Path) -> Path:
    return ring.with_name(f"{ring.name}.sites")
