"""The same program recorded by our CUPTI recorder and by `nsys profile`, compared at both levels.

Inside the program's NVTX range `window`, kernels by name, copies by kind, fills, syncs by type, API calls by name,
graph launches and NVTX ranges must have equal counts. The median duration of every kernel launched at least 30 times
must agree within 2 % (or two ticks of the GPU's clock). Events that nsys omits (cudaGetDevice and other queries, what a
cudaDeviceSynchronize waited for) are listed, not compared.
Usage: python benchmarks/cupti_truth.py [--tokens 64] [--json FILE]      needs a GPU, and nsys on PATH
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from gpu_machine import commit, save
from under_nsys import profile

import tracer
from executor.backends.cuda.library import load_cuda

PROGRAM = Path(__file__).with_name("cupti_program.py")
TOLERANCE, TWO_TICKS, FEWEST = 0.02, 64, 30
GROUPS = {
    "kernels": ("kernels", "short_name"), "copies": ("memcpys", "kind"), "fills": ("memsets", "mem_kind"),
    "syncs": ("syncs", "type"), "API calls": ("api", "name"), "graph launches": ("graph_launches", "graph"),
    "NVTX": ("nvtx", "text"),
}  # fmt: skip


def ours(level: str, tokens: int, directory: Path) -> tracer.Trace:
    target = directory / f"ours-{level}"
    command = [sys.executable, str(PROGRAM), "--record", level, "--tokens", str(tokens), "-o", str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return tracer.read(target)


def theirs(level: str, tokens: int) -> tracer.Trace:
    trace, code = profile([sys.executable, str(PROGRAM), "--tokens", str(tokens)], level)
    if code:
        raise SystemExit(f"nsys profile ended with {code}")
    return trace


def in_window(trace: tracer.Trace) -> dict[str, pd.DataFrame]:
    """Return the rows that start inside the range `window`."""
    window = trace["nvtx"].query("text == 'window'").iloc[0]
    return {
        name: frame[(frame["start"] >= window["start"]) & (frame["start"] <= window["end"])]
        for name, frame in trace.tables.items()
        if "start" in frame
    }


def counts(frames: dict[str, pd.DataFrame]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for group, (table, column) in GROUPS.items():
        names = frames[table][column].astype("str")
        if group == "graph launches":
            names = names.mask(names.index >= 0, "all")
        found |= {(group, str(name)): int(count) for name, count in names.value_counts().items()}
    return found


def compare(level: str, tokens: int, directory: Path) -> dict[str, Any]:
    """Print the columns; return them, the differences, and the events that only we record."""
    left, right = in_window(ours(level, tokens, directory)), in_window(theirs(level, tokens))
    ours_has, nsys_has = counts(left), counts(right)
    rows, different, only_ours = [], [], {}
    for key in sorted(set(ours_has) | set(nsys_has)):
        if key not in nsys_has and (key[0] == "API calls" or key == ("syncs", "context")):
            only_ours[key[1]] = ours_has[key]
            continue
        row = (level, *key, ours_has.get(key, 0), nsys_has.get(key, 0))
        rows.append(row)
        different += [list(row)] if row[3] != row[4] else []
    medians = list(durations(level, left["kernels"], right["kernels"]))
    different += [[*row] for row in medians if abs(row[3] - row[4]) > max(TOLERANCE * row[4], TWO_TICKS)]
    for row in rows + medians:
        print(
            f"{row[0]:6} {row[1]:14} {row[2]:36} {row[3]:>9} {row[4]:>9}  {'DIFFERENT' if [*row] in different else '='}"
        )
    print(f"{level:6} only ours: {only_ours}")
    return {
        "rows": [list(row) for row in rows],
        "median_kernel_ns": medians,
        "different": different,
        "only_ours": only_ours,
    }


def durations(level: str, left: pd.DataFrame, right: pd.DataFrame) -> Iterator[tuple[str, str, str, int, int]]:
    groups = [(frame["end"] - frame["start"]).groupby(frame["short_name"].astype("str")) for frame in (left, right)]
    medians = [group.median()[group.size() >= FEWEST] for group in groups]
    for name in medians[0].index.intersection(medians[1].index):
        yield level, "median ns", str(name), int(medians[0][name]), int(medians[1][name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    print(f"{'level':6} {'what':14} {'name':36} {'ours':>9} {'nsys':>9}")
    with tempfile.TemporaryDirectory() as directory:
        levels = {level: compare(level, options.tokens, Path(directory)) for level in ("node", "graph")}
    failed = sum(len(found["different"]) for found in levels.values())
    print(f"{failed} differences")
    if options.json:
        save(options.json, "cupti_truth", load_cuda(), options.commit, {"tokens": options.tokens, **levels})
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
