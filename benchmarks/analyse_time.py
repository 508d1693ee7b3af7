"""CPU time of `tracer.analyse` with all its parts, compared with an earlier checkout of this repository.

Processes of both versions alternate. Each reads the recording, analyses it once uncounted, and prints the median of
some analyses more. The ratio is the median of those of neighbouring processes.
Usage: git worktree add EARLIER COMMIT
       python benchmarks/analyse_time.py EARLIER [RECORDING ...] [--pairs 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from gpu_machine import commit
from read_nsys_sqlite import machine

ROOT: Final = Path(__file__).absolute().parents[1]
CHOSEN: Final = (
    "llama1b-sccc-graph", "llama1b-sccc-node", "vllm-b1-node-nvtx", "vllm-b8-torch", "transformers-eager",
    "six-strategies",
)  # fmt: skip
PARTS: Final = ("steps", "syncs", "gaps", "path", "summary")
MEASURED: Final = ("measured", "recording")
"""What a comparison compares, by its names."""
ANALYSES: Final = 15


def analyse(recording: Path) -> float:
    """The median CPU time of an analysis, ms; what is found about a trace is kept with it, so each has its own."""
    from tracer import analyse, read

    times = []
    for _ in range(ANALYSES + 1):
        trace = read(recording)
        since = time.process_time()
        found = analyse(trace)
        for part in (*PARTS, next(name for name in MEASURED if hasattr(type(found), name))):
            getattr(found, part)
        times.append(1e3 * (time.process_time() - since))
    return statistics.median(times[1:])


def ten_steps(folder: Path) -> Path:
    """A recording of ten steps with a copy, a graph of one kernel and a sync each."""
    from tests.tracer.handmade import Script
    from tracer import write

    script = Script()
    for start in range(0, 1000, 100):
        script.copy((start, start + 5), (start + 2, start + 4))
        script.graph((start + 10, start + 20), (start + 25, start + 60))
        script.sync(start + 21, start + 62)
    write(script.trace, folder / "ten steps.sqlite")
    return folder / "ten steps.sqlite"


def told(checkout: Path, recording: Path) -> float:
    """What a process prints that runs the code of a checkout."""
    command = [sys.executable, __file__, "--child", str(recording)]
    given = {**os.environ, "PYTHONPATH": str(checkout)}
    return float(subprocess.run(command, env=given, check=True, capture_output=True, text=True).stdout)


def compared(earlier: Path, recording: Path, pairs: int) -> dict[str, Any]:
    """CPU times of both versions, and the ratios of neighbours."""
    checkouts = {"before": earlier.absolute(), "after": ROOT}
    times: dict[str, list[float]] = {"before": [], "after": []}
    for pair in range(pairs):
        for name in list(checkouts)[:: -1 if pair % 2 else 1]:
            times[name].append(told(checkouts[name], recording))
    ratios = sorted(after / before for before, after in zip(times["before"], times["after"], strict=True))
    return {
        "recording": recording.name,
        **{f"{name}_ms": round(statistics.median(each), 1) for name, each in times.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, nargs="?", help="a checkout of the earlier version")
    parser.add_argument("recordings", type=Path, nargs="*")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(analyse(options.child))
        return
    if not options.earlier or not (options.earlier / "tracer").is_dir():
        parser.error("a checkout of an earlier version is needed")
    rows = []
    folder = Path(tempfile.mkdtemp())
    for recording in options.recordings or [ten_steps(folder), *(ROOT / "sample_traces" / name for name in CHOSEN)]:
        rows.append(compared(options.earlier, recording.absolute(), options.pairs))
        print(
            f"{rows[-1]['recording']:24} {rows[-1]['before_ms']:6.1f} → {rows[-1]['after_ms']:6.1f} ms CPU, "
            f"ratio {rows[-1]['ratio']:.2f} [{rows[-1]['ratios'][0]:.2f}, {rows[-1]['ratios'][-1]:.2f}]"
        )
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        content = {"benchmark": "analyse_time", "date": date, "commit": commit(), "before": commit(options.earlier),
                   "machine": machine(), "rows": rows}  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
