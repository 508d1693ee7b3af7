"""What a page costs on the wire: bytes and requests of a first visit and of the next one, behind a token.

A dashboard of the given recordings (or two samples) is served and opened in a new Chromium by its link, and then again;
the browser itself counts what it received, headers included.
Usage: python benchmarks/page_bytes.py [RECORDING ...] [--pages ADDRESS ...]
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from page_screens import PAGES, RESTS, SAMPLES, SHOWN, browser
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.app import create_app
from dashboard.serving import Serving
from dashboard.serving.patience import listen

TOKEN: Final = "a-token-of-the-benchmark"
QUIET: Final = 2.0  # s without another answer
RECEIVED: Final = """
return [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .map((entry) => [entry.name, entry.transferSize]);
"""


def received(page: webdriver.Chrome) -> list[tuple[str, int]]:
    """Address and bytes of all answers to this page, once none but those of its poll have come for a while."""
    WebDriverWait(page, 30).until(lambda _: page.execute_script(RESTS))
    since, answers = time.monotonic(), -1
    while time.monotonic() - since < QUIET:
        time.sleep(0.2)
        found = [(str(name), int(size)) for name, size in page.execute_script(RECEIVED)]
        found = [(name, size) for name, size in found if not name.endswith("/revision")]
        since, answers = (since, answers) if len(found) == answers else (time.monotonic(), len(found))
    return found


def visit(page: webdriver.Chrome, address: str) -> list[tuple[str, int]]:
    """What a visit fetches."""
    page.get("about:blank")
    page.get(address)
    return received(page)


def main() -> None:
    """Print one line per page and visit, and the largest answers of the first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("recordings", nargs="*", type=Path, default=[SAMPLES / name for name in SHOWN["llama-two"]])
    parser.add_argument("--pages", nargs="*", default=list(PAGES.values()))
    options = parser.parse_args()
    server: Any = listen(create_app(options.recordings, Serving(token=TOKEN)).server, "127.0.0.1", 0)
    threading.Thread(target=server.run, daemon=True).start()
    home = f"http://127.0.0.1:{server.effective_port}/"
    for address in options.pages:
        with browser() as page:
            link = f"{home}login?{urlencode({'token': TOKEN, 'next': f'/{address}'})}"
            visits = [visit(page, each) for each in (link, home + address, home + address)]
        for number, answers in enumerate(visits, 1):
            total = sum(size for _, size in answers)
            sent = sum(size > 0 for _, size in answers)
            print(f"/{address:10} visit {number}: {total / 1e3:>9,.1f} kB in {sent} of {len(answers)} answers")
        for name, size in sorted(visits[0], key=lambda entry: -entry[1])[:12]:
            print(f"    {size / 1e3:>9,.1f} kB  {name.removeprefix(home)[:100]}")
    server.close()


if __name__ == "__main__":
    main()
