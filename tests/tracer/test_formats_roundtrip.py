"""Every format that says so gives back what it was given."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracer import formats
from tracer.formats import Format
from tracer.model.schema import MISSING, MOST_NS, TABLES, Column, Table
from tracer.model.trace import Trace

LOSSLESS = [f for f in formats.registered() if f.write is not None and f.lossless]

NAMES = st.one_of(
    st.sampled_from(["", "<script>alert('x')</script>", "kernel<float, int>(T1 *)", "Токен 0 ⏱", "a\nb\0c", "'; DROP"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
BITS_24 = ("process", "thread")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def _cells(column: Column, rows: int) -> st.SearchStrategy[list[Any]]:
    if column.enum is not None:
        cell: st.SearchStrategy[Any] = st.sampled_from(list(column.enum))
    elif column.is_name:
        cell = NAMES
    elif column.kind == "float64":
        cell = st.floats(allow_nan=True, allow_infinity=True)
    elif column.name in BITS_24:
        cell = st.integers(MISSING, 2**24 - 2)
    elif column.name in ("start", "end", "time"):
        cell = st.integers(0, MOST_NS - 1)
    else:
        cell = st.integers(MISSING, 100) | st.integers(2**32, 2**63 - 1)
    return st.lists(cell, min_size=rows, max_size=rows)


@st.composite
def _frames(draw: st.DrawFn, table: Table) -> pd.DataFrame:
    rows = draw(st.integers(0, 5))
    frame = pd.DataFrame({c.name: draw(_cells(c, rows)) for c in table.columns})
    if "end" in frame and rows:
        frame["end"] = np.maximum(frame["start"].to_numpy(np.int64), frame["end"].to_numpy(np.int64))
    if table.name == "nvtx" and rows:
        frame["end"] = frame["end"].where(frame["kind"] != "mark", frame["start"])
    if key := {"devices": "device", "samples": "chain"}.get(table.name):
        frame[key] = range(rows)
    return frame


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Random traces of valid rows."""
    metadata = draw(st.dictionaries(NAMES.filter(lambda key: key != "run"), JSON, max_size=3))
    if draw(st.booleans()):
        metadata["run"] = draw(st.dictionaries(NAMES, JSON, max_size=3))
    frames = {name: draw(_frames(table)) for name, table in TABLES.items()}
    return Trace(frames, metadata, draw(st.lists(NAMES, max_size=2)))


def assert_same(actual: Trace, expected: Trace) -> None:
    """Equal tables, metadata and notes; categoricals by their values. Reading adds a note if names of calls look like
    launches, copies or syncs but are none that is known."""
    for name, table in TABLES.items():
        names = {c.name: "str" for c in table.columns if c.is_name}
        pd.testing.assert_frame_equal(actual[name].astype(names), expected[name].astype(names), obj=name)
    assert actual.metadata == expected.metadata
    kept, added = actual.notes[: len(expected.notes)], actual.notes[len(expected.notes) :]
    assert kept == expected.notes
    assert len(added) <= bool(expected.api.unknown_calls()), added


def _write_and_read(format: Format, trace: Trace) -> Trace:
    directory = Path(tempfile.mkdtemp())
    try:
        path = directory / f"trace{format.suffix}"
        formats.write(trace, path)
        return formats.read(path)
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("format", LOSSLESS, ids=lambda f: f.name)
@given(trace=traces())
@settings(max_examples=7)
def test_any_trace_survives(format: Format, trace: Trace) -> None:
    assert_same(_write_and_read(format, trace), trace)


@pytest.mark.parametrize("format", LOSSLESS, ids=lambda f: f.name)
def test_an_empty_trace_survives(format: Format) -> None:
    assert_same(_write_and_read(format, Trace({})), Trace({}))


def test_ids_that_nsys_cannot_hold_are_cut_and_noted(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "start": [1],
        "end": [2],
        "process": [5],
        "thread": [2**24 + 7],
        "name": ["cudaFree"],
    }
    formats.write(Trace.from_columns(api=columns), tmp_path / "cut")
    trace = formats.read(tmp_path / "cut")
    assert trace["api"][["process", "thread"]].to_numpy().tolist() == [[5, 7]]
    assert trace.notes == ["process or thread ids were truncated to 24 bits, as nsys does"]
