"""What is open on the host: the call site of each call, and the stacks of single steps (`HostStep`).

A call site is the function, or else the range, that is open when the call begins.

Functions are those of call chains (`call_chains`), or the Python functions of PyTorch's profiler (`with_stack=True`).
The site of a call is the innermost function of the program itself; the functions below it (PyTorch, Triton, the
standard library) show how the program reached the call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.call_chains import BELOW_PROGRAM, PYTHON_FILE, chain_sites, chain_stacks
from tracer.analysis.calls import outer_calls
from tracer.analysis.tokens import Steps
from tracer.compiled import compiled
from tracer.model.calls import MEANING
from tracer.model.rows import by_thread, of_thread
from tracer.model.schema import DEVICE_DOMAINS, OTHER_DOMAINS, PYTHON_FUNCTION
from tracer.model.trace import Trace
from tracer.text import spelled

PYTHON, NATIVE, RANGES = "python", "native", "ranges"
_UNNAMED: Final = "(unnamed)"
_COUNTER: Final = r"^(.*?\D)\d+$"

MEDIAN, SLOW = "median step", "slow step"
_SHARES: Final = {MEDIAN: 0.5, SLOW: 0.95}
"""The kind of step -> the share of steps that are no longer than it."""
_NOTHING: Final = "(no range or call)"


def call_sites(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    """Where each call was made.

    Args:
        trace: the recording, read with its Python functions if it has any.
        calls: columns start (ns), process and thread; rows of `trace["api"]` also have correlation.

    Returns:
        One row per call, with its index. site: `FILE(LINE): FUNCTION` of the program, `FUNCTION (LIBRARY)` of native
        code, or the innermost range if the recording has no functions (its text `without_counters`); "" for neither.
        through: the innermost function below it that has a file; "" for none. source: `PYTHON`, `NATIVE`, `RANGES`
        or "".
    """
    nvtx = host_ranges(trace)
    python = nvtx[nvtx["domain"] == PYTHON_FUNCTION]
    of_program, with_file = (_texts(python, below=below) for below in (False, True))
    site, lowest = (innermost_ranges(python[python["text"].isin(texts)], calls) for texts in (of_program, with_file))
    others = nvtx[nvtx["domain"] != PYTHON_FUNCTION]
    ranges = innermost_ranges(others.assign(text=without_counters(others["text"])), calls)
    chains = chain_sites(trace, calls)
    chained, python_chain = (chains["site"] != "").to_numpy(), chains["is_python"].to_numpy()
    of_python = (site != "") | (lowest != "")
    native = chained & ~python_chain & ~of_python
    found = np.where(site != "", site, np.where(lowest != "", lowest, ranges))
    found = np.where((chained & python_chain) | native, chains["site"], found)
    source = np.where(of_python | python_chain, PYTHON, np.where(native, NATIVE, np.where(ranges != "", RANGES, "")))
    through = np.where((site != "") & (lowest != site), lowest, "")
    through = np.where(chained & (found == chains["site"]), chains["through"], through)
    return pd.DataFrame({"site": found, "through": through, "source": source}, index=calls.index)


def host_ranges(trace: Trace) -> pd.DataFrame:
    """The rows of `nvtx` that nest within their thread: no marks, and no ranges that may end on another thread."""
    nvtx = trace["nvtx"]
    return nvtx[(nvtx["kind"] == "push/pop") & ~nvtx["domain"].isin(DEVICE_DOMAINS | OTHER_DOMAINS)]


def without_counters(texts: pd.Series[str]) -> pd.Series[str]:
    """Texts of ranges, with "N" in place of a trailing counter: a number with several values, each used once.

    `token 0`, `token 1`, … are one site; `split 0` and `split 1`, which occur in every step, are two.
    """
    found = texts.value_counts()
    once = pd.Series([str(text) for text in found.index[found == 1]], dtype=object)
    stems = once.str.extract(_COUNTER, expand=False)
    counted = stems.duplicated(keep=False) & stems.notna()
    names = {text: f"{stem}N" for text, stem in zip(once[counted], stems[counted], strict=True)}
    return texts.astype(object).map(lambda text: names.get(text, text)) if names else texts


def without_site(share: float) -> list[str]:
    """A note if this share of calls, or of idle time, has no call site."""
    if not share:
        return []
    return [
        f"{share:.0%} have no call site: the recording has neither a call chain (record --call-sites, nsys "
        "--cudabacktrace=all), a Python function (torch.profiler with with_stack=True) nor a range around them"
    ]


def by_site(calls: pd.DataFrame, sites: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The calls of the steps by their sites.

    Args:
        calls: `SyncReport.calls`.
        sites: their `call_sites`.
        steps: the number of steps.

    Returns:
        Columns what (as in `model.calls.MEANING`), name, site, through, source, per_step (calls), us_per_step
        (inside them); in the order of `MEANING`, the most time first.
    """
    table = calls[["letter", "name"]].astype(str).join(sites)
    table["us"] = (calls["end"] - calls["start"]) / 1e3
    keys = ["letter", "name", "site", "through", "source"]
    found = (
        table[table["letter"].isin(list(MEANING))].groupby(keys, sort=False)["us"].agg(["size", "sum"]).reset_index()
    )
    found["order"] = found["letter"].map({letter: at for at, letter in enumerate(MEANING)})
    found = found.sort_values(["order", "sum"], ascending=[True, False], kind="stable", ignore_index=True)
    found.insert(0, "what", found["letter"].map(MEANING))
    return found.assign(per_step=found["size"] / steps, us_per_step=found["sum"] / steps)[
        ["what", *keys[1:], "per_step", "us_per_step"]
    ]


def stacks(trace: Trace, process: int, thread: int, times: NDArray[np.int64]) -> pd.Categorical[str]:
    """Collapsed stacks of the ranges open on a thread at each time (ns, ascending): outermost first, separated by `;`,
    "" for none; below them the functions of call chains, as far as known (`chains_at`). Python functions without a file
    are left out.
    """
    here = of_thread(host_ranges(trace), process, thread)
    here = here[here["end"] > here["start"]]
    named = here["text"].isin([text for text in here["text"].unique() if PYTHON_FILE.search(str(text))])
    here = here[named | (here["domain"] != PYTHON_FUNCTION)]
    here = here.sort_values(["start", "end"], ascending=[True, False], kind="stable")
    starts, ends = (here[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    names_of = {text: spelled(str(text).replace(";", ",")) or _UNNAMED for text in here["text"].unique()}
    codes, texts = pd.factorize(here["text"].astype(object).map(names_of))
    paths, names = joined_stacks(codes, [str(text) for text in texts], *nesting(starts, ends))
    at = np.append(paths, len(names) - 1)[_open_at(starts, ends, times)]
    if not len(trace["callchains"]):
        return pd.Categorical.from_codes(at, pd.Index(names))
    called = chain_stacks(trace, process, thread, times)
    both = (";".join(filter(None, pair)) for pair in zip((names[one] for one in at), called, strict=True))
    return pd.Categorical(list(both))


def joined_stacks(
    codes: NDArray[np.int64], texts: list[str], parents: NDArray[np.int64], depths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[str]]:
    """The number of the stack of each range or function, and the stacks, outermost name first, separated by `;`; the
    last one is empty. Level by level, each distinct stack is joined once.

    Args:
        codes: the position of each one's name in `texts`.
        texts: the names.
        parents, depths: as from `nesting`.
    """
    paths, names = np.full(len(codes), -1, np.int64), list[str]()
    for depth in range(int(depths.max(initial=-1)) + 1):
        rows = np.flatnonzero(depths == depth)
        around = np.append(paths, -1)[parents[rows]]
        keys, numbers = np.unique((around + 1) * len(texts) + codes[rows], return_inverse=True)
        paths[rows] = len(names) + numbers
        outer, text = (keys // len(texts) - 1).tolist(), (keys % len(texts)).tolist()
        names += [f"{names[o]};{texts[t]}" if o >= 0 else texts[t] for o, t in zip(outer, text, strict=True)]
    return paths, [*names, ""]


def _texts(python: pd.DataFrame, *, below: bool) -> list[str]:
    """The functions that have a file: all of them, or only those of the program itself."""
    texts = [str(text) for text in python["text"].unique()]
    return [text for text in texts if PYTHON_FILE.search(text) and (below or not BELOW_PROGRAM.search(text))]


def innermost_ranges(ranges: pd.DataFrame, calls: pd.DataFrame) -> NDArray[np.object_]:
    """The text of the innermost range open when each call begins; ranges nest on each thread."""
    found = np.full(len(calls), "", object)
    ranges = ranges[ranges["end"] > ranges["start"]]
    of_thread = {(process, thread): ranges.iloc[rows] for process, thread, rows in by_thread(ranges)}
    for process, thread, rows in by_thread(calls):
        here = of_thread.get((process, thread))
        if here is None:
            continue
        here = here.sort_values(["start", "end"], ascending=[True, False], kind="stable")
        times = calls["start"].to_numpy()[rows]
        order = np.argsort(times, kind="stable")
        starts, ends = (here[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        at = _open_at(starts, ends, times[order])
        texts = np.append(here["text"].astype(object).replace("", _UNNAMED).to_numpy(), "")
        found[rows[order]] = texts[at]
    return found


@compiled
def nesting(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The position of the range around each range (-1 for none), and its nesting depth; ranges are sorted by start,
    outer ones first.
    """
    parents, depths = np.full(len(starts), -1, np.int64), np.zeros(len(starts), np.int64)
    stack = np.empty(len(starts), np.int64)
    depth = 0
    for at in range(len(starts)):
        while depth > 0 and ends[stack[depth - 1]] <= starts[at]:
            depth -= 1
        if depth > 0:
            parents[at] = stack[depth - 1]
        depths[at] = depth
        stack[depth] = at
        depth += 1
    return parents, depths


@compiled
def _open_at(starts: NDArray[np.int64], ends: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of the innermost range open at each time, -1 for none; ranges are sorted by start, outer ones first."""
    found = np.full(len(times), -1, np.int64)
    stack = np.empty(len(starts), np.int64)
    depth, at = 0, 0
    for i in range(len(times)):
        while at < len(starts) and starts[at] <= times[i]:
            while depth > 0 and ends[stack[depth - 1]] <= starts[at]:
                depth -= 1
            stack[depth] = at
            depth += 1
            at += 1
        while depth > 0 and ends[stack[depth - 1]] <= times[i]:
            depth -= 1
        if depth > 0:
            found[i] = stack[depth - 1]
    return found


@dataclass(frozen=True, eq=False)
class HostStep:
    """The thread that runs a step, from the beginning of the step to its end.

    Attributes:
        name: `MEDIAN`, `SLOW`, or another description.
        step: its number; None if it is a mean of several.
        samples: columns stack (outermost name first, separated by `;`) and ns, in chronological order; they add up to
            the duration of the step.
    """

    name: str
    step: int | None
    samples: pd.DataFrame

    @property
    def title(self) -> str:
        """The name, with the number of the step."""
        return self.name if self.step is None else f"{self.name} ({self.step})"

    @property
    def length_ns(self) -> int:
        """The duration of the step."""
        return int(self.samples["ns"].sum())


def host_steps(trace: Trace, steps: Steps) -> list[HostStep]:
    """The step of median duration and a slow one (at the 95th percentile); only one of them if they are the same step.

    Args:
        trace: the recording, read with its Python functions if it has any.
        steps: its steps.
    """
    order = np.argsort((steps.table["end"] - steps.table["start"]).to_numpy(), kind="stable")
    chosen = {name: int(order[int(share * (len(order) - 1))]) for name, share in _SHARES.items()} if len(order) else {}
    places = {place: name for name, place in reversed(chosen.items())}
    rows = {name: steps.table.iloc[place] for place, name in reversed(places.items())}
    return [HostStep(name, int(row["step"]), _samples(trace, row)) for name, row in rows.items()]


def _samples(trace: Trace, step: pd.Series) -> pd.DataFrame:
    process, thread, start, end = (int(step[name]) for name in ("process", "thread", "start", "end"))
    calls = outer_calls(of_thread(trace["api"], process, thread))
    here = of_thread(host_ranges(trace), process, thread)
    edges = np.concatenate([frame[name].to_numpy() for frame in (calls, here) for name in ("start", "end")])
    cuts = np.unique(np.concatenate([[start, end], edges[(edges > start) & (edges < end)]]))
    low = cuts[:-1]
    points = pd.DataFrame({"start": low, "process": process, "thread": thread})
    stack = pd.Series(stacks(trace, process, thread, low).astype(str))
    call = pd.Series(innermost_ranges(calls.rename(columns={"name": "text"}), points).astype(str))
    between = np.where((stack != "") & (call != ""), ";", "")
    found = pd.DataFrame({"stack": (stack + between + call).replace("", _NOTHING), "ns": np.diff(cuts)})
    changes = (found["stack"] != found["stack"].shift()).cumsum()
    return found.groupby(changes).agg(stack=("stack", "first"), ns=("ns", "sum")).reset_index(drop=True)


def by_function(samples: pd.DataFrame) -> pd.DataFrame:
    """Columns function, self_us (callees excluded) and total_us; the largest self time first."""
    sums = samples.groupby("stack", sort=False)["ns"].sum()
    names = sums.index.to_series().str.split(";")
    own = sums.groupby(names.str[-1].to_numpy()).sum()
    every = names.map(lambda parts: list(dict.fromkeys(parts))).explode()
    total = sums.loc[every.index].groupby(every.to_numpy()).sum()
    table = pd.DataFrame({"function": total.index, "self_us": own.reindex(total.index).fillna(0).to_numpy() / 1e3})
    table["total_us"] = total.to_numpy() / 1e3
    return table.sort_values(["self_us", "total_us"], ascending=False, kind="stable", ignore_index=True)
