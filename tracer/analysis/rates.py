"""Rates as recorded: steps per second of wall-clock time, and tokens per step."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import by_thread
from tracer.analysis.step_work import step_spans
from tracer.analysis.steps import Steps
from tracer.model import run_json
from tracer.model.intervals import covered
from tracer.model.trace import Trace

_HOST: Final = ["process", "thread"]


def steps_per_s(trace: Trace, steps: Steps, spans: pd.DataFrame | None = None) -> float | None:
    """Steps per second of wall-clock time, the median over several hosts; None if the steps take no time. `spans` are
    their `step_spans`, if available."""
    rates = list(wall_rates(trace, steps, spans).values())
    return float(np.median(rates)) if rates else None


def wall_rates(trace: Trace, steps: Steps, spans: pd.DataFrame | None = None) -> dict[tuple[int, int], float]:
    """Process and thread of each host -> its steps per second of wall-clock time, if its steps take any time.

    The wall-clock time is the longer of two: on the host, from the start of its first step to the end of its last, and
    on the device, from the first compute of these steps to the end of the last. A host that runs ahead has launched
    all its steps before the device has executed many. Work between the steps, such as prompts that are left out,
    counts; periods in doubt (`Steps.spoilt`) do not.
    """
    hosts = steps.table.groupby(_HOST)
    walls = hosts.agg(start=("start", "min"), end=("end", "max"))
    spans = step_spans(trace, steps) if spans is None else spans
    spans = spans.drop(columns="process").rename(columns=lambda name: name.removeprefix("step_"))
    computed = spans.groupby(_HOST).agg(start=("start", "min"), end=("end", "max"))
    took = np.maximum(_ns(steps, walls), _ns(steps, computed.reindex(walls.index, fill_value=0)))
    rates = zip(walls.index.tolist(), hosts.size().tolist(), took.tolist(), strict=True)
    return {host: count * 1e9 / ns for host, count, ns in rates if ns > 0}


def _ns(steps: Steps, walls: pd.DataFrame) -> NDArray[np.int64]:
    """The wall-clock time of each host, without the periods in doubt."""
    begin, finish = walls["start"].to_numpy(), walls["end"].to_numpy()
    took: NDArray[np.int64] = finish - begin
    for process, thread, rows in by_thread(steps.spoilt):
        of_host = walls.index == (process, thread)
        times = steps.spoilt.iloc[rows]
        took[of_host] -= covered(times["start"], times["end"], begin[of_host], finish[of_host])
    return took


def tokens_per_step(trace: Trace, steps: Steps, within: str | None = None) -> float | None:
    """The mean number of tokens per step: from the marks or the batch size, else from the two decode rates that
    run.json gives; None if none of these is known."""
    if steps.tokens_per_step is not None or not steps.decode_alone:
        return steps.tokens_per_step
    return run_json.tokens_per_step(trace, within)
