"""What the browser works for an answer: elements that no callback changes in one component, and with one each, as Dash
has them.

Two dashboards of the same recordings are served, one as it is and one without `with_markup`, and opened in turn in one
Chromium. There each action is made --turns times on both, in alternating order; the work is the browser's
own count of its main thread's tasks, the time that until no request is under way and the page rests.
Usage: python benchmarks/page_components.py RECORDING RECORDING [--turns N] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import socket
import statistics
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import urlencode

import waitress
from flask import has_request_context, request
from page_screens import browser, store_is_read
from read_nsys_sqlite import machine
from selenium import webdriver

from dashboard import pages
from dashboard.app import create_app
from dashboard.pages import answering_markup, with_markup

WAYS: Final = ("markup", "dash")
ACTIONS: Final = {
    "open the page": None,
    "next token": "document.getElementById('token-on').click()",
    "zoom in": "document.getElementById('zoom-in').click()",
    "whole recordings": "document.getElementById('show-all').click()",
}
WATCH: Final = """
window.underWay = 0;
const fetched = window.fetch;
window.fetch = (...asked) => { window.underWay++; return fetched(...asked).finally(() => window.underWay--); };
"""
RESTS: Final = """
const [rest, done] = arguments;
let since = performance.now(), last = since;
const look = () => {
  const now = performance.now();
  if (window.underWay || now - last > 60) since = now;
  last = now;
  now - since > rest ? done(since) : setTimeout(look, 20);
};
look();
"""
REST: Final = 900  # ms without a request and without a task of more than 40 ms


def as_dash_has_them(port: int) -> None:
    """Let what is served at this port have a component of Dash for each element."""

    def asked() -> bool:
        return has_request_context() and request.host.endswith(f":{port}")

    def answers(function: Callable[..., Any], several: bool) -> Callable[..., Any]:
        gathered = answering_markup(function, several=several)
        return wraps(function)(lambda *a, **k: function(*a, **k) if asked() else gathered(*a, **k))

    patch.object(pages, "with_markup", lambda shown: shown if asked() else with_markup(shown)).start()
    patch.object(pages, "answering_markup", answers).start()


def served(recordings: list[Path], port: int) -> str:
    """The address of a dashboard."""
    server: Any = waitress.create_server(create_app(recordings).server, host="127.0.0.1", port=port, threads=4)
    threading.Thread(target=server.run, daemon=True).start()
    return f"http://127.0.0.1:{port}/"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def work(page: webdriver.Chrome) -> float:
    """Seconds of tasks of the browser's main thread so far."""
    found = page.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in found if each["name"] == "TaskDuration"))


def act(page: webdriver.Chrome, action: str | None, address: str) -> tuple[float, float]:
    """Seconds of work of an action, and until the page rests after it."""
    before = 0.0 if action is None else work(page)  # a page that is opened begins anew
    if action is None:
        page.get(address)
        page.execute_script(WATCH)
        began = 0.0
    else:
        began = page.execute_script(f"const began = performance.now(); {action}; return began")
    rested = page.execute_async_script(RESTS, REST)
    return work(page) - before, (rested - began) / 1000


def measured(page: webdriver.Chrome, addresses: dict[str, str], turns: int) -> list[dict[str, Any]]:
    """For each action and way of serving the seconds of each turn; the first turn, in which scripts are compiled, is
    left out.
    """
    rows: list[dict[str, Any]] = []
    for turn in range(turns + 1):
        for way in sorted(addresses, reverse=bool(turn % 2)):
            for name, action in ACTIONS.items():
                worked, rested = act(page, action, addresses[way])
                if turn:
                    rows.append({"turn": turn, "way": way, "action": name, "work_s": worked, "rest_s": rested})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per action the medians, s, and the median and the range of the ratios of each turn's pair."""
    found = []
    for name in ACTIONS:
        line: dict[str, Any] = {"action": name}
        for value in ("work_s", "rest_s"):
            of = {way: [row[value] for row in rows if (row["way"], row["action"]) == (way, name)] for way in WAYS}
            ratios = sorted(ours / dashs for ours, dashs in zip(*of.values(), strict=True))
            line |= {f"{way}_{value}": round(statistics.median(each), 3) for way, each in of.items()}
            line[f"ratio_{value}"] = [round(each, 3) for each in (statistics.median(ratios), ratios[0], ratios[-1])]
        found.append(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs=2, type=Path)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    ports = [free_port() for _ in WAYS]
    as_dash_has_them(ports[1])
    query = "?" + urlencode([("run", path.name) for path in given.recordings])
    with browser() as page:
        page.set_script_timeout(60)
        page.execute_cdp_cmd("Performance.enable", {})
        addresses = {}
        for way, port in zip(WAYS, ports, strict=True):
            store_is_read(served(given.recordings, port), page)
            addresses[way] = f"http://127.0.0.1:{port}/{query}"
        rows = measured(page, addresses, given.turns)
    found = summary(rows)
    for line in found:
        print(*(f"{name} {value}" for name, value in line.items()), sep="  ")
    if given.json:
        told = {"date": f"{datetime.date.today()}", "machine": machine(), "summary": found, "rows": rows}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
