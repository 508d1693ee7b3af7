"""Pages: what all of them share, which is one server, the navigation, the elements around a page's own sections, and
what a reader sees of failures: a message in place, without internal details, and a page for unknown addresses.

They are layouts and callbacks; nothing is computed here.

Each page is a separate Dash app on the same Flask server. Dash's `pages` would keep all of them in one list per
process, so that two dashboards (as in the tests) would show each other's pages, and in one namespace of components and
callbacks. Links between pages are relative, so they work under any prefix.

What no callback changes is sent as plain elements in one Dash component (`with_markup`): Dash's renderer asks every
component that is mounted, at every change of its state, whether it has changed, and changes its state for each
component that is new: the time of an answer grows with the square of the number of components. A table of 30 rows and
8 columns is 270 of them, or one.
"""

from __future__ import annotations

import datetime
import logging
import secrets
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeGuard
from urllib.parse import urlsplit

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, set_props
from dash.development.base_component import Component
from dash.exceptions import DependencyException
from flask import Flask, Response, render_template, request
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.wrappers import Response as Answer

from dashboard.files import only, plotly_file, with_hashes
from dashboard.pages.parts import inputs, named
from dashboard.pages.runs import missing, shared_of
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import View
from tracer.errors import IntertokenError

_ASSETS: Final = Path(__file__).parents[1] / "assets"
_MOST_LINES, _LONGEST_LINE = 100, 300
_OLD: Final = (
    "The dashboard was started anew with another token, so this page is no longer logged in. Its view is kept. "
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        address: relative to the root, "" or such as "graph/".
        sections: creates the contents of its <main>, and its stores.
        register: registers its callbacks. Every page has the components `url` (dcc.Location), `view`, `screen` and
            `revision` and `pressed` (dcc.Store), `theme` and `copy-link` (buttons) and `said` (the text for screen
            readers); a page writes `view`, the browser answers with `screen`, and sets `revision` when the recordings
            have changed.
        place: in the navigation, the smallest first; pages without one follow, by name.
        view: parses what it writes into `view`; raises ValueError if invalid.
    """

    address: str
    name: str
    motto: str
    sections: Callable[[], Sequence[Any]]
    register: Callable[[Dash, RunStore], None]
    view: Callable[[Any], Any] = View.from_data
    place: int = sys.maxsize


def add_pages(
    server: Flask, pages: Sequence[Page], store: RunStore, prefix: str = "", upload_limit: int = 0
) -> list[Dash]:
    """Serve the pages.

    Args:
        pages: in the order of the navigation.
        prefix: path before all addresses in the browser, "" or such as "/tool".
        upload_limit: maximum number of bytes of an upload, 0 to disable uploads.
    """
    apps = []
    for page in pages:
        app = _app(server, page, prefix)
        app.layout = partial(_layout, page, pages, upload_limit)
        page.register(app, store)
        _register(app, page, pages)
        _say_missing(app, page, store)
        apps.append(app)
    return apps


def link(target: str, here: str) -> str:
    """The relative address of a page from another one.

    Example:
        >>> link("", "graph/"), link("graph/", ""), link("syncs/", "graph/"), link("", "")
        ('../', 'graph/', '../syncs/', './')
    """
    return "../" * here.count("/") + target or "./"


def in_browser(app: Any, script: str, function: str, *dependencies: Any, at_once: bool = False) -> None:
    """Register a callback that is a function of one of the scripts in `assets`."""
    name = ClientsideFunction(script, function)
    app.clientside_callback(name, *dependencies, prevent_initial_call=not at_once)


class _App(Dash):
    """The app of a page. All pages have the scripts and styles of the first: a browser loads and compiles them once."""

    def callback(self, *dependencies: Any, **options: Any) -> Any:
        register = super().callback(*dependencies, **options)
        first, *others = dependencies or [options.get("output")]
        several = isinstance(first, (list, tuple)) or any(isinstance(each, Output) for each in others)
        return lambda function: register(answering_markup(function, several=several))

    libraries: Collection[str] = ()
    """Component libraries of which the page has something; "" is in every page."""

    def interpolate_index(self, **parts: str) -> str:  # type: ignore[override]  # Dash calls it with all names
        own = self.config.requests_pathname_prefix
        first = own.removesuffix(self.config.routes_pathname_prefix[1:])
        for name in ("css", "scripts"):
            parts[name] = with_hashes(parts[name].replace(f'"{own}', f'"{first}'), _ASSETS)
        parts["favicon"] = '<link rel="icon" href="data:,">'
        parts["scripts"] = only(parts["scripts"], self.libraries)
        return str(super().interpolate_index(**parts))  # type: ignore[no-untyped-call]  # Dash has no types


def _app(server: Any, page: Page, prefix: str) -> Dash:
    app = _App(
        "intertoken",
        server=server,
        routes_pathname_prefix=f"/{page.address}",
        requests_pathname_prefix=f"{prefix}/{page.address}",
        assets_folder=str(_ASSETS),
        title=f"{page.name} · intertoken",
        update_title=None,  # type: ignore[arg-type]  # Dash takes None for "never", its annotation says str
        serve_locally=True,
        add_log_handler=False,
        on_error=say_failure,
        prevent_initial_callbacks=True,  # what a page shows follows from its view, which comes later
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"},
                   {"name": "color-scheme", "content": "light dark"}, {"name": "plotly", "content": plotly_file()}],
    )  # fmt: skip
    parts: Iterable[Any] = html.Div(list(page.sections()))._traverse()  # type: ignore[no-untyped-call]  # Dash has no types
    app.libraries = {"", *(part._namespace for part in parts if isinstance(part, Component))}
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    return app


def _register(app: Dash, page: Page, pages: Sequence[Page]) -> None:
    outputs = [Output("screen", "data"), Output("named", "data"), Output("failure", "hidden")]
    in_browser(app, "intertoken", "viewed", outputs, Input("view", "data"), State("named", "data"))
    in_browser(app, "intertoken", "watch", Input("revision", "data"), at_once=True)
    in_browser(app, "intertoken", "copyLink", Output("said", "children"), Input("copy-link", "n_clicks"))
    in_browser(app, "intertoken", "copyFailure", Output("failure-copy", "children"), Input("failure-copy", "n_clicks"))
    others = [_id(other) for other in pages if other is not page]
    if others:
        outputs = [Output(key, "href") for key in others]
        in_browser(app, "intertoken", "carry", outputs, Input("url", "search"), [State(key, "href") for key in others])


def _say_missing(app: Dash, page: Page, store: RunStore) -> None:
    @app.callback(Output("missing", "children"), inputs("named.data revision.data", states="view.data"))
    def say(_: Any, __: Any, data: Any) -> list[html.P]:
        view = shared_of(page.view(data))
        return [html.P(line) for line in missing(view, store)] if isinstance(view, View) else []


def _layout(page: Page, pages: Sequence[Page], upload_limit: int) -> Any:
    data: dict[str, Any] = {"data-root": link("", page.address), "data-upload-limit": str(upload_limit)}
    current: dict[str, Any] = {"aria-current": "page"}
    entries = [
        html.A(each.name, id=_id(each), href=link(each.address, page.address), **(current if each is page else {}))
        for each in pages
    ]
    header = [
        html.H1("intertoken"),
        html.Nav(html.Ul([html.Li(entry) for entry in entries]), **named("Pages")),
        html.P(page.motto, className="motto"),
        html.Button("Copy link", id="copy-link", className="button", title="Copy a link to exactly this view"),
        html.Button("Dark", id="theme", className="button", title="Switch between light and dark"),
    ]
    offline = "The server of this page does not answer: is intertoken dashboard still running?"
    content = [
        dcc.Location(id="url", refresh=False),
        *(dcc.Store(id=key) for key in ("view", "named", "screen", "revision", "pressed")),
        html.A("Skip to the content", href="#content", className="skip"),
        html.Header(header),
        html.P(offline, id="offline", role="alert", hidden=True, className="offline"),
        html.P([_OLD, html.A("Log in", id="log-in")], id="old", role="alert", hidden=True, className="offline"),
        failure_place(),
        html.Div(id="missing", role="alert", className="missing"),
        html.Main(list(page.sections()), id="content", tabIndex="-1"),
        html.P(id="said", role="status", className="unseen"),
    ]
    return with_markup(html.Div(content, id="page", **data))


def _id(page: Page) -> str:
    return f"page-{page.name.lower().replace(' ', '-')}"


def failure_place() -> html.Div:
    """The place of the failure message, hidden until there is one."""
    return html.Div(
        [html.P(id="failure-said"), html.Button("Copy this message", id="failure-copy", className="button")],
        id="failure",
        role="alert",
        hidden=True,
        className="failure",
    )


def say_failure(problem: Exception) -> None:
    """Show a message on the page that made the request, and leave its components unchanged; log the traceback.

    For `Dash(on_error=)`. Our own errors are shown; for others the page shows only a number, which identifies the
    details in the log.
    """
    number = _logged_failure(problem)
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    if isinstance(problem, IntertokenError):
        message = f"{plain(str(problem), 600)} ({when})"
    else:
        message = (
            f"The server failed to handle this, so the page is unchanged. Change something or reload the page. If it "
            f"fails again, the output of intertoken dashboard has the details: failure {number}, {when}."
        )
    set_props("failure-said", {"children": message})
    set_props("failure", {"hidden": False})


def catch_failures(server: Flask) -> None:
    """Answer with status 500 and a number that identifies the traceback in the log, for failures that no page can
    show."""

    @server.errorhandler(Exception)
    def answer(problem: Exception) -> Answer | HTTPException:
        if isinstance(problem, HTTPException):
            return problem
        message = f"The server failed to answer; its output has the details: failure {_logged_failure(problem)}.\n"
        return Response(message, 500, mimetype="text/plain")


def _logged_failure(problem: Exception) -> str:
    """Log the end of the traceback, whose lines may contain untrusted text, and return its number."""
    number, lines = secrets.token_hex(3), "".join(traceback.format_exception(problem)).splitlines()
    _log.error("failure %s\n%s", number, "\n".join(plain(line, _LONGEST_LINE) for line in lines[-_MOST_LINES:]))
    return number


def add_missing(server: Flask, pages: Iterable[tuple[str, str]], prefix: str) -> None:
    """Answer 404: clients that accept HTML get a page with links to these (address, name), others a line of text."""
    pages = list(pages)

    @server.errorhandler(NotFound)
    @server.errorhandler(DependencyException)  # a script of a component that there is not
    def missing(_: Exception) -> Response:
        if request.accept_mimetypes.best_match(["text/plain", "text/html"]) != "text/html":
            return Response("There is nothing at this address.\n", 404, mimetype="text/plain")
        page = render_template("no_such_page.html", pages=pages, prefix=prefix, path=f"{prefix}{request.path}"[:200])
        return Response(page, 404)


Tree: TypeAlias = "str | list[Any]"  # A text, or [tag, attributes by React's names, child, child, ...]
_ELEMENTS: Final = "dash_html_components"
_SAFE: Final = {"", "http", "https"}  # schemes of links; Dash's own component takes care of any other
_LOADING: Final = ("src", "srcDoc", "action", "formAction", "data")
"""Attributes with addresses that Dash's own components take care of."""


class Markup(Component):
    """Elements without a Dash component of their own; drawn by `assets/markup.js`."""

    _namespace = "intertoken"
    _type = "Markup"
    _prop_names = available_properties = ["trees"]  # noqa: RUF012  # as Dash's own components have them
    _valid_wildcard_attributes = available_wildcard_properties = []  # noqa: RUF012

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__(trees=list(trees))  # type: ignore[no-untyped-call]  # Dash has no types


def with_markup(shown: Any) -> Any:
    """A component, or a list of components, with all parts that have no id, and so no callback, as `Markup`.

    Anything else, such as a figure or the rows of a table, is returned as it is. The components may be changed.
    """
    if _is_list(shown):
        return _gathered(shown) if any(isinstance(each, Component) for each in shown) else shown
    if not isinstance(shown, Component):
        return shown
    if _is_plain(shown):
        return Markup([_tree(shown)]) if _size(shown) > 1 else shown
    if (children := getattr(shown, "children", None)) is not None:
        shown.children = with_markup(children)
    return shown


def answering_markup(function: Callable[..., Any], *, several: bool) -> Callable[..., Any]:
    """A callback's function, whose answers have as few components as `with_markup` leaves.

    `several`: whether it answers with a list or tuple of values for as many outputs.
    """

    @wraps(function)
    def answer(*given: Any, **named: Any) -> Any:
        answers = function(*given, **named)
        return tuple(map(with_markup, answers)) if several and _is_list(answers) else with_markup(answers)

    return answer


def _gathered(shown: Sequence[Any]) -> list[Any]:
    """Siblings that follow each other and are plain are one `Markup`."""
    gathered: list[Any] = []
    for are_plain, group in groupby(shown, _is_plain):
        siblings = list(group)
        if are_plain and sum(map(_size, siblings)) > 1:
            gathered.append(Markup([_tree(each) for each in siblings if each is not None]))
        else:
            gathered += siblings if are_plain else map(with_markup, siblings)
    return gathered


def _is_plain(shown: Any) -> bool:
    """Whether a child is a text or an element, and so is everything in it."""
    if not isinstance(shown, Component):
        return shown is None or type(shown) in (str, int)  # React shows no bool, and floats in its own way
    return (
        shown._namespace == _ELEMENTS  # a component has no public way to ask
        and not shown._type.endswith("El")  # ObjectEl and MapEl are named otherwise
        and not any(hasattr(shown, name) for name in ("id", *_LOADING))
        and _is_safe(getattr(shown, "href", ""))
        and all(map(_is_plain, _children(shown)))
    )


def _is_safe(link: str) -> bool:
    try:
        return urlsplit(link).scheme in _SAFE
    except ValueError:
        return False


def _size(shown: Any) -> int:
    """The number of components."""
    return 1 + sum(map(_size, _children(shown))) if isinstance(shown, Component) else 0


def _children(shown: Component) -> Iterator[Any]:
    children = getattr(shown, "children", None)
    yield from children if _is_list(children) else [children]


def _is_list(shown: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(shown, (list, tuple))


def _tree(shown: Any) -> Tree:
    if not isinstance(shown, Component):
        return str(shown)
    given = shown.to_plotly_json()["props"]  # type: ignore[no-untyped-call]  # Dash has no types
    attributes = {name: value for name, value in given.items() if name != "children"}
    children = [_tree(child) for child in _children(shown) if child is not None]
    return [shown._type.lower(), attributes, *children]
