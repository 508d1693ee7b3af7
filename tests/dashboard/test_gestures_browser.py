"""The hand on the timeline in a real Chromium: it moves at once, asks once, and nothing jumps."""

import re
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import ActionChains

from dashboard.view import View
from tests.dashboard.page import BARS
from tests.dashboard.traces import GAP, PERIOD

pytestmark = pytest.mark.browser
LOW, HIGH = -2 * PERIOD, 0
PLOT = "document.querySelector('#timeline .js-plotly-plot')"


def show(page, address, loaded=False):
    (page.load if loaded else page.visit)(f"{address}?run=a&token=5&range={LOW}..{HIGH}", BARS)
    page.shows("#minimap .barlayer path")


@pytest.fixture
def at(page, address):
    show(page, address)
    return page


def wheel(page, share, many, **by):
    return page.wait("wheel", share, many, by)


def test_the_wheel_zooms_at_the_pointer_and_shift_wheel_and_trackpad_move(at):
    for by, moves in (
        ({"deltaY": -30}, False), ({"deltaY": -5, "ctrlKey": True}, False),  # a pinch
        ({"deltaY": 20, "shiftKey": True}, True), ({"deltaX": 20, "deltaY": 3}, True),
    ):  # fmt: skip
        before, share = at.range(), 0.5 if moves else 0.25
        found = wheel(at, share, 3 if moves else 10, **by)
        assert found["moving"]
        assert found["kept"], "the page must not scroll"
        assert found["bars"]
        assert all(inside and ends for inside, ends in found["bars"]), "each to its last pixel but one"
        low, high = at.moved(before)
        width = before[1] - before[0]
        if moves:
            assert low > before[0]
            assert high - low == pytest.approx(width, abs=1)
        else:
            assert high - low < 0.65 * width
            assert low + share * (high - low) == pytest.approx(before[0] + share * width, abs=PERIOD / 200)
    legend = "const wheel = new WheelEvent('wheel', {deltaY: 50, bubbles: true, cancelable: true});"
    scrolled = at.run(f"{legend} document.querySelector('.legend').dispatchEvent(wheel); return wheel.defaultPrevented")
    assert scrolled is False, "outside of the timeline the page scrolls"


def test_a_zoom_is_one_request_beside_what_is_fetched_ahead_and_its_link_is_the_views(at):
    at.alter("outputs")
    before, link = at.range(), at.browser.current_url
    found = wheel(at, 0.5, 60, deltaY=-4)
    at.until(lambda: at.width() < 2 * PERIOD, "the link")
    at.rest(400)  # what else would come
    drawn = [output for output in at.run("return window.outputs") if output != "ahead.data"]
    assert 1 <= len(drawn) <= 1 + found["pauses"]
    assert all(output.startswith("..timeline.figure...") for output in drawn)
    query = urlsplit(at.browser.current_url).query
    assert View.parse(query).query() == f"?{query}"
    at.browser.back()
    at.until(lambda: (at.browser.current_url, at.drawn_range()) == (link, list(before)), "the view before")
    wheel(at, 0.5, 20, deltaY=-4)
    at.run("window.outputs = []; location.hash = 'content'")  # before the link has the range
    at.moved(before)
    at.rest(400)
    assert not any("view.data" in output for output in at.run("return window.outputs")), "a place is no other view"


def test_a_wheel_that_is_turned_notch_by_notch_makes_at_most_three_requests(page, address):
    show(page, address, loaded=True)
    page.rest(1000)  # what else a new page asks
    before = page.range()
    found = page.wait("notches", 150, -30)
    assert found["asked"] <= 2 * (1 + found["pauses"]), "one is left for its rest"
    assert found["pauses"] or found["late"] <= 600, "400 ms, and the browser's own time on a busy machine"
    page.until(lambda: page.width() < 0.8 * (before[1] - before[0]), "the link")


def test_a_drag_moves_at_once_and_is_no_click_and_a_double_click_shows_the_token_under_it(at):
    before, plot = at.range(), at.one("#timeline .nsewdrag")
    ActionChains(at.browser, duration=50).click_and_hold(plot).move_by_offset(60, 0).move_by_offset(60, 0).perform()
    assert at.all("#timeline .moving"), "before it is let go"
    ActionChains(at.browser).release().perform()
    by = 120 / at.run(f"return {PLOT}._fullLayout.xaxis._length") * (before[1] - before[0])
    at.comes_to(before[0] - by, before[1] - by, by=5_000)
    assert at.width() == pytest.approx(before[1] - before[0], abs=2)
    at.unlinked("event=")
    at.visit(f"{at.browser.current_url.partition('&range')[0]}&range={LOW}..{HIGH}", BARS)
    ActionChains(at.browser).double_click(plot).perform()
    at.until(lambda: at.width() == pytest.approx(1.16 * PERIOD, abs=5), "one token")
    low, high = at.range()
    assert low < GAP - PERIOD < high, "the start of the one in the middle, from the end of token 5"


def test_a_key_pressed_before_the_view_of_a_new_link_counts_from_it(at):
    low, high = at.range()
    wheel(at, 0.5, 10, deltaY=-30)
    at.moved((low, high))
    at.alter("late", "", 0, 700)
    at.wait("back")
    by = 0.35 * (high - low)
    at.comes_to(low + by, high + by)


def test_fingers_drag_and_pinch(at):
    with at.touched():
        before, box = (
            at.range(),
            at.run("return arguments[0].getBoundingClientRect().toJSON()", at.one("#timeline .nsewdrag")),
        )
        x, y, width = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, before[1] - before[0]
        at.touch("touchStart", (x, y))
        for by in (20, 60, 100):
            at.touch("touchMove", (x - by, y))
        at.touch("touchEnd")
        by = 100 / box["width"] * width
        at.comes_to(before[0] + by, before[1] + by, by=width / 200)
        dragged = at.range()
        at.touch("touchStart", (x - 50, y), (x + 50, y))
        for by in (75, 100):
            at.touch("touchMove", (x - by, y), (x + by, y))
        at.touch("touchEnd")
        at.comes_to(sum(dragged) / 2 - width / 4, sum(dragged) / 2 + width / 4, by=width / 50)


def test_a_long_way_shows_marks_before_anything_is_drawn_anew(page, address):
    show(page, address, loaded=True)
    page.alter("ahead")
    ActionChains(page.browser).move_to_element(page.one("#timeline .nsewdrag")).perform()
    page.until(lambda: page.run("return window.ahead"), "what is ahead")
    page.alter("hold")
    page.wait("far", 40, {"deltaX": 25})
    seen = page.run("beyond")
    assert page.all("#timeline .moving")
    assert sum(seen[10:]) > 20, "kernels fill nine tenths of it, most of it out of what was drawn"
    numbers = [text for text in page.run("return window.said") if re.fullmatch(r"0|−?[\d.,]+ (µs|ms)", text)]
    assert len(numbers) > 3, "the axis moves, too"


def test_what_arrives_above_a_timeline_in_use_does_not_move_it_and_it_follows_the_window(page, address):
    show(page, address, loaded=True)
    assert page.wait("grow", 200) == [pytest.approx(200, abs=1), 0], "nobody uses it yet"
    wheel(page, 0.5, 2, deltaY=-30)
    assert page.wait("grow", 300) == [pytest.approx(0, abs=1), pytest.approx(300, abs=1)]
    assert page.wait("grow", 100) == [pytest.approx(0, abs=1), pytest.approx(400, abs=1)]
    page.one("#runs-open").click()
    place = page.run("return scrollY")
    assert page.wait("grow", 50)[1] == pytest.approx(place, abs=51), "it is left"
    wide = page.run(f"return {PLOT}._fullLayout.width")
    page.browser.set_window_size(800, 1100)
    try:
        page.until(lambda: page.run(f"return {PLOT}._fullLayout.width") < wide - 400, "a new drawing")
        assert page.all(BARS)
    finally:
        page.browser.set_window_size(1440, 1100)
