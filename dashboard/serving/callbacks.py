"""Validation of callback requests: small, finite, and matching a callback. Anything else is answered with 400.

Dash trusts requests: their counters, ids and requested outputs. So each request is checked here, once for all
callbacks of all pages, before Dash sees it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from dash import Dash
from flask import Flask, Response, request
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict
from werkzeug.exceptions import HTTPException

from dashboard.pages import Page
from dashboard.text import plain

MOST_BYTES: Final = 4 * 2**20
MOST_VALUES: Final = 200_000
MOST_IN_A_LIST: Final = 20_000
LONGEST_TEXT: Final = 100_000
DEEPEST: Final = 24
LARGEST: Final = 2**53  # largest exact integer in a browser
_MOST_PRESSES: Final = 10**9

_log = logging.getLogger(__name__)

_Count: TypeAlias = Annotated[int, Field(ge=0, le=_MOST_PRESSES)] | None
_Object: TypeAlias = dict[str, Any] | None


class _Screen(TypedDict):
    scheme: Literal["light", "dark"]
    width: float


class _Steady(_Screen):
    part: dict[str, Any]  # of the view, which only the browser looks at


class _Wish(TypedDict, total=False):
    what: str
    at: float
    earlier: list[dict[str, Any]]


class _Mark(TypedDict, total=False):
    key: str
    part: str
    y: float
    event: int
    ends: list[float]
    at: float


class _Moved(TypedDict, total=False):
    at: float  # beside what Plotly says


class _Row(TypedDict):
    key: str


class _Ids(TypedDict):
    ids: list[str]


class _Told(TypedDict):
    data: list[str]


class _Changed(TypedDict):
    rowId: str
    value: str | int | float | None


_SHAPES: Final[Mapping[str, Any]] = {
    "n_clicks": _Count, "n_intervals": _Count, "n_submit": _Count,
    "pathname": str | None, "search": str | None,
    "value": str | bool | int | float | list[str] | None,
    "data": Any,
    "clickData": _Object, "relayoutData": _Object, "tapNodeData": _Object,
    "rated.data": list[str] | None,
    "runs.cellValueChanged": list[_Changed] | None,
    "runs.eventData": _Told | None,
    "runs.selectedRows": list[_Row] | _Ids | None,
    "arrived.data": list[str] | None,
    "asked.data": _Wish | None,
    "chipped.data": list[int | str] | None,
    "followed.data": str | None,
    "ladder-drawn.data": _Object,
    "listed.data": list[int | None] | None,
    "pointed.data": _Mark | None,
    "pressed.data": dict[str, float | None] | None,
    "revision.data": int | None,
    "screen.data": _Screen | None,
    "steady.data": _Steady | None,
    "timeline.relayoutData": _Moved | None,
}  # fmt: skip
"""The types of properties, of one component or of all; those of a page's `view` are defined by the view's class."""
_READERS: Final[Mapping[str, TypeAdapter[Any]]] = {name: TypeAdapter(shape) for name, shape in _SHAPES.items()}


class Refused(ValueError):
    """A request that no page of this dashboard sends; the message gives the reason in a few words."""


@dataclass(frozen=True)
class Dependency:
    """An input or a state of a callback: a component's id, with "ALL" where it matches several, and its property."""

    id: str | dict[str, Any]
    property: str

    @classmethod
    def of(cls, entry: Mapping[str, str]) -> Dependency:
        """In Dash's own form."""
        key = entry["id"]
        return cls(json.loads(key) if key.startswith("{") else key, entry["property"])

    def has(self, entry: Any) -> bool:
        """Whether an entry of a request matches it."""
        return isinstance(entry, dict) and self._is(entry.get("id")) and entry.get("property") == self.property

    def is_named(self, name: str) -> bool:
        """Whether "ID.PROPERTY" matches it."""
        key, _, prop = name.rpartition(".")
        if isinstance(self.id, str):
            return prop == self.property and key == self.id
        try:
            return prop == self.property and self._is(json.loads(key))
        except ValueError:
            return False

    def _is(self, key: Any) -> bool:
        if isinstance(self.id, str) or not isinstance(key, dict):
            return bool(key == self.id)
        return key.keys() == self.id.keys() and all(
            isinstance(key[part], str | int) if wanted == ["ALL"] else key[part] == wanted
            for part, wanted in self.id.items()
        )


@dataclass(frozen=True)
class Callback:
    """The required contents of a request for a callback."""

    outputs: Any
    inputs: tuple[Dependency, ...]
    states: tuple[Dependency, ...]

    @classmethod
    def of(cls, output: str, entry: Mapping[str, Any]) -> Callback:
        """From an entry of an app's `callback_map`."""
        several = output.startswith("..")
        names = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True))
                 for name in (output[2:-2].split("...") if several else [output])]  # fmt: skip
        inputs, states = (tuple(map(Dependency.of, entry[kind])) for kind in ("inputs", "state"))
        return cls(names if several else names[0], inputs, states)

    def check(self, body: Mapping[str, Any], page: Page) -> None:
        """Check a request.

        Raises:
            Refused: it does not match this callback.
        """
        if body.get("outputs") != self.outputs:
            raise Refused("its outputs are not those of the callback")
        for wanted, given in ((self.inputs, body.get("inputs")), (self.states, body.get("state", []))):
            if not isinstance(given, list) or len(given) != len(wanted):
                raise Refused("its inputs are not those of the callback")
            for dependency, entry in zip(wanted, given, strict=True):
                _check_entry(dependency, entry, page)
        changed = body.get("changedPropIds")
        if not isinstance(changed, list) or len(changed) > MOST_IN_A_LIST:
            raise Refused("it does not name a changed input")
        for name in changed:
            if not isinstance(name, str) or not any(one.is_named(name) for one in self.inputs):
                raise Refused("the changed property is not an input")


def check_queries(server: Flask) -> None:
    """Answer 400, as below, if the address ends in bytes that are not text, which Flask cannot parse."""

    @server.before_request
    def check() -> Response | None:
        try:
            request.query_string.decode()
        except UnicodeDecodeError:
            return _refusal(400, "the address is not text")
        return None


def check_callbacks(server: Flask, apps: Iterable[tuple[Page, Dash]]) -> None:
    """Answer 400 (413, 415) and log one line for callback requests that match no callback."""
    known = {f"{app.config.routes_pathname_prefix}_dash-update-component": (page, _callbacks(app))
             for page, app in apps}  # fmt: skip
    assert known.keys() <= server.view_functions.keys()

    @server.before_request
    def check() -> Response | None:
        if request.endpoint not in known:
            return None
        page, callbacks = known[request.endpoint]
        try:
            body = _read()
            output = body.get("output")
            callback = callbacks.get(output) if isinstance(output, str) else None
            if callback is None:
                raise Refused("there is no such callback")
            callback.check(body, page)
        except HTTPException as problem:
            return _refusal(problem.code or 400, problem.name)
        except Refused as problem:
            return _refusal(400, str(problem))
        return None


def _callbacks(app: Dash) -> dict[str, Callback]:
    """The callbacks that run on the server, by their outputs."""
    on_server = {output: entry for output, entry in app.callback_map.items() if "callback" in entry}
    callbacks = {output: Callback.of(output, entry) for output, entry in on_server.items()}
    for callback in callbacks.values():
        for one in (*callback.inputs, *callback.states):
            assert one.property in _READERS or f"{one.id}.{one.property}" in _READERS, one
    return callbacks


def _read() -> dict[str, Any]:
    """The request's body, bounded.

    Raises:
        HTTPException: it is not JSON, or too large.
        Refused: it has too many values, or one that is too large.
    """
    request.max_content_length = MOST_BYTES
    text = request.get_data()
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:  # as many at least would be made of it
        raise Refused("too many values")
    try:
        body = request.get_json()
    except RecursionError:
        raise Refused("nested too deeply") from None
    _bound(body)
    if not isinstance(body, dict):
        raise Refused("it is not an object")
    return body


def _bound(value: Any, depth: int = 0) -> None:
    if depth > DEEPEST:
        raise Refused("nested too deeply")
    if isinstance(value, list | dict):
        if len(value) > MOST_IN_A_LIST:
            raise Refused("a list is too long")
        for each in value:
            _bound(each, depth + 1)
        for each in value.values() if isinstance(value, dict) else ():
            _bound(each, depth + 1)
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise Refused("a text is too long")
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a pair
            raise Refused("a text is not valid Unicode") from None
    elif value is not None and not abs(value) <= LARGEST:  # NaN is not either
        raise Refused("a number is too large")


def _check_entry(dependency: Dependency, entry: Any, page: Page) -> None:
    several = isinstance(dependency.id, dict)
    if several != isinstance(entry, list):
        raise Refused("one value where several are expected, or several where one is")
    for one in entry if several else [entry]:
        if not dependency.has(one):
            raise Refused("an input is not one of the callback's")
        name = f"{dependency.id}.{dependency.property}"
        try:
            if name == "view.data":
                page.view(one.get("value"))
            else:
                reader = _READERS.get(name) or _READERS[dependency.property]
                reader.validate_python(one.get("value"), strict=True)
        except ValueError:
            raise Refused(f"{plain(name, 60)} has an invalid value") from None


def _refusal(status: int, why: str) -> Response:
    _log.warning("refused a request to %s: %s", plain(request.path, 60), why)
    return Response(f"This dashboard's pages do not send such requests: {why}.\n", status, mimetype="text/plain")
