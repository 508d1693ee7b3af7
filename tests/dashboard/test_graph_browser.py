"""The graph page in a real Chromium: from a kernel to its node and back, parts, keyboard, hostile names."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import click_on, faults, served, unfold, until, visit
from tests.dashboard.graph_runs import HOSTILE, write_runs

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served(write_runs(tmp_path_factory.mktemp("runs"))) as address:
        yield address


class Page:
    """What a reader does with the page."""

    def __init__(self, browser):
        self.browser = browser

    def until(self, condition, what):
        return until(self.browser, condition, what)

    def text(self, key):
        return self.browser.execute_script("return (document.getElementById(arguments[0]) || {}).innerText || ''", key)

    def says(self, key, expected):
        self.until(lambda: expected in self.text(key), f"{expected!r} in {key}")

    def tap(self, name):
        """Click the node of this name in the picture."""
        place = """
            const cy = document.getElementById('canvas')?._cyreg?.cy;
            const found = cy && cy.nodes().filter(n => n.data('name') === arguments[0])[0];
            return found && [found.renderedPosition('x'), found.renderedPosition('y')];
        """
        seen = [None]

        def at_rest():
            seen.append(self.browser.execute_script(place, name))
            return seen[-1] == seen[-2] and seen[-1]

        x, y = self.until(at_rest, f"the node {name}")
        self.browser.execute_script("document.getElementById('canvas-holder').scrollTop = arguments[0] - 100", y)
        self.click("canvas-holder", "#canvas", x, y)

    def click(self, shown, within, x, y):
        """Click a place inside an element, px from its corner, after scrolling to what shows it."""
        corner = """
            document.getElementById(arguments[0]).scrollIntoView({block: 'center'});
            const {left, top} = document.querySelector(arguments[1]).getBoundingClientRect();
            return [left, top];
        """
        left, top = self.browser.execute_script(corner, shown, within)
        actions = ActionChains(self.browser)
        actions.w3c_actions.pointer_action.move_to_location(int(left + x), int(top + y))
        actions.pause(0.3).click().perform()


@pytest.fixture
def page(browser):
    faults(browser)
    yield Page(browser)
    assert faults(browser) == []
    assert browser.execute_script("return window.hacked") is None


CLICK = """
const gd = document.querySelector('#timeline .js-plotly-plot');
if (!gd || !gd._fullLayout) return null;
const {xaxis, yaxis} = gd._fullLayout;
for (const t of gd._fullData.filter(t => t.name === 'kernel'))
  for (let i = 0; i < t.x.length; i++)
    if (t.hovertemplate.replace("%{hovertext}", () => [t.hovertext].flat().at(i) ?? t.hovertext).includes(arguments[0]))
      return [xaxis.l2p(t.base[i] + t.x[i] / 2), yaxis.l2p(t.y[i])];
"""


def test_from_the_table_to_a_node_to_its_kernel_in_the_timeline_and_back(page, address):
    visit(page.browser, f"{address}?run=tiny-sccc-branches")
    unfold(page.browser)
    link = '#runs .ag-row[row-id="tiny-sccc-branches"] a'
    click_on(page.browser, link)
    page.says("panel", "82 of 102 nodes")
    page.tap("blk.0.attn_k")
    page.says("panel", "event 0 of stream 0, after blk.0.attn_norm")
    page.until(lambda: "node=blk.0.attn_k" in page.browser.current_url, "a link that holds the node")
    page.browser.find_element(By.ID, "to-timeline").click()

    kernel = "mul_mat(blk.0.attn_k)"
    page.says("compare-words", "steps/s")  # which stands above and moves it
    spot = page.until(lambda: page.browser.execute_script(CLICK, kernel), "the kernel in the timeline")
    assert "range=" in page.browser.current_url
    page.click("timeline-holder", "#timeline .nsewdrag", *spot)
    page.says("picked", "blk.0.attn_k mul_mat · stream 1")
    page.browser.find_element(By.CSS_SELECTOR, "#picked .to-graph").click()
    page.says("panel", "event 0 of stream 0, after blk.0.attn_norm")
    assert "token=" in page.browser.current_url


def test_damaged_graphs_and_hostile_names_do_no_harm(page, address):
    visit(page.browser, f"{address}graph/?run=broken")
    page.says("nothing", "missing required field `nodes`")
    visit(page.browser, f"{address}graph/?run=gone")
    page.says("nothing", "no run 'gone'")
    visit(page.browser, f"{address}graph/?run=hostile")
    page.tap(HOSTILE)
    page.says("panel", HOSTILE)
    visit(page.browser, f"{address}graph/?run=hostile&node=blk.0.attn")
    page.says("panel", f"op\n{HOSTILE}")
