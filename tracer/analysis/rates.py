"""Rates as recorded: how many steps a second of the wall has, and how many tokens a step."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer import run_json
from tracer.analysis.calls import by_thread
from tracer.analysis.step_work import step_spans
from tracer.analysis.steps import Steps
from tracer.intervals import covered
from tracer.trace import Trace

_HOST: Final = ["process", "thread"]


def steps_per_s(trace: Trace, steps: Steps) -> float | None:
    """Steps per second of the wall, of several hosts their median; None if they take no time."""
    rates = list(wall_rates(trace, steps).values())
    return float(np.median(rates)) if rates else None


def wall_rates(trace: Trace, steps: Steps) -> dict[tuple[int, int], float]:
    """Process and thread of each host -> its steps per second of the wall, if they take any time.

    The wall is the longer of two times: the host's, from the begin of its first step to the end of its last one, and
    the device's, from their first compute to the end of the last. A host that runs ahead has launched all its steps
    before the device has computed a few. What lies between the steps, as prompts that are left out, counts; what is in
    doubt (`Steps.spoilt`) does not.
    """
    hosts = steps.table.groupby(_HOST)
    walls = hosts.agg(start=("start", "min"), end=("end", "max"))
    spans = step_spans(trace, steps).drop(columns="process").rename(columns=lambda name: name.removeprefix("step_"))
    computed = spans.groupby(_HOST).agg(start=("start", "min"), end=("end", "max"))
    took = np.maximum(_ns(steps, walls), _ns(steps, computed.reindex(walls.index, fill_value=0)))
    rates = zip(walls.index.tolist(), hosts.size().tolist(), took.tolist(), strict=True)
    return {host: count * 1e9 / ns for host, count, ns in rates if ns > 0}


def _ns(steps: Steps, walls: pd.DataFrame) -> NDArray[np.int64]:
    """How long each host's wall is, without what is in doubt of it."""
    begin, finish = walls["start"].to_numpy(), walls["end"].to_numpy()
    took: NDArray[np.int64] = finish - begin
    for process, thread, rows in by_thread(steps.spoilt):
        mine = walls.index == (process, thread)
        times = steps.spoilt.iloc[rows]
        took[mine] -= covered(times["start"], times["end"], begin[mine], finish[mine])
    return took


def tokens_per_step(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """How many tokens a step gains on average: by its marks or its batch, else by the two rates that run.json measured
    of decode; None where none of these tells."""
    if steps.tokens_per_step is not None or not steps.decode_alone:
        return steps.tokens_per_step
    return run_json.tokens_per_step(trace, within)
