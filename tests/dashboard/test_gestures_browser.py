"""The hand on the timeline in a real Chromium: it moves at once, asks once, and nothing jumps."""

import re
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import ActionChains

from dashboard.view import View
from tests.dashboard.conftest import alter, faults, load, served, until, visit
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import formats

pytestmark = pytest.mark.browser
LOW, HIGH = 3 * PERIOD, 5 * PERIOD

WHEEL = """
const [at, many, by, done] = arguments, plot = document.querySelector('#timeline .js-plotly-plot');
const drag = plot.querySelector('.nsewdrag'), box = drag.getBoundingClientRect();
const left = box.left + at * box.width, y = box.top + 20;
const seen = () => {  // the colour at a point of the canvas
  const canvas = document.querySelector('.moving-marks'), pen = canvas.getContext('2d');
  const {data} = pen.getImageData(0, 0, canvas.width, canvas.height);
  const here = canvas.getBoundingClientRect(), ratio = canvas.width / here.width;
  return (x, y) => {
    const pixel = Math.round((y - here.top) * ratio) * canvas.width + Math.round((x - here.left) * ratio);
    return `rgb(${data.slice(4 * pixel, 4 * pixel + 3).join(', ')})`;
  };
};
const compare = (colour) => [...plot.querySelectorAll('.barlayer path')]
  .map(({style}, at, all) => [style.fill, style.fillOpacity * style.opacity, all[at].getBoundingClientRect()])
  .filter(([fill, opacity, {left, right}]) => fill.startsWith('rgb') && opacity === 1 && left > box.left + 5
    && right < box.right - 5 && right - left > 15)
  .map(([fill, , {left, right, top}]) => [[left + 3, right - 3].every((x) => colour(x, top + 4) === fill),
    [left, right].every((end) => [-1, 0, 1].some((by) => colour(end + by, top + 4) !== fill))]);
let event, count = 0, last = performance.now(), pauses = 0;
const next = () => {
  pauses += performance.now() - last > 180;  // on a busy machine: the hand seems to rest
  last = performance.now();
  event = new WheelEvent('wheel', {clientX: left, clientY: y, bubbles: true, cancelable: true, ...by});
  drag.dispatchEvent(event);
  if (++count < many) return requestAnimationFrame(next);
  const drawn = plot._fullLayout.xaxis.range.join();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    const moving = plot.classList.contains('moving'), colour = moving && seen();
    const answer = () => done({moving, pauses, bars: moving && compare(colour), kept: event.defaultPrevented});
    const waiting = () => plot._fullLayout.xaxis.range.join() === drawn || plot.classList.contains('moving')
      ? requestAnimationFrame(waiting) : requestAnimationFrame(answer);
    waiting();
  }));
};
window.asked = performance.getEntriesByType('resource').length;
next();
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=12), runs / "a")
    with served(runs) as address:
        yield address


def show(browser, address, by=visit):
    by(browser, f"{address}?run=a&token=5&range={LOW - 5 * PERIOD}..{HIGH - 5 * PERIOD}")
    until(
        browser,
        lambda: browser.execute_script("return document.querySelectorAll('#timeline .barlayer path').length"),
        "bars",
    )
    until(
        browser,
        lambda: browser.execute_script("return document.querySelectorAll('#minimap .barlayer path').length"),
        "all",
    )


@pytest.fixture
def page(browser, address):
    faults(browser)
    show(browser, address)
    yield browser
    assert [fault for fault in faults(browser) if "willReadFrequently" not in fault] == []  # it is we who read there


def shown(browser):
    return tuple(map(int, re.search(r"range=(-?\d+)\.\.(-?\d+)", browser.current_url).groups()))


def linked(browser, before):
    """The range that the link has after a gesture, soon after it is drawn."""
    until(browser, lambda: shown(browser) != before, "another link", 20)
    return shown(browser)


def wheel(browser, at, many, **by):
    return browser.execute_async_script(WHEEL, at, many, by)


def same_place(found):
    """Each bar that is wide and wholly in view after the refinement was there before it, from its first to its last
    pixel but one."""
    assert found["moving"]
    assert found["kept"], "the page must not scroll"
    assert found["bars"]
    assert all(inside and ends for inside, ends in found["bars"])


@pytest.mark.parametrize("pinch", [False, True])
def test_the_wheel_zooms_at_the_pointer(page, pinch):
    before = shown(page)
    at = 0.25
    found = wheel(page, at, 10, deltaY=-5 if pinch else -30, ctrlKey=pinch)
    same_place(found)
    low, high = linked(page, before)
    assert high - low < 0.65 * (before[1] - before[0])
    fixed = before[0] + at * (before[1] - before[0])
    assert low + at * (high - low) == pytest.approx(fixed, abs=PERIOD / 200)


@pytest.mark.parametrize("by", [{"deltaY": 20, "shiftKey": True}, {"deltaX": 20, "deltaY": 3}])
def test_shift_and_the_wheel_and_a_trackpad_move(page, by):
    before = shown(page)
    same_place(wheel(page, 0.5, 3, **by))
    low, high = linked(page, before)
    assert low > before[0]
    assert high - low == pytest.approx(before[1] - before[0], abs=1)


DRAWN = """
const { range } = document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis;
return range.map((time) => Math.round(time * 1e9));
"""
OUTPUTS = """
const fetched = window.fetch;
window.outputs = [];
window.fetch = (...asked) => {
  if (asked[1]?.body) window.outputs.push(JSON.parse(asked[1].body).output);
  return fetched(...asked);
};
"""


def test_a_zoom_is_one_request_beside_what_is_fetched_ahead_and_its_link_is_the_views(page):
    alter(page, OUTPUTS)
    before, link = shown(page), page.current_url
    found = wheel(page, 0.5, 60, deltaY=-4)
    until(page, lambda: shown(page)[1] - shown(page)[0] < 2 * PERIOD, "the link")
    page.execute_async_script("setTimeout(arguments[0], 400)")  # what else would come
    drawn = [output for output in page.execute_script("return window.outputs") if output != "ahead.data"]
    assert 1 <= len(drawn) <= 1 + found["pauses"]
    assert all(output.startswith("..timeline.figure...") for output in drawn)
    query = urlsplit(page.current_url).query
    assert View.parse(query).query() == f"?{query}"
    page.back()
    until(page, lambda: (page.current_url, page.execute_script(DRAWN)) == (link, list(before)), "the view before")


def test_a_place_in_the_page_is_no_other_view(page):
    alter(page, OUTPUTS)
    before = shown(page)
    wheel(page, 0.5, 20, deltaY=-4)
    page.execute_script("location.hash = 'content'")  # before the link has the range
    until(page, lambda: shown(page) != before, "the link")
    page.execute_async_script("setTimeout(arguments[0], 400)")  # what else would come
    assert page.execute_script(DRAWN) == list(shown(page)) != list(before)
    assert not any("view.data" in output for output in page.execute_script("return window.outputs"))


NOTCHES = """
const [apart, by, done] = arguments, drag = document.querySelector('#timeline .nsewdrag');
const box = drag.getBoundingClientRect();
const at = {clientX: box.left + box.width / 2, clientY: box.top + 20, bubbles: true, cancelable: true};
const begin = performance.now(), asked = () => performance.getEntriesByType('resource')
  .filter(({name, startTime}) => name.includes('_dash-update') && startTime > begin).length;
let last = begin, pauses = 0;
const settles = (count, ended) => {  // how long after the last notch its request came
  if (asked() > count) return done({asked: count, pauses, late: performance.now() - ended});
  pauses += performance.now() - last > 110;
  last = performance.now();
  setTimeout(settles, 10, count, ended);
};
const notch = () => {
  pauses += performance.now() - last > apart + 100;
  if (performance.now() - begin > 2000) return settles(asked(), last);
  last = performance.now();
  drag.dispatchEvent(new WheelEvent('wheel', {...at, deltaY: by}));
  setTimeout(notch, apart);
};
notch();
"""


def test_a_wheel_that_is_turned_notch_by_notch_makes_at_most_three_requests(browser, address):
    show(browser, address, load)
    browser.execute_async_script("setTimeout(arguments[0], 1000)")  # what else a new page asks
    before = shown(browser)
    found = browser.execute_async_script(NOTCHES, 150, -30)
    assert found["asked"] <= 2 * (1 + found["pauses"]), "one is left for its rest"
    assert found["pauses"] or found["late"] <= 600, "400 ms, and the browser's own time on a busy machine"
    until(browser, lambda: shown(browser)[1] - shown(browser)[0] < 0.8 * (before[1] - before[0]), "the link")


def test_a_drag_moves_at_once_and_is_no_click(page):
    before = shown(page)
    plot = page.find_element("css selector", "#timeline .nsewdrag")
    actions = ActionChains(page, duration=50).click_and_hold(plot).move_by_offset(60, 0).move_by_offset(60, 0)
    actions.perform()
    assert page.execute_script("return document.querySelector('#timeline .moving') !== null"), "before it is let go"
    ActionChains(page).release().perform()
    length = page.execute_script("return document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis._length")
    there = pytest.approx(before[0] - 120 / length * (before[1] - before[0]), abs=5_000)
    until(page, lambda: shown(page)[0] == there, f"{there}, not {shown(page)}")
    low, high = shown(page)
    assert high - low == pytest.approx(before[1] - before[0], abs=2)
    assert "event=" not in page.current_url


def test_a_double_click_shows_the_token_under_it(page):
    plot = page.find_element("css selector", "#timeline .nsewdrag")
    ActionChains(page).double_click(plot).perform()
    until(page, lambda: shown(page)[1] - shown(page)[0] < 1.2 * PERIOD, "one token")
    low, high = shown(page)
    assert high - low == pytest.approx(1.16 * PERIOD, abs=5)
    assert low < GAP - PERIOD < high, "the start of the one in the middle, from the end of token 5"


SLOW = """
const fetched = window.fetch;
window.fetch = async (...asked) => {  // a server that takes its time
  const answer = await fetched(...asked);
  await new Promise((go) => setTimeout(go, 700));
  return answer;
};
"""
BACK = """
const done = arguments[0];
const press = () => document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'd', bubbles: true}));
window.addEventListener('popstate', () => setTimeout(() => done(press()), 50), {once: true});
history.back();
"""


def test_a_key_pressed_before_the_view_of_a_new_link_counts_from_it(page):
    low, high = shown(page)
    wheel(page, 0.5, 10, deltaY=-30)
    until(page, lambda: shown(page) != (low, high), "the zoom")
    alter(page, SLOW)
    page.execute_async_script(BACK)
    by = 0.35 * (high - low)
    there = pytest.approx((low + by, high + by), abs=2)
    until(page, lambda: shown(page) == there, f"{there}, not {shown(page)}")


def touch(page, kind, *points):
    fingers = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
    page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})


def test_fingers_drag_and_pinch(page):
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 2})
    try:
        before = shown(page)
        box = page.execute_script(BOX)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        touch(page, "touchStart", (x, y))
        for by in (20, 60, 100):
            touch(page, "touchMove", (x - by, y))
        touch(page, "touchEnd")
        width = before[1] - before[0]
        there = pytest.approx(before[0] + 100 / box["width"] * width, abs=width / 200)
        until(page, lambda: shown(page)[0] == there, f"{there}, not {shown(page)}")
        dragged = shown(page)
        assert dragged[1] - dragged[0] == pytest.approx(width, abs=2)
        touch(page, "touchStart", (x - 50, y), (x + 50, y))
        for by in (75, 100):
            touch(page, "touchMove", (x - by, y), (x + by, y))
        touch(page, "touchEnd")
        half = pytest.approx(width / 2, rel=0.02)
        until(page, lambda: shown(page)[1] - shown(page)[0] == half, f"half of it, not {shown(page)}")
        low, high = shown(page)
        assert (low + high) / 2 == pytest.approx(sum(dragged) / 2, abs=width / 100)
    finally:
        page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})


WATCH = """
const {ahead} = window.dash_clientside, {show} = ahead;
const pen = CanvasRenderingContext2D.prototype, {fillText, clearRect} = pen;
ahead.show = (fetched) => { window.ahead = Boolean(fetched); show(fetched); };
pen.fillText = function (text, ...more) { window.said.push(text); return fillText.call(this, text, ...more); };
pen.clearRect = function (x, ...more) { if (x === 0) window.said = []; return clearRect.call(this, x, ...more); };
"""
BEYOND = """
const box = document.querySelector('#timeline .nsewdrag').getBoundingClientRect();
const plot = document.querySelector('#timeline .js-plotly-plot'), canvas = document.querySelector('.moving-marks');
const y = box.top + plot._fullLayout.yaxis.l2p(plot.calcdata[plot.data.findIndex(({name}) => name === 'kernel')][0].p);
const here = canvas.getBoundingClientRect(), ratio = canvas.width / here.width, pen = canvas.getContext('2d');
const {data} = pen.getImageData(0, Math.round((y - here.top) * ratio), canvas.width, 1);
const inside = (x) => data[4 * Math.round((x - here.left) * ratio) + 3] > 0;
return Array.from({length: 40}, (_, at) => inside(box.left + box.width * (at + 0.5) / 40));
"""
BOX = "return document.querySelector('#timeline .nsewdrag').getBoundingClientRect().toJSON()"
HOLD = """
const set = window.dash_clientside.set_props;
window.dash_clientside.set_props = (id, props) => id === 'timeline' || id === 'view' || set(id, props);
"""


def test_a_long_way_shows_marks_before_anything_is_drawn_anew(page, address):
    show(page, address, load)
    alter(page, WATCH)
    ActionChains(page).move_to_element(page.find_element("css selector", "#timeline .nsewdrag")).perform()
    until(page, lambda: page.execute_script("return window.ahead"), "what is ahead")
    alter(page, HOLD)
    page.execute_async_script(FAR, 40, {"deltaX": 25})
    seen = page.execute_script(BEYOND)
    assert page.execute_script("return document.querySelector('#timeline .moving') !== null")
    assert sum(seen[10:]) > 20, "kernels fill nine tenths of it, most of it out of what was drawn"
    numbers = [text for text in page.execute_script("return window.said") if re.fullmatch(r"0|−?[\d.,]+ (µs|ms)", text)]
    assert len(numbers) > 3, "the axis moves, too"


FAR = """
const [many, by, done] = arguments, drag = document.querySelector('#timeline .nsewdrag');
const {left, top} = drag.getBoundingClientRect();
let count = 0;
const next = () => {
  const at = {clientX: left + 9, clientY: top + 20, bubbles: true, cancelable: true};
  drag.dispatchEvent(new WheelEvent('wheel', {...at, ...by}));
  requestAnimationFrame(++count < many ? next : () => requestAnimationFrame(done));
};
next();
"""


GROW = """
const [tall, done] = arguments, above = document.getElementById('compare-section');
const top = () => document.querySelector('#timeline .js-plotly-plot').getBoundingClientRect().top, before = top();
above.style.minHeight = `${above.offsetHeight + tall}px`;
requestAnimationFrame(() => setTimeout(() => done([top() - before, scrollY]), 50));
"""


def test_what_arrives_above_a_timeline_in_use_does_not_move_it(page, address):
    show(page, address, load)
    assert page.execute_async_script(GROW, 200) == [pytest.approx(200, abs=1), 0], "nobody uses it yet"
    wheel(page, 0.5, 2, deltaY=-30)
    assert page.execute_async_script(GROW, 300) == [pytest.approx(0, abs=1), pytest.approx(300, abs=1)]
    assert page.execute_async_script(GROW, 100) == [pytest.approx(0, abs=1), pytest.approx(400, abs=1)]
    page.find_element("id", "runs-open").click()
    at = page.execute_script("return scrollY")
    assert page.execute_async_script(GROW, 50)[1] == pytest.approx(at, abs=51), "it is left"


def test_outside_of_the_timeline_the_page_scrolls(page):
    said = page.execute_script(
        "const wheel = new WheelEvent('wheel', {deltaY: 50, bubbles: true, cancelable: true});"
        "document.querySelector('.legend').dispatchEvent(wheel); return wheel.defaultPrevented"
    )
    assert said is False
