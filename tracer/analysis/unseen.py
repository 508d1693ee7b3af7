"""Work that a recording lacks: of whole processes, and of graphs; and how to record it."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.analysis.calls import Calls
from tracer.model.calls import GRAPH_LAUNCH, LAUNCHES
from tracer.model.columns import among
from tracer.model.intervals import Bools
from tracer.model.trace import LIGHT, Trace

_OF_GRAPHS: Final = {
    LIGHT: "--passes node records it",
    "cupti": "--passes node records it",
    "nsys": "nsys --cuda-graph-trace=node records it",
    "PyTorch": "start torch.profiler before the graphs are captured",
}
"""Prefix of a trace's source -> how to record the work of CUDA graphs."""

_OF_HIP_GRAPHS: Final = "ROCm before 7.2.2 loses graphs' kernels: update it, and its copy in torch/lib"


def unseen(trace: Trace, calls: Calls) -> dict[int, int]:
    """Process -> the number of its launches, of the processes that launch but of whose work on a device the recording
    has none, while it has that of others: ranks whose own recorder did not see the device."""
    launches = calls[among(calls.letter, LAUNCHES)]
    activities = trace.activities()
    if trace.is_untraced or not len(launches) or not len(activities):
        return {}
    seen = launches.process[activities.of(launches) >= 0]
    if not len(seen):
        return {}
    known = np.union1d(seen, activities.process)
    processes, counts = np.unique(launches.process[~np.isin(launches.process, known)], return_counts=True)
    return dict(zip(processes.tolist(), counts.tolist(), strict=True))


def of_seen(trace: Trace, calls: Calls) -> Bools:
    """Which calls are not of `unseen` processes."""
    kept: Bools = ~np.isin(calls.process, list(unseen(trace, calls)))
    return kept


def how_to_record(trace: Trace, launches: Calls) -> str:
    """How to record the work of these launches, by the recorder of the trace; "" if that is not known, or if they do
    not launch graphs."""
    if 2 * (launches.letter == GRAPH_LAUNCH).sum() <= len(launches):
        return ""
    source = str(trace.metadata.get("source", ""))
    if not source.startswith("rocprof") and launches.name.chosen(lambda name: name.startswith("hip")).any():
        return _OF_HIP_GRAPHS
    return next((words for recorder, words in _OF_GRAPHS.items() if source.startswith(recorder)), "")
