"""Recordings and comparisons in a notebook: they show themselves, with the figures of the page."""

import json
import os
import re
import subprocess
import sys
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
from tracer.errors import UsageError
from tracer.extensions import VIEWS
from tracer.files.bounded import tomllib
from tracer.notebook import comparison_html, trace_html

PATHS = LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]
CELLS = """
import json, sys, tracer
trace = tracer.read(sys.argv[1])
shown, figure = trace._repr_html_(), trace.timeline(token=17)
print(json.dumps({"html": shown, "figure": json.loads(figure.to_json()),
                  "again": json.loads(trace.timeline(token=17, show="gap").to_json())}))
"""


@pytest.fixture(scope="module")
def views():
    """What this package registers, as pyproject.toml says it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["entry-points"][VIEWS]


@pytest.fixture(scope="module")
def runs():
    return RunStore(PATHS, passes=False).runs()


def words(html):
    return " ".join(unescape(re.sub("<[^>]*>", " ", html)).split())


def test_a_notebook_shows_what_the_page_shows(runs, views, tmp_path):
    installed = tmp_path / "views-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: views\nVersion: 0\n")
    lines = "".join(f"{name} = {target}\n" for name, target in views.items())
    (installed / "entry_points.txt").write_text(f"[{VIEWS}]\n{lines}")
    places = os.pathsep.join(map(str, (tmp_path, *filter(None, sys.path))))
    done = subprocess.run(
        [sys.executable, "-c", CELLS, PATHS[0]], env={**os.environ, "PYTHONPATH": places}, capture_output=True,
        text=True, timeout=120, check=True,
    )  # fmt: skip
    notebook = json.loads(done.stdout)
    run = runs[0]
    said = words(notebook["html"])
    (chip,) = chips([run])
    name, _, *figures, _ = [text(part) for part in chip.children]
    assert name == run.name
    assert len(figures) == 3
    for figure in figures:
        assert figure.split(" ", 1)[-1] in said
    source = run.trace.metadata["source"]
    assert sentence(run.summary, run.name).removeprefix(run.name) in said.replace(source, "", 1)
    assert run.summary.warning in said

    page, _ = timeline([run], View(runs=(run.key,), token=17), "light", 1100)
    bars = {trace["name"]: trace["x"] for trace in json.loads(page.to_json())["data"] if trace["type"] == "bar"}
    drawn = {trace["name"]: trace["x"] for trace in notebook["figure"]["data"] if trace["type"] == "bar"}
    assert bars == drawn
    assert drawn
    ranges = [notebook[which]["layout"]["xaxis"]["range"] for which in ("figure", "again")]
    assert ranges[0] == list(page.layout.xaxis.range)
    assert ranges[1][1] - ranges[1][0] < ranges[0][1] - ranges[0][0]


def test_a_comparison_shows_the_matrix_of_the_page(runs):
    (one,) = against_base(runs)
    html = one.found._repr_html_()
    assert html == comparison_html([one.found])
    rows = re.findall('<tr><th scope="row">(.*?)</tr>', html)
    page = [" ".join(text(cell) for cell in row.children).split() for row in table_of([one]).children[1].children]
    assert [words(row).split() for row in rows] == page
    assert "−28.2 [−55.0, −1.4]</small></b>" in html
    assert "llama1b-saaas-graph is faster than llama1b-sccc-graph" in words(html)


def test_names_of_a_recording_are_text(runs):
    trace = runs[0].trace
    hostile = type(trace)(dict(trace.tables), trace.metadata | {"source": "<img src=x onerror=alert(1)>\u202e"})
    html = trace_html(hostile)
    assert "<img" not in html
    assert "\\u202e" in html


def test_without_a_package_that_draws_a_timeline_it_says_so(runs, monkeypatch):
    monkeypatch.setattr("tracer.extensions.entry_points", lambda **_: [])
    with pytest.raises(UsageError, match="no installed package draws timelines"):
        runs[0].trace.timeline(token=3)
    assert runs[0].trace._repr_html_() is None


def test_what_is_registered_is_there(views):
    assert all(callable(EntryPoint(name, target, VIEWS).load()) for name, target in views.items())
