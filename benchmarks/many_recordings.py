"""A folder of 54 recordings, each another file: how soon the two of a link are shown, and when the rest is read.

The recordings are copies of the samples under other names, with other contents of run.json. The command is started
anew each time, without a cache (cold) and then with one that a run before has filled (warm). Seconds from the page's
address being opened to the two timelines drawn, and to the last recording read.
Usage: python benchmarks/many_recordings.py [--count 54] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from page_screens import SAMPLES, browser
from read_nsys_sqlite import machine
from selenium import webdriver

NAMES: Final = (
    "llama1b-sccc-graph",
    "llama1b-saaas-graph",
    "vllm-b8-graph",
    "vllm-b8-graph-nvtx",
    "transformers-static",
)
DRAWN: Final = """
const plot = document.querySelector("#timeline .js-plotly-plot"), marks = plot?.layout?.annotations || [];
return marks.filter((a) => a.name === "heading").length === 2 && Boolean(plot.querySelector(".barlayer path"));
"""


def copies(folder: Path, count: int) -> list[str]:
    """Make the recordings; their names."""
    names = []
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        names.append(f"{number:02}-{name}")
        shutil.copytree(SAMPLES / name, folder / names[-1], ignore=shutil.ignore_patterns("node"))
        told = json.loads((folder / names[-1] / "run.json").read_text())
        (folder / names[-1] / "run.json").write_text(json.dumps(told | {"copy": number}))
    return names


def opened(page: webdriver.Chrome, folder: Path, cache: Path, pair: list[str]) -> dict[str, float]:
    """Start the command, open the link, and wait for both moments."""
    command = [sys.executable, "-m", "tracer.cli", "dashboard", str(folder), "--no-open", "--no-token", "--port", "0",
               "--cache", str(cache)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if "http://" in line)
            address = "http://" + line.split("http://")[1].split()[0].rstrip("/")
            page.get(f"{address}/healthz")
            begin = time.perf_counter()
            page.get(f"{address}/?{'&'.join(f'run={name}' for name in pair)}")
            while not page.execute_script(DRAWN):
                time.sleep(0.02)
            shown = time.perf_counter() - begin
            while True:
                with urlopen(f"{address}/healthz") as answer:
                    runs = json.load(answer)["runs"]
                if runs["read"] == runs["total"]:
                    return {"pair_s": shown, "all_s": time.perf_counter() - begin}
                time.sleep(0.1)
        finally:
            page.get("about:blank")
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=54)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as place, browser() as page:
        names = copies(Path(place) / "runs", given.count)
        pair = [names[-2], names[-4]]
        for repeat in range(given.repeats):
            for kind in found:
                found[kind].append(opened(page, Path(place) / "runs", Path(place) / f"cache{repeat}", pair))
                print(kind, found[kind][-1], flush=True)
    if given.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        facts = {"benchmark": "many_recordings", "date": date, "count": given.count, "seconds": found}
        given.json.write_text(json.dumps(facts | {"machine": machine()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
