"""How often `intertoken bisect` names a wrong commit, and how many builds it needs.

Histories of 64 commits in which one makes the program slower are searched with the code that searches real ones, on the
simulated hosts of `ab_campaigns.py`. No GPU is needed.

Usage: python benchmarks/bisect_trials.py [--trials N] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
from ab_campaigns import HOSTS, PROCESS, kept

from tracer.analysis.interval import Interval
from tracer.errors import ProgramError
from tracer.experiments.bisect import GOOD, Search
from tracer.experiments.turns import Rate, Turns, Until

COMMITS = 64
"""After the good end; the last one is the bad end."""
SLOWER = (0.01, 0.03)


class History:
    """Commits 0 to `COMMITS`, slower by `effect` from `first` on, on one host."""

    def __init__(self, host: str, effect: float, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.first = int(self.random.integers(1, COMMITS + 1))
        self.host, self.effect = HOSTS[host], effect
        self.builds, self.runs = 0, 0

    def trial(self, number: int, until: Until) -> tuple[str, Interval]:
        """Turns of commit 0 and this one."""
        rates = self.host(self.random, 2 * until.most) + self.random.normal(0, PROCESS, 2 * until.most)
        of_trial = iter(rates)
        turns = Turns([GOOD, "tried"], until, int(self.random.integers(1 << 30)))

        def measure(name: str, _round: int) -> Rate:
            self.runs += 1
            loss = self.effect if name == "tried" and number >= self.first else 0.0
            return Rate(round(100 * exp(next(of_trial)) * (1 - loss), 2), 0.01)

        turns.take(measure)
        self.builds += 1
        return turns.verdicts["tried"], turns.ratio("tried")


def searched(host: str, effect: float, seed: int) -> dict[str, Any]:
    """One search."""
    history, search = History(host, effect, seed), Search(COMMITS)
    try:
        search.run(history.trial)
    except ProgramError:
        return {"found": "nothing", "builds": history.builds, "runs": history.runs}
    if not search.good < history.first <= search.bad:
        found = "wrong"
    else:
        found = "right" if search.bad - search.good == 1 else "several"
    return {"found": found, "builds": history.builds, "runs": history.runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="for each effect on each host")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    print("host              slower  right  wrong  several  nothing  builds (most)  runs (median)")
    for number, host in enumerate(HOSTS):
        for place, effect in enumerate(SLOWER):
            first = 10_000 * (2 * number + place)
            each = [searched(host, effect, first + seed) for seed in range(arguments.trials)]
            words = [one["found"] for one in each]
            found = {name: words.count(name) for name in ("right", "wrong", "several", "nothing")}
            found["builds"] = max(one["builds"] for one in each)
            found["runs"] = int(statistics.median(one["runs"] for one in each))
            rows.setdefault(host, {})[f"{effect:g}"] = {"trials": len(each), **found}
            print(
                f"{host:17} {100 * effect:4.0f} %  {found['right']:5}  {found['wrong']:5}  {found['several']:7}  "
                f"{found['nothing']:7}  {found['builds']:13}  {found['runs']:13}",
                flush=True,
            )
    if arguments.output:
        told = {"commits": COMMITS, "process_percent": 100 * PROCESS, "hosts": rows}
        arguments.output.write_text(json.dumps(kept("bisect_trials", told), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
