"""The card of the event under the pointer in a real Chromium: it says what a click on it shows, and nothing else."""

import shutil
from contextlib import suppress

import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import served, until
from tests.dashboard.timeline_page import click, page, point
from tests.recordings import SAMPLES

pytestmark = pytest.mark.browser
__all__ = ["page"]

VLLM, LLAMA_CPP, HYBRID = "vllm-b1-node-nvtx", "llama1b-sccc-node", "llama-1.1b-aaag-sequential-cuda-ngl13"
CROWDED = "&range=-40000000..40000000"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    for name in (VLLM, LLAMA_CPP, HYBRID):
        shutil.copytree(SAMPLES / name, runs / name, ignore=shutil.ignore_patterns("node"))
    with served(runs) as address:
        yield address


BAR = """
const [kind, merged] = arguments, plot = document.querySelector('#timeline .js-plotly-plot');
const { xaxis, yaxis } = plot._fullLayout, at = (left, top) => [left + xaxis._offset, top + yaxis._offset];
plot.scrollIntoView({ block: 'center' });
const { left, top } = plot.getBoundingClientRect(), found = [];
for (const { base, x, y, customdata } of plot._fullData.filter(({ type, name }) => type === 'bar' && name === kind))
  for (let mark = 0; mark < x.length; mark++) {
    const [from, to] = [base[mark], base[mark] + x[mark]].map((time) => xaxis.l2p(time));
    if (customdata[mark][0] < 0 === merged && from > 5 && to < xaxis._length - 5)
      found.push([to - from, at(left + (from + to) / 2, top + yaxis.l2p(y[mark])).map(Math.round)]);
  }
return found.sort(([one], [other]) => other - one)[0]?.[1];  // the widest is hit for sure
"""
LINES = """
const shown = (selector) => document.querySelector(selector)?.innerText ?? '';
document.body.classList.add('copying');
const said = arguments[0].map(shown).join('\\n').split('\\n').map((line) => line.trim()).filter(Boolean);
document.body.classList.remove('copying');
return said;
"""


def lines(page, *selectors):
    return page.browser.execute_script(LINES, selectors)


def card(page):
    """The lines of the card that is seen, none while a part of it is not known yet."""
    said = lines(page, "#card.seen")
    return [] if "Computing" in " ".join(said) else said


def rest(page, kind, merged=False):
    """Point at a bar until its card has all; where it is, and the card's lines."""
    said = []

    def seen():
        return page.browser.find_elements(By.CSS_SELECTOR, "#card.seen")

    def says():
        if not seen():
            where[:] = page.browser.execute_script(BAR, kind, merged) or where
            point(page, *where)
            with suppress(TimeoutException):  # to point once more would start its delay anew
                until(page.browser, seen, "the card", 1)
        said[:] = card(page)
        return said

    where = [9, 9]
    until(page.browser, says, f"a card of {kind}")
    return where, said


@pytest.mark.parametrize(
    ("run", "kind", "merged", "words"),
    [
        (VLLM, "kernel", False, ["grid ", "shared memory ", "launched by", "slack "]),
        (VLLM, "kernel", True, [" events in ", "the longest of them:", "grid ", "launched by"]),
        (LLAMA_CPP, "sync", False, ["Row 13 of the syncs", "waited for", "cannot be removed"]),
        (HYBRID, "host", False, ["NVTX: repeat › token"]),
    ],
)
def test_a_card_says_what_a_click_shows(page, address, run, kind, merged, words):
    page.open(f"{address}?run={run}{CROWDED if merged else ''}")
    where, said = rest(page, kind, merged)
    link = page.browser.current_url
    assert [word for word in words if word not in " ".join(said)] == [], said
    assert "event=" not in link
    click(page, *where)
    page.linked("event=")
    until(page.browser, lambda: lines(page, "#picked", "#cost") == said, f"{said} in the panel")
    assert not page.browser.find_elements(By.CSS_SELECTOR, "#card.seen"), "the panel has it"
