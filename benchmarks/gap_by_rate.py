"""The gap of a graph-level recording corrected by the untraced rate, compared with the true gap of the same loop.

Periods vary between processes, and between instances of a model, by more than a few percent of a gap. One instance
therefore runs with CUPTI recording and pausing in turn. The paused repeats give the rate and the true gap, from the
device's own stamps without any recorder. The others give the recording, which is corrected by that rate
(`gaps --untraced-tokens-per-s`). The recorded repeats have both gaps, whose difference is that of the two definitions
of a graph's start and end. A stamp is part of the loop; its kernel is in the gap of the stamps, not in CUPTI's
(`gpu_stamps.py` measures the cost of two stamps).
Usage: python benchmarks/gap_by_rate.py [--model NAME] [--tokens N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_machine import commit, interval, save

from executor.backends.cuda import CudaBackend
from executor.backends.cuda_runtime import load_cuda
from executor.backends.cuda_stamps import Stamps
from executor.configuration import Configuration, combinations
from executor.devices import Device
from executor.run import execute
from executor.strategies import STRATEGIES
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.recorders.cupti import CuptiRecorder
from tracer.recorders.cupti_layout import SETS
from tracer.recorders.host import HostRecorder

STAMPS_US = 2.0  # the cost of two stamps, from results/gpu_stamps.json


class Silent(HostRecorder):
    """Makes the backend stamp its steps, but records nothing."""

    def start(self) -> None:
        """Do not."""

    def stop(self) -> None:
        """Nor this."""


class Stamped(CudaBackend):
    """A CUDA backend that keeps its stamps."""

    stamps: Stamps

    def stamp_steps(self, steps: int) -> Stamps:
        """Stamp steps and keep the stamps."""
        self.stamps = super().stamp_steps(steps)
        return self.stamps


class Rounds:
    """Records every second repeat with CUPTI and reads the stamps of all repeats."""

    def __init__(self) -> None:
        self.recorder = CuptiRecorder("graph", SETS["lean"])
        self.recorder.start()  # it must start before the first CUDA call of the process
        self.backend: Stamped | None = None
        self.gaps: dict[bool, list[float]] = {True: [], False: []}
        self._done = 0
        self._warm = True

    def open(self, device: Device) -> Stamped:
        """Open the backend of the run."""
        self.backend = Stamped(device.index)
        return self.backend

    def ended(self) -> None:
        """Handle the end of a warm-up or a repeat."""
        recorded = self.recorder.recording
        self.recorder.stop()
        if self._warm:  # discard its recording
            self._warm, self.recorder = False, CuptiRecorder("graph", SETS["lean"])
            return
        assert self.backend is not None
        heads, tails = self.backend.stamps.read().T
        self.gaps[recorded].append(float(np.mean(heads[1:] - tails[:-1])) / 1e3)
        if not recorded:
            self.recorder.start()


def one(configuration: Configuration) -> dict[str, Any]:
    """Measure both gaps of a configuration in this process."""
    rounds = Rounds()
    (result,) = execute([configuration], open_backend=rounds.open, make_recorder=Silent, progress=rounds.ended)
    rounds.recorder.stop()
    rate = configuration.tokens / statistics.median(result.seconds[::2])
    trace = rounds.recorder.trace
    steps = find_steps(trace)
    recorded, told = gap_report(trace, steps), gap_report(trace, steps, rate)
    return {
        "rate": rate, "stamped_us": rounds.gaps[False], "stamped_recorded_us": rounds.gaps[True],
        "recorded_us": recorded.gap_us["mean"], "by_rate_us": (told.untraced_gap_us or {}).get("mean"),
        "refused": told.refused,
    }  # fmt: skip


def apart(configuration: Configuration) -> dict[str, Any]:
    """Measure a configuration in a separate process."""
    command = [sys.executable, __file__, "--one", json.dumps(asdict(configuration))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{configuration.name} failed: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(configuration: Configuration) -> dict[str, Any]:
    """Print and return the figures; the true gap is the gap of the stamps minus their own cost."""
    told = apart(configuration)
    truth = interval([gap - STAMPS_US for gap in told["stamped_us"]])
    by_rate, differ = told["by_rate_us"], statistics.mean(told["stamped_recorded_us"]) - STAMPS_US - told["recorded_us"]
    error = None if by_rate is None else by_rate / truth["median"] - 1
    words = f"withheld ({told['refused']})" if error is None else f"{by_rate:6.1f} µs ({error:+.1%})"
    print(
        f"{configuration.name:42} true {truth['median']:6.1f} [{truth['low']}, {truth['high']}]  by the rate {words}  "
        f"recorded: stamps' - CUPTI's {differ:+.1f} µs", flush=True,
    )  # fmt: skip
    return {"run": configuration.name, "true_us": truth, "error": error, "definitions_us": round(differ, 2), **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help="a configuration as JSON, in this process")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(Configuration(**json.loads(options.one)))))
        return
    base = Configuration(
        backend="cuda", model=options.model, tokens=options.tokens, repeats=2 * options.rounds, warmup=10
    )
    chosen = combinations(base, STRATEGIES, ["sequential"])
    chosen += combinations(replace(base, sampling="device"), ["aaag", "aga"], ["sequential"])
    rows = [row(configuration) for configuration in chosen]
    told = [(abs(each["error"]), abs(each["by_rate_us"] - each["true_us"]["median"])) for each in rows if each["error"]]
    within, near = sum(share <= 0.05 for share, _ in told), sum(share <= 0.05 or us <= 3 for share, us in told)
    print(
        f"{within} of {len(rows)} within 5 %, {near} within 5 % or 3 µs; median {np.median([e for e, _ in told]):.1%}"
    )
    if options.json:
        save(options.json, "gap_by_rate", load_cuda(), commit(), {"model": options.model, "runs": rows})


if __name__ == "__main__":
    main()
