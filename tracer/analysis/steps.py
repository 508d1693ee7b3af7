"""The token steps of a trace, however they were found, and which of them are asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import by_thread
from tracer.analysis.phases import DECODE, PREFILL
from tracer.errors import EmptyTraceError

NO_ROWS: Final = np.zeros(0, np.int64)
COLUMNS: Final = ["step", "start", "end", "process", "thread", "group", "phase"]

LOW_CONFIDENCE: Final = 0.5
"""Steps found with less than this are shown with a warning."""


@dataclass(frozen=True)
class Bounds:
    """Which steps of a trace are asked for.

    Attributes:
        first, last: a slice of them, as in Python.
        phase: "prefill", "decode" or "all"; None for decode steps, or all where there are none.
        pattern: regular expression of what begins a step, see `find_steps`.
    """

    first: int | None = None
    last: int | None = None
    phase: str | None = None
    pattern: str | None = None


ALL_STEPS: Final = Bounds()
"""No bounds: what an analysis takes by itself."""


@dataclass(frozen=True)
class Steps:
    """Token steps of a trace.

    Attributes:
        table: one row per step, by start: step (0, 1, ...), start, end (ns), process, thread, group, phase ("prefill"
            or "decode": what the NVTX text says; else by the step's work, see `tracer.analysis.phases`).
        source: "nvtx" or "calls", how they were found.
        detail: the same for a reader.
        confidence: 0..1, see `periods.repeating_steps`; 1 for NVTX.
        prefills: how many prefill steps the trace has, in the table or not.
    """

    table: pd.DataFrame
    source: str
    detail: str
    confidence: float = 1.0
    prefills: int = 0

    def __len__(self) -> int:
        return len(self.table)

    @property
    def decode_alone(self) -> bool:
        """Whether none is a prefill, so that rates of decode are theirs."""
        return not (self.table["phase"] == PREFILL).any()

    @property
    def notes(self) -> list[str]:
        """What a reader of any figure over these steps must know."""
        notes = []
        if self.confidence < LOW_CONFIDENCE:
            notes.append(
                f"the token steps are uncertain (confidence {self.confidence:.2f}): {self.detail}; "
                "--pattern names what begins a step, --range where to look"
            )
        if self.prefills and self.decode_alone:
            notes.append(f"left out: {self.prefills} prefill step(s); --phase prefill or all has them")
        return notes

    def of_phase(self, phase: str | None) -> Steps:
        """The steps of one phase, or with "all" of any, numbered anew; see `Bounds.phase`.

        Steps between which another phase's were left out are different groups.

        Raises:
            EmptyTraceError: nothing is left.
        """
        found = self.table["phase"].to_numpy()
        phase = phase or (DECODE if (found == DECODE).any() else "all")
        if phase == "all":
            return self
        kept = found == phase
        if not kept.any():
            raise EmptyTraceError(f"no {phase} step among the {len(self)} steps of the trace")
        part = pd.Series(~kept).groupby(self.table["group"].to_numpy()).cumsum()
        table = self.table[kept].reset_index(drop=True)
        table["group"] = pd.factorize(pd.MultiIndex.from_arrays([table["group"], part[kept]]))[0]
        table["step"] = np.arange(len(table))
        return replace(self, table=table)

    def select(self, first: int | None, last: int | None) -> Steps:
        """Steps first..last-1, counted as in a Python slice.

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
        """The position in `table` of the step in which a host call at each time lies, or -1.

        Where all steps are on one thread, calls of its process' other threads belong to them too.
        """
        table = self.table
        result = np.full(len(times), -1, dtype=np.int64)
        owners = list(by_thread(table))
        if len(owners) == 1:
            threads = np.full(len(times), owners[0][1])
        calls = rows_by_thread(pd.DataFrame({"process": processes, "thread": threads}))
        for process, thread, rows in owners:
            mine = calls.get((process, thread), NO_ROWS)
            starts, ends = table["start"].to_numpy()[rows], table["end"].to_numpy()[rows]
            at = np.searchsorted(starts, times[mine], side="right") - 1
            inside = (at >= 0) & (times[mine] < ends[at])
            result[mine[inside]] = rows[at[inside]]
        return result


def rows_by_thread(frame: pd.DataFrame) -> dict[tuple[int, int], NDArray[np.int64]]:
    """(process, thread) -> positions of its rows."""
    return {(process, thread): rows for process, thread, rows in by_thread(frame)}
