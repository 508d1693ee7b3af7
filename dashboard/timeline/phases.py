"""Phases of a recording outside the steps that are shown: start-up, graph captures, prompts."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.call_letters import BEGIN_CAPTURE, END_CAPTURE
from tracer.analysis.calls import letters_of
from tracer.analysis.steps import Steps
from tracer.engines.engine import EAGER, PREFILL
from tracer.model.trace import Trace

BEFORE: Final = "before the first step"
AFTER: Final = "after the last step"
CAPTURE: Final = "graph capture"
NAMES: Final = {PREFILL: "prefill", EAGER: "eager pass: a prompt or warm-up"}
COLUMNS: Final = ["what", "start", "end"]
NOTHING: Final = pd.DataFrame({"what": pd.Series(dtype="str"), "start": pd.Series(dtype="int64"),
                               "end": pd.Series(dtype="int64")})  # fmt: skip


def phases_of(trace: Trace, steps: Steps, whole: tuple[int, int], computed: int = 0) -> pd.DataFrame:
    """Name, start and end (ns) of all phases outside these steps, by start.

    Args:
        trace: the recording.
        steps: the visible steps, from `choose_steps`.
        whole: from the first event to the end of the last, ns.
        computed: the end of the last step's compute, which may be after the end of its host work; ns.
    """
    table = pd.concat([steps.table[["start", "end"]], steps.others[["start", "end"]]])
    first, last = int(table["start"].min()), max(int(table["end"].max()), computed)
    edges = [(BEFORE, whole[0], first), (AFTER, last, whole[1])]
    named = steps.others.assign(what=[NAMES.get(phase, f"{phase} step") for phase in steps.others["phase"]])
    around = pd.DataFrame([edge for edge in edges if edge[2] > edge[1]], columns=COLUMNS)
    parts = [part[COLUMNS] for part in (around, named, captures(trace)) if len(part)]
    found = pd.concat(parts, ignore_index=True) if parts else NOTHING
    return found.astype({"start": np.int64, "end": np.int64}).sort_values("start", kind="stable", ignore_index=True)


def captures(trace: Trace) -> pd.DataFrame:
    """The periods in which a host records calls into a graph, from begin to end of each capture of its thread."""
    api = trace["api"]
    letters = letters_of(api["name"])
    calls = api.loc[np.isin(letters, [BEGIN_CAPTURE, END_CAPTURE]), ["start", "end", "process", "thread"]]
    calls = calls.assign(begins=letters[calls.index] == BEGIN_CAPTURE)
    calls = calls.sort_values(["process", "thread", "start"], kind="stable")
    after = calls.groupby(["process", "thread"], sort=False)[["end", "begins"]].shift(-1)
    whole = calls["begins"] & (after["begins"] == False)  # noqa: E712  # the last of a thread has none
    return pd.DataFrame({"what": CAPTURE, "start": calls.loc[whole, "start"], "end": after.loc[whole, "end"]})
