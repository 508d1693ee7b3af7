"""What a reader has beside the timeline to find their way in it."""

from __future__ import annotations

from typing import Any, Final

from dash import dcc, html

from dashboard.frame import named

KEYS: Final = {
    "w s": "zoom in, zoom out",
    "a d ← →": "move left, move right",
    "Home": "whole run",
    "g": "the gap",
    "t": "one token",
    "n p . ,": "next token, token before",
    "?": "these keys",
}
"""The timeline's keys, several with a space between them, and what they do; `assets/keys.js` says how."""


def help_button() -> html.Button:
    """What opens the list of keys."""
    return html.Button("?", id="help", className="button", title="Keys", **named("Keys"))


def help_dialog() -> html.Dialog:
    """The list of keys. They can be turned off, for who speaks to the browser (WCAG 2.1, 2.1.4)."""
    return html.Dialog(
        [
            html.H2("Keys of the timeline", id="keys-title"),
            html.Dl([part for keys, does in KEYS.items() for part in (html.Dt(_keys(keys)), html.Dd(does))]),
            dcc.Checklist(
                id="keys-on", options=[{"value": "on", "label": "Keys are on"}], value=["on"], persistence=True,
                className="choice",
            ),
            html.Button("Close", id="keys-close", className="button"),
        ],
        id="keys",
        className="keys",
        **{"aria-labelledby": "keys-title"},
    )  # fmt: skip


def _keys(keys: str) -> list[Any]:
    return [html.Kbd(key) for key in keys.split()]
