"""The timeline's keys, search, rows, minimap, ruler and selection in a real Chromium, by keyboard."""

import time

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import alter, click_on, load, screen_of, served, unfold, until
from tests.dashboard.timeline_page import click, drawn, labels, page, says, spot
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import Trace, formats

pytestmark = pytest.mark.browser
__all__ = ["page"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=30), runs / "a")
    formats.write(decode(tokens=30, gap=2 * GAP), runs / "b")
    with served(runs) as address:
        yield address


def test_keys_press_the_buttons_but_not_while_one_types(page, address):
    page.open(f"{address}?run=a&token=5")
    low, high = page.moves("g")
    assert 0 < high - low < 3 * GAP
    near = page.moves("w")
    assert near[1] - near[0] == pytest.approx((high - low) / 2, abs=2)
    assert page.moves("d")[0] > near[0]
    assert page.moves(Keys.ARROW_LEFT) == pytest.approx(near, abs=3)
    whole = page.moves(Keys.HOME)
    assert whole[1] - whole[0] > 25 * PERIOD
    page.press("n")
    page.linked("token=6")
    page.press("p")
    page.linked("token=5")
    before = page.range()
    unfold(page.browser)
    click_on(page.browser, "#runs .ag-cell")
    page.press("w", "s", "n")

    def is_elsewhere():  # a table that is drawn anew takes the focus back
        page.browser.execute_script("document.getElementById('copy-link').focus()")
        page.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        return page.focused() == "copy-link"

    until(page.browser, is_elsewhere, "the focus elsewhere")
    assert page.moves("w") != before
    assert "token=5" in page.browser.current_url


def test_each_key_counts_from_what_the_last_one_asked_for(page, address):
    page.open(f"{address}?run=a&token=5")
    low, high = page.moves("g")
    quarter, width = (high - low) / 4, (high - low) / 4
    page.open(f"{address}?run=a&token=5")
    page.press("g", "w", "w", "d")
    wanted = pytest.approx((low + 1.5 * quarter + 0.35 * width, low + 2.5 * quarter + 0.35 * width), abs=5)
    until(page.browser, lambda: page.range() == wanted, f"{wanted}, not {page.range()}")
    page.press("n", "w", "n", "s", ".", "a")
    page.linked("token=8")
    wanted = pytest.approx((low + 1.5 * quarter, low + 2.5 * quarter), abs=8)
    until(page.browser, lambda: page.range() == wanted, f"{wanted}, not {page.range()}")
    page.press("w", "t", "s")
    until(page.browser, lambda: page.width() == pytest.approx(2 * 1.35 * PERIOD), "two tokens")
    page.press("/", "cudaMemcpyAsync", Keys.ENTER)
    page.linked("event=")
    until(page.browser, page.browser.find_element(By.ID, "find-on").is_enabled, "a next match")
    page.browser.execute_script("document.activeElement.blur()")
    page.press("g", "w", "w", "n", "n")  # of two matches the second is out of view: it stands in the middle
    until(page.browser, lambda: page.width() <= width + 5 and page.range()[0] > PERIOD / 2, "there")


LATE = """
const fetched = window.fetch;
window.fetch = async (...what) => {
  if (String(what[1]?.body).includes("timeline.figure")) await new Promise((done) => setTimeout(done, 1500));
  return fetched(...what);
};
"""


def test_a_key_counts_from_the_view_that_is_not_drawn_yet(page, address):
    page.open(f"{address}?run=a&token=5")
    low, high = page.moves("g")
    page.open(f"{address}?run=a&token=5")
    alter(page.browser, LATE)
    page.press("g")
    until(page.browser, lambda: page.range() == (low, high), "the link")
    page.browser.execute_script(
        "document.querySelector('#timeline .js-plotly-plot').emit('plotly_relayout', {autosize: true})"
    )
    page.press("w")
    wanted = pytest.approx((low + (high - low) / 4, high - (high - low) / 4), abs=3)
    until(page.browser, lambda: page.range() == wanted, f"{wanted}, not {page.range()}")


def test_going_to_a_token_a_time_and_the_next_gap(page, address):
    page.open(f"{address}?run=a&token=5&range=0..{PERIOD}")
    page.press("j")
    assert page.focused() == "go"
    page.press("12", Keys.ENTER)
    page.linked("token=12")
    says(page, "gone", "Token 12 of 0 to 29.")
    page.press("j")
    page.browser.find_element(By.ID, "go").clear()
    page.browser.find_element(By.ID, "go").send_keys("99", Keys.ENTER)
    says(page, "gone", "There is no token 99; the last one is 29.")
    assert "token=12" in page.browser.current_url
    page.browser.find_element(By.ID, "go").clear()
    page.browser.find_element(By.ID, "go").send_keys("2.5 ms", Keys.ENTER)
    says(page, "gone", "2.50 ms is in the middle.")
    until(page.browser, lambda: page.range() and sum(page.range()) == 5_000_000, "it in the middle")
    page.browser.find_element(By.ID, "go").clear()
    page.browser.find_element(By.ID, "go").send_keys("> 90 us", Keys.ENTER)
    says(page, "gone", "100 µs after token 15.")
    page.browser.execute_script("document.activeElement.blur()")
    page.press("]", "]")
    says(page, "gone", "after token 17.")
    page.press("[", "w")
    says(page, "gone", "after token 16.")
    middle = 4 * PERIOD + GAP / 2
    until(page.browser, lambda: page.range() and sum(page.range()) / 2 == pytest.approx(middle, abs=9), "its middle")


def test_searching_goes_from_match_to_match_and_shows_its_arrows(page, address):
    page.open(f"{address}?run=a&run=b&token=5")
    page.press("/")
    assert page.focused() == "find"
    assert page.browser.find_element(By.ID, "find").size["width"] > 100
    page.press("cudamemcpy", Keys.ENTER)
    says(page, "found", "60 of 120 copies")
    page.linked("find=cudamemcpy", "event=")
    first = page.browser.current_url
    says(page, "picked", "cudaMemcpyAsync")
    until(page.browser, lambda: drawn(page, "arrow") == 2, "an arrow in each run")
    assert drawn(page, "chosen") == 2
    page.browser.execute_script("document.activeElement.blur()")
    page.press("n")
    until(page.browser, lambda: page.browser.current_url != first, "the next match")
    page.press("p")
    until(
        page.browser, lambda: page.browser.current_url.split("event=")[1] == first.split("event=")[1], "the first again"
    )
    page.open(first, load)
    says(page, "found", "60 of 120 copies")
    says(page, "picked", "duration 2000 ns")
    assert page.browser.find_element(By.ID, "find").get_attribute("value") == "cudamemcpy"
    link = page.browser.find_element(By.CSS_SELECTOR, "#picked li button")
    link.send_keys(Keys.ENTER)
    says(page, "picked", "memcpy HtoD")


NAMES = """
const { left } = document.getElementById("timeline").getBoundingClientRect();
return [...document.querySelectorAll(":is(#timeline, #minimap) .ytick text")].map((name) =>
  [name.textContent, name.getBoundingClientRect().left - left]);
"""


def test_names_of_rows_keep_their_first_letters_on_a_phone(page, tmp_path):
    trace = decode()
    ranges = {**trace["nvtx"].to_dict("list"), "thread": [71] * len(trace["nvtx"])}
    threads = {"process": [7, 7], "thread": [70, 71], "name": ["CUDA WORKERS", "MMMMMMMMMMMM"]}
    tables = {**trace.tables, "nvtx": ranges, "threads": threads}
    formats.write(Trace.from_columns(trace.metadata, **tables), tmp_path / "CUDA-GRAPHS-AND-MANY-MORE-WORDS")
    with served(tmp_path) as address, screen_of(page.browser, 390, 844):
        page.open(f"{address}?run=CUDA-GRAPHS-AND-MANY-MORE-WORDS", load)
        names = until(page.browser, lambda: (n := page.browser.execute_script(NAMES)) and len(n) == 5 and n, "names")
        assert {name[:4] for name, _ in names} == {"CUDA", "NVTX", "API ", "stre"}
        assert all(left >= 0 for _, left in names), names
        page.browser.get("about:blank")


def test_letters_stay_in_the_order_they_were_typed_in(page, address):
    page.open(f"{address}?run=a&token=5")
    for letters in ("abcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponmlkjihgfedcba", "qwertyuiopasdfghjklzxcvbnm"):
        page.browser.execute_script("document.activeElement.blur()")
        page.press("/", letters)
        page.linked(f"find={letters}")


def test_rows_are_arranged_by_keyboard_and_the_link_has_it(page, address):
    page.open(f"{address}?run=a&token=5")
    assert labels(page) == ["NVTX", "API calls", "stream 13", "stream 14"]
    page.press("r")
    until(page.browser, lambda: page.browser.find_elements(By.CSS_SELECTOR, "[aria-label='Show NVTX']"), "the rows")

    def button(label):
        return page.browser.find_element(By.CSS_SELECTOR, f"[aria-label='{label}']")

    button("Show NVTX").send_keys(Keys.SPACE)
    page.linked("hide=NVTX")
    until(page.browser, lambda: labels(page) == ["API calls", "stream 13", "stream 14"], "no NVTX")
    assert button("Show NVTX").get_attribute("aria-checked") == "false"
    label = "return document.activeElement.ariaLabel"
    until(page.browser, lambda: page.browser.execute_script(label) == "Show NVTX", "the focus where it was")
    button("Move stream 14 up").send_keys(Keys.ENTER)
    until(page.browser, lambda: labels(page) == ["API calls", "stream 14", "stream 13"], "another order")
    button("Collapse GPU 0").send_keys(Keys.ENTER)
    until(page.browser, lambda: labels(page) == ["API calls", "▸ GPU 0"], "thin lines")
    page.browser.find_element(By.ID, "only").send_keys("gpu")
    until(page.browser, lambda: labels(page) == ["▸ GPU 0"], "only the GPU")
    page.linked("rows=gpu", "fold=GPU+0", "order=stream+14")
    page.open(page.browser.current_url, load)
    until(page.browser, lambda: labels(page) == ["▸ GPU 0"], "the same by link")
    page.press("r")
    page.browser.find_element(By.XPATH, "//button[text()='As recorded']").send_keys(Keys.ENTER)
    until(page.browser, lambda: len(labels(page)) == 4, "all rows")
    until(page.browser, lambda: page.browser.find_element(By.ID, "only").get_attribute("value") == "", "an empty field")


@pytest.mark.parametrize("pause", [0.06, 0.35], ids=["quick", "slow"])
def test_a_double_click_on_an_event_does_not_choose_it_and_a_click_does(page, address, pause):
    page.open(f"{address}?run=a&token=5&range=0..{PERIOD}", load)
    x, y = spot(page, "timeline", 2, 0.5)
    actions = ActionChains(page.browser, duration=30)
    actions.w3c_actions.pointer_action.move_to_location(x, y)
    actions.click().pause(pause).click().perform()
    until(page.browser, lambda: page.width() == pytest.approx(1.16 * PERIOD, abs=5), "one token")
    time.sleep(0.5)  # what else would come
    until(page.browser, lambda: "event=" not in page.browser.current_url, "nothing chosen", 5)
    assert page.browser.find_element(By.ID, "picked").text == ""
    click(page, *spot(page, "timeline", 2, 0.5))
    page.linked("event=")
    says(page, "picked", "duration 112500 ns")


FRAME = """
const {xaxis} = document.querySelector('#minimap .js-plotly-plot')._fullLayout;
const {offsetLeft: left, offsetWidth: wide} = document.getElementById('in-view');
return [left, left + wide].map((x) => (x - xaxis._offset) / xaxis._length);
"""


def test_the_minimap_has_its_frame_before_anything_is_moved(page, address):
    page.open(f"{address}?run=a&run=b&token=5&range=0..{10 * PERIOD}", load)
    seen = "return document.getElementById('in-view').checkVisibility()"
    until(page.browser, lambda: page.browser.execute_script(seen), "the frame", 20)
    until(page.browser, lambda: 0.1 < page.browser.execute_script(FRAME)[0] < 0.3, "its place", 5)
    low, high = page.browser.execute_script(FRAME)
    assert high - low == pytest.approx(1 / 3, abs=0.05), "10 of 30 tokens"


def test_the_minimap_shows_and_moves_what_is_in_view(page, address):
    page.open(f"{address}?run=a&token=5&range=0..{PERIOD}")
    bars = "#minimap .barlayer path"
    until(page.browser, lambda: page.browser.find_elements(By.CSS_SELECTOR, bars), "a minimap")
    until(page.browser, lambda: 0.1 < page.browser.execute_script(FRAME)[0] < 0.3, "the frame")
    click(page, *spot(page, "minimap", 0.8))
    until(page.browser, lambda: page.range() != (0, PERIOD), "another range")
    low, high = page.range()
    assert high - low == PERIOD
    until(page.browser, lambda: page.browser.execute_script(FRAME)[0] > 0.7, "the frame there")
    (left, y), (right, _) = spot(page, "minimap", 0.3), spot(page, "minimap", 0.5)
    actions = ActionChains(page.browser, duration=50)
    actions.w3c_actions.pointer_action.move_to_location(left, y).pointer_down()
    actions.w3c_actions.pointer_action.move_to_location((left + right) // 2, y)
    actions.w3c_actions.pointer_action.move_to_location(right, y).pointer_up()
    actions.perform()
    until(page.browser, lambda: page.range()[1] - page.range()[0] > 4 * PERIOD, "the range that was dragged")
    until(page.browser, lambda: page.browser.execute_script(FRAME) == pytest.approx([0.3, 0.5], abs=0.02), "its frame")
    selections = "return document.querySelector('#minimap .js-plotly-plot')._fullLayout.selections.length"
    until(page.browser, lambda: page.browser.execute_script(selections) == 0, "no leftover")
