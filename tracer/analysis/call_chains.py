"""Call sites from call chains: the stacks of CUDA calls that nsys (`--cudabacktrace`) and our recorders keep.

The site of a chain is its innermost function of the program. Functions of CUDA, of frameworks and of the interpreter
are below the program; if all are, the innermost one outside CUDA is the site. Between two calls a thread is in the
innermost function on the stacks of both, or in a function called from it that makes no CUDA call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import outer_calls
from tracer.model.intervals import Ints
from tracer.model.rows import by_thread, match_rows, rows_named
from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace, conform
from tracer.text import spelled

PYTHON_FILE: Final = re.compile(r"\(\d+\): ")
"""Matches the text of a Python function that has a file, `FILE(LINE): FUNCTION`."""

BELOW_PROGRAM: Final = re.compile(
    r"(^|/)(torch|triton|numpy|cupy|cuda|nvtx|importlib|concurrent|asyncio|multiprocessing)/|^<"
    r"|(^|/)executor/backends/(cpu|cuda|sim)(\.py\(|/)"
    r"|(^|/)(contextlib|functools|threading|queue|typing|enum|abc|collections|weakref|dataclasses|_[a-z_]+)\.py\("
)
"""Files of Python libraries: a program calls them but does not contain them. Paths are shortened to the module, as
Kineto does. The executor's backends are libraries to the executor.
"""

_OF_CUDA: Final = re.compile(
    r"^(lib(cuda|cudart|cupti|nvrtc|nvToolsExt|ToolsInjection\w*|intertoken_light|dl|pthread|c)|ld-linux[\w-]*)[-.]"
)
_OF_FRAMEWORKS: Final = re.compile(
    r"^(lib(torch\w*|c10\w*|cu(blas|dnn|fft|sparse|solver)\w*|nccl|stdc\+\+|gcc_s|m|python|gomp|jemalloc|tcmalloc\w*)[-.\d]"
    r"|python[\d.]*$|\w+\.(cpython-|abi3\.))"
)
_CALL: Final = re.compile(r"^_*cuda[A-Z]\w*$|^cu[A-Z]\w*$|^libcudart_static_|^cudart::")
Frames = Sequence[tuple[str, str]]
"""Symbol and module of each function, the outermost first."""


def chain_sites(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Find the call site of each call from its call chain.

    Args:
        trace: the recording.
        calls: columns start (ns), process and thread; rows of `trace["api"]` also have correlation. Times without it
            get the functions on the stacks of the previous and the next call, see `chains_at`.

    Returns:
        Columns site, through (see `call_sites.call_sites`) and is_python, with the index of `calls`; texts are empty
        for calls without a chain.
    """
    nothing = pd.DataFrame({"site": "", "through": "", "is_python": False}, index=calls.index)
    chains, api = trace["callchains"], trace["api"]
    if not len(chains) or not len(calls):
        return nothing
    if "correlation" in calls:
        with_chain = api[api["callchain"].isin(chains["chain"].unique())]
        rows = match_rows(with_chain, calls)
        chain = np.append(with_chain["callchain"].to_numpy(), MISSING)[rows]
        found = _sites(chains).reindex(chain)
    else:
        parts = []
        for process, thread, at in by_thread(calls):
            chain, chains = chains_at(trace, process, thread, calls["start"].to_numpy()[at])
            parts.append(_sites(chains).reindex(chain).set_axis(at))
        found = pd.concat(parts).sort_index()
    known = found["site"].notna().to_numpy()
    for column in nothing.columns if known.any() else ():
        nothing.loc[known, column] = found[column].to_numpy()[known]
    return nothing


def chain_stacks(trace: Trace, process: int, thread: int, times: NDArray[np.int64]) -> list[str]:
    """The functions on the stack of a thread at each time (ns), see `chains_at`: outermost first, separated by `;`,
    without CUDA's own; "" for none."""
    chain, chains = chains_at(trace, process, thread, times)
    ordered = chains.sort_values(["chain", "depth"], ascending=[True, False], kind="stable", ignore_index=True)
    kept = ordered[~_of_cuda(ordered) & (ordered["symbol"] != "").to_numpy()]
    texts = pd.Series(_texts(kept, np.arange(len(kept))), index=kept["chain"].to_numpy(), dtype=object)
    texts = texts.map(lambda text: spelled(str(text).replace(";", ",")))
    stacks = texts.groupby(level=0, sort=False).agg(";".join).to_dict()
    return [stacks.get(one, "") for one in chain.tolist()]


def _of_cuda(chains: pd.DataFrame) -> NDArray[np.bool_]:
    """Which functions are CUDA's."""
    symbol = chains["symbol"]
    native = ~rows_named(symbol, PYTHON_FILE.search)
    return native & (rows_named(chains["module"], _in(_OF_CUDA)) | rows_named(symbol, _CALL.search))


def _sites(chains: pd.DataFrame) -> pd.DataFrame:
    """Chain -> its site, the innermost function below it, and whether the site is a Python function."""
    ordered = chains.sort_values(["chain", "depth"], kind="stable", ignore_index=True)
    symbol, module = ordered["symbol"], ordered["module"]
    python = rows_named(symbol, PYTHON_FILE.search)
    of_cuda = _of_cuda(ordered)
    below = of_cuda | np.where(
        python, rows_named(symbol, BELOW_PROGRAM.search), rows_named(module, _in(_OF_FRAMEWORKS))
    )
    named, number = rows_named(symbol, bool), ordered["chain"].to_numpy()
    lowest = _first(number, named & ~of_cuda)
    # Where a chain has Python functions, native code is a library's.
    site = _first(number, python & ~below).combine_first(_first(number, named & ~below)).combine_first(lowest)
    at = np.asarray(site, np.int64)
    way = np.asarray(lowest.reindex(site.index), np.int64)
    return pd.DataFrame(
        {
            "site": _texts(ordered, at),
            "through": np.where(way == at, "", _texts(ordered, way)),
            "is_python": python[at],
        },
        index=site.index,
    )


def _in(modules: re.Pattern[str]) -> Callable[[str], object]:
    """Whether a module's file name, without its directory, is one of these."""
    return lambda module: modules.match(module.rpartition("/")[2])


def _texts(chains: pd.DataFrame, rows: NDArray[np.int64]) -> NDArray[np.object_]:
    """Display names of functions; those in a library are followed by its file."""
    symbols, modules = (chains[column].iloc[rows] for column in ("symbol", "module"))
    files = np.array([str(module).rpartition("/")[2] for module in modules.cat.categories], dtype=object)
    behind = np.array([f" ({file})" if file else "" for file in files], dtype=object)
    return np.asarray(symbols.astype(object).to_numpy() + behind[modules.cat.codes.to_numpy()], dtype=object)


def _first(chain: NDArray[np.int64], chosen: NDArray[np.bool_]) -> pd.Series[int]:
    """Map each chain to the row of its first selected function."""
    rows = np.flatnonzero(chosen)
    return pd.Series(rows, index=chain[rows]).groupby(level=0).first()


def with_chains(trace: Trace, process: int, thread: int) -> pd.DataFrame:
    """The calls of a thread that have a call chain, by start; calls inside others are left out."""
    api = trace["api"]
    here = (api["process"] == process) & (api["thread"] == thread) & (api["callchain"] != MISSING)
    return outer_calls(api[here & api["callchain"].isin(trace["callchains"]["chain"].unique())])


def chains_at(trace: Trace, process: int, thread: int, times: Ints) -> tuple[Ints, pd.DataFrame]:
    """The stack of a thread at each time (ns), as far as its calls show it.

    Returns:
        For each time the number of a chain, `MISSING` if unknown: that of the call in progress, or else one of the
        functions that the previous and the next call have in common. And these chains, with the columns of
        `trace["callchains"]`.
    """
    calls = with_chains(trace, process, thread)
    start, end, chain = (calls[name].to_numpy(np.int64) for name in ("start", "end", "callchain"))
    at = np.searchsorted(start, times, side="right") - 1
    inside = (at >= 0) & (times < np.append(end, 0)[at])
    between = ~inside & (at >= 0) & (at < len(start) - 1)
    pairs = np.column_stack([chain[at[between]], chain[at[between] + 1]])
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    known = trace["callchains"]
    frames: dict[int, Frames] = {
        int(str(one)): list(zip(of["symbol"].astype(str), of["module"].astype(str), strict=True))
        for one, of in known[known["chain"].isin(chain)].sort_values("depth", ascending=False).groupby("chain")
    }
    first = max(frames, default=0) + 1
    for pair, (before, after) in enumerate(distinct.tolist()):
        frames[first + pair] = _common(frames[before], frames[after])
    found = np.full(len(times), MISSING)
    found[inside], found[between] = chain[at[inside]], first + number.ravel()
    rows = [
        (one, depth, *frame)
        for one in np.unique(found[found != MISSING]).tolist()
        for depth, frame in enumerate(reversed(frames[one]))
    ]
    table = pd.DataFrame(rows, columns=["chain", "depth", "symbol", "module"])
    return found, conform(table, TABLES["callchains"])


def _common(one: Frames, other: Frames) -> Frames:
    """The outer functions that two stacks share, as they are in the first one: line numbers of Python functions may
    differ."""
    alike = 0
    for (symbol, module), (its_symbol, its_module) in zip(one, other, strict=False):
        if (PYTHON_FILE.sub("", symbol), module) != (PYTHON_FILE.sub("", its_symbol), its_module):
            break
        alike += 1
    return one[:alike]
