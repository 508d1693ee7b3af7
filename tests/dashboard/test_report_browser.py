"""The report and the pictures in a real Chromium: drawn without a network, in light, dark, on a phone and on paper."""

import base64
import os
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.palette import THEMES
from tests.dashboard.test_browser import PLACE
from tests.dashboard.traces import GAP, decode
from tracer import formats
from tracer.cli import main

pytestmark = pytest.mark.browser

HOSTILE = '</script><img src=x onerror="window.hacked=1">'
INK = "return document.getElementById(arguments[0])._fullLayout.font.color.toUpperCase()"
COUNT = "return document.querySelectorAll(arguments[0]).length"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=12, kernel=HOSTILE), folder / "<b onclick=alert(1)>base")
    formats.write(decode(tokens=12, gap=2 * GAP), folder / "wide")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    result = CliRunner().invoke(main, ["report", *map(str, runs), "-o", str(path)])
    assert result.exit_code == 0, result.output
    return path


def emulate(browser, **features):
    media = {"features": [{"name": f"prefers-{name}", "value": value} for name, value in features.items()]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


@pytest.fixture
def page(browser, written):
    """The report in a browser that is cut off; nothing may have been asked for, said or run."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["http*", "ws*"]})
    emulate(browser, **{"color-scheme": "light"})
    browser.get(written.as_uri())
    drawn = "#gap .barlayer path, #token .barlayer path, #causes .barlayer path"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(COUNT, drawn) > 20)
    yield browser
    emulate(browser)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return window.hacked") is None


def test_everything_is_drawn_without_a_network(page):
    for name in ("gap", "token", "causes"):
        assert page.execute_script(COUNT, f"#{name} .barlayer path") >= 4, name
    text = page.find_element(By.TAG_NAME, "body").text
    for words in ("<b onclick=alert(1)>base against wide", "+100 µs (+100 %)", "gap 100 µs", "gap 200 µs", "stream 14"):
        assert words in text
    assert page.execute_script(COUNT, "main b[onclick], main img") == 0


def test_a_hover_shows_a_hostile_name_as_it_is(page):
    x, y = page.execute_script(PLACE.replace("#timeline .js-plotly-plot", "#gap"), "kernel")
    plot = page.find_element(By.CSS_SELECTOR, "#gap .nsewdrag")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    middle = plot.size["width"] / 2, plot.size["height"] / 2
    ActionChains(page).move_to_element_with_offset(plot, int(x - middle[0]), int(y - middle[1])).perform()
    hover = WebDriverWait(page, 10).until(lambda b: b.find_element(By.CSS_SELECTOR, "#gap .hovertext").text)
    assert HOSTILE in hover.replace("\n", "")


def test_it_follows_the_theme_and_is_light_on_paper(page):
    assert page.execute_script(INK, "gap") == THEMES["light"].ink
    emulate(page, **{"color-scheme": "dark"})
    WebDriverWait(page, 10).until(lambda b: b.execute_script(INK, "gap") == THEMES["dark"].ink)
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"
    page.execute_script(
        "window.addEventListener('beforeprint', () => { window.printed = "
        "document.getElementById('gap')._fullLayout.font.color.toUpperCase(); })"
    )
    paper = base64.b64decode(page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert paper.startswith(b"%PDF")
    assert page.execute_script("return window.printed") == THEMES["light"].ink
    WebDriverWait(page, 10).until(lambda b: b.execute_script(INK, "gap") == THEMES["dark"].ink)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [
        {"name": "prefers-color-scheme", "value": "dark"}]})  # fmt: skip
    assert page.execute_script("return getComputedStyle(document.querySelector('td')).color") == "rgb(0, 0, 0)"
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def draws(*arguments):
    try:
        import kaleido  # noqa: F401
    except ImportError:
        if os.environ.get("INTERTOKEN_REQUIRE_BROWSER") == "1":
            raise
        pytest.skip("no kaleido: pip install 'intertoken[image]'")
    result = CliRunner().invoke(main, ["timeline", *map(str, arguments)])
    assert result.exit_code == 0, result.output


def test_a_timeline_as_svg_holds_its_rows_and_names(browser, runs, tmp_path):
    target = tmp_path / "timeline.svg"
    draws(*runs, "--token", "5", "--width", "1600", "-o", target)
    root = ET.parse(target).getroot()
    assert root.get("width") == "1600"
    texts = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    for text in ("stream 13", "stream 14", "API calls", "k", "gap 200 µs", "kernel", "inter-token gap"):
        assert text in texts, texts
    assert any("<b onclick=alert(1)>base" in text for text in texts)
