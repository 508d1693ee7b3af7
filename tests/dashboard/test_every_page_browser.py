"""Every page in a real Chromium: on a phone, on a desk, at 4K, light, dark, on paper, and to axe-core; the report.

A page is visited once, and goes from one screen to the next: each is a drawing of all figures.
"""

import base64
import os
import xml.etree.ElementTree as ET

import pytest
from axe_core_python.base import AXE_SCRIPT
from click.testing import CliRunner

from dashboard.palette import THEMES
from tests.dashboard.filled import FILLED, TINY, TRACED
from tests.dashboard.traces import GAP, decode
from tracer import formats
from tracer.cli import main

pytestmark = pytest.mark.browser

PHONE, BIG = (390, 844), (3840, 2160)
CONTROLS = "nav, button:not(.dash-dropdown), .downloads, .ag-root-wrapper, .dash-slider-root, .skip"
PRINTED = {"gap/": 2, "syncs/": 1, "advice/": 1}
LIGHT, DARK = (THEMES[name].ink.lower() for name in ("light", "dark"))


def axe(page):
    """Serious and critical faults of a page that has loaded: rule, where, and what is wrong."""
    page.until(lambda: not page.all("[data-dash-is-loading=true]"), "a page that has loaded")
    if not page.run("return Boolean(window.axe)"):
        page.run(AXE_SCRIPT)
    found = page.wait("axe", {"resultTypes": ["violations"]})
    return [
        (fault["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for fault in found["violations"] if fault["impact"] in {"serious", "critical"} for node in fault["nodes"]
    ]  # fmt: skip


def media(page, **given):
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", **given})


@pytest.mark.parametrize("place", FILLED)
def test_a_page_on_every_screen_light_and_dark_and_on_paper(page, filled, place):
    with page.screen(*PHONE):
        run = TINY if place == "graph/" else TRACED
        page.visit(f"{filled}{place}?run={run}&theme=light{'&host=0.5' * (place == 'whatif/')}", FILLED[place])
        page.until(lambda: page.run("outside") == [], "nothing beyond the edge")
        wide = "return document.documentElement.scrollWidth"  # figures follow a moment later
        page.until(lambda: page.run(wide) == PHONE[0], "nothing to scroll to")
        bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        title, *others = (page.run(bottom, each) for each in ("h1", "#copy-link", "#theme"))
        assert all(abs(other - title) < 15 for other in others), "one line with the title"
        page.until(lambda: page.run("small", 12) == [], "nothing below the smallest size")
        assert axe(page) == []
    if place in ("", "syncs/"):  # one with lines, one with a table
        with page.screen(*BIG):  # type is larger, and lines are no longer than readable
            assert page.run(wide) <= BIG[0]
            assert page.run("small", 15) == []
            assert page.run("long", 62) == []
        page.until(lambda: page.run("small", 12) == [], "the size of a desk")
    page.run("document.getElementById('theme').click()")
    page.until(lambda: page.run("darkened", LIGHT), "a dark page")
    assert axe(page) == []
    page.alter("paper")
    media(page, media="print")
    try:
        surface = "return getComputedStyle(document.querySelector('section')).backgroundColor"
        assert page.run(surface) == "rgb(255, 255, 255)", "a dark page prints whole, light and without controls"
        assert page.run("dark") == []
        page.run("window.dispatchEvent(new Event('beforeprint'))")
        assert page.run("seen", CONTROLS) == []
        paper = page.run("return window.paper")
        wide = "const edge = document.querySelector('#page').getBoundingClientRect().right; return innerWidth - edge"
        assert page.run(wide) >= 0
        page.run("window.dispatchEvent(new Event('afterprint'))")
    finally:
        media(page)
    assert set(paper["widths"]) <= {940}
    assert (paper["links"], len(paper["tables"])) == (False, PRINTED.get(place, 0))
    assert place in paper["address"]
    assert page.all(".printed, .printed-address, .unprinted") == []
    wide = "return [...document.querySelectorAll('.js-plotly-plot')].every((plot) => plot._fullLayout.width !== 940)"
    page.until(lambda: page.run(wide), "figures as wide as the screen again")
    if place == "graph/":  # the last one: axe sees a fault
        page.alter("document.documentElement.removeAttribute('lang')")
        assert [rule for rule, _, _ in axe(page)] == ["html-has-lang"]


NAME, KERNEL = "<b onclick=alert(1)>base", '</script><img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=12, kernel=KERNEL), folder / NAME)
    formats.write(decode(tokens=12, gap=2 * GAP), folder / "wide")
    return sorted(map(str, folder.iterdir()))


def command(*arguments):
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output


def test_the_report_is_drawn_without_a_network_follows_the_theme_and_is_light_on_paper(page, runs, tmp_path):
    command("report", *runs, "-o", str(tmp_path / "report.html"))
    browser, scheme = page.browser, "prefers-color-scheme"
    page.leave()
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http*", "ws*"]})
    try:
        media(page, features=[{"name": scheme, "value": "light"}])
        browser.get((tmp_path / "report.html").as_uri())
        for name in ("gap", "token", "causes"):
            page.until(lambda name=name: len(page.all(f"#{name} .barlayer path")) >= 4, name)
        text = page.one("body").text
        for words in (f"{NAME} against wide", "+100 µs (+100 %)", "gap 100 µs", "gap 200 µs", "stream 14"):
            assert words in text
        assert page.all("main b[onclick], main img") == []
        ink = "return document.getElementById('gap')._fullLayout.font.color.toLowerCase()"
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert page.run(ink) == LIGHT
        media(page, features=[{"name": scheme, "value": "dark"}])
        page.until(lambda: page.run(ink) == DARK, "a dark report")
        assert page.run(ground) == "rgb(14, 18, 23)"
        keeps = f"window.addEventListener('beforeprint', () => {{ window.printed = (() => {{ {ink} }})(); }})"
        page.run(keeps)
        paper = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
        assert paper.startswith(b"%PDF")
        assert page.run("return window.printed") == LIGHT
        page.until(lambda: page.run(ink) == DARK, "a dark report again")
        media(page, media="print", features=[{"name": scheme, "value": "dark"}])
        assert page.run("return getComputedStyle(document.querySelector('td')).color") == "rgb(0, 0, 0)"
        assert page.run(ground) == "rgb(255, 255, 255)"
        assert page.run("return performance.getEntriesByType('resource').length") == 0
    finally:
        media(page)
        browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})


def test_a_timeline_as_svg_holds_its_rows_and_names(browser, runs, tmp_path):
    if os.environ.get("INTERTOKEN_REQUIRE_BROWSER") != "1":
        pytest.importorskip("kaleido", reason="no kaleido: pip install 'intertoken[image]'")
    target = tmp_path / "timeline.svg"
    command("timeline", *runs, "--token", "5", "--width", "1600", "-o", str(target))
    root = ET.parse(target).getroot()
    assert root.get("width") == "1600"
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("stream 13", "stream 14", "API calls", "k", "gap 200 µs", "kernel", "inter-token gap"):
        assert text in texts, texts
    assert any(NAME in text for text in texts)
