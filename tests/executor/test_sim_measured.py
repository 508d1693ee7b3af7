"""The simulated H200 beside the real one: its shipped profile is that of one recording, and predicts the others."""

import json
import runpy
from pathlib import Path

import pytest

from executor.backends.sim.backend import SimBackend
from executor.backends.sim.profiles import load_profile
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.recordings import SAMPLES
from tracer import read

BASE = SAMPLES / "llama-1.1b-sccc-sequential-cuda"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LADDER = BENCHMARKS / "results" / "gpu_decode_llama-1.1b_f16.json"
RECORDED = list(STRATEGIES)
"""What there are recordings of."""


@pytest.fixture(scope="module")
def shipped():
    return load_profile("h200-linux")


def rate(profile, **options):
    configuration = Configuration("sim", "llama-1.1b", tokens=20, repeats=1, **options)
    (result,) = execute([configuration], open_backend=lambda _: SimBackend(profile))
    return result.configuration.tokens / result.seconds[0]


def measured(directory):
    return json.loads((directory / "run.json").read_text())["measured"]["tokens_per_s"]["median"]


def test_the_shipped_profile_is_that_of_the_recording(shipped):
    calibrate = runpy.run_path(str(BENCHMARKS / "calibrate.py"))["calibrate"]
    assert calibrate(read(BASE), read(BASE / "node"), shipped.name) == shipped


@pytest.mark.parametrize("strategy", RECORDED)
def test_the_other_strategies_are_predicted(shipped, strategy):
    """Within 3 % of what was measured; nothing but the recording of sccc is known."""
    predicted = rate(shipped, strategy=strategy)
    assert predicted == pytest.approx(measured(SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda"), rel=0.03)


@pytest.mark.parametrize("concurrency", ["sequential", "branches"])
@pytest.mark.parametrize("strategy", RECORDED)
def test_ratios_are_predicted(shipped, strategy, concurrency):
    """Of tokens/s to sccc with one stream, as in one session on the GPU."""
    ladder = {
        (row["strategy"], row["mode"]): row["tokens_per_s"]["median"]
        for row in json.loads(LADDER.read_text())["ladder"]
    }
    predicted = rate(shipped, strategy=strategy, concurrency=concurrency) / rate(shipped, strategy="sccc")
    assert predicted == pytest.approx(ladder[strategy, concurrency] / ladder["sccc", "sequential"], rel=0.03)
