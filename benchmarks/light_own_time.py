"""Host time that the light recorder's wrappers take in a program, per kind of call, with the real driver.

The library is compiled with -DOWN_TIME here, or beforehand (--library; several are compared, in turn). It then writes
its own time into its records: before each call of the driver, and after the thread's previous one. Missing is what a
wrapper takes before it reads the clock, and what it evicts from the program's caches.

Usage: python benchmarks/light_own_time.py [-o FILE] [--rounds N] [--library NAME=FILE ...] -- COMMAND...
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from record_engines import machine

from tracer.recorders.light import environment, read_rings
from tracer.recorders.light_ring import folder
from tracer.recorders.native import compile_library, compiler

LIMIT = 300  # s per run
LAUNCH = "cuGraphLaunch"  # begins a step


def calls(command: list[str], library: Path) -> pd.DataFrame:
    """Run once under the recorder; return the calls of the process with most: name, and own time before and after, ns;
    those since the middle of the run, when the program has warmed up."""
    with folder() as rings:
        subprocess.run(command, env=environment(library, rings), timeout=LIMIT, check=True, stdout=subprocess.DEVNULL)
        ring = max(read_rings(rings), key=lambda each: len(each.records))
    records = ring.records
    thread = pd.Series(records["thread"])
    found = pd.DataFrame({"call": np.array(ring.calls)[records["call"]], "before": records["object"].astype(np.int64)})
    # The graph calls' own wrappers write no time: what the next record holds is older.
    after = pd.Series(records["bytes"].astype(np.int64)).groupby(thread).shift(-1)
    found["after"] = after.where(~found["call"].str.startswith("cuGraph"))
    return found.iloc[len(found) // 2 :].reset_index(drop=True)


def told(found: pd.DataFrame) -> dict[str, Any]:
    """Return own time per call of each kind, ns, and per step, µs."""
    timed = found[found["after"].notna()].assign(own=lambda each: each["before"] + each["after"])
    steps = max(int((found["call"] == LAUNCH).sum()), 1)
    own = timed.groupby("call")["own"]
    kinds = pd.DataFrame({"calls_per_step": own.size() / steps, "median_ns": own.median(), "mean_ns": own.mean(),
                          "p90_ns": own.quantile(0.9)})  # fmt: skip
    kinds = kinds.sort_values("calls_per_step", ascending=False).round(2)
    usual = np.minimum(timed["own"].to_numpy(), timed["own"].quantile(0.99))
    return {
        "steps": steps,
        "own_us_per_step": round(float(timed["own"].sum()) / steps / 1e3, 2),
        "own_us_per_step_without_the_dearest_percent": round(float(usual.sum()) / steps / 1e3, 2),
        "kinds": kinds.to_dict("index"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--library", action="append", default=[], help="NAME=FILE, compiled with -DOWN_TIME")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        libraries = {name: Path(path) for name, _, path in (each.partition("=") for each in options.library)}
        if not libraries:
            libraries["here"] = Path(made) / "light.so"
            compile_library(libraries["here"], compiler() or "cc", ["-DOWN_TIME"])
        found: dict[str, list[pd.DataFrame]] = {name: [] for name in libraries}
        for _ in range(options.rounds):
            for name, library in libraries.items():
                found[name].append(calls(options.command, library))
    facts = {name: told(pd.concat(each, ignore_index=True)) for name, each in found.items()}
    for name, said in facts.items():
        print(f"{name}: {said['own_us_per_step']} µs per step of {said['steps']}, without the dearest percent "
              f"{said['own_us_per_step_without_the_dearest_percent']}")  # fmt: skip
        print(pd.DataFrame.from_dict(said["kinds"], orient="index").head(12).to_string())
    if options.output:
        whole = {"date": datetime.date.today().isoformat(), **machine(), "libraries": facts}
        options.output.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
