"""Areas with their sums, search, pinned rows and bookmarks in a real Chromium, with mouse and keyboard."""

import json

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By

from tests.dashboard.conftest import click_on, load, served, until
from tests.dashboard.timeline_page import drawn, page, says, text
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import formats

pytestmark = pytest.mark.browser
__all__ = ["page"]

TOKENS = 12


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(tokens=TOKENS), runs / "a")
    formats.write(decode(tokens=TOKENS, gap=2 * GAP), runs / "b")
    return runs


@pytest.fixture(scope="module")
def address(recordings):
    with served(recordings) as address:
        yield address


BOX = """
const plot = document.querySelector('#timeline .js-plotly-plot'), {xaxis, yaxis} = plot._fullLayout;
plot.scrollIntoView({block: 'center'});
const box = plot.getBoundingClientRect(), row = yaxis.ticktext.indexOf(arguments[2]);
const place = (x) => Math.round(box.left + xaxis._offset + xaxis.l2p(x / 1e9));
return [place(arguments[0]), place(arguments[1]), Math.round(box.top + yaxis._offset + yaxis.l2p(yaxis.tickvals[row]))];
"""


def drag_over(page, low, high, row):
    """Drag with Ctrl held, over a row, between two times, ns."""
    left, right, y = page.browser.execute_script(BOX, low, high, row)
    ActionChains(page.browser).key_down(Keys.CONTROL).perform()
    actions = ActionChains(page.browser, duration=30)
    actions.w3c_actions.pointer_action.move_to_location(left, y - 2).pointer_down()
    actions.w3c_actions.pointer_action.move_to_location((left + right) // 2, y)
    actions.w3c_actions.pointer_action.move_to_location(right, y + 2).pointer_up()
    actions.perform()
    ActionChains(page.browser).key_up(Keys.CONTROL).perform()


def cells(page, name):
    rows = page.browser.find_elements(By.CSS_SELECTOR, "#sums tbody tr")
    row = next(row for row in rows if row.find_element(By.TAG_NAME, "th").text == name)
    return [cell.text for cell in row.find_elements(By.TAG_NAME, "td")]


def ask_for(page, label):
    click_on(page.browser, f"[aria-label={json.dumps(label)}]")


def test_what_is_in_view_is_summed_by_key_copied_and_linked(page, address):
    page.open(f"{address}?run=a&run=b&token=5&range=-{PERIOD}..0")
    page.press("e")
    page.linked(f"area=-{PERIOD}..0")
    ask_for(page, "Sum by kernel or copy")
    page.linked("by=kernel")
    until(page.browser, lambda: cells(page, "void k<float>(T*)"), "sums of the kernel")
    assert cells(page, "void k<float>(T*)") == [
        str(KERNELS), "900 µs", "900 µs", "112 µs", "90.0%", "90.0%",
        str(KERNELS), "800 µs", "800 µs", "100 µs", "80.0%", "80.0%",
    ]  # fmt: skip
    copied = page.browser.execute_async_script("""
        const [done] = arguments;
        navigator.clipboard.writeText = async (text) => done(text);
        document.getElementById('copy-sums').click();""")
    assert "a\tvoid k<float>(T*)\t8\t900000\t900000\t112500\t0.9\t0.9\n" in copied
    until(page.browser, lambda: drawn(page, "area") == 8, "it drawn over every row")
    page.open(page.browser.current_url, load)
    until(page.browser, lambda: cells(page, "memcpy HtoD")[0] == "1", "the same by link")
    assert page.browser.find_element(By.CSS_SELECTOR, "#sums [aria-pressed=true]").text == "kernel or copy"
    ask_for(page, "Search for void k<float>(T*)")
    says(page, "found", f"{2 * TOKENS * KERNELS} of {2 * TOKENS * KERNELS} kernels")
    assert page.browser.find_element(By.ID, "find").get_attribute("value") == "void k<float>(T*)"
    page.browser.execute_script("document.activeElement.blur()")
    page.press("e")
    until(page.browser, lambda: "area=" not in page.browser.current_url and not text(page, "sums"), "nothing summed")


def test_a_drag_with_ctrl_sums_the_rows_under_it(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    drag_over(page, -600_000, -200_000, "stream 14")
    page.linked("area=", "of=stream+14", f"range=-{PERIOD}..0")
    says(page, "sums", "in stream 14")
    until(page.browser, lambda: cells(page, "kernel"), "a row for the kernels")
    count, total, union, _, share, _ = cells(page, "kernel")
    assert (count, share) == ("5", "100.0%")
    assert total == union
    assert drawn(page, "area") == 1
    ask_for(page, "Clear the sums")
    until(page.browser, lambda: "area=" not in page.browser.current_url, "no area")
    until(page.browser, lambda: drawn(page, "area") == 0, "none drawn")


def test_enter_and_shift_enter_go_from_hit_to_hit_which_is_zoomed_to(page, address):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    page.press("/", "cudamemcpy", Keys.ENTER)
    says(page, "found", f"6 of {TOKENS} · ")
    until(page.browser, lambda: page.range()[1] - page.range()[0] == 100_000, "a range in which 2 µs are seen")
    until(page.browser, lambda: drawn(page, "chosen") == 1, "the hit in a frame")
    page.press(Keys.ENTER)
    says(page, "found", f"7 of {TOKENS} · ")
    ActionChains(page.browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    says(page, "found", f"6 of {TOKENS} · ")
    field = page.browser.find_element(By.ID, "find")
    field.clear()
    field.send_keys("kind:kernel stream:14 >100us")
    says(page, "found", f"{TOKENS * KERNELS} of {TOKENS * KERNELS} kernels")
    field.send_keys(" <110us")
    says(page, "found", "no matches for")


def test_a_bookmark_is_in_the_link_and_then_in_a_file_beside_the_recording(page, address, recordings):
    page.open(f"{address}?run=a&token=5&range=-{PERIOD}..0")
    page.press("b")
    note = page.browser.find_element(By.ID, "note")
    until(page.browser, note.is_displayed, "the field")
    note.send_keys("<b>slow & odd</b>")
    page.browser.find_element(By.ID, "bookmark").send_keys(Keys.ENTER)
    page.linked("bookmark=")
    says(page, "bookmark-list", "<b>slow & odd</b>")
    page.open(page.browser.current_url.replace(f"range=-{PERIOD}..0", "range=0..1000"))
    page.press("b")
    ask_for(page, "Go to <b>slow & odd</b>")
    page.linked(f"range=-{PERIOD}..0")
    ask_for(page, "Write them to a.bookmarks.json")
    says(page, "bookmark-list", "in the file next to the recording")
    kept = json.loads((recordings / "a.bookmarks.json").read_text())
    assert [mark["note"] for mark in kept["bookmarks"]] == ["<b>slow & odd</b>"]
    page.open(f"{address}?run=a&token=3")
    page.press("b")
    ask_for(page, "Go to <b>slow & odd</b>")
    page.linked(f"range={PERIOD}..{2 * PERIOD}")
    ask_for(page, "Forget <b>slow & odd</b>")
    says(page, "bookmark-list", "None yet")
    assert json.loads((recordings / "a.bookmarks.json").read_text()) == {"bookmarks": []}
