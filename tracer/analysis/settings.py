"""The recorded engine's names for the proposed changes, their effort, and settings that are off in the recording."""

from __future__ import annotations

import numpy as np

from tracer.analysis.calls import GRAPH_LAUNCH, rows_named
from tracer.analysis.syncs import SyncReport
from tracer.analysis.whatif.edits import Edit, FollowStrategy, WithoutSyncs
from tracer.analysis.whatif.host_edits import CopiesBehind, LaunchFirst, MergedCopies, ReadLater
from tracer.analysis.whatif.into_graph import IntoGraph
from tracer.analysis.whatif.one_graph import OneGraph
from tracer.analysis.whatif.strategies import LADDER
from tracer.analysis.whatif.streams import Concurrent
from tracer.engines import engines
from tracer.engines.engine import COPIES, GRAPH, RUN_AHEAD, STREAMS, Engine, Setting
from tracer.model.trace import Trace


def engine_of(trace: Trace) -> Engine | None:
    """The engine that was recorded, identified by kernels that only it launches; None if there are none."""
    names = trace["kernels"]["name"]
    with_kernels = ((engine, engine.kernels) for engine in engines() if engine.kernels is not None)
    return next((engine for engine, kernels in with_kernels if rows_named(names, kernels.search).any()), None)


def change_of(edit: Edit) -> str:
    """The change, as in `Setting.change`, that an edit makes; "" for one that no engine names."""
    if isinstance(edit, FollowStrategy):
        return RUN_AHEAD if edit.name == LADDER[-1] else COPIES
    if isinstance(edit, OneGraph):
        return GRAPH
    if isinstance(edit, ReadLater):
        return RUN_AHEAD
    return STREAMS if isinstance(edit, Concurrent) else ""


def settings_of(engine: Engine | None, edit: Edit) -> tuple[Setting, ...]:
    """The engine's names for an edit."""
    change = change_of(edit)
    return tuple(setting for setting in engine.settings if setting.change == change) if engine is not None else ()


def effort_of(edit: Edit, settings: tuple[Setting, ...]) -> str:
    """The effort of an edit, judged by its kind: a setting of the engine, or the part of the program that changes."""
    if any(setting.change != COPIES for setting in settings):
        return "small: a setting of the engine"
    match edit:
        case WithoutSyncs():
            return "small: calls are deleted"
        case FollowStrategy(name) if name != LADDER[-1]:
            return "medium: the code that copies a step's inputs changes"
        case FollowStrategy() | ReadLater():
            return "large: sampling and the preparation of the next step move to the device"
        case OneGraph(early):
            return "large: kernels are rebuilt" if early else "medium: the step is captured as a graph and replayed"
        case IntoGraph():
            return "medium: the launches move into the capture"
        case MergedCopies():
            return "small: inputs share a buffer"
        case CopiesBehind():
            return "medium: known inputs are copied a step earlier"
        case LaunchFirst():
            return "medium: host code is reordered, or moves to another thread"
    return "medium: the graph is captured with several streams"


def unused_settings(engine: Engine | None, report: SyncReport) -> tuple[Setting, ...]:
    """Settings of the engine that are off according to the recorded steps.

    The host runs ahead if it reads the result of an earlier step than the one launched last. A step is one graph launch
    if the median step replays one graph; with none it is eager, with several it is piecewise.
    """
    graphs = report.calls["letter"].eq(GRAPH_LAUNCH).groupby(report.calls["step"]).sum()
    is_off = {
        RUN_AHEAD: report.fetch_lag is not None and report.fetch_lag.median == 0,
        GRAPH: bool(len(graphs)) and float(np.median(graphs)) != 1,
    }
    return tuple(setting for setting in engine.settings if is_off.get(setting.change)) if engine is not None else ()
