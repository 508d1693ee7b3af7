"""What a reader does with a page in a real Chromium, and what it then shows."""

import re
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from selenium.common.exceptions import (
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

_SCRIPTS = (Path(__file__).parent / "data" / "page.js").read_text(encoding="utf-8")
SCRIPTS = {name: body.strip() for name, body in re.findall(r"^// (\w+): .*\n((?:(?!^// \w+: ).*\n)*)", _SCRIPTS, re.M)}
"""Name -> what the browser runs."""
BARS = "#timeline .barlayer path"


class Page:
    """A page, and what was said of it since it was last asked."""

    def __init__(self, browser):
        self.browser = browser

    def run(self, script, *arguments):
        """What a script returns, which is one of `SCRIPTS` or its text."""
        return self.browser.execute_script(SCRIPTS.get(script, script), *arguments)

    def wait(self, script, *arguments):
        """What a script gives to the function that is its last argument."""
        return self.browser.execute_async_script(SCRIPTS.get(script, script), *arguments)

    def rest(self, milliseconds):
        """Let what else would come, come."""
        self.wait("setTimeout(arguments[1], arguments[0])", milliseconds)

    def until(self, condition, what, seconds=60):
        """Wait for a condition, whatever is drawn anew meanwhile; `what` is missing if it does not come."""
        ignored = StaleElementReferenceException, NoSuchElementException
        return WebDriverWait(self.browser, seconds, 0.1, ignored).until(lambda _: condition(), what)

    def visit(self, address, shows=None):
        """Show a view: in the page that is open, as its links do, at a third of the cost; else by loading it.

        What no address holds is as on a new page: nothing folded out, no dialog, no focus. A test that checks what a
        link restores, or that needs a page nobody has touched, loads it: `load`. One that changes the page's own code
        says so: `alter`. What comes later may move what is there: the page is at rest when its requests are answered.
        """
        if not self.wait("visit", address):
            self.browser.get(address)
            self.run("count")  # another tab has none
            self.wait("window.rest(6, arguments[0])")
        self.shows(shows)

    def load(self, address, shows=None):
        """Show a view on a page that is loaded for it."""
        self.browser.get("about:blank")
        self.browser.get(address)
        self.shows(shows)

    def shows(self, selector):
        if selector:
            self.until(lambda: self.all(selector), selector)

    def alter(self, script, *arguments):
        """Change the page's own code, until it is loaded anew."""
        self.run(f"window.altered = true; {SCRIPTS.get(script, script)}", *arguments)

    def leave(self):
        """Before the server is gone."""
        self.browser.get("about:blank")

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def text(self, key):
        return self.run("return (document.getElementById(arguments[0]) || {}).innerText || ''", key)

    def says(self, key, words):
        self.until(lambda: words in self.text(key), f"{words!r} in {key}, not {self.text(key)!r}")

    def linked(self, *words):
        """Wait until the link has these words."""
        self.until(lambda: all(word in self.browser.current_url for word in words), words)

    def unlinked(self, word):
        self.until(lambda: word not in self.browser.current_url, f"no {word}")

    def focused(self):
        return self.run("return document.activeElement.id || document.activeElement.innerText")

    def blur(self):
        self.run("document.activeElement.blur()")

    def click_on(self, selector):
        """Click an element once it is there. What is in a table may be drawn anew between finding and clicking."""
        self.until(lambda: self.one(selector).click() or True, selector)

    def press(self, *keys):
        ActionChains(self.browser).send_keys(*keys).perform()

    def enter(self, selector, *keys):
        """Focus an element and press keys there: Enter if none are given."""
        self.shows(selector)
        self.run("arguments[0].focus()", self.one(selector))
        self.one(selector).send_keys(*(keys or [Keys.ENTER]))

    def follow(self, link):
        """Press Enter in the table's cell that has this link, as one who came there by arrow keys."""
        cell = "const cell = document.querySelector(arguments[0])?.closest('.ag-cell'); cell?.focus(); return cell"

        def presses():
            with suppress(ElementNotInteractableException):  # the table is being filled anew
                return (found := self.run(cell, link)) and (found.send_keys(Keys.ENTER) or True)

        self.until(presses, link)

    def unfold(self):
        """Show the table of runs, which is folded while runs are shown."""
        self.until(lambda: self.run("unfold"), "the table of runs")

    @contextmanager
    def screen(self, width, height, mobile=None):
        """Another screen of so many px, a phone's if it is narrow."""
        mobile = width < 700 if mobile is None else mobile
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    @contextmanager
    def touched(self):
        """A screen that fingers touch."""
        emulate = "Emulation.setTouchEmulationEnabled"
        self.browser.execute_cdp_cmd(emulate, {"enabled": True, "maxTouchPoints": 2})
        try:
            yield
        finally:
            self.browser.execute_cdp_cmd(emulate, {"enabled": False})

    def touch(self, kind, *points):
        fingers = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        self.browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

    def faults(self):
        """What the browser complained of since it was last asked; not the default of a component that is its own."""
        log = [e["message"] for e in self.browser.get_log("browser") if e["level"] in {"SEVERE", "WARNING"}]
        return [message for message in log if not re.search("custom wheel sensitivity|willReadFrequently", message)]

    def range(self):
        """The range of the timeline that the link has, ns."""
        found = re.search(r"range=(-?\d+)\.\.(-?\d+)", self.browser.current_url)
        return found and tuple(map(int, found.groups()))

    def width(self):
        low, high = self.range() or (0, 0)
        return high - low

    def drawn_range(self):
        axis = "document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis"
        return [round(time) for time in self.run(f"return {axis}.range.map((x) => x * 1e9)")]

    def moves(self, *keys):
        """Press keys, wait until the range is another and drawn, and say which."""
        before = self.range()
        self.press(*keys)
        return self.moved(before)

    def moved(self, before):
        self.until(lambda: self.range() not in (None, before), f"another range than {before}")
        self.until(lambda: self.drawn_range() == pytest.approx(self.range(), abs=2), "it drawn")
        return self.range()

    def comes_to(self, low, high, by=5):
        wanted = pytest.approx((low, high), abs=by)
        self.until(lambda: self.range() == wanted, f"{wanted}, not {self.range()}")

    def labels(self):
        return self.run("return document.querySelector('#timeline .js-plotly-plot')._fullLayout.yaxis.ticktext")

    def drawn(self, name):
        """The texts of the shapes and annotations of this name."""
        return self.run("drawn", name)

    def spot(self, name, share=0.5, number=None, words=""):
        """Where to point at a bar, px, once nothing above moves it: of a number, or the first in view that says so."""
        seen = []

        def rests():
            seen.append(self.run("spot", name, share, number, words))
            return seen[-1] and len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

        self.until(rests, f"a bar of {name} at rest")
        return seen[-1]

    def point(self, x, y):
        actions = ActionChains(self.browser, duration=20)
        actions.w3c_actions.pointer_action.move_to_location(round(x) - 2, round(y)).move_to_location(round(x), round(y))
        actions.perform()

    def click(self, x, y):
        time.sleep(0.4)  # two within 0.3 s are a double click to Plotly
        actions = ActionChains(self.browser, duration=30)
        actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
        actions.click().perform()

    def drag(self, start, end, key=None):
        """Drag from a place to another, with a key held."""
        (left, top), (right, bottom) = start, end
        if key:
            ActionChains(self.browser).key_down(key).perform()
        actions = ActionChains(self.browser, duration=30)
        pointer = actions.w3c_actions.pointer_action.move_to_location(left, top).pointer_down()
        pointer.move_to_location((left + right) // 2, (top + bottom) // 2).move_to_location(right, bottom).pointer_up()
        actions.perform()
        if key:
            ActionChains(self.browser).key_up(key).perform()
