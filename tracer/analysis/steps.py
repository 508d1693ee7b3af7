"""The steps of a trace, however they were found, and the selection of some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from tracer.analysis.bounds import Owner, listed, remedy
from tracer.engines.engine import DECODE, MIXED, PHASES, PREFILL, SPECULATIVE
from tracer.errors import EmptyTraceError, TraceError
from tracer.model.columns import NEVER, Columns, Names, grouped, joined, last_before, numbers, runs, several, within
from tracer.model.intervals import Bools, Ints
from tracer.model.schema import MISSING
from tracer.notes import LONGEST, clauses, fitting
from tracer.text import counted

if TYPE_CHECKING:
    import pandas as pd

Span = tuple[int, int]
DoubtfulSpan = tuple[int, int, int | None]
"""Begin and end, ns."""

UNSURE: Final = 0.9
"""Below this confidence, the uncertainty about the steps is reported first."""
_SAY: Final = "give --pattern or --range"
_HOW: Final = "--pattern tells what begins a step, --range where to look; or put an NVTX range around each step"
SAME_RATE: Final = 1.1
"""Hosts whose rates, or tokens per step, differ by more than this are not ranks of one engine that step together."""
_REGIME: Final = 8
"""The minimum steps of a regime, and the maximum number of regimes: batches that change constantly form none."""


@dataclass(frozen=True)
class Regime:
    """Consecutive steps first..last-1 (positions) of one configuration, named by `label`."""

    first: int
    last: int
    label: str


class StepRows(Columns):
    """A row per step, by start.

    Attributes:
        step: 0, 1, ...
        start, end: ns.
        process, thread: of its host.
        group: equal for steps that follow each other.
        phase: one of `PHASES`.
        sequences: that it computes for.
        gained: tokens that it adds to them.
        kind: equal for similar steps without marks.
        closes: when its mark does, ns.

    The last four are MISSING if unknown.
    """

    step: Ints
    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    group: Ints
    phase: Names
    sequences: Ints
    gained: Ints
    kind: Ints
    closes: Ints

    @cached_property
    def ordinal(self) -> Ints:
        """The position of each step in its group."""
        return within(self.group)

    @cached_property
    def is_of_one_thread(self) -> bool:
        """Whether all are of one thread."""
        return not several(self.process, self.thread)

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame."""
        return super().frame().assign(phase=self.phase.texts)


class Spoilt(Columns):
    """Times of steps in doubt: process and thread of the steps, start and end, ns."""

    process: Ints
    thread: Ints
    start: Ints
    end: Ints


class Others(Columns):
    """Steps of other phases: phase, start and end, ns."""

    phase: Names
    start: Ints
    end: Ints


NO_INTS: Final = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Steps:
    """Steps of a trace.

    Attributes:
        rows: one per step.
        source: "nvtx" or "calls", how they were found.
        detail: the same in words.
        confidence: 0..1: how certain it is that these are the engine's steps.
        phases: phase -> the number of its steps in the trace, whether in the rows or not.
        regime: which of several regimes the rows show; None for everything.
        regimes: the other ones.
        spoilt: the times of steps in doubt, which no rate counts.
        doubts: why steps in doubt were left out (`tracer.analysis.clocks`).
        others: the trace's steps of other phases.
        hidden: why it is unknown when the device works in most of them; "" if it is known.
        unexplained: the share of the device's time between them that is of no step, 0 if unknown.
        different: the rate of each host, in words, if they differ so that none is that of all
            (`step_work.different_rates`); else "".
        owners: the engines, if the steps are of several (`tracer.analysis.owners`); else empty.
        beside: the steps of the same processes that were not chosen; None without any.
        device: the only one on which work belongs to the steps; None for any.
    """

    rows: StepRows
    source: str
    detail: str
    confidence: float = 1.0
    phases: dict[str, int] = field(default_factory=dict)
    regime: Regime | None = None
    regimes: tuple[Regime, ...] = ()
    spoilt: Spoilt = field(default_factory=lambda: Spoilt(NO_INTS, NO_INTS, NO_INTS, NO_INTS))
    doubts: tuple[str, ...] = ()
    others: Others = field(default_factory=lambda: Others(Names.of([]), NO_INTS, NO_INTS))
    hidden: str = ""
    unexplained: float = 0.0
    different: str = ""
    owners: tuple[Owner, ...] = ()
    beside: StepRows | None = None
    device: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows as a DataFrame."""
        return self.rows.frame()

    @property
    def prefills(self) -> int:
        """The number of prefill steps in the trace, whether in the rows or not."""
        return self.phases.get(PREFILL, 0)

    @property
    def decode_alone(self) -> bool:
        """Whether all steps decode, so that decode rates apply to them."""
        return bool(self.rows.phase.rows(DECODE, SPECULATIVE).all())

    @property
    def decodes(self) -> bool:
        """Whether any step gains tokens; otherwise there is no decoding strategy and no tokens/s."""
        return bool(self.rows.phase.rows(DECODE, SPECULATIVE, MIXED).any())

    @property
    def unit(self) -> str:
        """The word for one of the steps in figures: a token, if they gain any."""
        return "token" if self.decodes else "step"

    @property
    def counted(self) -> str:
        """The number of the steps, in words."""
        return counted(len(self), "token step" if self.decodes else "step")

    @property
    def tokens_per_step(self) -> float | None:
        """The mean number of tokens per step over all its sequences; None if it is not known for every step (drafts,
        prompts, engines whose marks do not say), or if the steps of several hosts differ in it."""
        gained = self.rows.gained
        if not len(gained) or (gained == MISSING).any():
            return None
        means = [gained[rows].mean() for _, rows in grouped(self.rows.process, self.rows.thread)]
        return float(gained.mean()) if max(means) <= SAME_RATE * min(means) else None

    @property
    def rate_doubt(self) -> str | None:
        """Why their rate may be too low, in words; None if it is not in doubt."""
        if self.unexplained <= 1 - UNSURE:
            return None
        return f"{self.unexplained:.0%} of the device's time between the steps is of none, so some may be missing"

    @property
    def what(self) -> str:
        """What the trace contains, in words.

        Example:
            "59 decode steps, 1 prefill step"
        """
        counts = sorted(self.phases.items(), key=lambda item: (PHASES.index(item[0]), item[0]))
        return self._in_words(dict(counts))

    @property
    def of_each(self) -> str:
        """What each of several ranks (hosts with as many steps) has, in words; "" if there are none.

        Example:
            "59 decode steps, 1 prefill step of each of 2 ranks"
        """
        hosts = [len(rows) for _, rows in grouped(self.rows.process, self.rows.thread)]
        shares = {phase: divmod(count, len(hosts)) for phase, count in self.phases.items()} if len(hosts) > 1 else {}
        if not shares or len(set(hosts)) > 1 or any(rest for _, rest in shares.values()):
            return ""
        counts = sorted(shares, key=lambda phase: (PHASES.index(phase), phase))
        return f"{self._in_words({phase: shares[phase][0] for phase in counts})} of each of {len(hosts)} ranks"

    def _in_words(self, counts: dict[str, int]) -> str:
        words = _WORDS | _WITHOUT_MARKS if self.source == "calls" and DECODE in self.phases else _WORDS
        return ", ".join(f"{count} {words[phase][count != 1]}" for phase, count in counts.items())

    @property
    def several(self) -> str:
        """Whose the steps are, and how to choose one engine, in words, if they are of several; else ""."""
        if not self.owners:
            return ""
        each = (
            f"hosts of different rates, as of several engines: {self.different}"
            if self.different
            else f"the steps are of {len(self.owners)} engines: {listed(map(str, self.owners), ', ')}"
        )
        return f"{each}; {remedy(self.owners)}"

    @property
    def several_in_short(self) -> str:
        """The same as a note."""
        return fitting(self.several, f"the steps are of several engines; {remedy(self.owners)}")

    def of_one_engine(self) -> Steps:
        """The steps themselves.

        Raises:
            TraceError: they are of several engines; the message says how to choose one.
        """
        if self.owners:
            raise TraceError(self.several)
        return self

    @property
    def whole(self) -> Steps:
        """The steps together with those beside them, on all devices."""
        if self.beside is None:
            return self if self.device is None else replace(self, device=None)
        rows = joined([self.rows, self.beside])
        return replace(self, rows=rows[np.argsort(rows.start, kind="stable")], beside=None, device=None)

    @property
    def notes(self) -> list[str]:
        """The caveats for any figure over these steps, beginning with any doubt about the steps."""
        notes = []
        if self.confidence < UNSURE:
            doubt = f"the steps are uncertain (confidence {self.confidence:.2f})"
            why = clauses(self.detail, LONGEST - len(f"{doubt}: ; {_SAY}.") - 1)
            told = [f"{doubt}: {why}; {_SAY}" if why else f"{doubt}; {_SAY}", self.detail, _HOW]
            notes.append("\n".join(line for line in told if line != why))
        notes += self.doubts
        if self.owners:
            notes.append(self.several_in_short)
        if self.regime is not None:
            others = "; ".join(f"--steps {r.first}:{r.last} ({r.label})" for r in self.regimes if r != self.regime)
            here = self.regime
            figures = f"figures are for steps {here.first}:{here.last} ({here.label})"
            notes.append(fitting(f"{figures}; the others: {others}", f"{figures}; the others: --steps A:B"))
        shown = set(self.rows.phase)
        left = {phase: count for phase, count in self.phases.items() if phase not in shown}
        if left:
            how = f"include with --phase {next(iter(left))} or --phase all"
            count = sum(left.values())
            notes.append(
                fitting(f"left out: {self._in_words(left)}; {how}", f"left out: {count} steps of other phases; {how}")
            )
        return notes

    def without(self, spoilt: Ints, spans: list[DoubtfulSpan], why: list[str]) -> Steps:
        """The steps without those at some positions; the steps before and after these, or before and after a period in
        doubt, become separate groups.

        Args:
            spans: other periods in doubt, of a process or (None) of all.
            why: lines for the notes.
        """
        kept, table = np.ones(len(self), bool), self.rows
        kept[spoilt] = False
        lost = table[~kept]
        times = [self.spoilt, Spoilt(lost.process, lost.thread, lost.start, lost.end)]
        for _, rows in grouped(table.process, table.thread):
            process, thread = table.process[rows[:1]], table.thread[rows[:1]]
            mine = [(begin, end) for begin, end, of in spans if of is None or of == process[0]]
            begin, end = np.array(mine, np.int64).reshape(-1, 2).T
            times.append(Spoilt(process.repeat(len(mine)), thread.repeat(len(mine)), begin, end))
        return replace(self, rows=self._parted(kept, spans), spoilt=joined(times), doubts=(*self.doubts, *why))

    def _parted(self, kept: Bools, spans: Sequence[DoubtfulSpan] = ()) -> StepRows:
        """Some of the steps; where others, or one of the spans, lie between them, a new group begins."""
        table, after = self.rows[kept], np.zeros(int(kept.sum()), np.int64)
        for _, end, process in spans:
            after += (table.start >= end) & (True if process is None else table.process == process)
        part = _counted(~kept, self.rows.group)[kept]
        return table.changed(group=numbers(table.group, part, after)[0])

    def of_phase(self, phase: str | None) -> Steps:
        """The steps of one phase (all with "all"), renumbered; see `Bounds.phase`.

        Steps that were separated by a step of another phase belong to separate groups.

        Raises:
            EmptyTraceError: nothing is left.
        """
        phases = dict(Counter(self.rows.phase))
        most = max((DECODE, SPECULATIVE), key=lambda name: phases.get(name, 0))
        phase = phase or (most if most in phases else "all")
        kept = self.rows.phase.rows(phase) | (phase == "all")
        if not kept.any():
            raise EmptyTraceError(f"no {phase} step in the trace, which contains {replace(self, phases=phases).what}")
        table, left = self._parted(kept).changed(step=np.arange(kept.sum())), self.rows[~kept]
        others = Others(left.phase, left.start, left.end)
        return replace(self, rows=table, phases=phases, regimes=regimes_of(table), others=others)

    def of_main_regime(self) -> Steps:
        """The steps of the longest regime; all of them if there is only one."""
        if not self.regimes:
            return self
        longest = max(self.regimes, key=lambda regime: regime.last - regime.first)
        return replace(self.select(longest.first, longest.last), regime=longest)

    def select(self, first: int | None, last: int | None) -> Steps:
        """Steps first..last-1, as in a Python slice.

        Raises:
            EmptyTraceError: nothing is left.
        """
        chosen = self.rows[slice(first, last)]
        if not len(chosen):
            raise EmptyTraceError(f"no token step in {first}:{last}; the trace has {len(self)}")
        return replace(self, rows=chosen)

    def of(self, times: Ints, processes: Ints, threads: Ints) -> Ints:
        """The position in `rows` of the step that contains a host call at each time, or -1.

        If all steps of a process are on one thread, calls of its other threads belong to them too.
        """
        table = self.rows
        if table.is_of_one_thread and self.beside is None:
            at = np.searchsorted(table.start, times, side="right") - 1
            at[processes != table.process[0]] = -1
        else:
            at = last_before([processes, threads], times, [table.process, table.thread], table.start)
        return np.where(times < np.append(table.end, -NEVER)[at], at, -1)  # in which, or -1


def regimes_of(table: StepRows) -> tuple[Regime, ...]:
    """Long runs of steps with the same number of sequences, or of one kind, if there are several."""
    named = bool((table.sequences != MISSING).all())
    values = table.sequences if named else table.kind
    edges = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True])))
    if not 2 < len(edges) <= _REGIME + 1 or np.diff(edges).min() < _REGIME:
        return ()
    labels = [
        counted(int(values[first]), "sequence") if named else f"kind {n}" for n, first in enumerate(edges[:-1], 1)
    ]
    return tuple(map(Regime, edges[:-1].tolist(), edges[1:].tolist(), labels))


def as_steps(table: StepRows, source: str, detail: str, confidence: float) -> Steps:
    """The steps of a table in any order, by start; each prompt starts a group."""
    table = table[np.argsort(table.start, kind="stable")]
    group, _ = numbers(table.group, _counted(table.phase.rows(PREFILL), table.group))
    return Steps(table.changed(group=group, step=np.arange(len(table))), source, detail, confidence)


def _counted(flags: Bools, groups: Ints) -> Ints:
    """For each row, how many rows of its group up to it have the flag."""
    if not flags.any():
        return np.zeros(len(flags), np.int64)
    order, first = runs(groups)
    total = np.cumsum(flags[order])
    before = np.append(0, total)[first]
    counted = np.empty(len(flags), np.int64)
    counted[order] = total - np.repeat(before, np.diff(first, append=len(order)))
    return counted


_WORDS: Final = {phase: (f"{phase} step", f"{phase} steps") for phase in PHASES} | {
    "eager": (
        "eager pass next to graphs (a prompt, drafts that are verified, or a warm-up)",
        "eager passes next to graphs (prompts, drafts that are verified, or warm-up)",
    ),
    "diffusion": (
        "diffusion run (all steps that denoise an image)",
        "diffusion runs (each: all steps that denoise an image)",
    ),
    "forward": ("forward pass", "forward passes"),
    "iteration": ("iteration", "iterations"),
}
"""Phase -> its name in the singular and plural."""

_WITHOUT_MARKS: Final = {PREFILL: ("prefill (or mixed) step", "prefill (or mixed) steps")}
"""No kernel shows whether other sequences decode in a prompt's step."""
