"""Recordings and comparisons in a notebook: they show themselves, with the figures of the page."""

import json
import re
from html import unescape
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dashboard.pages.overview.compare import sentence, table_of
from dashboard.pages.overview.table import chips
from dashboard.reading.answers import against_base
from dashboard.reading.store import RunStore
from dashboard.scene import timeline
from dashboard.view import View
from tests.dashboard.test_compare import text
from tests.recordings import LLAMA
from tracer.extensions import VIEWS
from tracer.files.bounded import tomllib
from tracer.notebook import comparison_html, trace_html

pytestmark = pytest.mark.usefixtures("all_resamples")


@pytest.fixture(scope="module")
def views():
    """What this package registers, as pyproject.toml says it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return [EntryPoint(name, target, VIEWS) for name, target in project["project"]["entry-points"][VIEWS].items()]


@pytest.fixture(scope="module")
def runs():
    return RunStore([LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]], passes=False).runs()


def words(html):
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


@pytest.fixture(autouse=True)
def registered(views, monkeypatch):
    """As if the package were installed as it is now."""

    def entry_points(group, name):
        return [view for view in views if (view.group, view.name) == (group, name)]

    monkeypatch.setattr("tracer.extensions.entry_points", entry_points)


def test_a_notebook_shows_what_the_page_shows(runs):
    run = runs[0]
    said = words(run.trace._repr_html_())
    (chip,) = chips([run])
    name, _, *figures, _ = [text(part) for part in chip.children]
    assert (name, len(figures)) == (run.name, 3)
    for figure in figures:
        assert figure.split(" ", 1)[-1] in said
    source = run.trace.metadata["source"]
    assert sentence(run.summary, run.name).removeprefix(run.name) in said.replace(source, "", 1)
    assert run.summary.warning in said
    page, _ = timeline([run], View(runs=(run.key,), token=17), "light", 1100)
    drawn, again = (json.loads(run.trace.timeline(token=17, **given).to_json()) for given in ({}, {"show": "gap"}))

    def bars(figure):
        return {trace["name"]: trace["x"] for trace in figure["data"] if trace["type"] == "bar"}

    assert bars(json.loads(page.to_json())) == bars(drawn) != {}
    (low, high), (near, far) = (figure["layout"]["xaxis"]["range"] for figure in (drawn, again))
    assert [low, high] == list(page.layout.xaxis.range)
    assert far - near < high - low


def test_a_comparison_shows_the_matrix_of_the_page_and_names_are_text(runs):
    (one,) = against_base(runs)
    html = one.found._repr_html_()
    assert html == comparison_html([one.found])
    rows = re.findall('<tr><th scope="row">(.*?)</tr>', html)
    page = [" ".join(text(cell) for cell in row.children).split() for row in table_of([one]).children[1].children]
    assert [words(row).split() for row in rows] == page
    assert "−28.2 [−55.0, −1.4]</small></b>" in html
    assert "llama1b-saaas-graph is faster than llama1b-sccc-graph" in words(html)
    trace = runs[0].trace
    hostile = type(trace)(dict(trace.tables), trace.metadata | {"source": "<img src=x onerror=alert(1)>\u202e"})
    html = trace_html(hostile)
    assert "<img" not in html
    assert "\\u202e" in html
