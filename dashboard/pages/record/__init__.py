"""The record page: start runs of the executor, and watch them and other recordings in progress."""

from __future__ import annotations

from functools import partial
from typing import Any

from dash import dcc, html

from dashboard.pages import Page, named
from dashboard.pages.parts import HIDDEN, poll, section
from dashboard.pages.record.callbacks import register
from dashboard.pages.record.form import ADDRESS, RecordView, unavailable
from dashboard.pages.record.running import running_section
from dashboard.recording.runner import Runner
from dashboard.recording.running import Running
from dashboard.text import plain


def sections(runner: Runner | None, running: Running | None) -> list[Any]:
    """The page's elements; without a runner only the reason."""
    if runner is None or running is None:
        why = ["Recording starts processes on this machine, so it needs the token: it is not available "
               "with ", html.Code("--no-token"), " or ", html.Code("--no-record"), "."]  # fmt: skip
        return [section("Record", [], unavailable(why))]
    return [
        poll("poll", disabled=False),
        poll("options-poll", disabled=False),
        poll("running-poll", disabled=False),
        dcc.Store(id="ready"),
        dcc.Store(id="acted"),
        dcc.Store(id="shown"),
        dcc.Store(id="running-shown"),
        section(
            "Record",
            [html.P("One run of every strategy in every concurrency mode, repeats interleaved.", className="hint")],
            html.Div(
                html.P("Asking intertoken run for the options of this machine …", className="empty", role="status"),
                id="form",
                role="group",
                **named("Options of the runs"),
            ),
        ),
        section(
            "Command",
            [
                html.Button("Start recording", id="start", className="button strong"),
                html.Button("Copy command", id="copy-command", className="button"),
            ],
            html.P(id="refused", className="problem", role="alert"),
            html.P(id="said-of-plan", className="answer", role="status"),
            html.Pre(id="command", tabIndex=0, className="command", **named("Command line")),
            html.P(
                f"The runs go to {plain(str(runner.shown), 200)}; each appears there when it is complete.",
                className="hint foot",
            ),
        ),
        section(
            "Recording",
            [html.Button("Cancel", id="cancel", className="button")],
            html.Div(_progress(), id="progress-holder"),
            html.P(id="said-of-job", className="answer"),
            html.P(id="failed", className="problem", role="alert"),
            html.Ul(id="new-runs", className="new-runs", **named("New runs")),
            html.Pre(id="log", tabIndex=0, className="log", **named("Output of the command")),
            html.P(id="announced", role="status", className="unseen"),
            key="job-section",
        ),
        running_section(running),
    ]


def _progress() -> html.Progress:
    return html.Progress(id="progress", value="0", max="1", style=HIDDEN, **named("Progress"))


def page(runner: Runner | None) -> Page:
    """The page, which explains why it cannot record if there is no runner."""
    running = None if runner is None else Running(runner.files.output, runner.shown)
    made, attach = partial(sections, runner, running), partial(register, runner=runner, running=running)
    return Page(ADDRESS, "Record", "start runs, and watch running processes", made, attach, RecordView.from_data)
