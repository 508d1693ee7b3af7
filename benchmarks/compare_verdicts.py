"""How often `compare` is right about pairs of runs whose outcome is known.

Light recordings of a decode loop are simulated: 1 ms of kernels and 86 µs of idle time a step, whose noise is one of
`SCENARIOS`. Pairs are of one program (any verdict but "no difference shown" is false), or of programs one of which is
0.5 to 5 % faster. No GPU is needed.

Usage: python benchmarks/compare_verdicts.py [--pairs N] [--power N] [-o FILE --label before|after]
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracer import Trace, analyse
from tracer.analysis.compare import Comparison, Side, compare

KERNELS_US, HOST_US = 1_000.0, 69.0
CALL_US = 12.0  # from the first call of a step to the start of its graph
EFFECTS = (0.005, 0.01, 0.02, 0.05)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scenario:
    """The noise of a recording.

    Attributes:
        steps: the length of a recording.
        kernels, host: standard deviation of each step's time, relative to it.
        slow, slow_ms: the same of a part of the kernels' that lasts for this correlation time.
        growth: of the kernels' time over a recording, as with the length of the cache.
        between_kernels, between_host: standard deviation between processes, relative to it.
        recordings: of each side.
        rates: of each side, each of a process; with them the recordings are made under a profiler.
        one_process: whether run.json says that both sides ran in one.
    """

    steps: int = 200
    kernels: float = 0.003
    host: float = 0.05
    slow: float = 0.0
    slow_ms: float = 20.0
    growth: float = 0.0
    between_kernels: float = 0.0
    between_host: float = 0.0
    recordings: int = 1
    rates: int = 0
    one_process: bool = False


BETWEEN: dict[str, Any] = {"slow": 0.004, "between_kernels": 0.004, "between_host": 0.024}
SCENARIOS = {
    "independent steps": Scenario(),
    "independent steps of one process": Scenario(one_process=True),
    "correlated for 20 ms": Scenario(slow=0.005),
    "the same in one process": Scenario(slow=0.005, one_process=True),
    "drift of 150 ms, 200 steps": Scenario(slow=0.005, slow_ms=150.0),
    "drift of 150 ms, 1,000 steps": Scenario(steps=1000, slow=0.005, slow_ms=150.0),
    "kernels grow by 3 %": Scenario(growth=0.03),
    "processes differ": Scenario(**BETWEEN),
    "processes differ, 1,000 steps": Scenario(steps=1000, **BETWEEN),
    "three recordings a side": Scenario(recordings=3, **BETWEEN),
    "five rates a side": Scenario(rates=5, **BETWEEN),
}


def correlated(random: np.random.Generator, n: int, time_steps: float) -> Floats:
    """A first-order autoregression of standard deviation 1."""
    rho = float(np.exp(-1 / time_steps))
    series = random.normal(size=n)
    series[1:] *= np.sqrt(1 - rho**2)
    for step in range(1, n):
        series[step] += rho * series[step - 1]
    return series


def process(random: np.random.Generator, told: Scenario, faster: float = 0.0) -> tuple[Floats, Floats]:
    """Kernels and host of each step of a process, µs."""
    n = told.steps
    slow = told.slow * correlated(random, n, told.slow_ms * 1e3 / (KERNELS_US + HOST_US))
    kernels = 1 + told.kernels * random.normal(size=n) + slow + told.growth * np.linspace(-0.5, 0.5, n)
    host = 1 + told.host * random.normal(size=n)
    kernels *= KERNELS_US * (1 + told.between_kernels * random.normal())
    host *= HOST_US * (1 + told.between_host * random.normal())
    return kernels / (1 + faster), host / (1 + faster)


def recording(kernels: Floats, host: Floats, source: str = "light", created: str = "") -> Trace:
    """A step calls a copy, its graph and the copy of its result, and waits for that; times are exact to the ns."""
    n = len(kernels)
    ns = np.rint(np.stack([kernels, host]) * 1e3).astype(np.int64)
    first = np.append(0, np.cumsum(ns.sum(axis=0) + 17_000))[:-1] + 1_000_000
    begin = first + round(CALL_US * 1e3)
    end = begin + ns[0]
    calls = [  # name, start, end
        ("cudaMemcpyAsync_v3020", first, first + 2_000), ("cudaGraphLaunch_v10000", first + 4_000, first + 9_000),
        ("cudaMemcpyAsync_v3020", first + 10_000, first + 11_500), ("cudaStreamSynchronize_v3020", begin, end + 5_000),
    ]  # fmt: skip
    numbers = np.arange(4 * n).reshape(n, 4) + 1
    host_of = {"process": 100, "thread": 100}
    device_of = {"process": 100, "device": 0, "context": 1, "stream": 7}
    api = {
        "name": [name for _ in range(n) for name, *_ in calls],
        "start": np.stack([each[1] for each in calls], axis=1).ravel(),
        "end": np.stack([each[2] for each in calls], axis=1).ravel(),
        "correlation": numbers.ravel(), **host_of,
    }  # fmt: skip
    copies = {
        "start": np.stack([first + 3_000, end + 1_000], axis=1).ravel(),
        "end": np.stack([first + 4_000, end + 3_000], axis=1).ravel(),
        "correlation": numbers[:, [0, 2]].ravel(), "kind": ["HtoD", "DtoH"] * n, "bytes": 4, **device_of,
    }  # fmt: skip
    return Trace.from_columns(
        metadata={"source": source, "run": {"configuration": {"model": "simulated", "batch": 1}, "created": created}},
        api=_full(api), memcpys=_full(copies),
        graph_launches=_full({"start": begin, "end": end, "correlation": numbers[:, 1], "graph": 1, **device_of}),
        syncs=_full({"start": begin, "end": end + 5_000, "correlation": numbers[:, 3], "type": "stream", **device_of}),
    )  # fmt: skip


def _full(columns: dict[str, Any]) -> dict[str, Any]:
    """Single values repeated for each row."""
    length = len(columns["start"])
    return {name: value if np.ndim(value) else [value] * length for name, value in columns.items()}


def side(random: np.random.Generator, told: Scenario, name: str, faster: float = 0.0) -> Side:
    """A run of the scenario, this much faster than usual."""
    if told.rates:
        times = [process(random, told, faster) for _ in range(told.rates)]
        rates = [1e6 / float((kernels + host + 17).mean()) for kernels, host in times]
        kernels, host = process(random, told, faster)
        trace = recording(kernels, 1.4 * host, "nsys 2026.2.1.0")
        return Side.of(analyse(trace, name=name, untraced_steps_per_s=rates).measured)
    created = "2026-11-28T00:00:00+00:00" if told.one_process else ""
    traces = [recording(*process(random, told, faster), created=created) for _ in range(told.recordings)]
    return Side.of(*(analyse(trace, name=f"{name} {at}").measured for at, trace in enumerate(traces)))


def compared(told: Scenario, seeds: Sequence[int], faster: float = 0.0) -> list[Comparison]:
    """Pairs, one per seed."""
    randoms = map(np.random.default_rng, seeds)
    return [compare(side(random, told, "base"), side(random, told, "other", faster)) for random in randoms]


def shares(found: Sequence[Comparison], truth: float) -> dict[str, float]:
    """Of which share the verdict is a direction, and the true speed-up in the interval; half its median width, %."""
    intervals = [each.speedup for each in found if each.speedup]
    widths = [(one.high - one.low) / 2 for one in intervals if one.low is not None and one.high is not None]
    return {
        "pairs": len(found),
        "faster": sum(each.verdict == "faster" for each in found),
        "slower": sum(each.verdict == "slower" for each in found),
        "holds_truth": sum(one.holds(truth) for one in intervals),
        "half_width_percent": round(100 * float(np.median(widths)), 2) if widths else float("nan"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="of one program, in each scenario")
    parser.add_argument("--power", type=int, default=8, help="for each effect in each scenario")
    parser.add_argument("--only", default="", help="scenarios with this text")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--label", default="after")
    arguments = parser.parse_args()
    seeds, rows = count(1), {}
    for name, told in SCENARIOS.items():
        if arguments.only not in name:
            continue
        of_effects = {}
        for effect in (0.0, *EFFECTS):
            pairs = arguments.power if effect else arguments.pairs
            of_effects[f"{effect:g}"] = shares(compared(told, [next(seeds) for _ in range(pairs)], effect), 1 + effect)
        rows[name] = of_effects
        same = of_effects["0"]
        power = ", ".join(f"{each['faster']}/{each['pairs']}" for each in list(of_effects.values())[1:])
        held = sum(each["holds_truth"] for each in of_effects.values())
        print(
            f"{name:32s} false {same['faster'] + same['slower']:2d}/{same['pairs']}  truth held "
            f"{held}/{sum(each['pairs'] for each in of_effects.values())}  ±{same['half_width_percent']} %  shown of "
            f"{', '.join(f'{effect:g}' for effect in EFFECTS)}: {power}",
            flush=True,
        )
    if arguments.output:
        kept = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
        commit = subprocess.run(["git", "describe", "--always"], capture_output=True, text=True, check=False)
        kept["benchmark"] = "compare_verdicts"
        kept[arguments.label] = {
            "date": date.today().isoformat(), "commit": commit.stdout.strip(), "scenarios": rows
        }  # fmt: skip
        arguments.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
