"""What axe-core finds on each page in a real Chromium, light and dark, on a desk and on a phone."""

import shutil

import pytest
from axe_core_python.selenium import Axe

from tests.dashboard.conftest import screen_of, served, until
from tests.dashboard.graph_runs import write_runs
from tests.recordings import LLAMA, SAMPLES

pytestmark = pytest.mark.browser

TRACED = LLAMA["sccc", "graph"].name
FILLED = {
    "": "#timeline .barlayer path",
    "gap/": "#made-of .ag-row",
    "syncs/": "#syncs .ag-row",
    "whatif/": "#timeline .barlayer path",
    "graph/": "#memory .barlayer path",
}
"""A page's address -> what is there when it is filled."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = write_runs(tmp_path_factory.mktemp("runs"))
    shutil.copytree(SAMPLES / TRACED, runs / TRACED, ignore=shutil.ignore_patterns("node"))
    with served(runs) as address:
        yield address


def faults_of(found):
    """Serious and critical ones: rule, where, and what is wrong."""
    return [
        (fault["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("place", FILLED)
def test_no_serious_fault(browser, address, place, theme):
    run = "tiny-sccc-branches" if place == "graph/" else TRACED
    browser.get(f"{address}{place}?run={run}&theme={theme}")
    until(browser, lambda: browser.find_elements("css selector", FILLED[place]), "a filled page")
    found = faults_of(Axe().run(browser, options={"resultTypes": ["violations"]}))
    with screen_of(browser, 390, 844):
        found += faults_of(Axe().run(browser, options={"resultTypes": ["violations"]}))
    assert found == []
