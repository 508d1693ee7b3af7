"""Twenty concurrent readers for ten minutes: errors, latencies, and whether the server's memory stays flat.

The server is `intertoken dashboard` in a separate process, over the sample recordings. Its readers are threads that
send the HTTP requests of a browser: they open pages, zoom, pan and step through tokens, and read the gap, the syncs
with their predictions, and what-ifs, with a pause of up to a second between requests. Memory is the anonymous memory
of the process (RssAnon), sampled every second; it is flat if a line fitted to the second half rises by less than 2 %.
A status other than 200 and 204, or an answer that takes more than 30 s, is an error.

With --hostile the server requires its token, and two clients that have it attack it, see `hostile_clients.py`. The
memory of the processes that read recordings is then sampled too. The server first receives as many uploads as it keeps.
Usage: python benchmarks/dashboard_soak.py [--clients 20] [--minutes 10] [--hostile] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
from dashboard_latency import WIDTH, Page, Server, children, memory_of, running
from read_nsys_sqlite import machine

SAMPLES: Final = Path(__file__).parents[1] / "sample_traces"
RUNS: Final = ("llama1b-sccc-graph", "llama1b-saaas-graph", "llama-1.1b-sccc-sequential-cuda",
               "llama-1.1b-aaag-sequential-cuda", "llama-1.1b-ggg-sequential-cuda")  # fmt: skip
FLAT: Final = 0.02
PAUSE: Final = 1.0  # s at most
POLLS: Final = 60
PATIENCE: Final = 30.0  # s for an answer
TOKEN: Final = "soaked-for-ten-minutes"
MARKS: Final = (1, 5, 10)  # minutes at which memory is reported
STRATEGIES: Final = ("saaas", "aaas", "aaag", "ggg")
_SHOWN: Final = 40  # lines of a traceback


class Reader(threading.Thread):
    """A client that reads recordings until told to stop."""

    def __init__(self, server: Server, seed: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.server, self.draw, self.halt = server, random.Random(seed), stop
        self.took: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.unfilled = 0

    def run(self) -> None:
        """Read until told to stop."""
        acts = [self._timeline, self._timeline, self._gap, self._syncs, self._what_if]
        while not self.halt.is_set():
            try:
                self.draw.choice(acts)()
            except (SystemExit, Exception) as problem:  # every error is counted
                self.errors[f"{type(problem).__name__}: {problem}"[:200]] += 1

    def _search(self, runs: int) -> str:
        return "?" + urlencode([("run", run) for run in self.draw.sample(RUNS, runs)])

    def _timed(self, name: str, work: Callable[[], Any]) -> None:
        start = time.perf_counter()
        work()
        self.took[name].append(time.perf_counter() - start)
        self.halt.wait(self.draw.uniform(0, PAUSE))

    def _timeline(self) -> None:
        page = Page(self.server, search=self._search(self.draw.randint(1, 4)))
        self._timed("timeline: open", page.open)
        low, high = page.whole()
        for _ in range(8):
            if self.halt.is_set():
                return
            wide = max(int((high - low) * 10 ** self.draw.uniform(-4, 0)), 1000)
            start = self.draw.randint(low, max(high - wide, low))
            self._timed("timeline: zoom", partial(page.show, start, start + wide))
        for _ in range(4):
            if self.halt.is_set():
                return
            self._timed("timeline: next token", lambda: self._press(page, "token-on"))

    def _press(self, page: Page, button: str) -> None:
        page.state[f"{button}.n_clicks"] = (page.state.get(f"{button}.n_clicks") or 0) + 1
        page.call("view.data", f"{button}.n_clicks")
        page.call("timeline.figure", "screen.data")

    def _filled(self, address: str, runs: int, output: str, fields: str = "") -> None:
        """Open a page with a view, and poll until everything is computed."""
        page = Page(self.server, address, self._search(runs) + fields)
        page.call("view.data", "url.search")
        page.state["screen.data"] = {"scheme": "light", "width": WIDTH}
        page.call(output, "screen.data")
        for _ in range(POLLS):
            if page.state.get("poll.disabled", True) or self.halt.wait(0.4):
                return
            page.call(output, "poll.n_intervals")
        self.unfilled += 1  # requests of other clients were ahead of it

    def _gap(self) -> None:
        self._timed("gap", lambda: self._filled("gap/", self.draw.randint(1, 3), "steps.figure"))

    def _syncs(self) -> None:
        self._timed("syncs", lambda: self._filled("syncs/", 1, "syncs.rowData"))

    def _what_if(self) -> None:
        edit = f"&sync={self.draw.choice(STRATEGIES)}"
        self._timed("what-if", lambda: self._filled("whatif/", 1, "timeline.figure", edit))


@dataclass(frozen=True)
class Moment:
    """Seconds since the readers started, and MiB of the server and of the processes that read recordings."""

    at: float
    server: int
    readers: int


def watched(server: Server, seconds: float) -> list[Moment]:
    """Sample the memory every second."""
    start, seen = time.perf_counter(), []
    while (now := time.perf_counter() - start) < seconds:
        own = [pid for pid, command in children(server.process.pid).items() if "spawn_main" in command]
        readers = sum(memory_of(pid)["anonymous"] for pid in own)
        seen.append(Moment(now, server.memory()["anonymous"], readers))
        if len(seen) % 60 == 0:
            print(f"  {now:4.0f} s: {seen[-1].server} MiB, readers {readers}", file=sys.stderr, flush=True)
        time.sleep(1)
    return seen


def growth_of(seen: list[Moment]) -> dict[str, Any]:
    """Return the MiB at the middle and the end, from a line through the second half, and whether it is flat."""
    half = seen[len(seen) // 2 :]
    at, held = (np.array([getattr(moment, name) for moment in half], dtype=float) for name in ("at", "server"))
    slope, base = np.polyfit(at, held, 1)
    low, high = base + slope * at[0], base + slope * at[-1]
    growth = high / low - 1
    return {
        "half_mib": round(low, 1),
        "end_mib": round(high, 1),
        "growth": round(growth, 4),
        "flat": bool(growth < FLAT),
        "most_mib": max(moment.server for moment in seen),
        "most_mib_of_readers": max(moment.readers for moment in seen),
        "at_minutes": {
            str(minutes): {"server_mib": moment.server, "readers_mib": moment.readers}
            for minutes in MARKS
            for moment in [min(seen, key=lambda one: abs(one.at - 60 * minutes))]
            if abs(moment.at - 60 * minutes) < 5
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=SAMPLES)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        place = Path(name)
        temporary = place / "temporary"
        temporary.mkdir()
        files = _corpus(place / "hostile") if options.hostile else []
        token = [] if options.hostile else ["--no-token"]
        command = [sys.executable, "-m", "tracer.cli", "dashboard", str(SAMPLES), "--port", "0", "--no-open",
                   "--cache", str(place / "cache"), *token]  # fmt: skip
        environment = os.environ | {"INTERTOKEN_TOKEN": TOKEN, "TMPDIR": str(temporary)}
        with running(Server(command, environment=environment, patience=PATIENCE)) as server:
            server.find_port()
            server.drain()
            if options.hostile:
                server.log_in(TOKEN)
            Page(server, search=f"?run={RUNS[0]}").open()
            if options.hostile:
                _fill(server, temporary, place)
            stop = threading.Event()
            readers = [Reader(server, seed, stop) for seed in range(options.clients)]
            for reader in readers:
                reader.start()
            with ProcessPoolExecutor(2, get_context("spawn")) as others:
                hostile = attacked(server, temporary, files, options.minutes * 60, others) if options.hostile else {}
                seen = watched(server, options.minutes * 60)
            stop.set()
            for reader in readers:
                reader.join(120)
            found = result(readers, seen, options) | {name: each.result() for name, each in hostile.items()}
            found |= {"commit": commit.stdout.strip(), "load_before": round(load, 1)}
            lines = list(server.log)
            at = [number for number, line in enumerate(lines) if "Traceback" in line]
            texts = ["".join(lines[number : number + _SHOWN]) for number in at]
            found["log"] = {"lines": len(lines), "tracebacks": len(at), "texts": texts}
        found["left_over"] = [path.name for path in temporary.iterdir()]
    report(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def attacked(
    server: Server, temporary: Path, files: list[Path], seconds: float, processes: ProcessPoolExecutor
) -> dict[str, Future[dict[str, Any]]]:
    """Start the hostile clients; return what they will have seen."""
    import hostile_clients  # its dependencies are not needed by the readers

    target = hostile_clients.Target(server.port, server.cookie, server.process.pid, temporary)
    return {
        "hostile_uploads": processes.submit(hostile_clients.upload, target, files, seconds),
        "hostile_callbacks": processes.submit(hostile_clients.ask_callbacks, target, list(RUNS), seconds),
    }


def _fill(server: Server, temporary: Path, place: Path) -> None:
    """Upload as many recordings as the server keeps, before its memory is sampled."""
    import hostile_clients

    hostile_clients.fill(hostile_clients.Target(server.port, server.cookie, server.process.pid, temporary), place)


def _corpus(place: Path) -> list[Path]:
    import hostile_clients

    return list(hostile_clients.corpus(place))


def result(readers: list[Reader], seen: list[Moment], options: argparse.Namespace) -> dict[str, Any]:
    took: dict[str, list[float]] = defaultdict(list)
    errors: Counter[str] = Counter()
    for reader in readers:
        errors += reader.errors
        for name, seconds in reader.took.items():
            took[name] += seconds
    actions = {name: {"times": len(seconds), **_percentiles(seconds)} for name, seconds in sorted(took.items())}
    return {
        "benchmark": "dashboard_soak",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "clients": options.clients,
        "minutes": options.minutes,
        "errors": dict(errors),
        "unfilled_after_polls": sum(reader.unfilled for reader in readers),
        "actions": actions,
        "memory": growth_of(seen),
    }


def _percentiles(seconds: list[float]) -> dict[str, int]:
    return {f"p{q}_ms": round(float(np.percentile(seconds, q)) * 1e3) for q in (50, 95)}


def report(found: dict[str, Any]) -> None:
    print(f"{found['clients']} readers, {found['minutes']:g} minutes, {sum(found['errors'].values())} errors")
    for name, row in found["actions"].items():
        print(f"  {name:22} {row['times']:6} times, p50 {row['p50_ms']:6} ms, p95 {row['p95_ms']:6} ms")
    for name, times in found["errors"].items():
        print(f"  {times} × {name}")
    print(f"  {found['unfilled_after_polls']} pages not filled after {POLLS} polls")
    memory = found["memory"]
    grown = f"{memory['half_mib']} MiB at the middle, {memory['end_mib']} at the end ({memory['growth']:+.1%})"
    print(f"  memory: {grown}, at most {memory['most_mib']}: {'flat' if memory['flat'] else 'not flat'}")
    print(f"  processes that read recordings: at most {memory['most_mib_of_readers']} MiB; {memory['at_minutes']}")
    for name in ("hostile_uploads", "hostile_callbacks"):
        if name in found:
            print(f"  {name}: {json.dumps(found[name])}")
    print(f"  log: {found['log']}; left over: {found['left_over']}")


if __name__ == "__main__":
    main()
