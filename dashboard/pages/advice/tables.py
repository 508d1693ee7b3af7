"""The rows of the advice page's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Final

import pandas as pd
from dash import html

from dashboard.pages.whatif.view import ALL, what_if_of
from dashboard.reading.predictions import Sites
from dashboard.reading.run import Run
from dashboard.text import apart, plain
from tracer.analysis.advice import Advice, KernelOutsideGraph
from tracer.analysis.call_sites import HostStep, by_function
from tracer.analysis.idle_sites import SAMPLED
from tracer.analysis.waited_for import named
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.edits import WithoutSyncs
from tracer.analysis.whatif.graph_edits import OneGraph
from tracer.analysis.whatif.host_edits import FollowStrategy
from tracer.model.schema import MISSING
from tracer.reporting.advice import cells

ADDRESS: Final = "advice/"
_LONGEST: Final = 80  # characters of a kernel's name
_MOST_ROWS: Final = 200
_LEAST_US: Final = 0.05  # a step: less would read as 0


_HEADS: Final = (
    "Change", "Tokens/s", "Model margin", "Steps/s", "Where in the code", "Safe if", "Effort", "In the engine",
)  # fmt: skip


def advice_table(run: Run, kept: tuple[Advice, ...], facts: dict[str, Any], theme: str) -> html.Table:
    """One row per edit: a link to its what-if, gain, margin, steps/s, call sites, conditions, effort and the
    engine's settings."""
    rows = []
    for advice, one in zip(kept, facts["advice"], strict=True):
        changes: dict[str, Any] = {}
        for edit in advice.edits:
            changes |= changes_of(edit)
        label, *figures = cells(one).values()
        address = what_if_of(run, theme, ADDRESS, **changes)
        names = "; ".join(f"{s['name']} ({s['seen']})".replace("`", "") for s in one["settings"])
        places = plain("; ".join(one["sites"]), 400) or "–"
        texts = (*figures, places, "; and ".join(one["conditions"]), one["effort"], names or "–")
        named: list[dict[str, Any]] = [{"data-head": head} for head in _HEADS[1:]]
        cell = [html.Td(text, **name) for text, name in zip(texts, named, strict=True)]
        head = html.Th(html.A(plain(label, 60), href=address), scope="row")
        rows.append(html.Tr([head, *cell]))
    heads = html.Thead(html.Tr([html.Th(head, scope="col") for head in _HEADS]))
    return html.Table([heads, html.Tbody(rows)], className="figures")


def changes_of(edit: Edit) -> dict[str, Any]:
    """The fields of the what-if page's view that describe an edit."""
    match edit:
        case FollowStrategy(name):
            return {"sync": name}
        case WithoutSyncs(None):
            return {"without": (ALL,)}
        case WithoutSyncs((position,)):
            return {"without": (str(position),)}
        case OneGraph(early):
            return {"graph": "early" if early else "plain"}
    return {}


def eager_rows(eager: Iterable[KernelOutsideGraph]) -> list[dict[str, Any]]:
    """The rows of the table of eager launches, with short names that remain distinct. The reason for a missing
    prediction omits the kernel, which has its own column."""
    eager = list(eager)
    return [
        asdict(one)
        | {"gain": None if one.speedup is None else one.speedup - 1}
        | _plain(asdict(one) | {"why": one.why.split(" into the graph: ")[-1]}, ["kernel", "operator", "site", "why"])
        | {"short": short}
        for one, short in zip(eager, apart([one.kernel for one in eager], _LONGEST), strict=True)
    ]


def host_rows(sites: Sites) -> list[dict[str, Any]]:
    """The functions of steps, and of samples, with their self and total time, as plain text."""
    steps = [step for step in sites.hosts if step.step is not None]
    found = [(step.name, by_function(step.samples).assign(self_share=_share(step))) for step in steps]
    if sites.sampled is not None:
        found.append((SAMPLED, sites.sampled.functions))
    return [
        {"step": name, "share": _with_bounds(row), **{key: row[key] for key in ("self_us", "total_us")}}
        | _plain(row, ["function"])
        for name, table in found
        for row in table.head(_MOST_ROWS).to_dict("records")
    ]


def _share(step: HostStep) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda table: table["self_us"] * 1e3 / max(step.length_ns, 1)


def _with_bounds(row: dict[Any, Any]) -> str:
    bounds = f" [{row['self_low']:.1%}, {row['self_high']:.1%}]" if "self_low" in row else ""
    return f"{row['self_share']:.1%}{bounds}"


def waited_lines(threads: Iterable[dict[str, Any]]) -> list[str]:
    """The threads that the host waits for, for how long, and how that is known."""
    return [
        f"{row['idle_us']:,.1f} µs a step: {row['how']}"
        if row["thread"] == MISSING
        else f"{row['idle_us']:,.1f} µs a step for {plain(named(row), 200)}: {row['how']}"
        for row in threads
        if row["idle_us"] >= _LEAST_US
    ]


def site_rows(sites: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The first rows of a table of call sites, as plain text; empty if none is known."""
    if sites is None or not (sites["source"] != "").any():
        return []
    texts = [name for name in ("site", "through", "name", "what") if name in sites]
    shown = sites.head(_MOST_ROWS).to_dict("records")
    return [{str(key): value for key, value in row.items()} | _plain(row, texts) for row in shown]


def _plain(row: dict[Any, Any], names: list[str]) -> dict[str, str]:
    return {name: plain(str(row[name]), 200) or "–" for name in names}
