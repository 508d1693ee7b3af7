"""The timeline of a recording as a figure for notebooks, as on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go

from dashboard import scene
from dashboard.reading.run import LazyTrace, run_of
from dashboard.text import plain
from dashboard.view import View
from tracer.analysis.recording import Recording
from tracer.errors import EmptyTraceError
from tracer.model.trace import Trace


def timeline(
    trace: Trace, token: int | None = None, show: str = "token", theme: str = "light", width: int = 1100
) -> go.Figure:
    """The timeline at one of its tokens.

    Args:
        trace: the recording.
        token: its number, from 0; None for the most typical one.
        show: "token", "gap" or "all", as in `intertoken timeline`.
        theme: "light" or "dark".
        width: px.

    Raises:
        EmptyTraceError: it has no token steps.
    """
    name = plain(str(trace.metadata.get("source") or "recording"))
    run = run_of(Recording(trace, name), LazyTrace(Path(), trace), key="0")
    if run.tokens is None:
        raise EmptyTraceError(run.summary.problem or f"{name} has no token steps")
    view = View(runs=(run.key,), token=token)
    view = replace(view, range=scene.range_of([run], view, show))
    figure, height = scene.timeline([run], view, theme, width)
    return figure.update_layout(width=width, height=height, autosize=False)
