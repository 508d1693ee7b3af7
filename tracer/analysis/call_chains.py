"""Call sites from call chains: the stacks of CUDA calls that nsys (`--cudabacktrace`) and our recorders keep.

The site of a chain is its innermost function of the program. Functions of CUDA, of frameworks and of the interpreter
are below the program; if all are, the innermost one outside CUDA is the site.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.between_calls import chains_at
from tracer.analysis.calls import by_thread, match_rows, rows_named
from tracer.model.schema import MISSING
from tracer.model.trace import Trace
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


def chain_sites(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Find the call site of each call from its call chain.

    Args:
        trace: the recording.
        calls: columns start (ns), process and thread; rows of `trace["api"]` also have correlation. Times without it
            get the functions on the stacks of the previous and the next call, see `between_calls`.

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
    """The functions on the stack of a thread at each time (ns), see `between_calls.chains_at`: outermost first,
    separated by `;`, without CUDA's own; "" for none."""
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
