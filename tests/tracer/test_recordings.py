"""Known answers on real recordings: llama.cpp and a CuPy loop on an H200."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tracer
from tests.recordings import SAMPLES, SIX
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps


@pytest.fixture(scope="module")
def six() -> Trace:
    return tracer.read(SIX)


def test_no_gap_is_measured_between_two_runs(six: Trace) -> None:
    steps = find_steps(six)
    assert len(steps) == 200
    assert len(gap_report(six, steps).table) == 200 - 7  # six runs, and the eager tokens after them


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
