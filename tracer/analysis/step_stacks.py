"""The host in individual steps: the ranges, functions and CUDA call open at each moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.call_sites import host_ranges, innermost_ranges, stacks
from tracer.analysis.calls import outer_calls
from tracer.analysis.tokens import Steps
from tracer.model.trace import Trace

MEDIAN, SLOW = "median step", "slow step"
_SHARES: Final = {MEDIAN: 0.5, SLOW: 0.95}
"""The kind of step -> the share of steps that are no longer than it."""
_NOTHING: Final = "(no range or call)"


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
    api, ranges = trace["api"], host_ranges(trace)
    calls = outer_calls(api[(api["process"] == process) & (api["thread"] == thread)])
    here = ranges[(ranges["process"] == process) & (ranges["thread"] == thread)]
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
