"""A reader's walk with the mouse: why is saaas faster, which sync is dearest, what would removing the third gain, and
where is it in the code.

Two runs are recorded on the simulated device, which is the same everywhere, with the Python stacks of their calls, and
opened in a Chromium. Each answer is a click
of the browser's own mouse at what is seen, and a picture is taken once it is there. Written beside the pictures:
walk.json, with the seconds from a click to its answer.
Usage: python benchmarks/walk.py OUT [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import waitress
from page_screens import browser, store_is_read
from read_nsys_sqlite import machine
from selenium import webdriver
from selenium.webdriver import ActionChains

from dashboard.app import create_app
from executor.commands.run import run
from tracer.recorders.host import watched

WIDTH, HEIGHT = 1440, 900
PATIENCE: Final = 60  # s
RUNS: Final = "llama-1.1b-sccc-sequential-sim", "llama-1.1b-saaas-sequential-sim"
TEXT: Final = "return document.querySelector(arguments[0])?.innerText || ''"
VISIBLE: Final = """
const found = [...document.querySelectorAll(arguments[0])].find((e) => e.checkVisibility());
found?.scrollIntoView({block: "center"});
const box = found?.getBoundingClientRect();
return box && box.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
"""


@dataclass
class Walk:
    """What was clicked and answered so far.

    Attributes:
        page: the browser.
        out: where the pictures go.
        steps: of each answer the question, what was said, and the seconds that it took.
    """

    page: webdriver.Chrome
    out: Path
    steps: list[dict[str, Any]] = field(default_factory=list)

    def click(self, selector: str) -> None:
        """Move the mouse to the middle of what is seen and stands still, and click."""
        x, y = self.until(lambda: self._still(selector), selector)
        actions = ActionChains(self.page)
        pointer: Any = actions.w3c_actions.pointer_action
        pointer.move_to_location(round(x), round(y)).click()
        actions.perform()

    def _still(self, selector: str) -> Any:
        place = self.page.execute_script(VISIBLE, selector)
        time.sleep(0.2)
        return place if place == self.page.execute_script(VISIBLE, selector) else None

    def until(self, found: Callable[[], Any], what: str) -> Any:
        """Wait for something, and return it."""
        end = time.monotonic() + PATIENCE
        while not (answer := found()):
            if time.monotonic() > end:
                self.page.save_screenshot(str(self.out / "not-seen.png"))
                raise SystemExit(f"not seen: {what}")
            time.sleep(0.02)
        return answer

    def answer(self, question: str, clicks: list[str], selector: str, marks: str) -> None:
        """Click, wait until a text says something, and take a picture."""
        begin = time.perf_counter()
        for each in clicks:
            self.click(each)
        said = self.until(lambda: text if marks in (text := self.page.execute_script(TEXT, selector)) else "", marks)
        took = time.perf_counter() - begin
        self.page.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'nearest'})", selector)
        time.sleep(0.5)  # what else is drawn
        self.page.save_screenshot(str(self.out / f"walk-{len(self.steps) + 1}.png"))
        self.steps.append({"question": question, "clicks": len(clicks), "said": said, "seconds": round(took, 2)})
        print(f"{took:5.2f} s  {question}\n         {said}", flush=True)


def recorded(folder: Path) -> list[Path]:
    """Runs of two strategies, with the stacks of their calls."""
    with watched():
        run.main(
            ["--backend", "sim", "--model", "llama-1.1b", "--sync", "sccc,saaas", "-o", str(folder)],
            standalone_mode=False,
        )  # fmt: skip
    return [folder / name for name in RUNS]


def walk(page: webdriver.Chrome, address: str, out: Path) -> list[dict[str, Any]]:
    """The questions, in order."""
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
    )
    this = Walk(page, out)
    page.get(f"{address}/?{'&'.join(f'run={name}' for name in RUNS)}")
    this.answer("why is saaas faster?", [], "#compare-words", "is faster than")
    this.answer("which sync is dearest?", ["#page-syncs"], "#said-of-all", "Most expensive")
    third = '.ag-row[row-id="3"]'
    this.answer("what would removing the third gain?", [f"{third} [col-id=try] a"], "#figures", "Tokens/s")
    there = ["#page-syncs", f"{third} [col-id=show] a"]
    this.answer("where is it in the code?", there, "#cost", "of the critical path")
    return this.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--json", type=Path, help="save the result here")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, browser() as page:
        app = create_app(recorded(Path(name) / "runs"))
        server = waitress.create_server(app.server, host="127.0.0.1", port=0, threads=8)
        threading.Thread(target=server.run, daemon=True).start()
        address = f"http://127.0.0.1:{server.effective_port}"
        store_is_read(address, page)
        steps = walk(page, address, given.out)
        server.close()
    whole = round(sum(step["seconds"] for step in steps), 2)
    print(f"{whole} s in {sum(step['clicks'] for step in steps)} clicks")
    if given.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        facts = {"benchmark": "walk", "date": date, "seconds": whole, "steps": steps, "machine": machine()}
        given.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
