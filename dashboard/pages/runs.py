"""The runs of a page: those that it opens with, those that a link names in vain, and the list to choose one from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from dash import Dash, Output, no_update
from dash.exceptions import PreventUpdate
from flask import Flask, request

from dashboard.pages.parts import HIDDEN, SHOWN, inputs, keep_view, outputs
from dashboard.reading.run import Run, told
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import MOST_RUNS, Linked, NoRate, View, rate_of, switched, text_of

_LONGEST = 120
PATIENCE = 2.0  # seconds after which a page opens with the recordings read so far


def opened(view: View, store: RunStore) -> View:
    """The view of a link; if it names no runs, two comparable ones: those with the longest and the shortest gap.

    They are chosen when all recordings are read, or after `PATIENCE` seconds from those read by then; until then `runs`
    is None. Keys of a link are replaced by current ones; keys that show nothing are kept, after the others (`missing`
    lists them).
    """
    if view.runs is None:
        chosen = extremes(store.so_far(view.rates)) if store.progress().done or store.waited > PATIENCE else []
        return replace(view, runs=tuple(chosen)) if chosen or store.progress().done else view
    keys = tuple(dict.fromkeys(map(store.key_of, view.runs)))
    event = None if view.event is None else view.event._replace(run=store.key_of(view.event.run))
    rates = tuple(rate._replace(run=store.key_of(rate.run)) for rate in view.rates)
    gone = store.without(keys)
    return replace(view, runs=tuple(sorted(keys, key=gone.__contains__)), event=event, rates=rates)


def read_linked(server: Flask, addresses: Collection[str], store: RunStore) -> None:
    """Begin to read the runs of a link as soon as its page is requested at one of these addresses."""

    @server.before_request
    def begin() -> None:
        if request.path in addresses and "run" in request.args:
            names = View.parse(request.query_string.decode("ascii", "replace")).runs or ()
            store.read_ahead(map(store.key_of, names))


def shown(view: View, store: RunStore) -> list[str]:
    """The keys of a view, without those that show nothing."""
    keys = view.runs or ()
    gone = store.without(keys)
    return [key for key in keys if key not in gone]


def lead(view: View, store: RunStore) -> Run | None:
    """The run of a page that shows one: the first of the view's with tokens to show; None if there is none."""
    return next(iter(store.chosen(view.runs or (), view.rates)), None)


def seen(store: RunStore, data: dict[str, Any] | None) -> tuple[View, list[Run]]:
    """The view that a browser has sent, and those of its runs that are read, with the figures of its switch."""
    view = View.from_data(data)
    return view, told(store.ready(view.runs or (), view.rates), view.basis)


def missing(view: View, store: RunStore) -> list[str]:
    """One line for each run of a view that shows nothing, with the reason."""
    there = store.progress().total
    return [
        f"{plain(key, _LONGEST)} cannot be shown: {plain(why.removeprefix(f'{key}: '), 200)}." if why
        else f"The link names {plain(key, _LONGEST)}, which is not among the {there} recordings here."
        for key, why in store.without(view.runs or ()).items()
    ]  # fmt: skip


def opened_at_once(view: View, store: RunStore) -> View:
    """Like `opened`, but for a page that cannot be rendered without runs: waits for those of the link, or up to
    `PATIENCE` seconds for any."""
    keys = [store.key_of(name) for name in view.runs or ()]
    store.read_ahead(keys)
    if not store.chosen(keys):
        store.settle(PATIENCE)
    return opened(view, store)


def extremes(runs: Sequence[Run]) -> list[str]:
    """Keys of the runs with the longest and the shortest median gap, among comparable ones.

    Comparable with the first run, or with the first that has a counterpart of known rate, so that there can be a
    verdict; if there is none the first run alone, or all engines of its recording.
    """
    shown = [run for run in runs if run.summary.gap_p50_us is not None]
    fit = [run for run in shown if run.of_known_speed]
    several = (alike for run in fit if len(alike := [other for other in fit if other.kind == run.kind]) > 1)
    alike = next(several, [])
    if not alike:
        return [run.key for run in shown if run is shown[0] or (run.owner and run.path == shown[0].path)][:MOST_RUNS]
    alike = sorted(alike, key=lambda run: run.summary.gap_p50_us or 0.0, reverse=True)
    return [run.key for run in alike[:1] + alike[1:][-1:]]


def run_options(store: RunStore) -> list[dict[str, str]]:
    """The runs that are read and have steps, as options of a dropdown."""
    return [{"value": run.key, "label": plain(run.name, 90)} for run in store.so_far() if run.steps is not None]


def keep_options(
    app: Dash, store: RunStore, key: str, options_of: Callable[[RunStore], list[dict[str, str]]] = run_options
) -> None:
    """Keep a dropdown of runs up to date with the store."""

    @app.callback(Output(key, "options", allow_duplicate=True), inputs("revision.data"))
    def options(_: Any) -> list[dict[str, str]]:
        return options_of(store)


def keep_run(app: Dash, store: RunStore) -> None:
    """Update the page's view from its link, the selected run and the theme."""
    keep_view(
        app, View, "run.value", ["theme"], "run.options run.value",
        opened=lambda view: replace(opened_at_once(view, store), range=None, align="end"),
        after=after,
        show=lambda view: (run_options(store), next(iter(shown(view, store)), None)),
    )  # fmt: skip


def keep_rate(app: Dash, store: RunStore, kind: type[Linked] = View) -> None:
    """Have `rate_field` show the given rate of the page's run, and make the entered one part of the link."""

    @app.callback(outputs("url.search* rate-refused.children"), inputs("rate.value", states="run.value view.data"))
    def give(given: Any, key: str | None, data: dict[str, Any] | None) -> tuple[Any, str]:
        if key is None:
            raise PreventUpdate
        view = kind.from_data(data)
        shared = shared_of(view)
        try:
            rated = shared.rated(key, rate_of(given))
        except NoRate as problem:
            return no_update, str(problem)
        if rated == shared:
            return no_update, ""
        return (rated if view is shared else view.having("shared", rated)).query(), ""

    @app.callback(outputs("rate-field.style rate.value"), inputs("screen.data", states="view.data"))
    def show(_: Any, data: dict[str, Any] | None) -> tuple[Any, str]:
        view = shared_of(kind.from_data(data))
        run = lead(view, store)
        if run is None or not run.inflated:
            return HIDDEN, ""
        return SHOWN, text_of(view.rate_of(run.key))


def shared_of(view: Any) -> Any:
    """The part of a page's view that all pages share."""
    shared: View = getattr(view, "shared", view)
    return shared


def after(view: View, source: str, run: str | None, scheme: str) -> View:
    """The view after another run was selected, or after the theme was switched from `scheme`."""
    match source, run:
        case "run", str(key):
            return view.led_by(key)
        case "theme", _:
            return replace(view, theme=switched(view.theme, scheme))
    return view
