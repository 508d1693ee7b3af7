"""Names of recordings steer neither a terminal nor a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.test_cli import run
from tracer import formats
from tracer.commands.info import show_info
from tracer.model.trace import Trace
from tracer.reporting import console as report
from tracer.text import spelled, without_formulas

HOSTILE = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "a\rb", "c\x08d", "\u202eevil", "e\x00f", "g\nh", "\x7f", "\u2028"]
FORMULAS = ["=1+1", "+1", "-1+k", "@SUM(A1)", "\t=1+1", "\r=1", "＝1+1", "\x00=1"]
UNSEEN = {c for text in HOSTILE for c in text if not c.isprintable()} - {"\n"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token steps whose ranges, kernels, calls, threads and devices are called like that."""
    path = tmp_path_factory.mktemp("hostile") / "a.sqlite"
    n = 16
    names = [*HOSTILE, *FORMULAS][:n]
    at = np.arange(n) * 1000
    where = {
        "device": [0] * n,
        "context": [1] * n,
        "stream": [7] * n,
        "correlation": list(range(n)),
        "process": [1] * n,
    }
    host = {"process": [1] * n, "thread": [2] * n, "kind": ["push/pop"] * n}
    trace = Trace.from_columns(
        kernels={"start": at + 100, "end": at + 600, "name": names, "short_name": names, **where},
        api={
            "start": [*(at + 10), *(at + 700)],
            "end": [*(at + 20), *(at + 800)],
            "process": [1] * 2 * n,
            "thread": [2] * 2 * n,
            "correlation": [*range(n), *range(100, 100 + n)],
            "name": ["cuLaunchKernel"] * n + [f"cudaStreamSynchronize{name}" for name in names],
        },
        nvtx={
            "start": at,
            "end": at + 900,
            "text": [f"token {name}" for name in names],
            "domain": ["", *names[1:4], *[""] * (n - 4)],
            **host,
        },
        threads={"process": [1], "thread": [2], "name": [HOSTILE[0]]},
        devices={"device": [0], "name": [HOSTILE[1]]},
    )
    formats.write(trace, path)
    return path


def _spelled(text: str) -> str:
    return "\n".join(map(spelled, text.split("\n")))


def assert_harmless(result: Result) -> None:
    assert not UNSEEN & set(result.output), result.output


@pytest.mark.parametrize("json_option", [(), ("--json",)])
@pytest.mark.parametrize(
    "command", ["info", "tokens", "syncs", "gaps", "streams", "path", "whatif", "events", "compare", "scrub"]
)
def test_no_command_prints_what_steers_a_terminal(
    command: str, json_option: tuple[str, ...], recording: Path, tmp_path: Path
) -> None:
    more = {"events": ("kernels",), "compare": (recording,), "whatif": ("--without-syncs",), "scrub": (tmp_path / "b",)}
    result = run(command, recording, *more.get(command, ()), *json_option)
    assert result.exit_code == 0, result.output
    assert_harmless(result)
    if json_option:
        json.loads(result.stdout)


def test_an_error_prints_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    odd = tmp_path / "a\x1b[2Jb.sqlite"
    odd.write_bytes(b"SQLite format 3\0")
    for command in (("info", odd), ("gaps", odd), ("scrub", odd, tmp_path / "b"), ("convert", odd, odd)):
        result = run(*command)
        assert result.exit_code == 2
        assert_harmless(result)


def test_what_is_printed_for_people_is_spelled() -> None:
    shown = io.StringIO()
    with redirect_stdout(shown):
        report.show_table([{"name": text} for text in HOSTILE], {"name": "name"})
        show_info(
            {
                "name": HOSTILE[0],
                "source": "x",
                "duration_ms": 1.0,
                "gpu": HOSTILE[1],
                "events": {},
                "steps": None,
                "problem": HOSTILE[2],
            }
        )
    assert not UNSEEN & set(shown.getvalue())
    assert r"\x1b[2J" in shown.getvalue()


@pytest.mark.parametrize("table", ["kernels", "nvtx", "api", "threads", "devices"])
def test_events_in_a_csv_are_neither_formulas_nor_controls(table: str, recording: Path, tmp_path: Path) -> None:
    assert run("events", recording, table, "--table", tmp_path / "a.csv").exit_code == 0
    assert run("events", recording, table, "--table", tmp_path / "a.parquet").exit_code == 0
    written = (tmp_path / "a.csv").read_bytes().decode()
    assert not UNSEEN & set(written)
    as_recorded = pd.read_parquet(tmp_path / "a.parquet")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(as_recorded)
    for row, recorded in zip(rows, as_recorded.to_dict("records"), strict=True):
        for column, value in recorded.items():
            if isinstance(value, str):
                assert row[str(column)] == (
                    f"'{_spelled(value)}" if value[:1] in "=+-@＝" and value else _spelled(value)
                )
                assert not row[str(column)].startswith(("=", "+", "-", "@", "\t", "\r"))


@given(st.lists(st.text(max_size=8) | st.none() | st.sampled_from(FORMULAS), min_size=1))
def test_any_column_keeps_its_rows_and_its_harmless_texts(texts: list[str | None]) -> None:
    for dtype in (object, "category"):
        column = pd.Series(texts, dtype=dtype)
        guarded = without_formulas(pd.DataFrame({"name": column, "n": range(len(texts))}))
        assert guarded["n"].tolist() == list(range(len(texts)))
        for text, cell in zip(column.astype(object), guarded["name"], strict=True):
            if pd.isna(text):
                assert pd.isna(cell)
            else:
                assert cell.removeprefix("'") == _spelled(text).removeprefix("'")
                assert not cell.lstrip("\n").startswith(("=", "+", "-", "@"))
