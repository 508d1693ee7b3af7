"""The advice page: changes to a run by predicted gain, and where the host spends its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, takewhile
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, ctx, dcc, html
from dash.exceptions import PreventUpdate

from dashboard.pages import Page, parts
from dashboard.pages.runs import keep_options, keep_rate, keep_run, lead
from dashboard.pages.whatif import ALL, what_if_of
from dashboard.palette import CLEAR, COLOURS, THEMES
from dashboard.reading.answers import Sites, advice_of, sites_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore, known
from dashboard.text import apart, duration, markup, plain
from dashboard.view import View
from tracer.analysis.call_sites import HostStep, by_function
from tracer.analysis.idle_sites import SAMPLED
from tracer.analysis.waited_for import named as named_functions
from tracer.model.calls import BLOCKING_COPY, COPY, GRAPH_LAUNCH, LAUNCH, SYNC, letter
from tracer.model.schema import MISSING
from tracer.reporting.advice import cells, facts_of, notes_of, rest, unused_of
from tracer.whatif.advice import Advice, Advised, KernelOutsideGraph
from tracer.whatif.base import TRACED
from tracer.whatif.changes import Edit
from tracer.whatif.edits import FollowStrategy, WithoutSyncs
from tracer.whatif.graph_edits import OneGraph

ADDRESS: Final = "advice/"
_LEAST_SHARE: Final = 0.002  # of the longest step: a shorter frame is not drawn
_NEARLY_ALL: Final = 0.95
_LONGEST_FRAME: Final = 90  # characters of its name
_FRAME: Final = 22  # px
_KINDS_OF_CALLS: Final = {SYNC: "sync", COPY: "copy", BLOCKING_COPY: "copy", LAUNCH: "launch", GRAPH_LAUNCH: "launch"}
_BETWEEN: Final = ";"
_LONGEST_KERNEL: Final = 80  # characters of a kernel's name
_MOST_ROWS: Final = 200
_LEAST_US: Final = 0.05  # a step: less would read as 0
_HEADS: Final = (
    "Change", "Tokens/s", "Model margin", "Steps/s", "Where in the code", "Safe if", "Effort", "In the engine",
)  # fmt: skip

_NOTHING: Final = Sites(None, None, [])
_NO_SITES: Final = (
    "call sites are unknown, because the recording has no functions; record them with intertoken record --call-sites, "
    "nsys profile --cudabacktrace=all or torch.profiler's with_stack=True"
)
_WITHOUT_RATE: Final = (
    "No advice: without the engine's own rate predictions would include tracing overhead. Enter untraced steps/s above."
)


def sections() -> list[Any]:
    """The sections of the page."""
    return [
        parts.poll("poll"),
        dcc.Store(id="progress"),
        parts.section(
            "What to change",
            [parts.choice("run", "Run", clearable=False)],
            parts.group("The engine's own rate", parts.rate_field(), look="fields"),
            html.P(id="rate-refused", className="problem", role="alert"),
            html.Div("Loading the recording …", id="nothing", className="empty", role="status"),
            html.P(id="said-of-advice", className="answer", role="status"),
            html.P(id="warning", className="hint warns"),
            html.Div(id="advice"),
            html.Ul(id="advice-notes", className="notes", **parts.named("Notes on the advice")),
        ),
        parts.section(
            "Eager launches outside the graph",
            ["Kernels launched individually by steps that replay a CUDA graph."],
            parts.table_of("eager-launches", "intertoken-eager-launches.csv"), key="eager-section",
        ),
        parts.section(
            "Where the host is while the device idles",
            ["Self time of functions, or of ranges if the recording has no functions."],
            html.Ul(id="waited-for", className="notes", **parts.named("Threads that the host waits for")),
            parts.table_of("idle-sites", "intertoken-idle-sites.csv"), key="idle-section",
        ),
        parts.section(
            "The host in a step",
            ["The median step and a slow one, as recorded. Click a frame to zoom in."],
            parts.chart("flame", "Flame graph of the host in the median step and a slow one"),
            html.P(id="sampled-note", className="hint"),
            parts.table_of("host-functions", "intertoken-host-functions.csv"), key="host-section",
        ),
        parts.section(
            "Call sites",
            ["Syncs, copies and launches of a step by call site."],
            parts.table_of("call-sites", "intertoken-call-sites.csv"),
            html.Ul(id="site-notes", className="notes", **parts.named("Notes on the call sites")), key="calls-section",
        ),
    ]  # fmt: skip


def register(app: Dash, store: RunStore) -> None:
    """Register the page's callbacks with an app that shows the advice for a run of `store`."""
    keep_run(app, store)
    keep_options(app, store, "run")
    keep_rate(app, store)
    _render(app, store)


def _render(app: Dash, store: RunStore) -> None:
    @app.callback(
        parts.outputs(
            "advice.children said-of-advice.children warning.children advice-notes.children "
            "eager-launches.columnDefs eager-launches.rowData eager-launches.style eager-section.style "
            "waited-for.children idle-sites.rowData idle-sites.style idle-section.style flame.figure flame.style "
            "flame-holder.aria-label sampled-note.children host-functions.rowData host-functions.style "
            "host-section.style call-sites.columnDefs call-sites.rowData call-sites.style calls-section.style "
            "site-notes.children nothing.children nothing.style poll.disabled progress.data"
        ),
        parts.inputs("screen.data poll.n_intervals", states="view.data progress.data"),
        running=parts.asking("poll"),
    )
    def render(screen: dict[str, Any] | None, _: Any, data: dict[str, Any] | None, before: Any) -> tuple[Any, ...]:
        view = View.from_data(data)
        run = lead(view, store)
        nothing = nothing_to_show(store, run)
        advised: Advised | str | None = None
        sites: Sites | str | None = None
        if run is not None and not nothing:
            advised = known(advice_of(store, run))
            sites = known(sites_of(store, run))
        missing = 0 if nothing else (advised is None) + (sites is None)
        progress = [view.query(), missing]
        if ctx.triggered_id == "poll" and progress == before:
            raise PreventUpdate
        table, summary, notes = (None, "", []) if run is None or nothing else in_words(run, advised, view.theme)
        eager = eager_rows(advised.eager) if isinstance(advised, Advised) else []
        idle, calls, of_sites = tables_of(sites)
        return (
            table,
            summary,
            run.rate_note if run is not None else "",
            [html.Li(plain(note, 400)) for note in notes],
            parts.with_values("eager-launches", eager, "operator", "site", "gain", "why"),
            eager,
            parts.table_height(eager),
            parts.visible(eager),
            [html.Li(line) for line in waited_lines(sites.threads if isinstance(sites, Sites) else [])],
            idle,
            parts.table_height(idle),
            parts.visible(idle),
            *host_of(sites if isinstance(sites, Sites) else _NOTHING, str((screen or {}).get("scheme", "light"))),
            parts.with_values("call-sites", calls, "through", "name"),
            calls,
            parts.table_height(calls) if calls else parts.HIDDEN,
            parts.visible(calls or of_sites),
            [html.Li(plain(note, 400)) for note in of_sites],
            nothing,
            parts.visible(nothing),
            missing == 0,
            progress,
        )


def nothing_to_show(store: RunStore, run: Run | None) -> str:
    """Instructions if there is no advice; empty if there is some."""
    if run is None:
        return parts.no_run(store.so_far())
    if run.syncs is None:
        return f"{plain(run.name, 90)} has no CUDA calls inside token steps, so no change can be predicted."
    return ""


def in_words(run: Run, advised: Advised | str | None, theme: str) -> tuple[html.Table | None, str, list[str]]:
    """The table of edits, the summary and the notes."""
    if advised is None:
        return None, "Predicting every change that the data flow allows …", []
    if isinstance(advised, str):
        return None, plain(advised, 300), []
    facts = facts_of(advised, run.key, [])
    if advised.state == TRACED:
        return None, _WITHOUT_RATE, unused_of(facts)
    left = rest(facts)
    if not advised.kept:
        return None, f"{left[0].capitalize()}.", left[1:]
    best = cells(facts["advice"][0])
    summary = f"Largest predicted gain: {best['edit']}, {best['gain']} tokens/s [model margin {best['margin']}]."
    where = [] if any(one["sites"] for one in facts["advice"]) else [_NO_SITES]
    return advice_table(run, advised.kept, facts, theme), summary, [*where, *notes_of(facts), *left]


def host_of(sites: Sites, theme: str) -> tuple[Any, ...]:
    """The flame graph of steps, its height and description, the note on samples, and the table of functions."""
    hosts, rows, pieces = sites.hosts, host_rows(sites), pieces_of(sites.hosts)
    depth = int(pieces["path"].str.count(_BETWEEN).max()) if hosts else 0
    size = {"height": f"{60 + _FRAME * (depth + 1)}px"}
    text = "; ".join(f"{step.title}: {duration(step.length_ns)}" for step in hosts)
    note = f"{sites.sampled.note}." if sites.sampled else ""
    return flame_figure(pieces, theme), size, text, note, rows, parts.table_height(rows), parts.visible(rows)


def tables_of(sites: Sites | str | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """The rows of both tables of call sites, and a note on calls without a site."""
    if sites is None:
        return [], [], []
    if isinstance(sites, str):
        return [], [], [sites]
    return site_rows(sites.idle), site_rows(sites.calls), sites.notes


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
        heads_of: list[dict[str, Any]] = [{"data-head": head} for head in _HEADS[1:]]
        cell = [html.Td(text, **of) for text, of in zip(texts, heads_of, strict=True)]
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
        for one, short in zip(eager, apart([one.kernel for one in eager], _LONGEST_KERNEL), strict=True)
    ]


def host_rows(sites: Sites) -> list[dict[str, Any]]:
    """The functions of steps, and of samples, with their self and total time, as plain text."""
    steps = [step for step in sites.hosts if step.step is not None]
    tables = []
    for step in steps:
        table = by_function(step.samples).frame()
        tables.append((step.name, table.assign(self_share=table["self_us"] * 1e3 / max(step.length_ns, 1))))
    if sites.sampled is not None:
        tables.append((SAMPLED, sites.sampled.functions.frame()))
    return [
        {"step": name, "share": _with_bounds(row), **{key: row[key] for key in ("self_us", "total_us")}}
        | _plain(row, ["function"])
        for name, table in tables
        for row in table.head(_MOST_ROWS).to_dict("records")
    ]


def _with_bounds(row: dict[Any, Any]) -> str:
    bounds = f" [{row['self_low']:.1%}, {row['self_high']:.1%}]" if "self_low" in row else ""
    return f"{row['self_share']:.1%}{bounds}"


def waited_lines(threads: Iterable[dict[str, Any]]) -> list[str]:
    """The threads that the host waits for, for how long, and how that is known."""
    told = [(row, "" if row["thread"] == MISSING else f" for {plain(named_functions(row), 200)}") for row in threads]
    return [f"{r['idle_us']:,.1f} µs a step{of}: {r['how']}" for r, of in told if r["idle_us"] >= _LEAST_US]


def site_rows(sites: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The first rows of a table of call sites, as plain text; empty if none is known."""
    if sites is None or not (sites["source"] != "").any():
        return []
    texts = [name for name in ("site", "through", "name", "what") if name in sites]
    shown = sites.head(_MOST_ROWS).to_dict("records")
    return [{str(key): value for key, value in row.items()} | _plain(row, texts) for row in shown]


def _plain(row: dict[Any, Any], names: list[str]) -> dict[str, str]:
    return {name: plain(str(row[name]), 200) or "–" for name in names}


def pieces_of(steps: Sequence[HostStep]) -> pd.DataFrame:
    """The pieces of the figure, outer ones first: path (names with `;` between them), parent, ns and share of the
    step. Outer functions that take nearly all of the steps, or of the samples, are left out, except for the innermost
    of them."""
    longest = max((step.length_ns for step in steps), default=0)
    shared = {
        sampled: _shared_frames([step for step in steps if (step.step is None) == sampled]) for sampled in (True, False)
    }
    tables = []
    for step in steps:
        root = step.title
        sums = step.samples.sums()
        inner = [_below(stack.split(_BETWEEN), shared[step.step is None]) for stack in sums]
        paths = [list(accumulate([root, *names], _joined)) for names in inner]
        every = pd.Series(paths, index=[*sums.values()]).explode()
        total = pd.Series(every.index.to_numpy(), index=every.to_numpy()).groupby(level=0, sort=False).sum()
        total = total[total >= _LEAST_SHARE * longest]
        tables.append(pd.DataFrame({"path": total.index, "ns": total.to_numpy(), "share": total / step.length_ns}))
    pieces = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["path", "ns", "share"])
    pieces["parent"] = pieces["path"].str.rpartition(_BETWEEN)[0] if len(pieces) else ""
    return pieces


def _shared_frames(steps: Sequence[HostStep]) -> list[str]:
    """The outermost names that take nearly all of the steps."""
    sums = sum((Counter(step.samples.sums()) for step in steps), Counter[str]())
    stacks = [(stack.split(_BETWEEN), ns) for stack, ns in sorted(sums.items())]
    least, shared = _NEARLY_ALL * sums.total(), list[str]()
    while stacks:
        of_name = pd.Series({}, dtype="int64")
        for names, ns in stacks:
            if len(names) > len(shared):
                of_name[names[len(shared)]] = of_name.get(names[len(shared)], 0) + ns
        if not len(of_name) or of_name.max() < least:
            break
        shared.append(str(of_name.idxmax()))
        stacks = [(names, ns) for names, ns in stacks if names[: len(shared)] == shared]
    return shared


def _below(names: list[str], shared: list[str]) -> list[str]:
    """The names without the shared outer ones, of which only the last is kept."""
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, shared, strict=False)))
    return names[max(min(alike, len(shared)) - 1, 0) :]


def _joined(outer: str, name: str) -> str:
    return f"{outer}{_BETWEEN}{name}"


def flame_figure(pieces: pd.DataFrame, theme: str) -> go.Figure:
    """Each step from left to right, callees below their callers; widths are times."""
    look, names = THEMES[theme], [path.rpartition(_BETWEEN)[2] for path in pieces["path"]]
    kinds = [_KINDS_OF_CALLS.get(letter(name), "graph" if "): " in name else "nvtx") for name in names]
    hovers = [
        f"{markup(name, 300, 90)}<br>{duration(ns)}, {share:.1%} of the step"
        for name, ns, share in zip(names, pieces["ns"], pieces["share"], strict=True)
    ]
    flames = go.Icicle(
        ids=pieces["path"], parents=pieces["parent"], values=pieces["ns"], branchvalues="total", sort=False,
        labels=[markup(name, _LONGEST_FRAME) for name in names], hovertext=hovers, hoverinfo="text",
        tiling={"orientation": "v", "pad": 1}, pathbar={"visible": True}, root={"color": CLEAR},
        marker={"colors": [COLOURS[kind] for kind in kinds], "line": {"width": 0}},
        textfont={"size": 11, "color": "#1B2430"},
    )  # fmt: skip
    figure = go.Figure(flames)
    figure.update_layout(
        margin={"l": 0, "r": 0, "t": 24, "b": 0}, **look.layout, uniformtext={"minsize": 9, "mode": "hide"}
    )
    return figure


PAGE = Page(ADDRESS, "Advice", "changes by predicted gain, with their call sites", sections, register, place=3)
