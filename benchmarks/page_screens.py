"""Every page as a reader sees it first: on a phone, on a desk and on a large screen, light and dark, as pictures.

Each sample is opened in each page at each size and theme, and a picture of the window is taken; with --whole of the
whole page. Beside them positions.json says where on each overview the sentence, the figures and the timeline stand, px.
Usage: python benchmarks/page_screens.py OUT [--only PART ...] [--whole]
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import waitress
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from dashboard.app import create_app
from dashboard.view import View
from tracer.stored import Cache

SAMPLES: Final = Path(__file__).parents[1] / "sample_traces"
SIX: Final = tuple(f"llama-1.1b-{way}-sequential-cuda" for way in ("sccc", "saaas", "aaas", "aga", "aaeg", "ggg"))
SHOWN: Final = {
    "vllm": ("vllm-b1-graph",),
    "vllm-two": ("vllm-b8-graph-nvtx", "vllm-b8-torch"),
    "llama": ("llama1b-sccc-graph",),
    "llama-two": ("llama1b-sccc-graph", "llama1b-saaas-graph"),
    "transformers": ("transformers-static", "transformers-eager"),
    "six": SIX,
}
"""Name -> the runs that are shown."""
PAGES: Final = {
    "runs": "",
    "gap": "gap/",
    "syncs": "syncs/",
    "advice": "advice/",
    "whatif": "whatif/",
    "graph": "graph/",
}
SIZES: Final = ((390, 844), (1440, 900), (2560, 1440))
RESTS: Final = """
const busy = document.querySelector('[data-dash-is-loading="true"], .skeleton, #chips:empty') ||
  [...document.querySelectorAll(".ag-cell, main p")].some((e) => e.innerText.endsWith("…"));
const plots = [...document.querySelectorAll(".dash-graph")].filter((e) => e.checkVisibility());
return !busy && plots.every((e) => e.querySelector(".js-plotly-plot .main-svg"));
"""
PLACES: Final = """
const at = (e) => e && e.checkVisibility() ? Object.values(e.getBoundingClientRect().toJSON()).map(Math.round) : null;
return Object.fromEntries(["#chips", "#compare-words .answer", "#compare-figures table", "#timeline"]
  .map((selector) => [selector, at(document.querySelector(selector))]));
"""


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    with tempfile.TemporaryDirectory() as folder:
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}",
        ):
            options.add_argument(flag)
        page = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield page
        finally:
            page.quit()


def take(page: webdriver.Chrome, address: str, width: int, height: int, whole: bool, file: Path) -> Any:
    """Open an address in a window of that size, and take its picture once it rests; where its parts stand."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.get("about:blank")
    page.get(address)
    WebDriverWait(page, 20).until(
        lambda _: page.execute_script("return Boolean(document.querySelector('main section'))")
    )
    end = time.monotonic() + 40
    while time.monotonic() < end:
        time.sleep(0.7)
        if page.execute_script(RESTS):
            break
    picture = page.execute_cdp_cmd(
        "Page.captureScreenshot",
        {
            "format": "png",
            "captureBeyondViewport": whole,
            **(
                {
                    "clip": {
                        "x": 0,
                        "y": 0,
                        "width": width,
                        "height": page.execute_script("return document.documentElement.scrollHeight"),
                        "scale": 1,
                    }
                }
                if whole
                else {}
            ),
        },
    )
    file.write_bytes(base64.b64decode(picture["data"]))
    return page.execute_script(PLACES)


def store_is_read(address: str, page: webdriver.Chrome) -> None:
    """Wait until every recording is read, which begins when a page is first opened."""
    page.get(address)
    while True:
        with urlopen(f"{address}/healthz") as answer:
            runs = json.load(answer)["runs"]
        if runs["read"] == runs["total"]:
            return
        time.sleep(0.5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", action="append", default=[], help="part of the names of the pictures")
    parser.add_argument("--whole", action="store_true", help="the whole page instead of the window")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    paths = [SAMPLES / name for name in dict.fromkeys(name for runs in SHOWN.values() for name in runs)]
    with tempfile.TemporaryDirectory() as kept, browser() as page:
        server = waitress.create_server(
            create_app(paths, cache=Cache(Path(kept))).server, host="127.0.0.1", port=0, threads=8
        )
        threading.Thread(target=server.run, daemon=True).start()
        store_is_read(f"http://127.0.0.1:{server.effective_port}", page)
        places = {}
        for sample, runs in SHOWN.items():
            for name, part in PAGES.items():
                for width, height in SIZES:
                    for theme in ("light", "dark"):
                        picture = f"{name}-{sample}-{width}-{theme}"
                        if all(wanted in picture for wanted in given.only):
                            address = (
                                f"http://127.0.0.1:{server.effective_port}/{part}{View(runs=runs, theme=theme).query()}"
                            )
                            places[picture] = take(
                                page, address, width, height, given.whole, given.out / f"{picture}.png"
                            )
                            print(picture, places[picture], flush=True)
        server.close()
    (given.out / "positions.json").write_text(json.dumps(places, indent=1))


if __name__ == "__main__":
    main()
