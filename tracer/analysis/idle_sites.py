"""Where in the program the host is while the device idles: by call site (self time), and by function in samples.

Samples are those of the CPU, as nsys takes them (`nsys profile --sample=process-tree`), on the thread of the step. One
step has few, so all steps are taken together. A thread is sampled while it runs on a CPU: time in which it waits has no
samples, and the shares are those of the time in which it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tracer.analysis.call_chains import with_chains
from tracer.analysis.call_sites import HostStep, call_sites, host_ranges, joined_stacks, stacks
from tracer.analysis.idle import IdleReport
from tracer.analysis.tokens import Steps
from tracer.model.intervals import Floats, covered, touching, union
from tracer.model.rows import by_thread, of_thread, rows_named
from tracer.model.trace import Trace
from tracer.text import spelled

_KEYS = ["site", "source"]
SAMPLED: Final = "device idle, sampled"
_ADDRESS: Final = re.compile(r"(0x[0-9a-f]+)?", re.IGNORECASE)  # what a function without a symbol is called
_NO_STACK: Final = "(no stack)"


def idle_by_site(trace: Trace, steps: Steps, idle: IdleReport) -> pd.DataFrame:
    """Attribute the idle time of each step to what its thread does during it.

    Args:
        trace: the recording, read with its Python functions if it has any.
        steps: its steps.
        idle: their idle time.

    Returns:
        Columns site, source (as in `call_sites`), idle_us (mean per step; the rows add up to the idle time), share,
        calls_us (the part inside CUDA calls), the largest first; no rows if nothing idles.
    """
    pieces = pieces_of(steps, idle)
    parts = [
        _of_host(trace, process, thread, of_device)
        for process, thread, rows in by_thread(pieces)
        for _, of_device in pieces.iloc[rows].groupby("device", sort=False)
    ]
    if not parts:
        return pd.DataFrame(columns=[*_KEYS, "idle_us", "share", "calls_us"])
    table = pd.concat(parts).groupby(_KEYS, sort=False)[["ns", "calls_ns"]].sum().reset_index()
    count = 1e3 * len(idle.steps)
    table = table.assign(
        idle_us=table["ns"] / count, share=table["ns"] / table["ns"].sum(), calls_us=table["calls_ns"] / count
    )
    table = table.sort_values("ns", ascending=False, kind="stable", ignore_index=True)
    return table[[*_KEYS, "idle_us", "share", "calls_us"]]


def pieces_of(steps: Steps, idle: IdleReport) -> pd.DataFrame:
    """The idle pieces, with the process and thread of their step."""
    hosts = steps.table.set_index("step")[["process", "thread"]]
    return idle.table[["step", "device", "start", "end"]].join(hosts, on="step")


def idle_stacks(trace: Trace, steps: Steps, idle: IdleReport) -> pd.Series[int]:
    """The idle time as collapsed stacks: stack (see `call_sites.stacks`) -> idle time of all steps together, ns."""
    pieces = pieces_of(steps, idle)
    parts = []
    for process, thread, rows in by_thread(pieces):
        for _, of_device in pieces.iloc[rows].groupby("device", sort=False):
            low, high = _cut(trace, process, thread, of_device)
            stack = stacks(trace, process, thread, low)
            sums = pd.DataFrame({"stack": stack, "ns": high - low}).groupby("stack", observed=True)["ns"].sum()
            parts.append(sums.set_axis(sums.index.astype(str)))
    found = pd.concat(parts) if parts else pd.Series(dtype="int64")
    return found.groupby(level=0).sum().sort_values(ascending=False, kind="stable")


def _of_host(trace: Trace, process: int, thread: int, pieces: pd.DataFrame) -> pd.DataFrame:
    """Idle pieces of one device with the activity of its thread: site source ns calls_ns."""
    low, high = _cut(trace, process, thread, pieces)
    calls = of_thread(trace["api"], process, thread)
    points = pd.DataFrame({"start": low, "process": process, "thread": thread})
    return call_sites(trace, points)[_KEYS].assign(
        ns=high - low, calls_ns=covered(calls["start"], calls["end"], low, high)
    )


def _cut(trace: Trace, process: int, thread: int, pieces: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of the idle pieces of one device, cut where a range of the thread, or a call with a chain, begins
    or ends."""
    ranges = of_thread(host_ranges(trace), process, thread)
    pieces = pieces.sort_values("start", kind="stable")
    begin, finish = pieces["start"].to_numpy(), pieces["end"].to_numpy()
    calls = with_chains(trace, process, thread)
    edges = np.concatenate([frame[name].to_numpy() for frame in (ranges, calls) for name in ("start", "end")])
    cuts = np.unique(np.concatenate([begin, finish, edges[(edges > begin[0]) & (edges < finish.max())]]))
    low, high = cuts[:-1], cuts[1:]
    at = np.searchsorted(begin, low, side="right") - 1
    inside = (at >= 0) & (low < finish[at])
    return low[inside], high[inside]


@dataclass(frozen=True, eq=False)
class Sampled:
    """The samples of the hosts while their devices idle.

    Attributes:
        samples: their number, at least 1.
        idle_us: the idle time per step, over which they are spread.
        unresolved: the share of samples whose innermost function has no symbol, or that have no stack.
        functions: one row per function: function; self_us and total_us (without and with callees, per step) and
            self_share, the share of samples in it, with the 95 % interval self_low to self_high; the largest share
            first.
        stacks: stack (outermost name first, separated by `;`) -> number of samples.
    """

    samples: int
    idle_us: float
    unresolved: float
    functions: pd.DataFrame
    stacks: pd.Series[int]

    @property
    def note(self) -> str:
        """What the figures are, in one sentence."""
        missing = f"; {self.unresolved:.0%} of them are in functions without a symbol" if self.unresolved else ""
        return (
            f"{self.samples} samples of the host while the device idles, taken while its thread ran on a CPU{missing}: "
            "times are shares of samples, ± the binomial 95 % interval, and waiting has no samples"
        )

    def host_step(self) -> HostStep:
        """The stacks as one host step whose duration is the mean idle time per step."""
        ns = (self.stacks * (1e3 * self.idle_us / self.samples)).round().astype(np.int64)
        found = pd.DataFrame({"stack": ns.index.astype(object), "ns": ns.to_numpy()})
        return HostStep(f"{SAMPLED} {self.samples} times", None, found)


def sampled_functions(trace: Trace, steps: Steps, idle: IdleReport) -> Sampled | None:
    """The functions in which samples found the hosts while their devices idle; None if there is no such sample.

    Args:
        trace: the recording, read with its functions.
        steps: its steps.
        idle: their idle time.
    """
    samples = _while_idle(trace, pieces_of(steps, idle))
    if not len(samples):
        return None
    frames = _frames(trace["sample_chains"], samples)
    sums = _stacks(frames, len(samples)).value_counts()
    inner = frames[~frames["chain"].duplicated(keep="last")]
    own = inner["name"].value_counts()
    total = frames.drop_duplicates(["chain", "name"])["name"].value_counts()
    idle_us = float(idle.steps["idle"].sum() / max(len(idle.steps), 1) / 1e3)
    table = pd.DataFrame({"function": total.index.astype(object), "total": total.to_numpy()})
    table["self"] = own.reindex(total.index).fillna(0).to_numpy(np.int64)
    low, high = share_bounds(table["self"], len(samples))
    table = table.assign(
        self_us=table["self"] / len(samples) * idle_us, total_us=table["total"] / len(samples) * idle_us,
        self_share=table["self"] / len(samples), self_low=low, self_high=high,
    ).sort_values(["self", "total"], ascending=False, kind="stable", ignore_index=True)  # fmt: skip
    named = int((~inner["unresolved"]).sum())
    return Sampled(len(samples), idle_us, 1 - named / len(samples), table.drop(columns=["self", "total"]), sums)


def share_bounds(counts: ArrayLike, of: int) -> tuple[Floats, Floats]:
    """The 95 % intervals of shares counted in samples: Wilson's score interval of the binomial distribution, which
    takes the samples as independent of each other.

    Args:
        counts: the samples of each share.
        of: the number of all samples, at least 1.

    Example:
        >>> [[round(float(x), 3) for x in bound] for bound in share_bounds([5], 10)]
        [[0.237], [0.763]]
    """
    from scipy.stats import binomtest

    distinct, number = np.unique(np.asarray(counts), return_inverse=True)
    bounds = [tuple(binomtest(count, of).proportion_ci(method="wilson")) for count in distinct.tolist()]
    low, high = np.array(bounds).reshape(-1, 2)[number].T
    return low, high


def _while_idle(trace: Trace, pieces: pd.DataFrame) -> NDArray[np.int64]:
    """The chains of the samples of each thread while a device of its steps idles."""
    samples, found = trace["samples"], [np.zeros(0, np.int64)]
    of_thread = {(process, thread): samples.iloc[rows] for process, thread, rows in by_thread(samples)}
    for process, thread, rows in by_thread(pieces):
        here = of_thread.get((process, thread))
        if here is not None:
            time = here["time"].to_numpy()
            idle = pieces.iloc[rows]
            found.append(here["chain"].to_numpy()[touching(time, time + 1, union(idle["start"], idle["end"]))])
    return np.concatenate(found)


def _frames(chains: pd.DataFrame, samples: NDArray[np.int64]) -> pd.DataFrame:
    """The functions of the samples, outermost first within each: chain name unresolved level (0 for the outermost)."""
    rows = chains[chains["chain"].isin(samples)].sort_values(
        ["chain", "depth"], ascending=[True, False], kind="stable", ignore_index=True
    )
    files = [str(module).rpartition("/")[2] for module in rows["module"].cat.categories]
    behind = np.array([f" ({file})" if file else "" for file in files], dtype=object)[rows["module"].cat.codes]
    unresolved = (rows["unresolved"] == 1).to_numpy() | rows_named(rows["symbol"], _ADDRESS.fullmatch)
    texts = [spelled(str(symbol).replace(";", ",")) for symbol in rows["symbol"].cat.categories]
    symbols = np.where(unresolved, "no symbol", np.array(texts, dtype=object)[rows["symbol"].cat.codes])
    first = (~rows["chain"].duplicated()).to_numpy()
    level = np.arange(len(rows)) - np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    return pd.DataFrame({"chain": rows["chain"], "name": symbols + behind, "unresolved": unresolved, "level": level})


def _stacks(frames: pd.DataFrame, samples: int) -> pd.Series:
    """The stack of each sample."""
    name, names = pd.factorize(frames["name"])
    level = frames["level"].to_numpy()
    callers = np.where(level > 0, np.arange(len(frames)) - 1, -1)
    stacks_of, texts = joined_stacks(name, list(map(str, names)), callers, level)
    found = [texts[at] for at in stacks_of[~frames["chain"].duplicated(keep="last")]]
    return pd.Series([*found, *[_NO_STACK] * (samples - len(found))])
