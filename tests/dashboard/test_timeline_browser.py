"""The timeline in a real Chromium: keys, search, rows, minimap, sums and cards; the hand moves it at once."""

import json
import re
import time
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import ActionChains, Keys

from dashboard.view import View
from tests.dashboard.conftest import copied, served
from tests.dashboard.page import BARS
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tracer import Trace, formats

pytestmark = pytest.mark.browser


def test_keys_press_the_buttons_but_not_while_one_types(page, address):
    page.visit(f"{address}?run=a&token=5", BARS)
    low, high = page.moves("g")
    assert 0 < high - low < 3 * GAP
    near = page.moves("w")
    assert near[1] - near[0] == pytest.approx((high - low) / 2, abs=2)
    assert page.moves("d")[0] > near[0]
    assert page.moves(Keys.ARROW_LEFT) == pytest.approx(near, abs=3)
    page.moves(Keys.HOME)
    assert page.width() > 25 * PERIOD
    page.press("n")
    page.linked("token=6")
    page.press("p")
    page.linked("token=5")
    before = page.range()
    page.unfold()
    page.click_on("#runs .ag-cell")
    page.press("w", "s", "n")

    def is_elsewhere():  # a table that is drawn anew takes the focus back
        page.run("document.getElementById('copy-link').focus()")
        page.wait("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
        return page.focused() == "copy-link"

    page.until(is_elsewhere, "the focus elsewhere")
    assert page.moves("w") != before
    page.linked("token=5")


def test_each_key_counts_from_what_the_last_one_asked_for_whatever_is_drawn_yet(page, address):
    page.visit(f"{address}?run=a&token=5", BARS)
    low, high = page.moves("g")
    width = (high - low) / 4
    page.visit(f"{address}?run=a&token=5", BARS)
    page.press("g", "w", "w", "d")
    page.comes_to(low + 1.85 * width, low + 2.85 * width)
    page.press("n", "w", "n", "s", ".", "a")
    page.linked("token=8")
    page.comes_to(low + 1.5 * width, low + 2.5 * width, by=8)
    page.press("w", "t", "s")
    page.until(lambda: page.width() == pytest.approx(2 * 1.35 * PERIOD), "two tokens")
    page.alter("late", "timeline.figure", 1500, 0)
    page.press("g")
    page.comes_to(low, high)
    page.run("document.querySelector('#timeline .js-plotly-plot').emit('plotly_relayout', {autosize: true})")
    page.press("w")
    page.comes_to(low + width, high - width)


def test_going_to_a_token_a_time_and_the_next_gap(page, address):
    page.visit(f"{address}?run=a&token=5&range=0..{PERIOD}", BARS)
    page.press("j")
    assert page.focused() == "go"
    for text, said in (
        ("12", "Token 12 of 0 to 29."), ("99", "There is no token 99; the last one is 29."),
        ("2.5 ms", "2.50 ms is in the middle."), ("> 90 us", "100 µs after token 15."),
    ):  # fmt: skip
        page.one("#go").clear()
        page.one("#go").send_keys(text, Keys.ENTER)
        page.says("gone", said)
        page.linked("token=12")
    page.blur()
    page.press("]", "]")
    page.says("gone", "after token 17.")
    page.press("[", "w")
    page.says("gone", "after token 16.")
    middle = pytest.approx(4 * PERIOD + GAP / 2, abs=9)
    page.until(lambda: sum(page.range()) / 2 == middle, "its middle")


def test_searching_goes_from_match_to_match_and_shows_its_arrows(page, address):
    page.visit(f"{address}?run=a&run=b&token=5", BARS)
    page.press("/")
    assert page.focused() == "find"
    for letters in ("abcdefghijklmnopqrstuvwxyz", "qwertyuiopasdfghjklzxcvbnm"):  # which stay in their order
        page.blur()
        page.press("/", letters)
        page.linked(f"find={letters}")
    page.blur()
    page.press("/", "cudamemcpy", Keys.ENTER)
    page.says("found", "60 of 120 copies")
    page.linked("find=cudamemcpy", "event=")
    first = page.browser.current_url
    page.says("picked", "cudaMemcpyAsync")
    page.until(lambda: len(page.drawn("arrow")) == len(page.drawn("chosen")) == 2, "an arrow in each run")
    assert page.width() == 100_000, "2 µs are seen"
    page.press(Keys.ENTER)
    page.until(lambda: page.browser.current_url != first, "the next match")
    ActionChains(page.browser).key_down(Keys.SHIFT).send_keys(Keys.ENTER).key_up(Keys.SHIFT).perform()
    event = first.split("event=")[1]
    page.until(lambda: page.browser.current_url.split("event=")[1] == event, "the first again")
    page.says("picked", "duration 2000 ns")
    page.enter("#picked li button")
    page.says("picked", "memcpy HtoD")


def test_names_of_rows_keep_their_first_letters_on_a_phone(page, tmp_path):
    trace = decode()
    ranges = {**trace["nvtx"].to_dict("list"), "thread": [71] * len(trace["nvtx"])}
    threads = {"process": [7, 7], "thread": [70, 71], "name": ["CUDA WORKERS", "MMMMMMMMMMMM"]}
    tables = {**trace.tables, "nvtx": ranges, "threads": threads}
    formats.write(Trace.from_columns(trace.metadata, **tables), tmp_path / "CUDA-GRAPHS-AND-MANY-MORE-WORDS")
    with served(tmp_path) as address, page.screen(390, 844):
        page.load(f"{address}?run=CUDA-GRAPHS-AND-MANY-MORE-WORDS", BARS)
        names = page.until(lambda: len(found := page.run("names")) == 5 and found, "names")
        assert {name[:4] for name, _ in names} == {"CUDA", "NVTX", "API ", "stre"}
        assert all(left >= 0 for _, left in names), names
        page.leave()


def test_rows_are_arranged_by_keyboard_and_the_link_has_it(page, address):
    page.visit(f"{address}?run=a&token=5", BARS)
    assert page.labels() == ["NVTX", "API calls", "stream 13", "stream 14"]
    page.press("r")
    for label, key, rows in (
        ("Show NVTX", Keys.SPACE, ["API calls", "stream 13", "stream 14"]),
        ("Move stream 14 up", Keys.ENTER, ["API calls", "stream 14", "stream 13"]),
        ("Collapse GPU 0", Keys.ENTER, ["API calls", "▸ GPU 0"]),
    ):
        page.enter(f"[aria-label='{label}']", key)
        page.until(lambda rows=rows: page.labels() == rows, rows)
        page.until(lambda: page.run("return document.activeElement.ariaLabel"), "the focus where it was")
    assert page.one("[aria-label='Show NVTX']").get_attribute("aria-checked") == "false"
    page.one("#only").send_keys("gpu")
    page.linked("hide=NVTX", "rows=gpu", "fold=GPU+0", "order=stream+14")
    page.load(page.browser.current_url, BARS)
    page.until(lambda: page.labels() == ["▸ GPU 0"], "the same by link")
    page.press("r")
    page.until(
        lambda: page.browser.find_element("xpath", "//button[text()='As recorded']").send_keys(Keys.ENTER) or 1, ""
    )
    page.until(lambda: len(page.labels()) == 4, "all rows")
    page.until(lambda: page.one("#only").get_attribute("value") == "", "an empty field")


def test_a_double_click_on_an_event_does_not_choose_it_a_click_does_and_escape_deselects(page, address):
    page.visit(f"{address}?run=a&token=5&range=0..{PERIOD}", BARS)
    for pause in (0.06, 0.35):
        actions = ActionChains(page.browser, duration=30)
        actions.w3c_actions.pointer_action.move_to_location(*page.spot("kernel", number=2))
        actions.click().pause(pause).click().perform()
        page.until(lambda: page.width() == pytest.approx(1.16 * PERIOD, abs=5), "one token")
        time.sleep(0.5)  # what else would come
        page.unlinked("event=")
        assert page.text("picked") == ""
        page.visit(f"{address}?run=a&token=5&range=0..{PERIOD}", BARS)
    page.click(*page.spot("kernel", number=2))
    page.linked("event=")
    page.says("picked", "duration 112500 ns")
    page.press(Keys.ESCAPE)
    page.unlinked("event=")


def test_the_minimap_has_its_frame_from_the_first_drawing_and_moves_what_is_in_view(page, address):
    page.load(f"{address}?run=a&run=b&token=5&range=0..{10 * PERIOD}", BARS)
    page.until(lambda: 0.1 < page.run("frame")[0] < 0.3, "its frame", 20)
    low, high = page.run("frame")
    assert high - low == pytest.approx(1 / 3, abs=0.05), "10 of 30 tokens"
    page.click(*page.spot("minimap", 0.8))
    page.until(lambda: page.range() != (0, 10 * PERIOD), "another range")
    assert page.width() == 10 * PERIOD
    page.until(lambda: page.run("frame")[0] > 0.6, "the frame there")
    page.drag(page.spot("minimap", 0.3), page.spot("minimap", 0.5))
    page.until(lambda: page.run("frame") == pytest.approx([0.3, 0.5], abs=0.02), "the frame that was dragged")
    selections = "return document.querySelector('#minimap .js-plotly-plot')._fullLayout.selections.length"
    page.until(lambda: page.run(selections) == 0, "no leftover")


def test_what_is_in_view_or_dragged_over_is_summed_copied_and_linked(page, address):
    page.visit(f"{address}?run=a&run=b&token=5&range=-{PERIOD}..0", BARS)
    page.press("e")
    page.linked(f"area=-{PERIOD}..0")
    page.click_on("[aria-label='Sum by kernel or copy']")
    page.linked("by=kernel")
    kernel = "void k<float>(T*)"
    page.until(lambda: page.run("cells", kernel), "sums of the kernel")
    assert page.run("cells", kernel) == [
        str(KERNELS), "900 µs", "900 µs", "112 µs", "90.0%", "90.0%",
        str(KERNELS), "800 µs", "800 µs", "100 µs", "80.0%", "80.0%",
    ]  # fmt: skip
    copied = page.wait("""const [done] = arguments;
        navigator.clipboard.writeText = async (text) => done(text);
        document.getElementById('copy-sums').click();""")
    assert f"a\t{kernel}\t8\t900000\t900000\t112500\t0.9\t0.9\n" in copied
    page.until(lambda: len(page.drawn("area")) == 8, "it drawn over every row")
    page.click_on(f"[aria-label={json.dumps(f'Search for {kernel}')}]")
    page.says("found", f"{60 * KERNELS} of {60 * KERNELS} kernels")
    page.blur()
    page.press("e")
    page.unlinked("area=")
    left, right, y = page.run("over", -600_000, -200_000, "stream 14")
    page.drag((left, y - 2), (right, y + 2), Keys.CONTROL)
    page.linked("area=", "of=stream+14", f"range=-{PERIOD}..0")
    page.says("sums", "in stream 14")
    page.until(lambda: page.run("cells", "kernel"), "a row for the kernels")
    count, total, union, _, share, *_ = page.run("cells", "kernel")
    assert (count, share, total) == ("5", "100.0%", union)
    page.click_on("[aria-label='Clear the sums']")
    page.unlinked("area=")
    page.until(lambda: page.drawn("area") == [], "none drawn")


def test_a_bookmark_is_in_the_link_and_then_in_a_file_beside_the_recording(page, address):
    page.visit(f"{address}?run=a&token=5&range=-{PERIOD}..0", BARS)
    page.press("b")
    page.until(page.one("#note").is_displayed, "the field")
    page.one("#note").send_keys("<b>slow & odd</b>")
    page.enter("#bookmark")
    page.linked("bookmark=")
    page.says("bookmark-list", "<b>slow & odd</b>")
    page.click_on("[aria-label='Write them to a.bookmarks.json']")
    page.says("bookmark-list", "in the file next to the recording")
    page.visit(f"{address}?run=a&token=3", BARS)
    page.press("b")
    page.click_on("[aria-label='Go to <b>slow & odd</b>']")
    page.linked(f"range={PERIOD}..{2 * PERIOD}")
    page.click_on("[aria-label='Forget <b>slow & odd</b>']")
    page.says("bookmark-list", "None yet")


def label(page, name):
    """Point at the first bar of this name in view, again if it is drawn anew, and read its label."""

    def points():
        page.point(*page.spot(name))
        page.rest(300)
        return page.run("label")

    return page.until(points, f"a label of {name}", 20)


def test_the_label_of_a_bar_has_its_name_is_at_the_pointer_and_not_seen_while_the_timeline_moves(page, address):
    page.visit(f"{address}?run=a&token=5&range=-{PERIOD}..0", BARS)
    assert label(page, "copy") == ["memcpy HtoD", "2.00 µs"]
    assert label(page, "kernel") == ["void k<float>(T*)", "112 µs"], "which all marks of the kind share"
    page.visit(f"{address}?run=a&token=5&range=-890000..-800000", BARS)
    assert label(page, "kernel")[0] == "void k<float>(T*)"
    box = "const {left, right} = document.querySelector('#timeline .hovertext').getBoundingClientRect();"
    x, y = page.spot("kernel")
    assert min(abs(x - end) for end in page.run(f"{box} return [left, right]")) < 24, "also of a long bar"
    page.alter("frames")
    page.drag((x, y), (x + 80, y))
    page.linked("range=")
    page.until(lambda: page.run("return window.moved.length"), "frames of it")
    assert set(page.run("return window.moved")) == {0}


def card(page):
    """The lines of the card that is seen, none while a part of it is not known yet."""
    said = page.run("lines", ["#card.seen"])
    return [] if "Computing" in " ".join(said) else said


def rest_on(page, place):
    """Point at a place until the card of what is there has all; the card's lines."""

    def says():
        if not page.all("#card.seen"):
            page.point(*place())
            page.rest(600)
        return card(page)

    return page.until(says, "a card")


def test_the_card_goes_when_the_pointer_leaves_or_does_something_and_a_late_answer_is_for_no_other_bar(page, address):
    page.visit(f"{address}?run=a&token=7&range=-{PERIOD}..0", BARS)
    link = page.browser.current_url
    for away in ("leave", "scroll", "escape", "wheel", "press"):
        assert any("slack" in line for line in rest_on(page, lambda: page.spot("kernel"))), away
        height, (x, y) = page.run("return document.body.scrollHeight"), page.spot("kernel")
        match away:
            case "leave":
                page.point(x, y - 300)
            case "scroll":
                page.run("window.scrollBy(0, 5)")
            case "escape":
                page.press(Keys.ESCAPE)
            case "press":
                ActionChains(page.browser).click_and_hold().perform()
            case "wheel":
                turned = "new WheelEvent('wheel', {deltaY: -1, bubbles: true, cancelable: true})"
                page.run(f"document.querySelector('#timeline .nsewdrag').dispatchEvent({turned})")
        page.until(lambda: not card(page), f"no card after {away}", 5)
        assert page.run("return document.body.scrollHeight") == height
        assert away == "wheel" or "event=" not in page.browser.current_url
        page.point(x, y - 300)
    ActionChains(page.browser).release().perform()
    page.visit(link, BARS)
    page.alter("late", '"pointed"', 0, 600)
    for name in ("copy", "kernel", "nvtx"):
        page.point(*page.spot(name))
        page.rest(250)  # asked, not answered
    page.until(lambda: card(page), "a card")
    page.rest(700)
    assert card(page)[0].startswith("token "), "the last one's"
    page.point(5, 5)
    page.visit(link, BARS)
    with page.touched():

        def taps():  # again if the page was busy, for which a tap became a long one
            page.touch("touchStart", page.spot("kernel"))
            page.touch("touchEnd")
            page.rest(700)
            return "event=" in page.browser.current_url

        page.until(taps, "a tap")
        assert card(page) == [], "a finger gets the panel"


VLLM, LLAMA_CPP, HYBRID = "vllm-b1-node-nvtx", "llama1b-sccc-node", "llama-1.1b-aaag-sequential-cuda-ngl13"


def test_a_card_says_what_a_click_shows(page, tmp_path):
    with served(copied(tmp_path, VLLM, LLAMA_CPP, HYBRID)) as address:
        for run, kind, merged, words in (
            (VLLM, "kernel", False, ["grid ", "shared memory ", "launched by", "slack "]),
            (VLLM, "kernel", True, [" events in ", "the longest of them:", "grid ", "launched by"]),
            (LLAMA_CPP, "sync", False, ["Row 13 of the syncs", "waited for", "cannot be removed"]),
            (HYBRID, "host", False, ["NVTX: repeat › token"]),
        ):
            page.visit(f"{address}?run={run}{'&range=-40000000..40000000' if merged else ''}", BARS)

            def place(kind=kind, merged=merged):
                return page.until(lambda: page.run("widest", kind, merged), f"a bar of {kind}")

            said = rest_on(page, place)
            assert [word for word in words if word not in " ".join(said)] == [], said
            page.unlinked("event=")
            page.click(*place())
            page.linked("event=")
            page.until(lambda said=said: page.run("lines", ["#picked", "#cost"]) == said, f"{said} in the panel")
            assert not page.all("#card.seen"), "the panel has it"
        page.leave()


LOW, HIGH = -2 * PERIOD, 0
PLOT = "document.querySelector('#timeline .js-plotly-plot')"


def show(page, address, loaded=False):
    (page.load if loaded else page.visit)(f"{address}?run=a&token=5&range={LOW}..{HIGH}", BARS)
    page.shows("#minimap .barlayer path")


@pytest.fixture
def at(page, address):
    show(page, address)
    return page


def wheel(page, share, many, **by):
    return page.wait("wheel", share, many, by)


def test_the_wheel_zooms_at_the_pointer_and_shift_wheel_and_trackpad_move(at):
    for by, moves in (
        ({"deltaY": -30}, False), ({"deltaY": -5, "ctrlKey": True}, False),  # a pinch
        ({"deltaY": 20, "shiftKey": True}, True), ({"deltaX": 20, "deltaY": 3}, True),
    ):  # fmt: skip
        before, share = at.range(), 0.5 if moves else 0.25
        found = wheel(at, share, 3 if moves else 10, **by)
        assert found["moving"]
        assert found["kept"], "the page must not scroll"
        assert found["bars"]
        assert all(inside and ends for inside, ends in found["bars"]), "each to its last pixel but one"
        low, high = at.moved(before)
        width = before[1] - before[0]
        if moves:
            assert low > before[0]
            assert high - low == pytest.approx(width, abs=1)
        else:
            assert high - low < 0.65 * width
            assert low + share * (high - low) == pytest.approx(before[0] + share * width, abs=PERIOD / 200)
    legend = "const wheel = new WheelEvent('wheel', {deltaY: 50, bubbles: true, cancelable: true});"
    scrolled = at.run(f"{legend} document.querySelector('.legend').dispatchEvent(wheel); return wheel.defaultPrevented")
    assert scrolled is False, "outside of the timeline the page scrolls"


def test_a_zoom_is_one_request_beside_what_is_fetched_ahead_and_its_link_is_the_views(at):
    at.alter("outputs")
    before, link = at.range(), at.browser.current_url
    found = wheel(at, 0.5, 60, deltaY=-4)
    at.until(lambda: at.width() < 2 * PERIOD, "the link")
    at.rest(400)  # what else would come
    drawn = [output for output in at.run("return window.outputs") if output != "ahead.data"]
    assert 1 <= len(drawn) <= 1 + found["pauses"]
    assert all(output.startswith("..timeline.figure...") for output in drawn)
    query = urlsplit(at.browser.current_url).query
    assert View.parse(query).query() == f"?{query}"
    at.browser.back()
    at.until(lambda: (at.browser.current_url, at.drawn_range()) == (link, list(before)), "the view before")
    wheel(at, 0.5, 20, deltaY=-4)
    at.run("window.outputs = []; location.hash = 'content'")  # before the link has the range
    at.moved(before)
    at.rest(400)
    assert not any("view.data" in output for output in at.run("return window.outputs")), "a place is no other view"


def test_a_wheel_that_is_turned_notch_by_notch_makes_at_most_three_requests(page, address):
    show(page, address, loaded=True)
    page.rest(1000)  # what else a new page asks
    before = page.range()
    found = page.wait("notches", 150, -30)
    assert found["asked"] <= 2 * (1 + found["pauses"]), "one is left for its rest"
    assert found["pauses"] or found["late"] <= 600, "400 ms, and the browser's own time on a busy machine"
    page.until(lambda: page.width() < 0.8 * (before[1] - before[0]), "the link")


def test_a_drag_moves_at_once_and_is_no_click_and_a_double_click_shows_the_token_under_it(at):
    before, plot = at.range(), at.one("#timeline .nsewdrag")
    ActionChains(at.browser, duration=50).click_and_hold(plot).move_by_offset(60, 0).move_by_offset(60, 0).perform()
    assert at.all("#timeline .moving"), "before it is let go"
    ActionChains(at.browser).release().perform()
    by = 120 / at.run(f"return {PLOT}._fullLayout.xaxis._length") * (before[1] - before[0])
    at.comes_to(before[0] - by, before[1] - by, by=5_000)
    assert at.width() == pytest.approx(before[1] - before[0], abs=2)
    at.unlinked("event=")
    at.visit(f"{at.browser.current_url.partition('&range')[0]}&range={LOW}..{HIGH}", BARS)
    ActionChains(at.browser).double_click(plot).perform()
    at.until(lambda: at.width() == pytest.approx(1.16 * PERIOD, abs=5), "one token")
    low, high = at.range()
    assert low < GAP - PERIOD < high, "the start of the one in the middle, from the end of token 5"


def test_a_key_pressed_before_the_view_of_a_new_link_counts_from_it(at):
    low, high = at.range()
    wheel(at, 0.5, 10, deltaY=-30)
    at.moved((low, high))
    at.alter("late", "", 0, 700)
    at.wait("back")
    by = 0.35 * (high - low)
    at.comes_to(low + by, high + by)


def test_fingers_drag_and_pinch(at):
    with at.touched():
        before, box = (
            at.range(),
            at.run("return arguments[0].getBoundingClientRect().toJSON()", at.one("#timeline .nsewdrag")),
        )
        x, y, width = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, before[1] - before[0]
        at.touch("touchStart", (x, y))
        for by in (20, 60, 100):
            at.touch("touchMove", (x - by, y))
        at.touch("touchEnd")
        by = 100 / box["width"] * width
        at.comes_to(before[0] + by, before[1] + by, by=width / 200)
        dragged = at.range()
        at.touch("touchStart", (x - 50, y), (x + 50, y))
        for by in (75, 100):
            at.touch("touchMove", (x - by, y), (x + by, y))
        at.touch("touchEnd")
        at.comes_to(sum(dragged) / 2 - width / 4, sum(dragged) / 2 + width / 4, by=width / 50)


def test_a_long_way_shows_marks_before_anything_is_drawn_anew(page, address):
    show(page, address, loaded=True)
    page.alter("ahead")
    ActionChains(page.browser).move_to_element(page.one("#timeline .nsewdrag")).perform()
    page.until(lambda: page.run("return window.ahead"), "what is ahead")
    page.alter("hold")
    page.wait("far", 40, {"deltaX": 25})
    seen = page.run("beyond")
    assert page.all("#timeline .moving")
    assert sum(seen[10:]) > 20, "kernels fill nine tenths of it, most of it out of what was drawn"
    numbers = [text for text in page.run("return window.said") if re.fullmatch(r"0|−?[\d.,]+ (µs|ms)", text)]
    assert len(numbers) > 3, "the axis moves, too"


def test_what_arrives_above_a_timeline_in_use_does_not_move_it_and_it_follows_the_window(page, address):
    show(page, address, loaded=True)
    assert page.wait("grow", 200) == [pytest.approx(200, abs=1), 0], "nobody uses it yet"
    wheel(page, 0.5, 2, deltaY=-30)
    assert page.wait("grow", 300) == [pytest.approx(0, abs=1), pytest.approx(300, abs=1)]
    assert page.wait("grow", 100) == [pytest.approx(0, abs=1), pytest.approx(400, abs=1)]
    page.one("#runs-open").click()
    place = page.run("return scrollY")
    assert page.wait("grow", 50)[1] == pytest.approx(place, abs=51), "it is left"
    wide = page.run(f"return {PLOT}._fullLayout.width")
    page.browser.set_window_size(800, 1100)
    try:
        page.until(lambda: page.run(f"return {PLOT}._fullLayout.width") < wide - 400, "a new drawing")
        assert page.all(BARS)
    finally:
        page.browser.set_window_size(1440, 1100)
