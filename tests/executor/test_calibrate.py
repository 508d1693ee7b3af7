"""Calibration: a simulated recording gives back its own profile, a real one predicts the others."""

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from executor.backends.sim.backend import SimBackend
from executor.backends.sim.profiles import load_profile, read_profile
from executor.calibration import calibrate
from executor.commands import register
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.executor.profiles import handmade
from tracer import Trace, read
from tracer.analysis.fits import VARIABLE, fits_of
from tracer.cli import Intertoken
from tracer.errors import EmptyTraceError

SAMPLES = Path(__file__).parents[2] / "sample_traces"
BASE = SAMPLES / "llama-1.1b-sccc-sequential-cuda"
LADDER = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_decode_llama-1.1b_f16.json"
RECORDED = list(STRATEGIES)
"""What there are recordings of."""


def simulate(profile, **options):
    configuration = Configuration("sim", **({"tokens": 20, "repeats": 1} | options))
    (result,) = execute([configuration], open_backend=lambda _: SimBackend(profile))
    return result


def rate(profile, **options):
    result = simulate(profile, model="llama-1.1b", **options)
    return result.configuration.tokens / result.seconds[0]


@pytest.fixture(scope="module")
def calibrated():
    return calibrate(read(BASE), read(BASE / "node"), "h200")


def measured(directory):
    return json.loads((directory / "run.json").read_text())["measured"]["tokens_per_s"]["median"]


def test_a_simulated_recording_gives_back_its_costs():
    calls = {"copy_in": 1100, "copy_out": 3000, "graph_launch": 1500, "sync": 700}
    profile = handmade(
        calls_ns=handmade().calls_ns | calls, wake_up_ns=700, launch_latency_ns=1800,
        between_ns={">": 150, "fetch>": 7000, "graph_launch>": 5000},
    )  # fmt: skip
    trace = simulate(profile, strategy="sccc").trace
    found = calibrate(trace, trace, "again")
    assert {call: found.calls_ns[call] for call in calls} == calls
    assert (found.wake_up_ns, found.launch_latency_ns) == (700, 1800)
    assert found.copy_in.fixed_ns == 2000
    logits = trace["memcpys"]["bytes"].max()
    assert found.copy_out.fixed_ns + logits / found.copy_out.bytes_per_ns == pytest.approx(3000, abs=1)
    assert found.between("fetch", "sync") == 7000
    assert found.between("fetch", "copy_in") == 7000
    assert found.between("copy_in", "sync") == 150
    assert simulate(found, strategy="saaas").seconds == pytest.approx(
        simulate(profile, strategy="saaas").seconds, rel=5e-4
    )


def test_copies_of_one_sync_are_told_apart():
    trace = simulate(handmade(wake_up_ns=1000), strategy="saaas").trace
    assert calibrate(trace, None, "again").copy_in.fixed_ns == 2000


def test_what_is_not_recorded_is_assumed():
    """ggg neither copies nor waits; aga never sends copies that a sync waits for."""
    ggg, aga = (calibrate(simulate(handmade(), strategy=s).trace, None, s) for s in ("ggg", "aga"))
    for figure in ("calls_ns.copy_in", "calls_ns.sync", "copy_in.fixed_ns", "copy_out.fixed_ns", "edge_ns"):
        assert ggg.source(figure).startswith("assumed")
    assert aga.source("copy_in.fixed_ns").startswith("assumed")
    assert aga.copy_out.fixed_ns == 3000 + 500 - aga.wake_up_ns


@pytest.mark.parametrize("strategy", RECORDED)
def test_the_other_strategies_are_predicted(calibrated, strategy):
    """Within 3 % of what was measured; nothing but the recording of sccc is known."""
    predicted = rate(calibrated, strategy=strategy)
    assert predicted == pytest.approx(measured(SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda"), rel=0.03)


@pytest.mark.parametrize("concurrency", ["sequential", "branches"])
@pytest.mark.parametrize("strategy", RECORDED)
def test_ratios_are_predicted(calibrated, strategy, concurrency):
    """Of tokens/s to sccc with one stream, as in one session on the GPU."""
    ladder = {
        (row["strategy"], row["mode"]): row["tokens_per_s"]["median"]
        for row in json.loads(LADDER.read_text())["ladder"]
    }
    predicted = rate(calibrated, strategy=strategy, concurrency=concurrency) / rate(calibrated, strategy="sccc")
    assert predicted == pytest.approx(ladder[strategy, concurrency] / ladder["sccc", "sequential"], rel=0.03)


def test_the_order_of_the_strategies_is_predicted(calibrated):
    assert sorted(STRATEGIES, key=lambda s: rate(calibrated, strategy=s)) == list(STRATEGIES)


def test_the_shipped_profile_is_that_of_the_recording(calibrated):
    shipped = load_profile("h200-linux")
    assert replace(shipped, name=calibrated.name, sources=calibrated.sources) == calibrated


def test_every_figure_has_a_source(calibrated):
    assert [figure for figure in calibrated.figures if not calibrated.source(figure)] == []


def test_without_a_node_pass_the_step_still_lasts_as_long():
    """Kernels are not known then, but all of them together take as long as the recorded step."""
    profile = calibrate(read(BASE), None, "h200")
    trace = read(BASE)
    launches = trace["graph_launches"]
    assert list(profile.kernels) == ["other"]
    assert profile.kernels["other"].fixed_ns == pytest.approx((launches["end"] - launches["start"]).median(), abs=1)
    assert profile.sources["kernels"].startswith("derived")


@pytest.mark.parametrize("name", ["llama1b-sccc-node", "llama1b-sccc-graph", "llama1b-saaas-graph"])
def test_recordings_of_another_engine(name):
    """The gap that they were recorded with is brought to the untraced one."""
    trace = read(SAMPLES / name)
    profile = calibrate(trace, trace, name)
    assert profile.source("calls_ns.graph_launch").startswith("measured: mean of")
    assert "profiler" in profile.source("calls_ns.graph_launch")
    launches = trace["api"][trace["api"]["name"].str.startswith("cudaGraphLaunch")]
    assert profile.calls_ns["graph_launch"] < 0.7 * (launches["end"] - launches["start"]).median()
    assert simulate(profile).seconds[0] > 0


def test_the_untraced_rate_scales_the_host():
    """Recorded with a gap of 149 us; 1258 us of compute leave 242 us of a token at 666.7 tokens/s."""
    trace = read(SAMPLES / "llama1b-sccc-graph")
    usual, slower = (calibrate(trace, trace, "p", untraced_tokens_per_s=x) for x in (None, 666.7))
    assert slower.calls_ns["graph_launch"] / usual.calls_ns["graph_launch"] == pytest.approx(242 / 78, rel=0.05)


def test_one_range_of_several():
    trace = read(SAMPLES / "six-strategies")
    sccc = calibrate(trace, trace, "sccc", within="run sccc sequential")
    assert sccc.calls_ns["launch"] == 2300  # eager launches are in another range
    assert calibrate(trace, trace, "all").calls_ns["launch"] != 2300


def test_nothing_to_calibrate():
    with pytest.raises(EmptyTraceError):
        calibrate(Trace({}), None, "empty")


def invoke(*arguments):
    """Run `intertoken calibrate`, however the installed entry points are."""

    @click.group(cls=Intertoken)
    def main():
        """The command with `calibrate`."""

    register(main)
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


def test_the_command(tmp_path):
    path = tmp_path / "mine.json"
    done = invoke(BASE, "-o", path)
    assert done.exit_code == 0
    assert "wake_up_ns" in done.stdout
    profile = read_profile(path)
    assert profile.name == "mine"
    again = invoke(BASE, "-o", path)
    assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    assert "exists" in again.stderr
    printed = json.loads(invoke(BASE, "-o", path, "--force", "--json").stdout)
    assert printed["schema"] == "intertoken.profile/1"
    assert printed["wake_up_ns"] == profile.wake_up_ns


def test_times_under_a_profiler_are_no_constants(tmp_path):
    traced = SAMPLES / "vllm-b1-node-nvtx"
    done = invoke(traced, "-o", tmp_path / "p.json", "--fits", tmp_path / "own.toml")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "its times include the profiler's" in done.stderr
    assert not list(tmp_path.iterdir())


def test_measured_constants_replace_those_shipped(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    assert invoke(BASE, "-o", tmp_path / "p.json", "--fits", own).exit_code == 0
    profile, shipped = read_profile(tmp_path / "p.json"), fits_of("NVIDIA H200")
    monkeypatch.setenv(VARIABLE, str(own))
    found = fits_of("NVIDIA H200")
    assert found.usual.launch_ns == profile.calls_ns["graph_launch"] + profile.launch_latency_ns
    assert found.host.calls_ns["sync"] == profile.calls_ns["sync"]
    assert found.host.calls_ns["event_wait"] == shipped.host.calls_ns["event_wait"]  # not in the recording
    assert found.host.latency_ns == profile.launch_latency_ns
    assert found.graph == shipped.graph
    assert found.stretch == shipped.stretch
    again = invoke(BASE, "-o", tmp_path / "q.json", "--fits", own)
    assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "q.json").exists()


@pytest.mark.parametrize(
    ("trace", "output", "said"),
    [
        ("nowhere", "p.json", "nowhere"),
        (BASE, "p.txt", "the name of a profile must end with .json"),
        (BASE, "file/p.json", "cannot be written"),
    ],
)
def test_bad_arguments(tmp_path, trace, output, said):
    (tmp_path / "file").touch()
    done = invoke(trace, "-o", tmp_path / output)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
