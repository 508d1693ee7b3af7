"""The light recorder under ten minutes of serving: memory, disk and what is said of what is lost.

`vllm serve` runs under `intertoken record` without options, with random requests from several clients. Every few
seconds: resident memory of each process, memory of the rings, requests and tokens, and once a minute what
`intertoken watch` shows. Then Ctrl-C, as a user would; the recording that it leaves is read. The growth of each
process is that of its second half, by a line through its samples.

Needs vLLM and psutil. Usage: python benchmarks/light_soak.py -o FILE --model FOLDER [--seconds N] [--clients N]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
from record_engines import machine

EVERY: Final = 5.0  # s between samples
START: Final = 240  # s that the server may take to start
PORT: Final = 8123
SERVE: Final = (
    sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--tokens-only", "--load-format", "dummy",
    "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", "8", "--gpu-memory-utilization", "0.3",
    "--no-enable-prefix-caching", "--disable-uvicorn-access-log", "--host", "127.0.0.1", "--port", str(PORT),
)  # fmt: skip


class NotServing(Exception):
    """The server did not start."""


class Clients:
    """Threads that send one request after the other until told to stop."""

    def __init__(self, count: int) -> None:
        self.ended = threading.Event()
        self.requests, self.tokens, self.failures = 0, 0, list[str]()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._client, args=(seed,), daemon=True) for seed in range(count)]
        for thread in self.threads:
            thread.start()

    def _client(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self.ended.is_set():
            given = [draw.randrange(10, 31000) for _ in range(draw.randrange(8, 400))]
            wanted = draw.randrange(1, 300)
            sampling = {"temperature": 0.0, "max_tokens": wanted, "ignore_eos": True}
            try:
                asked("/inference/v1/generate", {"token_ids": given, "sampling_params": sampling})
            except OSError as problem:
                with self.lock:
                    self.failures.append(str(problem))
                time.sleep(0.5)
                continue
            with self.lock:
                self.requests, self.tokens = self.requests + 1, self.tokens + wanted
            if draw.random() < 0.1:
                time.sleep(draw.expovariate(2))

    def stop(self) -> None:
        """Wait until the last requests are answered."""
        self.ended.set()
        for thread in self.threads:
            thread.join(30)


def asked(path: str, body: dict[str, Any] | None = None) -> bytes:
    """Return the server's answer."""
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        read: bytes = answer.read()
        return read


def wait_until_ready(server: subprocess.Popen[str]) -> float:
    """Return how long the server took to start, s."""
    begun = time.monotonic()
    while time.monotonic() < begun + START and server.poll() is None:
        with suppress(OSError):
            asked("/health")
            return time.monotonic() - begun
        time.sleep(0.5)
    raise NotServing(f"vllm serve does not answer, exit code {server.poll()}")


def recordings() -> set[Path]:
    """Return the folders of the recordings that are being made."""
    return set(Path("/dev/shm").glob("intertoken-light-*"))


def rings(folders: set[Path]) -> dict[str, int]:
    """Return the allocated memory of each ring, bytes."""
    files = [path for folder in folders for path in folder.glob("*")]
    return {path.name: path.stat().st_blocks * 512 for path in files}


def sample(server: subprocess.Popen[str], clients: Clients, begun: float, folders: set[Path]) -> dict[str, Any]:
    """Return one row."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    resident = {}
    for process in processes:
        with suppress(psutil.Error):
            shared = process.memory_info()
            name = "recorder" if process.pid == server.pid else process.name()
            resident[f"{name} {process.pid}"] = {"rss": shared.rss, "private": shared.rss - shared.shared}
    return {"s": round(time.monotonic() - begun, 1), "memory": resident, "rings": rings(folders),
            "requests": clients.requests, "tokens": clients.tokens}  # fmt: skip


def growth(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the memory of each process at the end, MiB, and its growth in the second half, MiB/min."""
    half = rows[len(rows) // 2 :]
    found = {}
    for name in half[-1]["memory"]:
        points = [(row["s"] / 60, row["memory"][name]["private"] / 2**20) for row in half if name in row["memory"]]
        if len(points) > 2:
            slope = statistics.linear_regression(*zip(*points, strict=True)).slope
            found[name] = {"private_mib": round(points[-1][1], 1), "growth_mib_per_min": round(slope, 3)}
    return found


def intertoken(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "intertoken", *arguments], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=6)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so do their own
    serve = [part.format(model=options.model) for part in SERVE]
    with tempfile.TemporaryDirectory() as folder:
        trace, said = Path(folder, "recording"), Path(folder, "said")
        before = recordings()
        command = [sys.executable, "-m", "intertoken", "record", "--force", "-o", str(trace), "--", *serve]
        with said.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, text=True) as server:
            try:
                found = soak(server, options, before)
            except NotServing as problem:
                raise SystemExit(f"{problem}\n{said.read_text(errors='replace')[-3000:]}") from None
            finally:
                server.send_signal(signal.SIGINT)
                begun = time.monotonic()
                with suppress(subprocess.TimeoutExpired):
                    server.wait(90)
                server.kill()
        text = re.sub(r"\x1b\[[0-9;]*m", "", said.read_text(errors="replace"))
        if "rows" not in found:
            raise SystemExit(text[-3000:])
        lines = [line for line in text.splitlines() if "intertoken" in line or "process " in line or "record" in line]
        found |= {"code": server.returncode, "ended_in_s": round(time.monotonic() - begun, 1), "said": lines[-12:]}
        if trace.exists():
            bytes_ = sum(path.stat().st_size for path in trace.rglob("*") if path.is_file())
            found |= {"recording_mib": round(bytes_ / 2**20, 1), "info": intertoken("info", str(trace)),
                      "gaps": intertoken("gaps", str(trace))}  # fmt: skip
    facts = {"benchmark": "light_soak", "date": datetime.date.today().isoformat(), **machine(),
             "clients": options.clients, "commit": os.environ.get("COMMIT", ""), **found}  # fmt: skip
    options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shown = {key: value for key, value in facts.items() if key not in ("rows", "info", "gaps", "watch")}
    print(json.dumps(shown, indent=1), *found["watch"][-1:], facts.get("info", ""), facts.get("gaps", ""), sep="\n")


def soak(server: subprocess.Popen[str], options: argparse.Namespace, before: set[Path]) -> dict[str, Any]:
    """Serve for the given time."""
    took = wait_until_ready(server)
    folders = recordings() - before
    print(f"serving after {took:.0f} s", flush=True)
    clients, begun, rows, watched = Clients(options.clients), time.monotonic(), list[dict[str, Any]](), list[str]()
    while time.monotonic() < begun + options.seconds and server.poll() is None:
        time.sleep(EVERY)
        rows.append(sample(server, clients, begun, folders))
        if len(rows) % 12 == 0:
            watched.append(intertoken("watch", "--once"))
    clients.stop()
    return {
        "ready_s": round(took, 1), "seconds": round(time.monotonic() - begun, 1), "requests": clients.requests,
        "tokens": clients.tokens, "failures": len(clients.failures), "first_failures": clients.failures[:3],
        "rings_mib": {name: round(size / 2**20, 1) for name, size in rows[-1]["rings"].items()},
        "rings_first_mib": {name: round(size / 2**20, 1) for name, size in rows[0]["rings"].items()},
        "growth": growth(rows), "watch": watched, "rows": rows,
    }  # fmt: skip


if __name__ == "__main__":
    main()
