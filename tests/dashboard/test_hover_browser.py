"""The hovers of a timeline as a real Chromium shows them."""

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import alter, served, until
from tests.dashboard.test_timeline_browser import click, page, spot
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
    const at = xaxis.l2p(base[mark] + x[mark] / 2);
    if (at > 5 && at < xaxis._length - 5)
      return [left + xaxis._offset + at, top + yaxis._offset + yaxis.l2p(y[mark])].map(Math.round);
  }
"""


SEEN = """
const layer = document.querySelector('#timeline .hoverlayer');
if (!layer?.checkVisibility({ opacityProperty: true })) return [];
return [...layer.querySelectorAll('.hovertext tspan.line')].map((line) => line.textContent);
"""


def seen(page):
    """The lines of the hover that is seen."""
    return page.browser.execute_script(SEEN)


def hover(page, name):
    """Point at the middle of the first bar of this name in view, again if it is drawn anew, and read what appears."""

    def points():
        x, y = page.browser.execute_script(MIDDLE, name) or (0, 0)
        actions = ActionChains(page.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x - 3, y).move_to_location(x, y).pause(0.3)
        actions.perform()
        return seen(page)

    return until(page.browser, points, f"a hover of {name}", 20)


def test_a_hover_has_the_name_that_all_marks_of_a_kind_share(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    assert hover(page, "kernel")[0] == "void k<float>(T*)"
    assert hover(page, "copy")[0] == "memcpy HtoD"


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


def test_a_brief_hover_says_that_a_click_shows_more(page, address):
    page.open(f"{address}?run=a&token=10&range=-{2 * PERIOD}..0")
    assert hover(page, "kernel")[-1].startswith("stream 14 · correlation ")
    page.open(f"{address}?run=a&token=25&range=-{22 * PERIOD}..0")
    assert hover(page, "kernel")[-1] == "click for more"


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
