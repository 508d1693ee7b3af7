"""The label and the card of a bar under the pointer as a real Chromium shows them."""

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import alter, served, until
from tests.dashboard.timeline_page import click, page, point, spot
from tests.dashboard.traces import PERIOD, decode
from tracer import formats

pytestmark = pytest.mark.browser
__all__ = ["page"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=30), runs / "a")
    with served(runs) as address:
        yield address


MIDDLE = """
const plot = document.querySelector('#timeline .js-plotly-plot'), { xaxis, yaxis } = plot._fullLayout;
plot.scrollIntoView({ block: 'center' });
const { left, top } = plot.getBoundingClientRect();
for (const { name, base, x, y } of plot._fullData.filter(({ name }) => name === arguments[0]))
  for (let mark = 0; mark < x.length; mark++) {
    const at = xaxis.l2p(base[mark] + x[mark] / 2), down = top + yaxis._offset + yaxis.l2p(y[mark]);
    if (at > 5 && at < xaxis._length - 5 && down > 0 && down < innerHeight)
      return [left + xaxis._offset + at, down].map(Math.round);
  }
"""


SAID = """
return [...document.querySelectorAll('#timeline .hovertext tspan.line')].map((line) => line.textContent);
"""
SEEN = """
const said = [...document.querySelectorAll('#timeline .hoverlayer, #card.seen')];
return said.filter((part) => part.childElementCount && part.checkVisibility({ opacityProperty: true }));
"""


def hover(page, name):
    """Point at the middle of the first bar of this name in view, again if it is drawn anew, and read its label."""

    def points():
        x, y = page.browser.execute_script(MIDDLE, name) or (0, 0)
        actions = ActionChains(page.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x - 3, y).move_to_location(x, y).pause(0.3)
        actions.perform()
        return page.browser.execute_script(SAID)

    return until(page.browser, points, f"a hover of {name}", 20)


def test_a_hover_has_the_name_that_all_marks_of_a_kind_share(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    assert hover(page, "kernel") == ["void k<float>(T*)", "112 µs"]
    assert hover(page, "copy") == ["memcpy HtoD", "2.00 µs"]


FRAMES = """
window.moved = [];
const note = () => {
  if (document.querySelector('.moving-marks')) window.moved.push((() => { %s })().length);
  requestAnimationFrame(note);
};
note();
"""


def test_a_hover_is_not_seen_while_the_timeline_moves(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    alter(page.browser, FRAMES % SEEN)
    hover(page, "kernel")
    x, y = page.browser.execute_script(MIDDLE, "kernel")
    actions = ActionChains(page.browser, duration=50)
    pointer = actions.w3c_actions.pointer_action
    pointer.move_to_location(x, y).pointer_down()
    for step in range(1, 9):
        pointer.move_to_location(x + 10 * step, y)
    pointer.pointer_up()
    actions.perform()
    page.linked("range=")
    until(page.browser, lambda: page.browser.execute_script("return window.moved.length"), "frames of it")
    assert set(page.browser.execute_script("return window.moved")) == {0}


def test_escape_deselects(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    click(page, *spot(page, "timeline", 2, 0.5))
    page.linked("event=")
    until(page.browser, lambda: page.browser.find_elements(By.ID, "deselect"), "what is chosen")
    page.press(Keys.ESCAPE)
    until(page.browser, lambda: "event=" not in page.browser.current_url, "nothing chosen")


BOX = """
const { left, right } = document.querySelector('#timeline .hovertext').getBoundingClientRect();
return [left, right];
"""


def test_the_hover_of_a_long_bar_is_at_the_pointer(page, address):
    page.open(f"{address}?run=a&token=5&range=-890000..-800000")
    assert hover(page, "kernel")[0] == "void k<float>(T*)"
    x, _ = page.browser.execute_script(MIDDLE, "kernel")
    left, right = page.browser.execute_script(BOX)
    assert min(abs(x - left), abs(x - right)) < 24


CARD = """
const card = document.getElementById('card');
return card.checkVisibility({ visibilityProperty: true }) ? card.innerText : '';
"""


def card(page):
    return page.browser.execute_script(CARD)


def rest(page, name="kernel"):
    """Point at a bar until its card is seen with all of it; where the pointer is."""

    def shows():
        place = page.browser.execute_script(MIDDLE, name) or (9, 9)
        point(page, *place)
        page.browser.execute_async_script("setTimeout(arguments[0], 400)")
        is_at_rest = place == page.browser.execute_script(MIDDLE, name)
        return card(page) and "Computing" not in card(page) and is_at_rest and place

    return until(page.browser, shows, f"a card of {name}")


def quiet(page):
    page.browser.execute_async_script("setTimeout(arguments[0], 700)")


@pytest.mark.parametrize("away", ["leave", "scroll", "escape", "press", "wheel"])
def test_the_card_goes_when_the_pointer_leaves_or_does_something(page, address, away):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    x, y = rest(page)
    link, height = page.browser.current_url, page.browser.execute_script("return document.body.scrollHeight")
    assert "slack" in card(page)
    if away == "leave":
        point(page, x, y - 300)
    elif away == "scroll":
        page.browser.execute_script("window.scrollBy(0, 5)")
    elif away == "escape":
        page.press(Keys.ESCAPE)
    elif away == "press":
        ActionChains(page.browser).click_and_hold().perform()
    else:
        wheel = "document.querySelector('#timeline .nsewdrag').dispatchEvent(new WheelEvent('wheel', %s))"
        page.browser.execute_script(wheel % "{deltaY: -30, bubbles: true, cancelable: true}")
    until(page.browser, lambda: not card(page), "no card", 5)
    if away != "wheel":
        assert page.browser.current_url == link
    assert page.browser.execute_script("return document.body.scrollHeight") == height
    ActionChains(page.browser).move_by_offset(0, -200).release().perform()


SLOW = """
const fetched = window.fetch;
window.fetch = async (...what) => {
  const answer = await fetched(...what);
  if (String(what[1]?.body).includes('"pointed"')) await new Promise((go) => setTimeout(go, 600));
  return answer;
};
"""


def test_a_late_answer_is_not_shown_for_another_bar(page, address):
    page.open(f"{address}?run=a&token=7&range=-{PERIOD}..0")
    alter(page.browser, SLOW)
    rest(page, "copy")
    assert card(page).startswith("memcpy HtoD")
    bars = [page.browser.execute_script(MIDDLE, name) for name in ("kernel", "nvtx")]
    for where in bars:
        point(page, *where)
        page.browser.execute_async_script("setTimeout(arguments[0], 250)")  # asked, not answered
    until(page.browser, lambda: card(page), "a card")
    quiet(page)
    assert card(page).startswith("token "), "the last one's"


def tap(page, name):
    """Touch the middle of a bar, again if the page was busy, for which a tap became a long one."""

    def shows():
        x, y = page.browser.execute_script(MIDDLE, name)
        for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
            page.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        quiet(page)
        return "event=" in page.browser.current_url

    until(page.browser, shows, f"a tap on {name}")


def test_a_tap_shows_the_panel_and_no_card(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        tap(page, "kernel")
        quiet(page)
        assert card(page) == ""
    finally:
        page.browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
