"""A gesture on the dashboard's timeline in a real Chromium: how soon a frame is painted, and what is asked meanwhile.

A gesture is 2 s of wheel events at the pointer, through the browser's own input, zooming in and out in turn. An event
counts from its time stamp, when the browser got it, to the end of the frame that it changed: the first task after that
frame's callbacks, style, layout and paint; `next_frame_ms` is up to the callbacks of the frame after it. On the same
page in the same run the timeline is moved as it is (what is drawn is shifted and stretched), and by `Plotly.relayout`
of its axis. `floor` is the same wheel over a plain rectangle whose opacity it changes: what the browser itself takes on
this machine. Beside them, with --before, the page of an earlier commit, where each zoom was drawn by the server: from
the press of a button to the new drawing; and with --nsys-ai its timeline-web under the same wheel, of the first
recording. On a machine with other work the whole may be run before it, with `chrt -r 1`; the result says so.
With --within, traces and caches stay in a directory for the next call, so that only the first one makes and reads them.
Usage: python benchmarks/timeline_gesture.py [TRACE ...] [--events 25000 10000000] [--gestures 5] [--before COMMIT]
       [--nsys-ai VENV/bin/python] [--within DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from dashboard_latency import Server, Tiles
from read_nsys_sqlite import machine
from selenium import webdriver
from ten_million import long_trace

from tracer import formats

ROOT: Final = Path(__file__).parents[1]
LONG: Final = 2.0  # s
TURN: Final = 0.4  # s in one direction; an odd number of turns ends at another range than it began
VIEWS: Final = 5  # first views, each in a new page; before them two in which the browser compiles the scripts
BY: Final = 40  # px of a wheel event
PRESSES: Final = 12
WATCH: Final = """
window.took = []; window.after = []; window.frames = []; window.last = 0;
performance.clearResourceTimings(); performance.setResourceTimingBufferSize(100000);
window.watched = window.watched || [];
window.watched.forEach((stop) => stop());
const relayout = arguments[0] === 'relayout', plot = document.querySelector('#timeline .js-plotly-plot');
let target = null, waiting = 0;
const wheel = (event) => {
  const start = window.last = event.timeStamp;
  requestAnimationFrame(() => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = () => window.took.push(performance.now() - start);
    port2.postMessage(null);
    requestAnimationFrame(() => window.after.push(performance.now() - start));
  });
  if (!relayout) return;
  event.preventDefault(); event.stopImmediatePropagation();
  const {xaxis} = plot._fullLayout, [low, high] = target || xaxis.range;
  const wide = (high - low) * Math.exp(event.deltaY * 0.0018), from = low + (high - low - wide) * 0.4;
  target = [from, from + wide];
  waiting = waiting || requestAnimationFrame(() => {
    waiting = 0;
    const emit = plot._ev.emit; plot._ev.emit = () => true;
    window.Plotly.relayout(plot, {'xaxis.range': target}).then(() => (plot._ev.emit = emit));
  });
};
window.addEventListener('wheel', wheel, {capture: true, passive: !relayout});
let on = true;
const frame = (at) => { window.frames.push(at); if (on) requestAnimationFrame(frame); };
requestAnimationFrame(frame);
window.watched = [() => { on = false; window.removeEventListener('wheel', wheel, {capture: true}); }];
"""
SEEN: Final = """
const done = arguments[0];
window.watched.forEach((stop) => stop());
const {took, after, frames, last} = window, moving = () => document.querySelector('#timeline .moving');
const asked = () => performance.getEntriesByType('resource').filter((e) => e.name.includes('_dash-update')).length;
const answer = (refined) => setTimeout(() => done({took, after, frames, refined, asked: asked()}), 700);
const look = () => moving() && performance.now() - last < 15000 ? requestAnimationFrame(look)
  : answer(performance.now() - last);
look();
"""
PRESS: Final = """
const done = arguments[1], plot = document.querySelector('#timeline .js-plotly-plot');
const range = () => plot._fullLayout.xaxis.range.join(), before = range(), start = performance.now();
document.getElementById(arguments[0]).click();
const wait = () => range() === before && performance.now() - start < 15000 ? requestAnimationFrame(wait)
  : requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
wait();
"""
FIRST: Final = """
const found = performance.getEntriesByType('resource').filter((e) => e.name.includes('_dash-update'));
return [performance.now(), found.length, found.reduce((sum, e) => sum + e.decodedBodySize, 0)];
"""
PLAIN: Final = """
document.body.innerHTML = "<div id='plain' style='width: 1200px; height: 500px; background: gray'></div>";
const plain = document.getElementById('plain');
const change = () => (plain.style.opacity = 0.5 + Math.random() / 2);
window.addEventListener('wheel', (e) => { e.preventDefault(); requestAnimationFrame(change); }, {passive: false});
"""
BARS: Final = "return document.querySelectorAll('#timeline .barlayer path').length"


@contextmanager
def chromium() -> Iterator[Any]:
    """A Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,1100"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_script_timeout(60)
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def page_of(trace: Path, cache: Path, code: Path = ROOT) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A browser with the timeline of a recording, by the code of a directory, and what its first views took, warm."""
    command = [sys.executable, "-m", "tracer.cli", "dashboard", str(trace), "--port", "0", "--no-open", "--no-token"]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    server = Server([*command, "--cache", str(cache)], directory=code, environment=environment)
    try:
        server.find_port()
        server.drain()
        with chromium() as browser:
            views = []
            for _ in range(2 + VIEWS):
                browser.get("about:blank")
                browser.get(f"http://127.0.0.1:{server.port}/")
                until_drawn(browser)
                views.append(browser.execute_script(FIRST))
                time.sleep(1)  # the page is at rest
            times, requests, sizes = zip(*views[2:], strict=True)
            time.sleep(3)
            browser.execute_script("document.querySelector('#timeline').scrollIntoView({block: 'center'})")
            yield browser, {"first_view_ms": spread(times), "requests": max(requests), "kb": round(max(sizes) / 1e3, 1)}
    finally:
        server.stop()


def until_drawn(browser: Any) -> None:
    end = time.monotonic() + 300
    while not browser.execute_script(BARS):
        if time.monotonic() > end:
            raise SystemExit("no timeline")
        time.sleep(0.05)


def gesture(browser: Any, selector: str, way: str = "", number: int = 0) -> dict[str, Any]:
    """Wheel events over an element for a while, and what the page has seen of them; odd ones zoom out first."""
    browser.execute_script(WATCH, way)
    box = browser.execute_script(f"return document.querySelector('{selector}').getBoundingClientRect().toJSON()")
    at = {"type": "mouseWheel", "x": box["x"] + 0.4 * box["width"], "y": box["y"] + min(box["height"] / 2, 60)}
    begin = time.perf_counter()
    while (now := time.perf_counter() - begin) < LONG:
        by = BY if (int(now / TURN) + number) % 2 else -BY
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", {**at, "deltaX": 0, "deltaY": by})
    return dict(browser.execute_async_script(SEEN))


def measured(trace: Path, gestures: int, before: Path | None, cache: Path) -> dict[str, Any]:
    """What gestures on the timeline of one recording take."""
    with page_of(trace, cache / "now") as (browser, first):
        drawn = browser.execute_script(BARS)
        drag = "#timeline .nsewdrag"
        ours = [gesture(browser, drag, "", number) for number in range(gestures)]
        relayout = [gesture(browser, drag, "relayout", number) for number in range(gestures)]
    found = {
        "events": len(formats.read(trace, whole=False)),
        "bars": drawn,
        "first_view": first,
        "ours": frames(ours) | {
            "requests": [each["asked"] for each in ours], "refined_ms": spread([each["refined"] for each in ours])
        },
        "relayout": frames(relayout),
    }  # fmt: skip
    if before is not None:
        with page_of(trace, cache / "before", before) as (browser, first):
            keys = ["zoom-in", "zoom-out"] * (PRESSES // 2)
            zooms = [browser.execute_async_script(PRESS, key) for key in keys]
            found["before"] = {"first_view": first, "zoom_ms": spread(zooms)}
    return found


def floor(gestures: int) -> dict[str, Any]:
    """The same wheel over a plain rectangle."""
    with chromium() as browser:
        browser.get("about:blank")
        browser.execute_script(PLAIN)
        return frames([gesture(browser, "#plain") for _ in range(gestures)])


def nsys_ai(python: Path, trace: Path, gestures: int) -> dict[str, Any]:
    """The same wheel over nsys-ai's timeline."""
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        formats.write(formats.read(trace, whole=False), profile := Path(name) / "profile.sqlite")
        command = [str(python.parent / "nsys-ai"), "timeline-web", str(profile), "--port", "18146", "--no-browser"]
        server = Server(command, 18146, Path(name))
        try:
            server.drain()
            Tiles(server).open()
            browser.get("http://127.0.0.1:18146/")
            time.sleep(5)
            return frames([gesture(browser, "canvas") for _ in range(gestures)])
        finally:
            server.stop()


def frames(gestures: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all gestures' events how long they take to be painted, and how many frames there are in a second."""
    took, after = ([each for gesture in gestures for each in gesture[name]] for name in ("took", "after"))
    between = np.concatenate([np.diff(gesture["frames"]) for gesture in gestures])
    rate = round(1000 / between.mean(), 1)
    return {
        "wheel_events": len(took), "painted_ms": spread(took), "next_frame_ms": spread(after), "frames_per_s": rate
    }  # fmt: skip


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the 95th percentile and the worst."""
    p50, p95, worst = (round(float(q), 1) for q in np.percentile(values, (50, 95, 100)))
    return {"p50": p50, "p95": p95, "worst": worst}


def code_of(commit: str, directory: Path) -> Path:
    """The files of a commit."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    directory.mkdir()
    subprocess.run(["tar", "-x"], cwd=directory, input=archive, check=True)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--events", type=int, nargs="*", default=[], help="also the sample, so long")
    parser.add_argument("--gestures", type=int, default=5)
    parser.add_argument("--before", help="a commit in which the server drew each zoom")
    parser.add_argument("--nsys-ai", type=Path, help="the Python of a virtual environment with nsys-ai")
    parser.add_argument("--within", type=Path, metavar="DIR", help="keep traces and caches here")
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        directory = options.within or Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        before = None if options.before is None else code_of(options.before, Path(name) / "code")
        traces = [path.absolute() for path in options.traces]
        for events in options.events:
            traces.append(made := directory / f"{events}-events")
            if not made.exists():
                formats.write(long_trace(events), made)
        results: dict[str, Any] = {"floor": floor(options.gestures)}
        for trace in traces:
            cache = directory / f"cache-{trace.name}"
            results[trace.name] = found = measured(trace, options.gestures, before, cache)
            print(f"{trace.name}: {json.dumps(found)}", file=sys.stderr)
        if options.nsys_ai:
            results[traces[0].name]["nsys_ai"] = nsys_ai(options.nsys_ai, traces[0], options.gestures)
    print(json.dumps(results, indent=2))
    if options.json:
        facts = {
            "benchmark": "timeline_gesture", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "gestures": options.gestures, "before": options.before, "load_before": round(load, 1),
            "before_other_work": os.sched_getscheduler(0) == os.SCHED_RR, "results": results,
            "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
