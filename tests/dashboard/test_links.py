"""Links that were made before: what they say is what they said."""

import pytest

from dashboard.pages.gap import GapView
from dashboard.pages.graph import GraphView
from dashboard.pages.whatif import WhatIfView
from dashboard.view import Area, Arrangement, Bookmark, Rate, Spot, View

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


@pytest.mark.parametrize(("link", "view"), [
    ("", View()),
    ("?run=", View(runs=())),
    (EVERYTHING, VIEW),
    ("?run=x&node=blk.0+%28x%29&part=2&token=7&theme=dark&rate=5%3Ax",
     GraphView("x", "blk.0 (x)", 2, 7, "dark", (Rate("x", 5.0),))),
    ("?event=1.2_-5_900.c.d", View(event=Spot("c.d", 1, 2, (-5, 900)))),
    (f"{EVERYTHING}&scale=all", GapView(VIEW, "all")),
    (f"{EVERYTHING}&sync=aaag&without=2&without=13&graph=early&kernels=k&kernels=l&times=0.5&host=1.25&latency=-3",
     WhatIfView(VIEW, "aaag", ("2", "13"), "early", ("k", "l"), 0.5, 1.25, -3)),
])  # fmt: skip
def test_a_link_says_what_it_said(link, view):
    assert type(view).parse(link) == view
    assert view.query() == link


def test_an_invalid_value_takes_no_valid_one_with_it():
    assert View.parse("?token=3&align=sideways&area=0..9&by=nothing&event=1.2.&rate=x:a&rate=5:b") == View(
        token=3, area=Area((0, 9)), rates=(Rate("b", 5.0),)
    )
    assert View.parse("?area=9..0").area == Area((0, 9))
    assert View.parse("?by=kernel").area is None


def test_what_all_pages_share_is_stored_beside_the_page_s_own():
    data = WhatIfView(View(theme="dark"), sync="aaag").data()
    assert (data["theme"], data["sync"]) == ("dark", "aaag")
    assert "shared" not in data
