"""The untraced gap estimated from a traced recording."""

import json
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import tracer
from tests.recordings import LLAMA, SAMPLES
from tests.tracer.handmade import decode_loop
from tracer.analysis.distortion import COUNTED, FLOOR_US, INFLATIONS, Inflation, estimated_gap, is_estimable
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.gaps_command import gaps
from tracer.info_command import info

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gap_estimate.json"


def table(**columns: int) -> pd.DataFrame:
    return pd.DataFrame([dict.fromkeys(COUNTED, 0) | columns])


def test_a_gap_loses_its_share_of_the_launch_and_a_cost_per_call() -> None:
    gap = table(gap=100_000, launch_call=40_000, launch_latency=10_000, graph_launch=1, calls=10)
    found = estimated_gap(gap, Inflation(launch_share=0.8, per_call_us=1.0, low=0.5, high=2.0))
    assert asdict(found) == {"estimate": 50.0, "low": 40.0 - FLOOR_US, "high": 55.0 + FLOOR_US}
    assert str(found) == "about 50.0 µs, 95 % interval 39.0 to 56.0 µs"


def test_an_eager_launch_is_a_call_like_others() -> None:
    gap = table(gap=100_000, launch_call=40_000, graph_launch=0, calls=10)
    assert estimated_gap(gap, Inflation(0.8, 1.0, 1.0, 1.0)).estimate == 90.0


def test_an_estimate_is_neither_negative_nor_longer_than_the_traced_gap() -> None:
    found = estimated_gap(table(gap=5_000, calls=10), Inflation(0.8, 0.1, -1.0, 1.0))
    assert (found.low, found.estimate, found.high) == (0.0, 4.0, 5.0 + FLOOR_US)


def test_gaps_that_are_mostly_compute_elsewhere_are_not_estimated() -> None:
    assert is_estimable(table(gap=100, host_compute=30, other_device=20))
    assert not is_estimable(table(gap=100, host_compute=30, other_device=21))


@pytest.mark.parametrize(("strategy", "untraced_us"), [("sccc", 77), ("saaas", 60)])
def test_llama_cpp_s_gap_is_estimated_from_the_graph_level_recording_alone(strategy: str, untraced_us: float) -> None:
    trace = tracer.read(LLAMA[strategy, "graph"])
    trace.metadata.pop("run")
    found = gap_report(trace, find_steps(trace)).estimated
    assert found is not None
    assert found.estimate == pytest.approx(untraced_us, rel=0.25)
    assert found.low <= untraced_us <= found.high


def test_the_constants_are_those_that_the_benchmark_fitted() -> None:
    fitted = json.loads(RESULT.read_text(encoding="utf-8"))["constants"]
    assert [{k: v for k, v in row.items() if k != "level"} for row in fitted] == [
        asdict(inflation) for inflation in INFLATIONS.values()
    ]


def test_of_our_recordings_the_interval_holds_nineteen_of_twenty() -> None:
    rows = [row for row in json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if row["estimate"] and row["ours"]]
    assert len(rows) > 70
    assert sum(row["holds"] for row in rows) >= 0.95 * len(rows)


def test_eager_launches_and_light_passes_have_no_estimate() -> None:
    loop = decode_loop("sasg", 4, launch="cudaLaunchKernel_v7000").trace
    found = gap_report(loop, find_steps(loop))
    assert (found.graph_trace, found.estimated) == ("none", None)
    light = tracer.read(SAMPLES / "llama-1.1b-sccc-sequential-cuda")
    assert gap_report(light, find_steps(light)).estimated is None


def test_the_command_shows_the_estimate_where_no_rate_is_known(tmp_path: Path) -> None:
    trace = tracer.read(LLAMA["sccc", "graph"])
    rate = ["--untraced-tokens-per-s", "748.7"]
    trace.metadata.pop("run")
    path = str(tmp_path / "alone.sqlite")
    tracer.write(trace, path)
    text = CliRunner().invoke(gaps, [path]).output
    assert "about 89.8 µs, 95 % interval 72.9 to 104.9 µs (p50, estimated)" in text
    assert "estimated" not in CliRunner().invoke(gaps, [path, *rate]).output
    assert "untraced about 89.8 µs" in " ".join(CliRunner().invoke(info, [path]).output.split())
    facts = json.loads(CliRunner().invoke(gaps, [path, "--json"]).stdout)
    assert {k: round(v, 1) for k, v in facts["estimated_untraced_gap_us"].items()} == {
        "estimate": 89.8, "low": 72.9, "high": 104.9,
    }  # fmt: skip
    assert sum(sum(parts.values()) for parts in facts["parts_us"].values()) == pytest.approx(facts["gap_us"]["mean"])
