"""A gesture on the dashboard's timeline in Chromium: time until a frame is painted, and requests made meanwhile.

A gesture is 2 s of wheel events, one per frame, zooming in and out at the pointer. A frame lasts from the wheel event
to the second animation frame after it, when the changes of the first one have been painted. Three methods on the same
page in the same run: ours (the drawing is shifted and scaled), `Plotly.relayout` of the axis per event, and one zoom by
button as before the page had gestures, from the request to the new drawing.
Usage: python benchmarks/timeline_gesture.py [TRACE ...] [--gestures 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from dashboard_latency import Server
from read_nsys_sqlite import machine
from selenium import webdriver

from tracer import formats

SAMPLE: Final = Path(__file__).parents[1] / "sample_traces" / "llama1b-sccc-node"
GESTURE: Final = """
const [way, done] = arguments, plot = document.querySelector('#timeline .js-plotly-plot');
const drag = plot.querySelector('.nsewdrag'), box = drag.getBoundingClientRect(),
  first = plot._fullLayout.xaxis.range;
const asked = () => performance.getEntriesByType('resource').filter((e) => e.name.includes('_dash-update')).length;
performance.clearResourceTimings(); performance.setResourceTimingBufferSize(100000);
const took = [], begin = performance.now(); let count = 0, range = [...first];
const emitted = plot._ev.emit; if (way === 'relayout') plot._ev.emit = () => true;
const frame = () => {
  const start = performance.now(), by = Math.floor((start - begin) / 500) % 2 ? 12 : -12;
  if (way === 'ours') {
    const at = {
      clientX: box.left + 0.4 * box.width, clientY: box.top + 20, deltaY: by, bubbles: true, cancelable: true };
    drag.dispatchEvent(new WheelEvent('wheel', at));
  } else {
    const [low, high] = range, wide = (high - low) * Math.exp(by * 0.0018), from = low + (high - low - wide) * 0.4;
    window.Plotly.relayout(plot, { 'xaxis.range': (range = [from, from + wide]) });
  }
  requestAnimationFrame(() => requestAnimationFrame(() => {
    took.push(performance.now() - start);
    if (performance.now() - begin < 2000) return frame();
    if (way !== 'ours') { plot._ev.emit = emitted; return done({ took, asked: asked(), refined: null }); }
    const rest = performance.now();
    const waits = () => plot.classList.contains('moving') && performance.now() - rest < 15000;
    const wait = () => waits() ? requestAnimationFrame(wait)
      : setTimeout(() => done({ took, asked: asked(), refined: refined }), 500);
    let refined;
    const look = () => {
      if (plot.classList.contains('moving')) requestAnimationFrame(look); else refined = performance.now() - rest;
    };
    look(); wait();
  }));
};
frame();
"""
SERVER: Final = """
const done = arguments[0], plot = document.querySelector('#timeline .js-plotly-plot');
const [low, high] = plot._fullLayout.xaxis.range, start = performance.now();
window.zooms = (window.zooms || 0) + 1;
const wide = (high - low) * (window.zooms % 2 ? 0.5 : 2), middle = (low + high) / 2;
const before = plot._fullLayout.xaxis.range.join();
const change = { 'xaxis.range[0]': middle - wide / 2, 'xaxis.range[1]': middle + wide / 2 };
window.dash_clientside.set_props('timeline', { relayoutData: change });
const wait = () => plot._fullLayout.xaxis.range.join() !== before
  ?
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)))
  : requestAnimationFrame(wait);
wait();
"""


def chromium() -> Any:
    """Start a headless Chromium."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,1100"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_script_timeout(60)
    return browser


def measured(trace: Path, gestures: int) -> dict[str, Any]:
    """Measure gestures on the timeline of one recording."""
    with tempfile.TemporaryDirectory() as cache:
        command = [
            sys.executable,
            "-m",
            "tracer.cli",
            "dashboard",
            str(trace),
            "--port",
            "0",
            "--no-open",
            "--no-token",
        ]
        server, browser = Server([*command, "--cache", cache]), chromium()
        try:
            server.find_port()
            server.drain()
            browser.get(f"http://127.0.0.1:{server.port}/")
            bars = "return document.querySelectorAll('#timeline .barlayer path').length"
            end = time.monotonic() + 300
            while not browser.execute_script(bars):
                if time.monotonic() > end:
                    raise SystemExit("no timeline")
                time.sleep(0.2)
            time.sleep(3)
            browser.execute_script("document.querySelector('#timeline').scrollIntoView({block: 'center'})")
            drawn = browser.execute_script(bars)
            ours = [browser.execute_async_script(GESTURE, "ours") for _ in range(gestures)]
            before = [browser.execute_async_script(SERVER) for _ in range(4 * gestures)]
            relayout = [browser.execute_async_script(GESTURE, "relayout") for _ in range(gestures)]
        finally:
            browser.quit()
            server.stop()
    refined = [each["refined"] for each in ours if each["refined"] is not None]
    return {
        "events": len(formats.read(trace, whole=False)),
        "bars": drawn,
        "ours": {**frames(ours), "requests": [e["asked"] for e in ours], "refined_ms": spread(refined)},
        "relayout": frames(relayout),
        "server_zoom_ms": spread(before),
    }


def frames(gestures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the duration of the frames of all gestures, and the frames per second."""
    took = [each for gesture in gestures for each in gesture["took"]]
    return {"frames": len(took), "frame_ms": spread(took), "frames_per_s": round(1000 * len(took) / sum(took), 1)}


def spread(values: list[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum."""
    p50, p95, worst = (round(float(q), 1) for q in np.percentile(values, (50, 95, 100)))
    return {"p50": p50, "p95": p95, "worst": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=[SAMPLE])
    parser.add_argument("--gestures", type=int, default=5)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    results = {trace.name: measured(trace, options.gestures) for trace in options.traces}
    print(json.dumps(results, indent=2))
    if options.json:
        facts = {
            "benchmark": "timeline_gesture", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "gestures": options.gestures, "load_before": round(load, 1), "results": results, "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
