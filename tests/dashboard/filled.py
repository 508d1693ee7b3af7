"""Pages with something on them, on recordings small enough to open them many times."""

import shutil

from tests.dashboard.conftest import until, visit
from tests.dashboard.graph_runs import write_runs
from tests.recordings import LLAMA, SAMPLES

FILLED = {
    "": "#timeline .barlayer path",
    "gap/": "#made-of .ag-row",
    "syncs/": "#syncs .ag-row",
    "advice/": "#advice td",
    "whatif/": "#figures td",
    "graph/": "#memory .barlayer path",
}
"""A page's address -> what is there when it is filled."""
CHOSEN = {"whatif/": "&host=0.5"}
"""What is chosen on a page, so that there is more to see."""
TRACED = LLAMA["sccc", "graph"].name


def write_filled(runs):
    """The runs of which each page shows one."""
    write_runs(runs)
    shutil.copytree(SAMPLES / TRACED, runs / TRACED, ignore=shutil.ignore_patterns("node"))
    return runs


def open_filled(browser, address, place, theme="light"):
    """Open a page, and wait until it is filled."""
    run = "tiny-sccc-branches" if place == "graph/" else TRACED
    visit(browser, f"{address}{place}?run={run}&theme={theme}{CHOSEN.get(place, '')}")
    until(browser, lambda: browser.find_elements("css selector", FILLED[place]), "a filled page")
