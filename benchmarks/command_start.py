"""Run time of `info`, `syncs` and `gaps` on a small recording, compared with `python -c "import pandas"`, interleaved.

CPU time is user and system time, which depends less on what else the machine does.

One uncounted run of each warms up the caches and the bytecode, which are kept in a separate folder.
Usage: python benchmarks/command_start.py [--repeats 9] [--json FILE] [RECORDING ...]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from read_nsys_sqlite import machine

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_traces"
CHOSEN = ("vllm-b8-graph", "llama1b-sccc-node", "transformers-batching")  # the last one is the slowest
COMMANDS = ("info", "syncs", "gaps")


def programs(recordings: list[Path]) -> dict[str, list[str]]:
    """Return the commands to run, by name."""
    command = [sys.executable, "-m", "tracer.cli"]
    of_recordings = {f"{name} {path.name}": [*command, name, str(path)] for path in recordings for name in COMMANDS}
    return {"import pandas": [sys.executable, "-c", "import pandas"], "--help": [*command, "--help"], **of_recordings}


def measured(recordings: list[Path], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Return wall-clock and CPU seconds of every run, by name; each round runs every command once."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in programs(recordings)}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONPATH": str(ROOT), "INTERTOKEN_CACHE": "off"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for turn in range(repeats + 1):
            for name, program in programs(recordings).items():
                begin, cpu = time.perf_counter(), cpu_of_children()
                subprocess.run(program, env=environment, check=True, capture_output=True)
                if turn:
                    seconds[name].append((time.perf_counter() - begin, cpu_of_children() - cpu))
    return seconds


def cpu_of_children() -> float:
    """Return user and system seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = measured(options.recordings or [SAMPLES / name for name in CHOSEN], options.repeats)
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in seconds.items():
        wall, cpu = ([run[at] for run in runs] for at in (0, 1))
        median, used = statistics.median(wall), statistics.median(cpu)
        rows[name] = {"s": median, "least_s": min(wall), "most_s": max(wall), "cpu_s": used}
        base = rows["import pandas"]
        rows[name] |= {"ratio": median / base["s"], "cpu_ratio": used / base["cpu_s"]}
        print(
            f"{name:34}{median:6.2f} s  ({min(wall):.2f} to {max(wall):.2f})  CPU {used:5.2f} s  "
            f"{rows[name]['cpu_ratio']:.2f} × import pandas"
        )
    if options.json:
        facts = {"machine": machine(), "repeats": options.repeats, "programs": rows}
        facts["date"] = datetime.date.today().isoformat()
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
