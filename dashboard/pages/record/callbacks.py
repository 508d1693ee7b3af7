"""The callbacks of the record page.

The state of a recording is a file, which the page polls, so all readers see the same, whichever server process
answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from dash import ALL, Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import in_browser, link
from dashboard.pages.parts import HIDDEN, SHOWN, asking, digest
from dashboard.pages.presses import done
from dashboard.pages.record.form import ADDRESS, FIELD, RecordView, form, text_of
from dashboard.pages.record.running import register_running
from dashboard.reading.store import RunStore
from dashboard.recording.job import CANCELLED, DONE, FAILED, RUNNING, STOPPED, Job
from dashboard.recording.options import Option, arguments_of, different
from dashboard.recording.runner import Runner
from dashboard.recording.running import Running
from dashboard.text import plain
from dashboard.view import MOST_RUNS, View, switched
from tracer.errors import UsageError

Links: TypeAlias = Mapping[str, str]
_VERBS: Final = {DONE: "Done", CANCELLED: "Cancelled", STOPPED: "Stopped with the dashboard", FAILED: "Failed"}
_TENTHS: Final = 10


def register(app: Dash, store: RunStore, runner: Runner | None, running: Running | None) -> None:
    """Register the page's callbacks with an app that records with `runner`; without one only the theme can change."""
    _reduce(app, runner)
    if runner is not None and running is not None:
        _form(app, runner)
        _act(app, runner)
        _show(app, store, runner)
        in_browser(app, "intertoken", "copyCommand", Output("copy-command", "title"), Input("copy-command", "n_clicks"))
        register_running(app, running)


def _reduce(app: Dash, runner: Runner | None) -> None:
    @app.callback(
        Output("view", "data"),
        Output("url", "search"),
        Output("pressed", "data"),
        Input("url", "search"),
        Input({FIELD: ALL}, "value"),
        Input("theme", "n_clicks"),
        State("pressed", "data"),
        State("view", "data"),
        State("screen", "data"),
    )
    def reduce(
        search: str | None, fields: list[Any], theme: Any, pressed: Any, before: Any, screen: Any
    ) -> tuple[Any, ...]:
        clicks = {"theme": theme}
        sources = done([one["prop_id"] for one in ctx.triggered], clicks, pressed)
        if before is None or "url" in sources:
            view = RecordView.parse(search)
        else:
            view = RecordView.from_data(before)
            for source in sources:
                if source == "theme":
                    other = switched(view.shared.theme, (screen or {}).get("scheme", ""))
                    view = replace(view, shared=replace(view.shared, theme=other))
            if set(sources) - {"theme"}:
                options = (runner and known_options(runner)) or ()
                view = replace(view, values=different(options, _texts(ctx.inputs_list[1])))
        query = view.query()
        if before is not None and view == RecordView.from_data(before) and clicks == pressed:
            raise PreventUpdate
        return view.data(), no_update if query == (search or "") else query, clicks


def _form(app: Dash, runner: Runner) -> None:
    @app.callback(
        Output("form", "children"),
        Output("ready", "data"),
        Input("url", "search"),
        State("ready", "data"),
        State({FIELD: ALL}, "value"),
    )
    def fill(search: str | None, ready: Any, fields: list[Any]) -> tuple[Any, ...]:
        """Render the form, and again when a link (or Back) changes the values."""
        options, view = known_options(runner), RecordView.parse(search)
        if options is None:
            raise PreventUpdate
        if ready and different(options, _texts(ctx.states_list[1])) == different(options, view.values):
            raise PreventUpdate
        return (form(options, view.values) if options else no_update), True

    @app.callback(
        Output("form", "children", allow_duplicate=True),
        Output("ready", "data", allow_duplicate=True),
        Output("options-poll", "disabled"),
        Input("options-poll", "n_intervals"),
        State("url", "search"),
        State("ready", "data"),
        running=asking("options-poll"),
        prevent_initial_call=True,
    )
    def wait(_: Any, search: str | None, ready: Any) -> tuple[Any, ...]:
        """Render the form once the options are known, if they were not when the page was opened."""
        if ready:
            return no_update, no_update, True
        options = known_options(runner)
        if options is None:
            raise PreventUpdate
        return (form(options, RecordView.parse(search).values) if options else no_update), True, True


def _texts(fields: list[dict[str, Any]]) -> dict[str, str]:
    """The values of these fields, by the names of their options."""
    return {str(field["id"][FIELD]): text_of(field.get("value")) for field in fields}


def known_options(runner: Runner) -> Sequence[Option] | None:
    """The options; None while unknown, and empty if they cannot be listed: the plan says why."""
    try:
        return runner.options()
    except UsageError:
        return ()


def _act(app: Dash, runner: Runner) -> None:
    @app.callback(
        Output("refused", "children"),
        Output("acted", "data"),
        Input("start", "n_clicks"),
        Input("cancel", "n_clicks"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def act(starts: int | None, cancels: int | None, data: dict[str, Any]) -> tuple[str, int]:
        try:
            match ctx.triggered_id:
                case "start":
                    start(runner, RecordView.from_data(data))
                case "cancel":
                    runner.cancel()
                case _:
                    raise PreventUpdate
        except UsageError as problem:
            return plain(str(problem), 600), (starts or 0) + (cancels or 0)
        return "", (starts or 0) + (cancels or 0)


def start(runner: Runner, view: RecordView) -> None:
    """Start what the view describes.

    Raises:
        UsageError: it cannot be started, or not now.
    """
    options = runner.options()
    if options is None:
        raise UsageError("The options are not available yet. Try again in a moment.")
    arguments = arguments_of(options, view.values)
    runner.plan(arguments)  # fails early if the command would reject it
    runner.start(arguments)


def _show(app: Dash, store: RunStore, runner: Runner) -> None:
    @app.callback(
        Output("command", "children"),
        Output("said-of-plan", "children"),
        Output("refused", "children", allow_duplicate=True),
        Output("job-section", "style"),
        Output("progress", "value"),
        Output("progress", "style"),
        Output("said-of-job", "children"),
        Output("failed", "children"),
        Output("new-runs", "children"),
        Output("log", "children"),
        Output("announced", "children"),
        Output("cancel", "disabled"),
        Output("shown", "data"),
        Input("poll", "n_intervals"),
        Input("acted", "data"),
        Input("screen", "data"),
        State("view", "data"),
        State("shown", "data"),
        running=asking("poll"),
        prevent_initial_call=True,
    )
    def show(_: Any, __: Any, ___: Any, data: Any, before: Any) -> tuple[Any, ...]:
        if data is None:
            raise PreventUpdate
        view, now = RecordView.from_data(data), time.time()
        planned, done = plan_of(runner, view), job_of(store, runner, view, now)
        keys = [digest(planned), digest(done)]
        if before == keys:
            raise PreventUpdate
        asked = before is None or before[:1] != keys[:1]  # else it would erase why a start was rejected
        command, status, refused = planned if asked else (no_update,) * 3
        return command, status, refused, *done, keys


def plan_of(runner: Runner, view: RecordView) -> tuple[str, str, str]:
    """The command line, the number of runs, and why it cannot run."""
    arguments: list[str] = []
    try:
        options = runner.options()
        if options is None:
            return "", "", ""
        arguments = arguments_of(options, view.values)
        names = runner.plan(arguments)
    except UsageError as problem:
        return runner.command_line(arguments) if arguments else "", "", plain(str(problem), 600)
    if names is None:
        status = "Planning …"
    else:
        status = f"{len(names)} run{'s' if len(names) != 1 else ''}: {plain(', '.join(names), 900)}"
    return runner.command_line(arguments), status, ""


def job_of(store: RunStore, runner: Runner, view: RecordView, now: float) -> tuple[Any, ...]:
    """The contents of the recording section, its style first."""
    job = runner.job()
    if job is None:
        return HIDDEN, "0", HIDDEN, "", "", [], "", "", True
    return (
        SHOWN,
        f"{job.share:.3f}",
        SHOWN if job.status == RUNNING else HIDDEN,
        in_words(job, now),
        problem_of(job),
        links_of(found(store, runner, job), job.whole, view.shared.theme),
        log_of(job),
        announced(job),
        job.status != RUNNING,
    )


def found(store: RunStore, runner: Runner, job: Job) -> Links:
    """Name of a whole run directory -> key of the run, as far as the store has read it."""
    place = runner.files.output

    def look() -> Links:
        store.refresh()
        below = {name: store.below(place / name) or store.below(runner.shown / name) for name in job.whole}
        return {name: runs[0].key for name, runs in below.items() if runs and runs[0].steps is not None}

    if not job.whole:
        return {}
    future = store.background.ask("new runs", ("new runs", job.number, len(job.whole)), look)
    return future.result() if future.done() else {}


def in_words(job: Job, now: float) -> str:
    """The progress, elapsed and remaining time."""
    counts = (
        f"{job.runs[0]} of {job.runs[1]} runs complete, {job.units[0]} of {job.units[1]} warm-ups, repeats and passes, "
        f"{job.steps[0]:,} of {job.steps[1]:,} token steps"
    )
    elapsed = f"{clock(job.elapsed(now))} elapsed"
    if job.status != RUNNING:
        return f"{_VERBS.get(job.status, 'Ended')} after {clock(job.elapsed(now))}: {counts}."
    if not job.units[1]:
        return f"Starting … {elapsed}."
    left = job.left(now)
    return f"{counts}. {elapsed}" + (f", about {clock(left)} left." if left is not None else ".")


def clock(seconds: float) -> str:
    """A time in minutes and seconds.

    Example:
        >>> clock(9.4), clock(75), clock(3700)
        ('9 s', '1 min 15 s', '61 min 40 s')
    """
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def announced(job: Job) -> str:
    """The progress for screen readers, in steps of a tenth so that it is not announced all the time."""
    if job.status == RUNNING:
        return f"Recording, {int(job.share * _TENTHS) * 100 // _TENTHS} percent"
    return f"{_VERBS.get(job.status, 'Ended')}: {job.runs[0]} runs"


def problem_of(job: Job) -> str:
    """Why it failed; empty if it did not."""
    return plain(job.problem, 600) if job.status == FAILED else ""


def log_of(job: Job) -> str:
    """The command and the end of its output."""
    lines = [plain(line, 400) for line in job.lines]
    return "\n".join([f"$ {plain(' '.join(job.command), 600)}", *lines])


def links_of(keys: Links, whole: Sequence[str], theme: str) -> list[html.Li]:
    """A line for each new run with a link to its timeline, and one that compares them."""
    entries: list[Any] = [
        html.A(plain(name, 120), href=_timeline([keys[name]], theme)) if name in keys else plain(name, 120)
        for name in whole
    ]
    if 2 <= len(keys) <= MOST_RUNS:
        entries.append(html.A("Compare them", href=_timeline(list(keys.values()), theme), id="compare"))
    return [html.Li(entry) for entry in entries]


def _timeline(keys: Sequence[str], theme: str) -> str:
    return link("", ADDRESS) + View(runs=tuple(keys), theme=theme).query()
