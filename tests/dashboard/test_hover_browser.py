"""The hovers of a timeline as a real Chromium shows them."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import served, until
from tests.dashboard.test_timeline_browser import page
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


def shown(page):
    """The lines of the hovers that are seen."""
    found = page.browser.find_elements(By.CSS_SELECTOR, "#timeline .hoverlayer .hovertext tspan.line")
    return [line.text for line in found if line.is_displayed()]


def hover(page, name):
    """Point at the middle of the first bar of this name in view, again if it is drawn anew, and read what appears."""

    def points():
        x, y = page.browser.execute_script(MIDDLE, name) or (0, 0)
        actions = ActionChains(page.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(x - 3, y).move_to_location(x, y).pause(0.3)
        actions.perform()
        return shown(page)

    return until(page.browser, points, f"a hover of {name}", 20)


def test_a_hover_has_the_name_that_all_marks_of_a_kind_share(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    assert hover(page, "kernel")[0] == "void k<float>(T*)"
    assert hover(page, "copy")[0] == "memcpy HtoD"
