"""The form: a field for every option that `intertoken run` lists; and the state of the page, which is their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

import dash_bootstrap_components as dbc
from dash import dcc, html
from pydantic import Field

from dashboard.links import Form, Linked, Query, part
from dashboard.pages import named
from dashboard.pages.parts import text_field
from dashboard.recording.options import OFF, ON, Choice, Option
from dashboard.text import plain
from dashboard.view import View

FIELD: Final = "option"
"""The key of a field's id, whose value is the name of its option."""
_FIRST: Final = (
    *("backend", "strategies", "concurrency"),
    *("model", "launch", "allocator", "tokens", "repeats", "batch", "prompt"),
)
_LABELS: Final = {
    "strategies": "Sync strategies", "concurrency": "Concurrency modes", "gpu_layers": "GPU layers", "kv": "KV cache",
}  # fmt: skip
_DELAY: Final = 400  # ms after the last key
_LISTED_AS_BOXES: Final = {"backend", "strategies", "concurrency", "passes"}
ADDRESS: Final = "record/"
_NAME: Final = re.compile("[a-z_]{1,40}")
_MOST_VALUES, _LONGEST = 40, 400
_Text: TypeAlias = Annotated[str, Field(max_length=_LONGEST)]


def _others(_: str, query: Query) -> dict[str, str]:
    """The last value of each name that is not one of what all pages share."""
    names = [name for name in query if name not in View.names() and _NAME.fullmatch(name)]
    return {name: query[name][-1][:_LONGEST] for name in names[:_MOST_VALUES]}


_VALUES: Final = Form(lambda _, values: list(values.items()), _others)


@dataclass(frozen=True)
class RecordView(Linked):
    """The state of the page.

    Attributes:
        shared: the theme, and what links to other pages keep.
        values: name of an option -> its value as in a link; not checked yet.
    """

    shared: Annotated[View, part(View)]
    values: Annotated[Mapping[str, _Text], Field(max_length=_MOST_VALUES), _VALUES] = field(default_factory=dict)


def text_of(value: Any) -> str:
    """The value of a form field, as in a link; empty for none or an invalid one."""
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))[:_LONGEST]
    return str(value)[:_LONGEST] if isinstance(value, str | int) else ""


def form(options: Sequence[Option], values: Mapping[str, str]) -> list[Any]:
    """The fields with these values: frequent ones first, the others folded under a heading."""
    first = [o for name in _FIRST for o in options if o.name == name]
    others = [o for o in options if o not in first]
    return [
        html.Div([_field(o, values) for o in first], className="fields options"),
        html.Details(
            [
                html.Summary("More options"),
                html.Div([_field(o, values) for o in others], className="fields options"),
            ],
            open=any(values.get(o.name, o.default) != o.default for o in others),
        ),
    ]


def _field(option: Option, values: Mapping[str, str]) -> Any:
    text = values.get(option.name, option.default)
    if option.name in _LISTED_AS_BOXES:
        legend = html.Legend(_label(option), title=option.flag)
        return html.Fieldset([legend, _boxes(option, text), _hint(option)], className="option wide-option")
    field = _list(option, text) if option.choices or option.kind == "flag" else _number(option, text)
    label = html.Label([html.Span(_label(option)), field], title=option.flag)
    return html.Div([label, _hint(option)], className="option")


def _label(option: Option) -> str:
    return _LABELS.get(option.name, option.flag.removeprefix("--").replace("-", " ").capitalize())


def _hint(option: Option) -> html.P:
    return html.P(re.sub(" +", " ", option.help), className="hint")


def _id(option: Option) -> dict[str, str]:
    return {FIELD: option.name}


def _boxes(option: Option, text: str) -> Any:
    """A checkbox or radio button for each choice; those that this machine lacks are disabled and say why."""
    offered = [{"value": c.name, "label": _described(c), "disabled": c.lacks is not None} for c in option.choices]
    can = [c.name for c in option.choices if c.lacks is None]
    if option.kind == "name":
        return dbc.RadioItems(id=_id(option), options=offered, value=text if text in can else option.default)
    return dbc.Checklist(id=_id(option), options=offered, value=[name for name in text.split(",") if name in can])


def _described(choice: Choice) -> Any:
    description = f"not on this machine: {plain(choice.lacks, 300)}" if choice.lacks is not None else choice.about
    return html.Span([html.B(choice.name), *([html.Span(f" {description}", className="about")] if description else [])])


def _list(option: Option, text: str) -> dcc.Dropdown:
    names = [ON, OFF] if option.kind == "flag" else [c.name for c in option.choices]
    chosen = text if text in names else option.default
    return dcc.Dropdown(
        id=_id(option),
        options=[{"value": name, "label": name} for name in names],
        value=chosen or None,
        clearable=not option.default,
        placeholder=_otherwise(option),
        searchable=False,
    )


def _number(option: Option, text: str) -> dbc.Input:
    shown = _otherwise(option)
    return text_field(
        _id(option), _DELAY, type="text", inputmode="numeric", value=text, maxlength=60, placeholder=shown
    )


def _otherwise(option: Option) -> str:
    """The default value."""
    found = re.search(r"\[default: ([^\]]+)\]", option.help)
    return found[1] if found else option.default or "off"


def unavailable(why: Sequence[Any]) -> html.Div:
    """The page if recording from it is disabled."""
    return html.Div(
        [
            html.P([html.B("Recording is disabled on this dashboard. "), *why]),
            html.P("Use the command line instead; new recordings below a directory that is shown appear "
                   "automatically:"),
            html.Pre("intertoken run --sync sccc,saaas,aaag -o runs\nintertoken dashboard runs", tabIndex=0,
                     **named("Commands that record runs and show them")),
        ],
        className="empty",
    )  # fmt: skip
