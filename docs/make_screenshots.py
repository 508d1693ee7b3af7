"""Make the pictures of the README from the sample recordings: `python docs/make_screenshots.py [NAME.png ...]`.

Needs Chromium and its driver on PATH.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import urlopen

import waitress
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions as expected
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.app import create_app
from dashboard.pages.graph import GraphView
from dashboard.reading.store import runs_to_compare
from dashboard.report import report_page
from dashboard.view import View

HERE = Path(__file__).parent
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
)  # fmt: skip
TIMELINE = View(runs=("llama1b-sccc-graph", "llama1b-saaas-graph"), range=(-40_000, 210_000), theme="light")
GRAPH = GraphView(run="llama-1.1b-aaag-branches-cuda · node", node="blk.1.cache_k (set)", theme="light")
ON_TWO_GPUS, ON_HOST = "cuda-c4096-p2048-x2 · node", "cuda-ngl13 · node"
PIPELINE = View(
    runs=tuple(f"llama-1.1b-{strategy}-sequential-{ON_TWO_GPUS}" for strategy in ("sccc", "aaag")),
    token=0, align="start", range=(-66_000_000, 2_500_000), theme="light",
)  # fmt: skip
HYBRID = View(
    runs=tuple(f"llama-1.1b-{strategy}-sequential-{ON_HOST}" for strategy in ("sccc", "aaag")), theme="light"
)  # fmt: skip
VLLM = View(runs=("vllm-b8-graph-nvtx",), theme="light")
TRANSFORMERS = View(runs=("transformers-static", "transformers-eager"), theme="dark")
DRAWN = "#timeline .barlayer path"
PICTURES = {
    "timeline.png": (f"/{TIMELINE.query()}", (1440, 1320), None, DRAWN, "#compare-figures .largest"),
    "vllm.png": (f"/{VLLM.query()}", (1440, 900), None, DRAWN),
    "transformers.png": (f"/{TRANSFORMERS.query()}", (1440, 900), None, DRAWN, "#compare-figures table"),
    "graph.png": (f"/{GRAPH.link()}", (1500, 1250), None, "#to-timeline", "#memory .barlayer path"),
    "pipeline.png": (f"/{PIPELINE.query()}", (1500, 2600), "#timeline", DRAWN),
    "hybrid.png": (f"/{HYBRID.query()}", (1500, 2600), "#timeline", DRAWN),
}
"""Address, size of the window, the part that is taken (None for all), and what is there once the page is drawn."""
PLACE = "return Object.values(document.querySelector(arguments[0]).getBoundingClientRect().toJSON())"
REPORT = [f"llama-1.1b-{strategy}-sequential-cuda" for strategy in ("sccc", "saaas", "aaag")]


def main() -> None:
    samples = HERE.parent / "sample_traces"
    server = waitress.create_server(create_app([samples]).server, host="127.0.0.1", port=0, threads=12)
    threading.Thread(target=server.run, daemon=True).start()
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    with tempfile.TemporaryDirectory() as folder:
        for flag in (*FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        report = Path(folder) / "report.html"
        report.write_text(report_page(runs_to_compare(samples / name for name in REPORT)), encoding="utf-8")
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        address = f"http://127.0.0.1:{server.effective_port}"
        try:
            page.get(address)  # reading begins when a page is first opened
            while not all_read(address):
                time.sleep(0.5)
            for name, (link, *rest) in PICTURES.items():
                if name in (sys.argv[1:] or PICTURES):
                    take(page, name, address + link, *rest)
            if "report.png" in (sys.argv[1:] or ["report.png"]):
                take(page, "report.png", report.as_uri(), (1300, 1382), None, "#token .barlayer path")
        finally:
            page.quit()
    server.close()


def all_read(address: str) -> bool:
    with urlopen(f"{address}/healthz") as answer:
        runs = json.load(answer)["runs"]
    return bool(runs["read"] == runs["total"])


def take(
    page: webdriver.Chrome, name: str, address: str, size: tuple[int, int], taken: str | None, *drawn: str
) -> None:
    page.set_window_size(*size)
    page.get(address)
    for part in drawn:
        WebDriverWait(page, 30).until(expected.presence_of_element_located((By.CSS_SELECTOR, part)))
    place, before = None, [0]
    while place != before:  # a graph's place is settled after its elements are there
        time.sleep(1.5)
        place, before = page.execute_script(PLACE, taken or "main"), place
    target = str(HERE / name)
    if taken is None:
        page.save_screenshot(target)
    else:
        page.find_element(By.CSS_SELECTOR, taken).screenshot(target)
    print(target)


if __name__ == "__main__":
    main()
