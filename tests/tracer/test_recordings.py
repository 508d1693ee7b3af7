"""Known answers on real recordings: llama.cpp and a CuPy loop on an H200."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracer
from tests.recordings import CUPY_RUNS, LLAMA, SAMPLES, SIX
from tracer import Trace
from tracer.analysis.causes import CAUSES
from tracer.analysis.gaps import gap_report
from tracer.analysis.recording import Recording
from tracer.analysis.streams import stream_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps


@pytest.fixture(scope="module")
def six() -> Trace:
    return tracer.read(SIX)


@pytest.mark.parametrize(
    ("strategy", "syncs", "signature"), [("sccc", 14, "(sc)×6 g a s×2"), ("saaas", 5, "s c a×5 s g a s×2")]
)
@pytest.mark.parametrize(("level", "steps"), [("node", 31), ("graph", 64)])
def test_llama_steps_are_found_from_the_calls(
    strategy: str, syncs: int, signature: str, level: str, steps: int
) -> None:
    trace = tracer.read(LLAMA[strategy, level])
    assert not len(trace["nvtx"])
    found = find_steps(trace)
    assert (found.source, len(found)) == ("calls", steps)
    report = sync_report(trace, found)
    assert (report.strategy, report.syncs_per_token) == (strategy, syncs)
    assert (report.signature, report.signature_share) == (signature, 1.0)
    assert (report.copies_per_token, report.launches_per_token) == (7, 1)


@pytest.mark.parametrize(
    ("strategy", "level", "gap_us"),
    [("sccc", "graph", 150), ("sccc", "node", 354), ("saaas", "graph", 117), ("saaas", "node", 308)],
)
def test_llama_gaps_as_recorded(strategy: str, level: str, gap_us: float) -> None:
    trace = tracer.read(LLAMA[strategy, level])
    report = gap_report(trace, find_steps(trace))
    assert report.gap_us["p50"] == pytest.approx(gap_us, rel=0.02)
    assert report.graph_trace == level
    assert "include what the profiler adds" in str(report.warning)
    assert (report.table[list(CAUSES)].sum(axis=1) == report.table["gap"]).all()


@pytest.mark.parametrize(("strategy", "rate", "gap_us"), [("sccc", 748.7, 77), ("saaas", 759.5, 60)])
def test_llama_gaps_without_tracing(strategy: str, rate: float, gap_us: float) -> None:
    trace = tracer.read(LLAMA[strategy, "graph"])
    corrected = gap_report(trace, find_steps(trace), rate).corrected()
    assert corrected.gap_us["p50"] == pytest.approx(gap_us, rel=0.03)
    assert corrected.warning is None


@pytest.mark.parametrize(("strategy", "mode"), CUPY_RUNS)
def test_six_runs_in_one_recording(six: Trace, strategy: str, mode: str) -> None:
    steps = find_steps(six, within=f"run {strategy} {mode}")
    report = sync_report(six, steps)
    assert (len(steps), steps.source) == (32, "nvtx")
    assert (report.strategy, report.share) == (strategy, 1.0)
    assert report.syncs_per_token == {"sccc": 8, "saaas": 3, "aaag": 1}[strategy]
    overlap = stream_report(six, steps).devices["overlap_us"].iloc[0]
    assert (overlap > 0) == (mode == "concurrent")


def test_no_gap_is_measured_between_two_runs(six: Trace) -> None:
    steps = find_steps(six)
    assert len(steps) == 200
    assert len(gap_report(six, steps).table) == 200 - 7  # six runs, and the eager tokens after them


def test_a_summary_says_what_run_json_knows(six: Trace) -> None:
    summary = Recording(six, "six", within="run saaas concurrent").summary
    assert (summary.configured, summary.concurrency, summary.tokens_per_s) == ("saaas", "branches", 3795.1)
    assert summary.gpu == "NVIDIA H200"
    assert summary.distortion == pytest.approx(1.43, abs=0.05)


def test_samples_are_small_and_leak_nothing() -> None:
    files = [path for path in SAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    for path in files:
        if path.suffix != ".py":
            texts = _texts(path)
            for secret in ("/home/", "/root", "/tmp/", "GPU-", "HOSTNAME", "hostname", "_KEY=", "PATH="):
                assert not any(secret in text for text in texts), f"{path}: {secret!r}"


def _texts(path: Path) -> list[str]:
    """What a person can read in a file: of a table, which is packed, its texts."""
    if path.suffix != ".parquet":
        return [path.read_text(encoding="utf-8")]
    file = pq.ParquetFile(path)
    columns = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    return [text for column in file.read(columns).columns for text in column.unique().to_pylist() if text is not None]


def test_every_sample_is_described() -> None:
    readme = (SAMPLES / "README.md").read_text()
    for path in SAMPLES.iterdir():
        if path.is_dir():
            assert f"`{path.name}`" in readme
