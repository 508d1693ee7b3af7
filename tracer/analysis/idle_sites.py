"""Where in the program the host is while the device idles: by call site (self time), and by function in samples.

Samples are those of the CPU, as nsys takes them (`nsys profile --sample=process-tree`), on the thread of the step. One
step has few, so all steps are taken together. A thread is sampled while it runs on a CPU: time in which it waits has no
samples, and the shares are those of the time in which it runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from tracer.analysis.call_sites import (
    HostStep,
    StackTimes,
    host_ranges,
    in_file,
    joined_stacks,
    of_thread,
    sites_at,
    stacks,
    with_chains,
)
from tracer.analysis.idle import IdleReport, Pieces
from tracer.analysis.tokens import Steps
from tracer.model.columns import Columns, Names, Texts, grouped, numbers, positions, within
from tracer.model.intervals import Bools, Floats, Ints, covered, touching, union
from tracer.model.tables import SampleChains
from tracer.model.trace import Trace
from tracer.text import spelled

SAMPLED: Final = "device idle, sampled"
_ADDRESS: Final = re.compile(r"(0x[0-9a-f]+)?", re.IGNORECASE)  # what a function without a symbol is called
_NO_STACK: Final = "(no stack)"


class IdleSites(Columns):
    """The idle time by call site, the largest first.

    Attributes:
        site, source: as in `call_sites.Sites`.
        idle_us: mean per step; the rows add up to the idle time.
        share: of it.
        calls_us: the part inside CUDA calls.
    """

    site: Texts
    source: Texts
    idle_us: Floats
    share: Floats
    calls_us: Floats

    @property
    def unknown(self) -> float:
        """The share without a call site."""
        return float(self.share[self.source == ""].sum())


class _Pieces(Pieces):
    """Idle pieces, with the process and thread of their step."""

    process: Ints
    thread: Ints


def idle_by_site(trace: Trace, steps: Steps, idle: IdleReport) -> IdleSites:
    """Attribute the idle time of each step to what its thread does during it.

    Args:
        trace: the recording, read with its Python functions if it has any.
    """
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for process, thread, low, high in _cut(trace, steps, idle):
        sites, calls = sites_at(trace, process, thread, low), trace.api
        calls = calls[(calls.process == process) & (calls.thread == thread)]
        inside = covered(calls.start, calls.end, low, high)
        number, count = numbers(sites.site, sites.source)
        ns, inside_ns = (np.bincount(number, weights=each, minlength=count).tolist() for each in (high - low, inside))
        first = np.unique(number, return_index=True)[1]
        for row, mine, in_calls in zip(first.tolist(), ns, inside_ns, strict=True):
            key = str(sites.site[row]), str(sites.source[row])
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + int(mine), before[1] + int(in_calls)
    order = sorted(sums, key=lambda key: -sums[key][0])
    times, of_calls = (np.array([sums[key][at] for key in order], np.int64) for at in (0, 1))
    steps_ns = 1e3 * len(idle.periods)
    site, source = (np.array([key[at] for key in order], dtype=object) for at in (0, 1))
    return IdleSites(site, source, times / steps_ns, times / max(int(times.sum()), 1), of_calls / steps_ns)


def idle_stacks(trace: Trace, steps: Steps, idle: IdleReport) -> dict[str, int]:
    """The idle time as collapsed stacks: stack (see `call_sites.stacks`) -> idle time of all steps together, ns; the
    largest first."""
    sums = Counter[str]()
    for process, thread, low, high in _cut(trace, steps, idle):
        sums.update(StackTimes(stacks(trace, process, thread, low), high - low).sums())
    return dict(sorted(sorted(sums.items()), key=lambda item: -item[1]))


def _pieces(steps: Steps, idle: IdleReport) -> _Pieces:
    """The idle pieces."""
    at = positions([idle.pieces.step], [steps.rows.step])
    return _Pieces.from_table(idle.pieces, process=steps.rows.process[at], thread=steps.rows.thread[at])


def _cut(trace: Trace, steps: Steps, idle: IdleReport) -> Iterator[tuple[int, int, Ints, Ints]]:
    """For each thread of steps and each of its devices: process, thread, and begin and end of the idle pieces, cut
    where a range of the thread, or a call with a chain, begins or ends."""
    pieces = _pieces(steps, idle)
    for (process, thread), rows in grouped(pieces.process, pieces.thread):
        ranges, calls = of_thread(host_ranges(trace), process, thread), with_chains(trace, process, thread)
        edges = np.concatenate([ranges.start, ranges.end, calls.start, calls.end])
        for _, of_device in grouped(pieces.device[rows]):
            mine = pieces[rows[of_device]]
            mine = mine[np.argsort(mine.start, kind="stable")]
            inner = edges[(edges > mine.start[0]) & (edges < mine.end.max())]
            cuts = np.unique(np.concatenate([mine.start, mine.end, inner]))
            low, high = cuts[:-1], cuts[1:]
            at = np.searchsorted(mine.start, low, side="right") - 1
            inside = (at >= 0) & (low < mine.end[at])
            yield process, thread, low[inside], high[inside]


class SampledFunctions(Columns):
    """Functions in which samples were, the largest share first.

    Attributes:
        function: its name.
        self_us, total_us: without and with callees, per step.
        self_share: the share of samples in it, with the 95 % interval `self_low` to `self_high`.
    """

    function: Texts
    self_us: Floats
    total_us: Floats
    self_share: Floats
    self_low: Floats
    self_high: Floats


@dataclass(frozen=True, eq=False)
class Sampled:
    """The samples of the hosts while their devices idle.

    Attributes:
        samples: their number, at least 1.
        idle_us: the idle time per step, over which they are spread.
        unresolved: the share of samples whose innermost function has no symbol, or that have no stack.
        functions: the functions.
        stacks: stack (outermost name first, separated by `;`) -> number of samples, the most first.
    """

    samples: int
    idle_us: float
    unresolved: float
    functions: SampledFunctions
    stacks: dict[str, int]

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
        counts = np.array([*self.stacks.values()], np.int64)
        ns = (counts * (1e3 * self.idle_us / self.samples)).round().astype(np.int64)
        return HostStep(f"{SAMPLED} {self.samples} times", None, StackTimes(Names.of(self.stacks), ns))


def sampled_functions(trace: Trace, steps: Steps, idle: IdleReport) -> Sampled | None:
    """The functions in which samples found the hosts while their devices idle; None if there is no such sample.

    Args:
        trace: the recording, read with its functions.
    """
    samples = _while_idle(trace, _pieces(steps, idle))
    if not len(samples):
        return None
    frames = _frames(trace.sample_chains, samples)
    is_inner = np.append(frames.chain[1:] != frames.chain[:-1], True)[: len(frames)]
    names, count = frames.name.codes, len(frames.name.words)
    once = frames[within(frames.chain, names) == 0].name.codes
    own, total = np.bincount(names[is_inner], minlength=count), np.bincount(once, minlength=count)
    idle_us = float(idle.periods.idle.sum() / max(len(idle.periods), 1) / 1e3)
    share, (low, high) = own / len(samples), share_bounds(own, len(samples))
    table = SampledFunctions(
        frames.name.words, share * idle_us, total / len(samples) * idle_us, share, low, high
    )  # fmt: skip
    named = int((is_inner & ~frames.unresolved).sum())
    return Sampled(
        len(samples), idle_us, 1 - named / len(samples), table[np.lexsort((-total, -own))],
        _stacks(frames, is_inner, len(samples)),
    )  # fmt: skip


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


def _while_idle(trace: Trace, pieces: _Pieces) -> Ints:
    """The chains of the samples of each thread while a device of its steps idles."""
    samples, chains = trace.samples, [np.zeros(0, np.int64)]
    places = dict(grouped(samples.process, samples.thread))
    for thread, rows in grouped(pieces.process, pieces.thread):
        if (here := places.get(thread)) is not None:
            time = samples.time[here]
            idle = touching(time, time + 1, union(pieces.start[rows], pieces.end[rows]))
            chains.append(samples.chain[here[idle]])
    return np.concatenate(chains)


class _Frames(Columns):
    """The functions of samples, outermost first within each chain: whether it has no symbol, and its level (0 for the
    outermost)."""

    chain: Ints
    name: Names
    unresolved: Bools
    level: Ints


def _frames(chains: SampleChains, samples: Ints) -> _Frames:
    """The functions of the samples."""
    rows = chains[np.isin(chains.chain, samples)]
    rows = rows[np.lexsort((-rows.depth, rows.chain))]
    unresolved = (rows.unresolved == 1) | rows.symbol.chosen(_ADDRESS.fullmatch)
    texts = np.array([spelled(str(symbol).replace(";", ",")) for symbol in rows.symbol.words], dtype=object)
    symbols = np.where(unresolved, "no symbol", texts[rows.symbol.codes])
    return _Frames(rows.chain, Names.of(symbols + in_file(rows.module)), unresolved, within(rows.chain))


def _stacks(frames: _Frames, is_inner: Bools, samples: int) -> dict[str, int]:
    """The number of samples of each stack."""
    callers = np.where(frames.level > 0, np.arange(len(frames)) - 1, -1)
    numbers_of, texts = joined_stacks(frames.name.codes, frames.name.words.tolist(), callers, frames.level)
    counts = Counter(texts[at] for at in numbers_of[is_inner].tolist())
    if missing := samples - int(is_inner.sum()):
        counts[_NO_STACK] += missing
    return dict(counts.most_common())
