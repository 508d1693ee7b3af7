"""The dashboard over ten million events: time to first view, zooming, panning and memory, compared with nsys-ai.

The trace is that of `ten_million.py`. Each server runs in a separate process and receives the HTTP requests of its
page: ours for the view and its drawing, nsys-ai's `timeline-web` for the 5 s tiles that a view overlaps, each with the
number of buckets that its page would request and, as there, only once. Views are random (seeded), with widths from the
whole run down to 1 µs, log-uniform. Ours then runs again with an active search and a selected event. No browser draws
anything here. The time to first view counts from the start of the process; the other figures cover all repeats. On a
machine with other work the whole may be run before it, with `chrt -r 1`; the result says so.
Usage: python benchmarks/dashboard_latency.py [--events 10000000] [--views 200] [--repeats 3] [--made DIR]
       [--python NSYS_AI_VENV/bin/python] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from read_nsys_sqlite import machine
from ten_million import long_trace

from tracer import formats

WIDTH: Final = 1200  # page width, px
SHORTEST: Final = 1_000  # ns
SEARCHED: Final = "mul_mat"
TILE: Final = 5  # s: the tile size of nsys-ai's page
PATIENCE: Final = 300.0  # s for a first view, and for all views of a repeat
Answer = tuple[float, float, int]
"""Seconds, CPU seconds of the server, and bytes received."""


def _ran(thread: Path) -> int:
    """Return the nanoseconds that a thread has run; 0 if it has just ended."""
    try:
        return int((thread / "schedstat").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError):
        return 0


class Server:
    """A program that serves a page on loopback, and its HTTP client."""

    def __init__(
        self, command: list[str], port: int = 0, directory: Path | None = None,
        environment: dict[str, str] | None = None, patience: float = PATIENCE,
    ) -> None:  # fmt: skip
        self.start = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=directory, env=environment
        )
        self.port, self.patience, self.cookie = port, patience, ""
        self.log: deque[str] = deque(maxlen=100_000)

    def find_port(self) -> None:
        """Read the port from the output of the dashboard."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                self.port = int(found[1])
                return
        raise SystemExit("the dashboard did not start")

    def drain(self) -> None:
        """Drain the server's output, so that it never blocks; `log` keeps the latest lines."""
        assert self.process.stdout is not None
        threading.Thread(target=self.log.extend, args=(self.process.stdout,), daemon=True).start()

    def ask(self, path: str, body: Any = None) -> tuple[Answer, bytes]:
        """Send a GET request, or a POST request with a body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        start, before = time.perf_counter(), self.processor()
        data, headers = (None, {}) if body is None else (json.dumps(body), {"Content-Type": "application/json"})
        headers |= {"Cookie": self.cookie} if self.cookie else {}
        connection.request("GET" if body is None else "POST", path, data, headers)
        response = connection.getresponse()
        text = response.read()
        took, spent = time.perf_counter() - start, self.processor() - before
        connection.close()
        if response.status not in (200, 204):
            raise SystemExit(f"{path}: {response.status} {text[:300]!r}")
        return (took, spent, len(text)), text

    def log_in(self, token: str) -> None:
        """Open a session for the following requests."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        connection.request("GET", f"/login?token={token}")
        self.cookie = (connection.getresponse().getheader("Set-Cookie") or "").split(";")[0]
        connection.close()

    def processor(self) -> float:
        """Return the CPU seconds of its threads, see schedstat in proc(5)."""
        return sum(map(_ran, Path(f"/proc/{self.process.pid}/task").iterdir())) / 1e9

    def memory(self) -> dict[str, int]:
        """Return MiB: resident, anonymous (not backed by droppable files), and peak."""
        return memory_of(self.process.pid)

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(30)


def memory_of(pid: int) -> dict[str, int]:
    """Return the MiB of a process, see `Server.memory`; zeros if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        lines = []
    held = Counter({line.split(":")[0]: int(line.split()[1]) // 1024 for line in lines if line.endswith("kB")})
    return {"resident": held["VmRSS"], "anonymous": held["RssAnon"], "peak": held["VmHWM"]}


def children(pid: int) -> dict[int, str]:
    """Return the child processes of a process and their commands, "" for those that have ended."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in task.read_text().split():
                found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
    return found


@contextmanager
def running(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.stop()


class Page:
    """The client side of Dash's protocol for our page at `address`, by default the first, else such as "gap/"."""

    def __init__(self, server: Server, address: str = "", search: str = "") -> None:
        self.server, self.address = server, address
        server.ask(f"/{address}")
        server.ask(f"/{address}_dash-layout")
        self.callbacks = json.loads(server.ask(f"/{address}_dash-dependencies")[1])
        self.state: dict[str, Any] = {
            "runs.dashGridOptions": {"loading": True}, "url.pathname": f"/{address}", "url.search": search,
        }  # fmt: skip

    def call(self, output: str, changed: str) -> Answer:
        """Run the callback of `output` as after a change of `changed`, and keep its answer."""
        callback = next(c for c in self.callbacks if output in c["output"].strip(".").split("..."))
        names = [name.split(".") for name in callback["output"].strip(".").split("...")]
        given = {
            kind: [{**known, "value": self.state.get(f"{known['id']}.{known['property']}")} for known in callback[kind]]
            for kind in ("inputs", "state")
        }
        body = {
            "output": callback["output"], "outputs": [{"id": key, "property": name} for key, name in names],
            "changedPropIds": [changed], **given,
        }  # fmt: skip
        answer, text = self.server.ask(f"/{self.address}_dash-update-component", body)
        for key, values in (json.loads(text)["response"] if text else {}).items():
            self.state |= {f"{key}.{name}": value for name, value in values.items()}
        return answer

    def open(self) -> None:
        """Open the page and wait until the timeline is drawn."""
        start = time.perf_counter()
        while not self.state.get("timeline.figure", {}).get("data"):
            self.call("runs.rowData", "reading.n_intervals")
            self.call("view.data", "listed.data")
            if (self.state.get("view.data") or {}).get("runs"):
                self.state["screen.data"] = {"scheme": "light", "width": WIDTH}
                self.call("timeline.figure", "screen.data")
            else:
                time.sleep(0.2)
            if time.perf_counter() - start > PATIENCE:
                raise SystemExit("no first view")

    def whole(self) -> tuple[int, int]:
        """Show the whole run; return its range, ns."""
        self.state["show-all.n_clicks"] = (self.state.get("show-all.n_clicks") or 0) + 1
        self.call("view.data", "show-all.n_clicks")
        low, high = self.state["view.data"]["range"]
        self.show(low, high)
        return low, high

    def show(self, low: int, high: int) -> Answer:
        """Request what one zoom needs: the new view and its drawing."""
        self.state["timeline.relayoutData"] = {"xaxis.range[0]": low / 1e9, "xaxis.range[1]": high / 1e9}
        view, drawing = self.call("view.data", "timeline.relayoutData"), self.call("timeline.figure", "screen.data")
        return view[0] + drawing[0], view[1] + drawing[1], drawing[2]

    def search(self, words: str) -> list[Answer]:
        """Search by name and go to the first match, which stay active. Then request the number of matches."""
        self.state["asked.data"] = {"what": "next", "find": words}
        view, drawing = self.call("view.data", "asked.data"), self.call("timeline.figure", "screen.data")
        return [view, drawing, self.call("found.children", "chosen.data")]


class Tiles:
    """The requests of nsys-ai's page."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.asked: set[tuple[int, int]] = set()

    def open(self) -> None:
        """Request everything for the first view."""
        while True:
            try:
                self.server.ask("/")
                break
            except OSError:
                if self.server.process.poll() is not None or time.perf_counter() - self.server.start > PATIENCE:
                    raise SystemExit("nsys-ai's timeline-web did not start") from None
                time.sleep(0.2)
        meta = json.loads(self.server.ask("/api/meta")[1])
        self.origin = int(meta["time_range_ns"][0])
        self.show(self.origin, self.origin + TILE * 10**9)

    def show(self, low: int, high: int) -> Answer:
        """Request what one zoom needs."""
        took, spent, size = 0.0, 0.0, 0
        for tile in range(low // (TILE * 10**9), -(-high // (TILE * 10**9))):
            share = TILE / max((high - low) / 1e9, 0.001)
            buckets = max(64, min(100_000, round(WIDTH * share)))
            if (tile, buckets) not in self.asked:
                self.asked.add((tile, buckets))
                query = f"start_s={tile * TILE}&end_s={(tile + 1) * TILE}&max_buckets={buckets}&kernels=1&nvtx=0"
                answer, _ = self.server.ask(f"/api/data?{query}")
                took, spent, size = took + answer[0], spent + answer[1], size + answer[2]
        return took, spent, size


def views(low: int, high: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        width = int(np.exp(draw.uniform(np.log(SHORTEST), np.log(high - low))))
        start = int(draw.integers(low, max(high - width, low + 1)))
        yield start, start + width


def measured(page: Page | Tiles, wanted: Iterator[tuple[int, int]]) -> list[Answer]:
    """Return the answers received within `PATIENCE`."""
    end, answers = time.perf_counter() + PATIENCE, []
    for low, high in wanted:
        answers.append(page.show(low, high))
        if time.perf_counter() > end:
            break
    return answers


def statistics_of(answers: list[Answer]) -> dict[str, Any]:
    seconds, spent, sizes = (np.array(column) for column in zip(*answers, strict=True))
    return {
        "views": len(answers),
        "ms": _spread(seconds * 1e3),
        "processor_ms": _spread(spent * 1e3),
        "payload_kb": _spread(sizes / 1e3),
    }


def _spread(values: Any) -> dict[str, float]:
    p50, p95, worst = (round(float(q), 1) for q in np.percentile(values, (50, 95, 100)))
    return {"p50": p50, "p95": p95, "worst": worst}


def ours(source: Path, directory: Path, count: int, repeats: int) -> dict[str, Any]:
    first: dict[str, list[float]] = {"cold": [], "warm": []}
    held: dict[str, dict[str, int]] = {}
    answers: list[Answer] = []
    searched: list[Answer] = []
    first_match: list[float] = []
    for repeat in range(repeats):
        for temperature in ("cold", "warm"):
            command = [sys.executable, "-m", "tracer.cli", "dashboard", str(source), "--port", "0", "--no-open"]
            cache = str(directory / f"cache-{repeat}")
            with running(Server([*command, "--no-token", "--cache", cache])) as server:
                server.find_port()
                page = Page(server)
                page.open()
                first[temperature].append(time.perf_counter() - server.start)
                if temperature == "warm":
                    answers += measured(page, views(*page.whole(), count, repeat))
                    whole = page.whole()
                    first_match += [sum(answer[0] for answer in page.search(SEARCHED))]
                    searched += measured(page, views(*whole, count, repeat))
                else:
                    held["reader, after a cold start"] = max(
                        map(memory_of, children(server.process.pid)), key=lambda memory: memory["peak"]
                    )
                held[f"after {'a cold start' if temperature == 'cold' else f'{count} views'}"] = server.memory()
    kept = sum(path.stat().st_size for path in (directory / "cache-0").rglob("*") if path.is_file())
    return {
        "first_view_s": {name: [round(s, 2) for s in each] for name, each in first.items()},
        **statistics_of(answers),
        "with_a_search": {"first_match_s": [round(s, 2) for s in first_match], **statistics_of(searched)},
        "memory_mib": held,
        "cache_mb": round(kept / 1e6),
    }


def nsys_ai(python: Path, profile: Path, directory: Path, count: int) -> dict[str, Any]:
    """Measure one cold start, which builds its cache, and one warm start."""
    os.link(profile, linked := directory / "profile.sqlite")
    first: dict[str, float] = {}
    found: dict[str, Any] = {}
    for port, temperature in ((18144, "cold"), (18145, "warm")):
        command = [str(python.parent / "nsys-ai"), "timeline-web", str(linked), "--port", str(port), "--no-browser"]
        with running(Server(command, port, directory)) as server:
            page = Tiles(server)
            try:
                page.open()
            except (SystemExit, OSError) as problem:
                return {"first_view_s": first, "problem": str(problem)}
            first[temperature] = round(time.perf_counter() - server.start, 2)
            if temperature == "warm":
                span = json.loads(server.ask("/api/meta")[1])["time_range_ns"]
                found = statistics_of(measured(page, views(int(span[0]), int(span[1]), count, 0)))
            memory = server.memory()
    return {"first_view_s": first, **found, "memory_mib": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--made", type=Path, help="directory with its source (parquetdir) and written.sqlite")
    parser.add_argument("--python", type=Path, help="Python with nsys-ai; without it only ours is measured")
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        made = options.made or directory
        if options.made is None:
            trace = long_trace(options.events)
            formats.write(trace, made / "source")
            formats.write(trace, made / "written.sqlite")
            del trace
        events = len(formats.read(made / "source", whole=False))
        result: dict[str, Any] = {"intertoken": ours(made / "source", directory, options.views, options.repeats)}
        if options.python:
            result["nsys-ai"] = nsys_ai(options.python, made / "written.sqlite", directory, options.views)
    for tool, found in result.items():
        print(tool, json.dumps(found, indent=2))
    if options.json:
        facts = {
            "benchmark": "dashboard_latency", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "events": events, "repeats": options.repeats, "load_before": round(load, 1),
            "before_other_work": os.sched_getscheduler(0) == os.SCHED_RR, "results": result,
            "machine": machine(),
        }  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
