"""What a link says: the same as ever and nothing senseless; and how names, times and elements are written."""

import json
import os
from pathlib import Path

import pytest
from dash import dcc, html
from hypothesis import given
from hypothesis import strategies as st

from dashboard.pages import with_markup
from dashboard.pages.gap import GapView
from dashboard.pages.graph import GraphView
from dashboard.pages.whatif import ALL, WhatIfView, after, edits_for
from dashboard.text import duration, markup, plain, safe_name, ticks
from dashboard.view import (
    ALIGNMENTS,
    FURTHEST,
    MOST_RATES,
    MOST_RUNS,
    SHORTEST,
    THEME_NAMES,
    Area,
    Arrangement,
    Bookmark,
    NoRate,
    Rate,
    Spot,
    View,
    rate_of,
    text_of,
    with_rate,
    words_of,
)
from tracer.analysis.bounds import RATES

TEXTS = json.loads((Path(__file__).parent / "data" / "texts.json").read_text(encoding="utf-8"))
EVERYTHING = (
    "?run=a+b&run=c%26&token=3&align=launch&range=-5000..90000&find=gemm+%3E5us&event=1.2.c%26&ruler=7..-7&area=0..900"
    "&of=stream+7&by=kernel&bookmark=-1..9.a%252Eb.a.note&rows=stream&hide=x&hide=y&fold=z&order=q&show=s&pin=p"
    "&rate=700.5%3Aa+b&theme=dark"
)
VIEW = View(
    ("a b", "c&"), 3, "launch", (-5000, 90000), "gemm >5us", Spot("c&", 1, 2), (7, -7),
    Area((0, 900), ("stream 7",), "kernel"), (Bookmark("a.b", -1, 9, "a.note"),),
    Arrangement("stream", ("x", "y"), ("z",), ("q",), ("s",), ("p",)), (Rate("a b", 700.5),), "dark",
)  # fmt: skip
LINKS = {
    "": View(),
    "?run=": View(runs=()),
    EVERYTHING: VIEW,
    "?run=x&node=blk.0+%28x%29&part=2&token=7&theme=dark&rate=5%3Ax":
        GraphView("x", "blk.0 (x)", 2, 7, "dark", (Rate("x", 5.0),)),
    "?event=1.2_-5_900.c.d": View(event=Spot("c.d", 1, 2, (-5, 900))),
    f"{EVERYTHING}&scale=all": GapView(VIEW, "all"),
    f"{EVERYTHING}&sync=aaag&without=2&without=13&graph=early&kernels=k&kernels=l&times=0.5&host=1.25&latency=-3":
        WhatIfView(VIEW, "aaag", ("2", "13"), "early", ("k", "l"), 0.5, 1.25, -3),
}  # fmt: skip
"""Links that were made before, and what they said."""


def test_a_link_says_what_it_said_and_what_is_senseless_in_it_is_left_out():
    for link, view in LINKS.items():
        assert type(view).parse(link) == view, link
        assert view.query() == link
    for search in (None, *TEXTS["senseless links"]):
        assert WhatIfView.parse(search) == WhatIfView(View()), search
    mixed = "?token=3&align=sideways&area=9..0&by=nothing&event=1.2.&rate=x:a&rate=5:b"
    assert View.parse(mixed) == View(token=3, area=Area((0, 9)), rates=(Rate("b", 5.0),))
    assert View.parse("?bookmark=0..9.a.x&bookmark=0..9.a.x").bookmarks == (Bookmark("a", 0, 9, "x"),)
    huge = View.parse(f"?range={-(10**40)}..{10**40}&token={10**40}")
    assert all(abs(number) < 2**62 for number in (*huge.range, huge.token))


KEYS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)  # as names are shown
NAMES = st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1), max_size=9, unique=True)
TIMES = st.integers(-(10**12), 10**12)
ENDS = st.tuples(TIMES, TIMES)
MARKS = st.builds(
    Bookmark, st.text(min_size=1, max_size=20), st.integers(-FURTHEST, 0), st.integers(0, FURTHEST),
    st.sampled_from(["", "a.b..c", "<b>&=%", "ü"]),
)  # fmt: skip
RATED = st.dictionaries(KEYS, st.floats(*RATES), max_size=MOST_RATES).map(
    lambda given: tuple(Rate(*pair) for pair in given.items())
)
VIEWS = st.builds(
    View, runs=st.none() | st.lists(KEYS, max_size=MOST_RUNS, unique=True).map(tuple), rates=RATED,
    token=st.none() | st.integers(0, 10**6), align=st.sampled_from(sorted(ALIGNMENTS)), ruler=st.none() | ENDS,
    range=st.none() | st.tuples(TIMES, st.integers(SHORTEST, 10**12)).map(lambda r: (r[0], r[0] + r[1])),
    theme=st.sampled_from(THEME_NAMES), find=st.text(max_size=30).map(words_of),
    event=st.none() | st.builds(Spot, KEYS, st.integers(0, 99), st.integers(0, 10**9), st.none() | ENDS),
    bookmarks=st.lists(MARKS, max_size=3, unique=True).map(tuple),
    rows=st.builds(Arrangement, st.text(max_size=9).map(words_of), *[NAMES.map(tuple)] * 3),
)  # fmt: skip


@given(VIEWS)
def test_a_link_reproduces_the_view(view):
    assert View.parse(view.query()) == view
    assert View.from_data(view.data()) == view


def test_rates_are_bounded_in_number_and_size():
    many = View.parse("?" + "&".join(f"rate={n + 1}:run{n}" for n in range(99))).rates
    assert len(many) == MOST_RATES
    with pytest.raises(NoRate, match="remove one first"):
        with_rate(many, "another", 5.0)
    assert with_rate(many, "run0", 7.0)[-1] == Rate("run0", 7.0)
    assert View.parse("?rate=5:a&rate=6:a").rates == (Rate("a", 6.0),)
    for rates in ([["a", -1.0]], [["a", float("nan")]], [["a", 2 * RATES[1]]], [[f"r{n}", 1.0] for n in range(25)]):
        with pytest.raises(ValueError, match="rates"):
            View.from_data({"rates": rates})
    for text in ("0", "-5", "nan", "inf", "fast", "1e99", "0.0001", "5_0", "٥", "1,5", "x" * 900):
        with pytest.raises(NoRate, match="is not a rate: enter the engine's steps per second") as refused:
            rate_of(text)
        assert len(str(refused.value)) < 250
    assert [text_of(rate) for rate in (0.1, 1e9, 528.11, None)] == ["0.1", "1000000000", "528.11", ""]


def test_changes_of_a_what_if_are_such_as_the_fields_take_and_kernels_are_named_not_matched():
    data = WhatIfView(View(theme="dark"), sync="aaag").data()
    assert (data["theme"], data["sync"], "shared" in data) == ("dark", "aaag", False)
    view = WhatIfView(View().rated("a", 5.0), times=2.0)
    assert view.having("times", "inf").times is None
    assert view.having("without", ["3", ALL]).without == (ALL,)
    assert view.having("without", [ALL, "12", "3", "0"]).without == ("3", "12")
    assert view.having("without", [1]) == view
    assert after(view, "reset", 1, [], "") == WhatIfView(view.shared)
    assert not WhatIfView(view.shared).is_different
    assert WhatIfView(View(), kernels=("k",)).is_different
    (edit,) = edits_for(WhatIfView(View(), kernels=("a(b", "(x+)+$"), times=2.0))
    assert edit.pattern == r"\A(?:a\(b|\(x\+\)\+\$)\Z"


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
