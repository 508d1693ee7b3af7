"""The host's time in steps as a flame graph: an icicle whose outermost frames are the steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from dashboard.palette import CLEAR, COLOURS, THEMES
from dashboard.text import markup
from dashboard.units import duration
from tracer.analysis.call_letters import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, letter
from tracer.analysis.call_sites import HostStep

_LEAST: Final = 0.002  # of the longest step: a shorter frame is not drawn
_NEARLY_ALL: Final = 0.95
_LONGEST: Final = 90
_ROW: Final = 22  # px
_KINDS: Final = {SYNC: "sync", COPY: "copy", BLOCKING_COPY: "copy", LAUNCH: "launch", GRAPH_LAUNCH: "launch"}
_BETWEEN: Final = ";"


def pieces_of(steps: Sequence[HostStep]) -> pd.DataFrame:
    """The pieces of the figure, outer ones first: path (names with `;` between them), parent, ns and share of the
    step. Outer functions that take nearly all of the steps, or of the samples, are left out, except for the innermost
    of them."""
    longest = max((step.length_ns for step in steps), default=0)
    shared = {sampled: _shared([step for step in steps if (step.step is None) == sampled]) for sampled in (True, False)}
    parts = []
    for step in steps:
        root = step.title
        sums = step.samples.groupby("stack", sort=False)["ns"].sum()
        inner = [_below(stack.split(_BETWEEN), shared[step.step is None]) for stack in sums.index]
        paths = [list(accumulate([root, *names], _joined)) for names in inner]
        every = pd.Series(paths, index=sums.to_numpy()).explode()
        total = pd.Series(every.index.to_numpy(), index=every.to_numpy()).groupby(level=0, sort=False).sum()
        total = total[total >= _LEAST * longest]
        parts.append(pd.DataFrame({"path": total.index, "ns": total.to_numpy(), "share": total / step.length_ns}))
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["path", "ns", "share"])
    found["parent"] = found["path"].str.rpartition(_BETWEEN)[0] if len(found) else ""
    return found


def _shared(steps: Sequence[HostStep]) -> list[str]:
    """The outermost names that take nearly all of the steps."""
    sums = pd.concat([step.samples for step in steps]).groupby("stack")["ns"].sum() if steps else pd.Series(dtype=int)
    stacks = [(stack.split(_BETWEEN), ns) for stack, ns in zip(map(str, sums.index), sums, strict=True)]
    least, found = _NEARLY_ALL * sums.sum(), list[str]()
    while stacks:
        of_name = pd.Series({}, dtype="int64")
        for names, ns in stacks:
            if len(names) > len(found):
                of_name[names[len(found)]] = of_name.get(names[len(found)], 0) + ns
        if not len(of_name) or of_name.max() < least:
            break
        found.append(str(of_name.idxmax()))
        stacks = [(names, ns) for names, ns in stacks if names[: len(found)] == found]
    return found


def _below(names: list[str], shared: list[str]) -> list[str]:
    """The names without the shared outer ones, of which only the last is kept."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, shared, strict=False)))
    return names[max(min(alike, len(shared)) - 1, 0) :]


def _joined(outer: str, name: str) -> str:
    return f"{outer}{_BETWEEN}{name}"


def flame_figure(steps: Sequence[HostStep], theme: str) -> go.Figure:
    """Each step from left to right, callees below their callers; widths are times."""
    look, pieces = THEMES[theme], pieces_of(steps)
    names = [path.rpartition(_BETWEEN)[2] for path in pieces["path"]]
    figure = go.Figure(
        go.Icicle(
            ids=pieces["path"],
            labels=[markup(name, _LONGEST) for name in names],
            parents=pieces["parent"],
            values=pieces["ns"],
            branchvalues="total",
            sort=False,
            tiling={"orientation": "v", "pad": 1},
            marker={"colors": [_colour(name) for name in names], "line": {"width": 0}},
            hovertext=[
                f"{markup(name, 300, 90)}<br>{duration(ns)}, {share:.1%} of the step"
                for name, ns, share in zip(names, pieces["ns"], pieces["share"], strict=True)
            ],
            hoverinfo="text",
            textfont={"size": 11, "color": "#1B2430"},
            root={"color": CLEAR},
            pathbar={"visible": True},
        )
    )
    figure.update_layout(
        margin={"l": 0, "r": 0, "t": 24, "b": 0},
        **look.layout,
        uniformtext={"minsize": 9, "mode": "hide"},
    )
    return figure


def flame_height(steps: Sequence[HostStep]) -> int:
    """Height of the figure, px."""
    depth = pieces_of(steps)["path"].str.count(_BETWEEN).max() if steps else 0
    return 60 + _ROW * (int(depth) + 1)


def flame_text(steps: Sequence[HostStep]) -> str:
    """A description of the figure."""
    return "; ".join(f"{step.title}: {duration(step.length_ns)}" for step in steps)


def _colour(name: str) -> str:
    return COLOURS[_KINDS.get(letter(name), "graph" if "): " in name else "nvtx")]
