"""What axe-core finds on each page in a real Chromium, light and dark, on a desk and on a phone."""

import pytest
from axe_core_python.selenium import Axe

from tests.dashboard.conftest import screen_of
from tests.dashboard.filled import FILLED, open_filled

pytestmark = pytest.mark.browser


def faults_of(browser):
    """Serious and critical ones: rule, where, and what is wrong."""
    found = Axe().run(browser, options={"resultTypes": ["violations"]})
    return [
        (fault["id"], " ".join(map(str, node["target"])), node["failureSummary"])
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]


@pytest.mark.parametrize(
    ("place", "theme"), [*((p, "light") for p in FILLED), *((p, "dark") for p in ("", "syncs/", "record/"))]
)
def test_no_serious_fault(browser, filled, place, theme):
    open_filled(browser, filled, place, theme)
    found = faults_of(browser)
    if theme == "light":
        with screen_of(browser, 390, 844):
            found += faults_of(browser)
    assert found == []


def test_axe_sees_a_fault(browser, filled):
    open_filled(browser, filled, "syncs/")
    browser.execute_script("document.documentElement.removeAttribute('lang')")
    assert [rule for rule, _, _ in faults_of(browser)] == ["html-has-lang"]
