"""Predictions of the simulated backend compared with measurements.

`python benchmarks/sim_prediction.py [-o benchmarks/results/sim_prediction.json]`; no GPU is needed.

1. With `h200-linux`, which `calibrate.py` derives from the recording of sccc-sequential: tokens/s of all strategies,
   compared with their own recordings.
2. The same and branches, as ratios to sccc-sequential, compared with gpu_decode (the recordings of branches use older
   kernels).
3. The gain of saaas over sccc with the Linux and the WDDM profile, compared with the published 1-2 % and 5-8 %. The
   gain is smaller for larger models. The costs of WDDM come from the same publication, so this checks only magnitude.
4. The time to simulate and record 10,000 tokens of an 8B model.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import executor.backends as backends
from executor.backends.sim.backend import SimBackend
from executor.backends.sim.profiles import Profile, load_profile
from executor.run import Result, execute
from executor.run.configuration import Configuration
from executor.run.directory import machine, write_run
from executor.scheduling.strategies import STRATEGIES
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps

ROOT = Path(__file__).parent
SAMPLES = ROOT.parent / "sample_traces"
BASE = "llama-1.1b-sccc-sequential-cuda"
SIMULATED = Configuration("sim", "llama-1.1b", tokens=60, repeats=1)
PUBLISHED = {"h200-linux": (1, 2), "wddm": (5, 8)}
LONG = Configuration("sim", "llama-8b", tokens=10_000, repeats=1, context=10_240)
RECORDED = list(STRATEGIES)
"""The recorded strategies."""


def simulate(profile: Profile, **changes: Any) -> Result:
    (result,) = execute([replace(SIMULATED, **changes)], open_backend=lambda _: SimBackend(profile))
    return result


def rate(profile: Profile, **changes: Any) -> float:
    """Predicted tokens/s."""
    result = simulate(profile, **changes)
    return result.configuration.tokens / result.seconds[0]


def against_samples(profile: Profile) -> list[dict[str, Any]]:
    rows = []
    for strategy in RECORDED:
        run = json.loads((SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda" / "run.json").read_text())
        result = simulate(profile, strategy=strategy)
        gap = gap_report(result.trace, find_steps(result.trace)).gap_us["p50"]
        rows.append(
            row(
                strategy,
                result.configuration.tokens / result.seconds[0],
                run["measured"]["tokens_per_s"]["median"],
            )
            | {"gap_us": round(gap, 1), "measured_gap_us": round(run["passes"]["light"]["gap_us"]["p50"], 1)}
        )
    return rows


def edge_matters(profile: Profile) -> list[dict[str, Any]]:
    """Vary the latency of an edge, the least certain cost in a recording of one stream."""
    base = rate(profile, strategy="sccc")
    edges = (0, profile.edge_ns, 2 * profile.edge_ns)
    ratios = (rate(replace(profile, edge_ns=edge), concurrency="branches") / base for edge in edges)
    return [{"edge_ns": edge, "ratio": round(ratio, 4)} for edge, ratio in zip(edges, ratios, strict=True)]


def against_ladder(profile: Profile) -> list[dict[str, Any]]:
    measured = {
        (step["strategy"], step["mode"]): step["tokens_per_s"]["median"]
        for step in json.loads((ROOT / "results" / "gpu_decode_llama-1.1b_f16.json").read_text())["ladder"]
    }
    base, measured_base = rate(profile, strategy="sccc"), measured["sccc", "sequential"]
    return [
        row(
            f"{strategy} {mode}",
            rate(profile, strategy=strategy, concurrency=mode) / base,
            measured[strategy, mode] / measured_base,
        )
        for mode in ("sequential", "branches")
        for strategy in RECORDED
    ]


def row(name: str, predicted: float, measured: float) -> dict[str, Any]:
    return {
        "run": name,
        "predicted": round(predicted, 4),
        "measured": round(measured, 4),
        "error_percent": round((predicted / measured - 1) * 100, 2),
    }


def saaas_gains() -> list[dict[str, Any]]:
    rows = []
    for name, (low, high) in PUBLISHED.items():
        profile = load_profile(name)
        for model in ("llama-1.1b", "llama-3b"):
            sccc, saaas = (rate(profile, strategy=s, model=model) for s in ("sccc", "saaas"))
            gain = round((saaas / sccc - 1) * 100, 2)
            rows.append({"profile": name, "model": model, "gain_percent": gain, "published": [low, high]})
    return rows


def long_run() -> dict[str, Any]:
    """Measure the wall-clock time of 10,000 tokens, from the configuration to the run directory on disk."""
    start = time.perf_counter()
    (result,) = execute([LONG], open_backend=backends.open_backend)
    simulated = time.perf_counter()
    with TemporaryDirectory() as directory:
        write_run(result, Path(directory))
    return {
        "tokens": LONG.tokens,
        "model": LONG.model,
        "execute_s": round(simulated - start, 2),
        "write_s": round(time.perf_counter() - simulated, 2),
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for entry in rows:
        print("  " + "  ".join(f"{name} {value}" for name, value in entry.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "results" / "sim_prediction.json")
    output = parser.parse_args().output
    profile = load_profile("h200-linux")
    result: dict[str, Any] = {
        "benchmark": "sim_prediction",
        "date": date.today().isoformat(),
        "machine": machine(),
        "calibrated_on": BASE,
        "tokens_per_s": against_samples(profile),
        "ratio_to_sccc_sequential": against_ladder(profile),
        "edge": edge_matters(profile),
        "saaas_over_sccc": saaas_gains(),
        "long_run": long_run(),
    }
    show("tokens/s, sequential", result["tokens_per_s"])
    show("tokens/s, ratio to sccc sequential", result["ratio_to_sccc_sequential"])
    show("branches by the latency of an edge, ratio to sccc sequential", result["edge"])
    show("saaas over sccc, %", result["saaas_over_sccc"])
    show("simulating", [result["long_run"]])
    output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
