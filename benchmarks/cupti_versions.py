"""Whether every version of CUPTI records the same: each libcupti in turn, by the executor's passes and by `record`.

Each library is preloaded, so that both recorders find it loaded. The executor's own graph and node passes set up CUPTI
in Python, and `record --passes node` sets it up in the preloaded library. Counts are per token step; every version has
to have those of the first.

Usage: python benchmarks/cupti_versions.py libcupti.so.13 [ANOTHER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tracer import read
from tracer.model.trace import Trace

TOKENS, LIMIT = 16, 300
TABLES = ("kernels", "graph_launches", "memcpys", "syncs", "api")
ORDER = {
    "configuration": {"backend": "cuda", "model": "tiny", "strategy": "aaag", "tokens": TOKENS, "repeats": 1},
    "run": {}, "kinds": "all",
}  # fmt: skip


def counts(trace: Trace) -> str:
    """Return the rows of each table within the token steps, per step."""
    starts = trace["nvtx"].loc[trace["nvtx"]["text"] == "token", "start"]
    if len(starts) < 2:
        return "no steps"
    inside = {name: trace[name]["start"].between(starts.min(), starts.max(), "left").sum() for name in TABLES}
    return " ".join(f"{name} {count / (len(starts) - 1):.1f}" for name, count in inside.items())


def run(library: Path, folder: Path) -> dict[str, str]:
    """Record with a library in each way; return way -> source of the recording, its counts, and its notes' number."""
    order, environment = json.dumps(ORDER), os.environ | {"LD_PRELOAD": str(library.resolve())}
    traced = [sys.executable, "-m", "executor.run.passes"]
    alone = [*traced, "none", "-"]
    ways = {
        "passes, graph": [*traced, "graph", str(folder / "passes, graph")],
        "passes, node": [*traced, "node", str(folder / "passes, node")],
        "record, node": [sys.executable, "-m", "intertoken", "record", "--passes", "node", "-o",
                         str(folder / "record, node"), "--", *alone],
    }  # fmt: skip
    found = {}
    for way, command in ways.items():
        done = subprocess.run(
            command, input=order, env=environment, text=True, capture_output=True, timeout=LIMIT, check=False
        )
        if done.returncode:
            found[way] = f"rc {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:150]}"
        else:
            trace = read(folder / way)
            found[way] = f"{trace.metadata['source']}: {counts(trace)}, notes {len(trace.notes)}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="+", type=Path)
    first: dict[str, str] = {}
    for library in parser.parse_args().libraries:
        with tempfile.TemporaryDirectory() as made:
            for way, said in run(library, Path(made)).items():
                same = said.partition(": ")[2] == first.setdefault(way, said.partition(": ")[2])
                print(f"{'same' if same else 'DIFFERS':8} {way:14} {said}", flush=True)


if __name__ == "__main__":
    main()
