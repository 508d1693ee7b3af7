"""The steps of a trace, however they were found, and the selection of some of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.engines.engine import DECODE, MIXED, PHASES, PREFILL, SPECULATIVE
from tracer.errors import EmptyTraceError
from tracer.model.rows import grouped, groups_of, last_before, numbered
from tracer.model.schema import MISSING

Span = tuple[int, int]
DoubtfulSpan = tuple[int, int, int | None]
"""Begin and end, ns."""

COLUMNS: Final = [
    "step", "start", "end", "process", "thread", "group", "phase", "sequences", "gained", "kind", "closes",
]  # fmt: skip

_TIMES: Final = ["process", "thread", "start", "end"]

UNSURE: Final = 0.9
"""Below this confidence, the uncertainty about the steps is reported first."""
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


@dataclass(frozen=True)
class Steps:
    """Steps of a trace.

    Attributes:
        table: one row per step, by start: step (0, 1, ...), start, end (ns), process, thread, group, phase (one of
            `PHASES`), sequences (that it computes for), gained (tokens that it adds to them), kind (equal for similar
            steps without marks), closes (when its mark does); MISSING if unknown.
        source: "nvtx" or "calls", how they were found.
        detail: the same in words.
        confidence: 0..1: how certain it is that these are the engine's steps.
        phases: phase -> the number of its steps in the trace, whether in the table or not.
        regime: which of several regimes the table shows; None for everything.
        regimes: the other ones.
        spoilt: process, thread, start, end (ns) of the times of steps in doubt, which no rate counts.
        doubts: why steps in doubt were left out (`tracer.analysis.clocks`).
        others: phase, start, end (ns) of the trace's steps of other phases.
        hidden: why it is unknown when the device works in most of them; "" if it is known.
        different: the rate of each host, in words, if they differ so that none is that of all
            (`step_work.different_rates`); else "".
    """

    table: pd.DataFrame
    source: str
    detail: str
    confidence: float = 1.0
    phases: dict[str, int] = field(default_factory=dict)
    regime: Regime | None = None
    regimes: tuple[Regime, ...] = ()
    spoilt: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=_TIMES, dtype=np.int64))
    doubts: tuple[str, ...] = ()
    others: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["phase", "start", "end"]))
    hidden: str = ""
    different: str = ""

    def __len__(self) -> int:
        return len(self.table)

    @property
    def prefills(self) -> int:
        """The number of prefill steps in the trace, whether in the table or not."""
        return self.phases.get(PREFILL, 0)

    @property
    def decode_alone(self) -> bool:
        """Whether all steps decode, so that decode rates apply to them."""
        return bool(self.table["phase"].isin([DECODE, SPECULATIVE]).all())

    @property
    def decodes(self) -> bool:
        """Whether any step gains tokens; otherwise there is no decoding strategy and no tokens/s."""
        return bool(self.table["phase"].isin([DECODE, SPECULATIVE, MIXED]).any())

    @property
    def unit(self) -> str:
        """The word for one of the steps in figures: a token, if they gain any."""
        return "token" if self.decodes else "step"

    @property
    def counted(self) -> str:
        """The number of the steps, in words."""
        return f"{len(self)} {'token step' if self.decodes else 'step'}(s)"

    @property
    def tokens_per_step(self) -> float | None:
        """The mean number of tokens per step over all its sequences; None if it is not known for every step (drafts,
        prompts, engines whose marks do not say), or if the steps of several hosts differ in it."""
        gained = self.table["gained"].to_numpy()
        if not len(gained) or (gained == MISSING).any():
            return None
        means = [gained[rows].mean() for _, rows in grouped(self.table, ["process", "thread"])]
        return float(gained.mean()) if max(means) <= SAME_RATE * min(means) else None

    @property
    def what(self) -> str:
        """What the trace contains, in words.

        Example:
            "59 decode steps, 1 prefill step"
        """
        counts = sorted(self.phases.items(), key=lambda item: (PHASES.index(item[0]), item[0]))
        return self._in_words(dict(counts))

    def _in_words(self, counts: dict[str, int]) -> str:
        words = _WORDS | _WITHOUT_MARKS if self.source == "calls" and DECODE in self.phases else _WORDS
        return ", ".join(f"{count} {words[phase][count != 1]}" for phase, count in counts.items())

    @property
    def notes(self) -> list[str]:
        """The caveats for any figure over these steps, beginning with any doubt about the steps."""
        notes = []
        if self.confidence < UNSURE:
            notes.append(
                f"the steps are uncertain (confidence {self.confidence:.2f}): {self.detail}; "
                "give --pattern (what begins a step) or --range (where to look), or put an NVTX range around each step"
            )
        notes += self.doubts
        if self.different:
            each = f"hosts of different rates, as of several engines: {self.different}"
            notes.append(f"{each}; figures are over all steps")
        if self.regime is not None:
            others = "; ".join(f"--steps {r.first}:{r.last} ({r.label})" for r in self.regimes if r != self.regime)
            here = self.regime
            notes.append(f"figures are for steps {here.first}:{here.last} ({here.label}); the others: {others}")
        shown = set(self.table["phase"])
        left = {phase: count for phase, count in self.phases.items() if phase not in shown}
        if left:
            notes.append(f"left out: {self._in_words(left)}; include with --phase {next(iter(left))} or --phase all")
        return notes

    def without(self, spoilt: NDArray[np.int64], spans: list[DoubtfulSpan], why: list[str]) -> Steps:
        """The steps without those at some positions; the steps before and after these, or before and after a period in
        doubt, become separate groups.

        Args:
            spoilt: the positions.
            spans: other periods in doubt, of a process or (None) of all.
            why: lines for the notes.
        """
        kept = np.ones(len(self), bool)
        kept[spoilt] = False
        threads = self.table[["process", "thread"]].drop_duplicates()
        everywhere = threads.merge(pd.DataFrame(spans, columns=["start", "end", "of"], dtype=object), how="cross")
        everywhere = everywhere[everywhere["of"].isna() | (everywhere["of"] == everywhere["process"])]
        everywhere = everywhere.astype({"start": np.int64, "end": np.int64})
        times = pd.concat([self.spoilt, self.table.loc[~kept, _TIMES], everywhere[_TIMES]], ignore_index=True)
        return replace(self, table=self._parted(kept, spans), spoilt=times, doubts=(*self.doubts, *why))

    def _parted(self, kept: NDArray[np.bool_], spans: Sequence[DoubtfulSpan] = ()) -> pd.DataFrame:
        """Some of the steps; where others, or one of the spans, lie between them, a new group begins."""
        part = pd.Series(~kept).groupby(self.table["group"].to_numpy()).cumsum()
        table = self.table[kept].reset_index(drop=True)
        after = np.zeros(len(table), np.int64)
        for _, end, process in spans:
            of_it = True if process is None else (table["process"] == process).to_numpy()
            after += (table["start"] >= end).to_numpy() & of_it
        return table.assign(group=numbered(table["group"], part[kept], after)[0])

    def of_phase(self, phase: str | None) -> Steps:
        """The steps of one phase (all with "all"), renumbered; see `Bounds.phase`.

        Steps that were separated by a step of another phase belong to separate groups.

        Raises:
            EmptyTraceError: nothing is left.
        """
        phases = dict(Counter(self.table["phase"].tolist()))
        most = max((DECODE, SPECULATIVE), key=lambda name: phases.get(name, 0))
        phase = phase or (most if most in phases else "all")
        kept = (self.table["phase"] == phase).to_numpy() | (phase == "all")
        if not kept.any():
            raise EmptyTraceError(f"no {phase} step in the trace, which contains {replace(self, phases=phases).what}")
        table = self._parted(kept).assign(step=np.arange(kept.sum()))
        others = self.table.loc[~kept, ["phase", "start", "end"]].reset_index(drop=True)
        return replace(self, table=table, phases=phases, regimes=regimes_of(table), others=others)

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
        chosen = self.table.iloc[first:last].reset_index(drop=True)
        if not len(chosen):
            raise EmptyTraceError(f"no token step in {first}:{last}; the trace has {len(self)}")
        return replace(self, table=chosen)

    def of(
        self, times: NDArray[np.int64], processes: NDArray[np.int64], threads: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The position in `table` of the step that contains a host call at each time, or -1.

        If all steps are on one thread, calls of its process's other threads belong to them too.
        """
        if groups_of(self.table, ["process", "thread"])[1] == 1:
            at = np.searchsorted(self.table["start"].to_numpy(), times, side="right") - 1
            at[processes != self.table["process"].iloc[0]] = -1
        else:
            at = last_before(pd.DataFrame({"process": processes, "thread": threads}), times, self.table)
        return np.where(times < np.append(self.table["end"], np.iinfo(np.int64).min)[at], at, -1)  # in which, or -1


def regimes_of(table: pd.DataFrame) -> tuple[Regime, ...]:
    """Long runs of steps with the same number of sequences, or of one kind, if there are several."""
    named = (table["sequences"] != MISSING).all()
    values = table["sequences" if named else "kind"].to_numpy()
    edges = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True])))
    if not 2 < len(edges) <= _REGIME + 1 or np.diff(edges).min() < _REGIME:
        return ()
    labels = [f"{values[first]} sequence(s)" if named else f"kind {n}" for n, first in enumerate(edges[:-1], 1)]
    return tuple(map(Regime, edges[:-1].tolist(), edges[1:].tolist(), labels))


def as_steps(table: pd.DataFrame, source: str, detail: str, confidence: float) -> Steps:
    """The steps of a table that may lack some columns of what they compute, by start; each prompt starts a group."""
    table = table.sort_values("start", kind="stable", ignore_index=True)
    begins = (table["phase"] == PREFILL).groupby(table["group"]).cumsum()
    table["group"] = numbered(table["group"], begins)[0]
    table["step"] = np.arange(len(table))
    return Steps(table.reindex(columns=COLUMNS, fill_value=np.int64(MISSING)), source, detail, confidence)


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
