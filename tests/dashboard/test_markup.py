"""Elements without a Dash component of their own."""

import pytest
from dash import dcc, html

from dashboard.pages import Markup, with_markup
from tests.dashboard.conftest import served, until, visit
from tests.dashboard.traces import decode
from tracer import formats


def trees(shown):
    assert isinstance(shown, Markup)
    return shown.trees


def test_elements_become_one_component_with_their_attributes_and_texts():
    row = html.Tr([html.Th("gap", scope="row", className="head"), html.Td(["3 ", html.B(4), None, "µs"], colSpan=2)])
    cells = [["th", {"scope": "row", "className": "head"}, "gap"], ["td", {"colSpan": 2}, "3 ", ["b", {}, "4"], "µs"]]
    assert trees(with_markup(row)) == [["tr", {}, *cells]]


@pytest.mark.parametrize(
    "kept",
    [
        html.Button("press", id="pressed"),
        html.Button("press", id={"row": 1}),
        dcc.Link("there", href="/"),
        html.A("bad", href="javascript:alert(1)"),
        html.A("no address", href="//[x"),
        html.Button("bad", formAction="javascript:alert(1)"),
        html.Iframe(srcDoc="<script>alert(1)</script>"),
        html.MapEl(html.P("an area")),
        html.P(False),
        html.P(1.0),
        html.P(),
        "text",
        None,
        {"data": [1, 2]},
        [{"key": 1}],
        ["a", "b"],
    ],
    ids=str,
)
def test_what_a_callback_may_change_what_dash_checks_and_what_is_alone_stays(kept):
    assert with_markup(kept) is kept


SHOWN = """
return ['keys', 'compare-figures', 'downloads-of-runs', 'row-list'].map((id) => document.getElementById(id)?.innerHTML);
"""


@pytest.mark.browser
def test_the_browser_makes_of_them_what_it_makes_of_dashs_own(browser, tmp_path, monkeypatch):
    for name in "ab":
        formats.write(decode(tokens=30), tmp_path / name)

    def shown():
        with served(tmp_path) as address:
            browser.get("about:blank")
            visit(browser, f"{address}?run=a&run=b")
            shown = until(browser, whole, "all of it")
            browser.get("about:blank")
            return shown

    def whole():
        parts = browser.execute_script(SHOWN)
        return all(part and "skeleton" not in part for part in parts) and parts

    ours = shown()
    monkeypatch.setattr("dashboard.pages.with_markup", lambda layout: layout)
    monkeypatch.setattr("dashboard.pages.answering_markup", lambda function, several: function)
    assert ours == shown()
