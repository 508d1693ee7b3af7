"""How names, times and elements are written: hostile ones are text."""

import json
import os
import re
from pathlib import Path

import pytest
from dash import dcc, html

from dashboard.figures import Causes, causes_figure, causes_height
from dashboard.pages import with_markup
from dashboard.text import duration, markup, plain, safe_name, ticks

TEXTS = json.loads((Path(__file__).parent / "data" / "texts.json").read_text(encoding="utf-8"))


def test_durations_and_ticks():
    for ns, text in TEXTS["durations"]:
        assert duration(ns) == text
    for low, high, most, texts in TEXTS["ticks"]:
        assert ticks(low, high, most)[1] == texts, "round, inside, and in one unit"
    times, texts = ticks(3_141_600, 3_142_600, 8)
    assert (times[0], texts[0]) == (3_141_600, "3,141,600 ns")


@pytest.mark.parametrize("name", [*TEXTS["hostile names"], "x" * 10_000 + ".json"])
def test_hostile_names_become_literal_text_and_safe_names_of_files(name):
    shown = markup(name)
    assert not set(shown) & set("<$")
    shown.encode()
    assert len(plain(name)) <= 400
    assert plain(name).isprintable()
    assert "<" not in markup(name, width=20).replace("<br>", "")
    safe = safe_name(name)
    assert safe == os.path.basename(safe)
    assert 0 < len(safe) <= 100
    assert safe.isprintable()
    assert not safe.startswith(".")
    assert not set(safe) & set("<>\0\n\u202e/\\:")
    assert safe.endswith(".json") == name.endswith(".json")


def test_on_a_phone_notes_of_causes_have_their_own_lines_and_are_shown_whole():
    note = "between steps (the gap) 230 µs · before the graph 1.35 ms · traced: inflated"
    causes = [Causes("a", {"sync": 5.0}, note), Causes("b", {"sync": 5.0}, "short")]
    wide, phone = (causes_figure(causes, "light", width).layout.annotations[0].text for width in (1200, 330))
    assert note in wide
    assert "<br>" not in wide
    assert phone.count("<br>") == 2
    assert note == re.sub("<[^>]*>", "", phone.replace("<br>", " ")).removeprefix("a ")
    assert causes_height(causes, 330) - causes_height(causes, 1200) == 2 * 2 * 17


def test_elements_become_one_component_but_what_a_callback_may_change_what_dash_checks_and_what_is_alone():
    row = html.Tr([html.Th("gap", scope="row", className="head"), html.Td(["3 ", html.B(4), None, "µs"], colSpan=2)])
    cells = [["th", {"scope": "row", "className": "head"}, "gap"], ["td", {"colSpan": 2}, "3 ", ["b", {}, "4"], "µs"]]
    assert with_markup(row).trees == [["tr", {}, *cells]]
    for kept in (
        html.Button("press", id="pressed"), html.Button("press", id={"row": 1}), dcc.Link("there", href="/"),
        html.A("bad", href="javascript:alert(1)"), html.A("no address", href="//[x"),
        html.Button("bad", formAction="javascript:alert(1)"), html.Iframe(srcDoc="<script>alert(1)</script>"),
        html.MapEl(html.P("an area")), html.P(False), html.P(1.0), html.P(), "text", None, {"data": [1, 2]},
        [{"key": 1}], ["a", "b"],
    ):  # fmt: skip
        assert with_markup(kept) is kept, str(kept)
