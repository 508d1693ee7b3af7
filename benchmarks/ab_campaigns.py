"""How often `intertoken ab` is wrong, and how often a t-test on five runs of each variant.

Campaigns of two variants are simulated with the code that runs real ones: on a host that does nothing else, one that
becomes slower, one that is slow for some runs at a time, and one whose neighbouring runs are alike. A verdict is wrong
where it names a direction that is not there, or calls variants the same within 1 % that differ by more. No GPU is
needed.

Usage: python benchmarks/ab_campaigns.py [--campaigns N] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from datetime import date
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer.experiments.turns import UNDECIDED, Rate, Turns, Until, told_within

EFFECTS = (0.0, 0.005, 0.01, -0.01, 0.03)
PROCESS = 0.005  # the standard deviation between processes of one program
WITHIN, MOST, FIVE = 0.01, 40, 5
Floats = NDArray[np.float64]


def quiet(random: np.random.Generator, runs: int) -> Floats:
    """Nothing else runs."""
    return np.zeros(runs)


def drift(random: np.random.Generator, runs: int) -> Floats:
    """The host becomes slower by 0.1 % a run, as it warms up, and wanders."""
    return np.asarray(-0.001 * np.arange(runs) + np.cumsum(random.normal(0, 0.001, runs)))


def slow_phases(random: np.random.Generator, runs: int) -> Floats:
    """For some runs at a time something else takes 1 to 4 % of the rate; a third of the runs are so."""
    host = np.zeros(runs)
    at = int(random.geometric(0.1))
    while at < runs:
        length = int(random.geometric(0.2))
        host[at : at + length] = -random.uniform(0.01, 0.04)
        at += length + int(random.geometric(0.1))
    return host


def alike(random: np.random.Generator, runs: int) -> Floats:
    """Neighbouring runs are correlated by 0.7."""
    host = random.normal(0, 0.01, runs)
    for at in range(1, runs):
        host[at] = 0.7 * host[at - 1] + (1 - 0.7**2) ** 0.5 * host[at]
    return host


HOSTS = {"quiet": quiet, "drift": drift, "slow phases": slow_phases, "neighbours alike": alike}


class Machine:
    """Runs A and B one behind the other; B is faster by `effect`."""

    def __init__(self, host: str, effect: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.rates = HOSTS[host](random, 2 * MOST) + random.normal(0, PROCESS, 2 * MOST)
        self.effect, self.runs = effect, 0

    def run(self, name: str, _round: int = 0) -> Rate:
        """The rate of the next run, printed with two decimals."""
        rate = 100 * exp(self.rates[self.runs]) * (1 + self.effect * (name == "B"))
        self.runs += 1
        return Rate(round(rate, 2), 0.01)


def is_wrong(verdict: str, effect: float) -> bool:
    """Whether the verdict contradicts the truth."""
    return {"faster": effect <= 0, "slower": effect >= 0, "same": abs(effect) > WITHIN}.get(verdict, False)


def in_turns(host: str, effect: float, seed: int) -> dict[str, Any]:
    """The verdict of `intertoken ab --until 1`."""
    machine = Machine(host, effect, seed)
    turns = Turns(["A", "B"], Until(told_within(WITHIN), MOST), seed)
    turns.take(machine.run)
    ratio = turns.ratio("B")
    return {"verdict": turns.verdicts["B"], "runs": machine.runs // 2, "held": ratio.holds(log(1 + effect))}


def five_each(host: str, effect: float, seed: int, *, is_mixed: bool) -> str:
    """The verdict of Student's t on five runs of A, then five of B; or A and B by turns."""
    from scipy.stats import ttest_ind

    machine = Machine(host, effect, seed)
    order = "AB" * FIVE if is_mixed else "A" * FIVE + "B" * FIVE
    rates = [(name, machine.run(name).per_s) for name in order]
    a, b = ([rate for name, rate in rates if name == each] for each in "AB")
    if ttest_ind(a, b).pvalue >= 0.05:
        return "no difference shown"
    return "faster" if statistics.mean(b) > statistics.mean(a) else "slower"


def cell(host: str, effect: float, seeds: range) -> dict[str, Any]:
    """The verdicts of campaigns on one host with one effect."""
    ours = [in_turns(host, effect, seed) for seed in seeds]
    found: dict[str, Any] = {
        "campaigns": len(seeds),
        "wrong": sum(is_wrong(each["verdict"], effect) for each in ours),
        "undecided": sum(each["verdict"] == UNDECIDED for each in ours),
        "truth_held": sum(each["held"] for each in ours),
        "runs_each": statistics.median(each["runs"] for each in ours),
    }
    for label, is_mixed in (("t_test", False), ("t_test_by_turns", True)):
        verdicts = [five_each(host, effect, seed, is_mixed=is_mixed) for seed in seeds]
        found[label] = {
            "wrong": sum(is_wrong(verdict, effect) for verdict in verdicts),
            "missed": sum(verdict == "no difference shown" for verdict in verdicts) if effect else 0,
        }
    return found


def machine() -> dict[str, Any]:
    """Where it was simulated."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}


def kept(name: str, rows: dict[str, Any]) -> dict[str, Any]:
    """What a file of results says beside its rows."""
    return {"benchmark": name, "date": date.today().isoformat(), "machine": machine(), **rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=200, help="for each effect on each host")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    print("host              effect  wrong  undecided  truth held  runs each   t-test: wrong missed   by turns: wrong")
    for number, host in enumerate(HOSTS):
        for place, effect in enumerate(EFFECTS):
            first = 100_000 * (number * len(EFFECTS) + place)
            found = cell(host, effect, range(first, first + arguments.campaigns))
            rows.setdefault(host, {})[f"{effect:g}"] = found
            t_test, mixed = found["t_test"], found["t_test_by_turns"]
            print(
                f"{host:17} {100 * effect:+5.1f} %  {found['wrong']:5}  {found['undecided']:9}  "
                f"{found['truth_held']:10}  {found['runs_each']:9g}  {t_test['wrong']:14} {t_test['missed']:6}  "
                f"{mixed['wrong']:15}",
                flush=True,
            )
    if arguments.output:
        told = {"process_percent": 100 * PROCESS, "until_percent": 100 * WITHIN, "most_rounds": MOST, "hosts": rows}
        arguments.output.write_text(json.dumps(kept("ab_campaigns", told), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
