"""Names of recordings steer neither a terminal nor a spreadsheet; numbers have a sign only where they read so."""

import csv
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.test_cli import run
from tracer import formats
from tracer.model.trace import Trace
from tracer.text import percent, signed, spelled, with_sign, without_formulas

HOSTILE = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "a\rb", "c\x08d", "\u202eevil", "e\x00f", "g\nh", "\x7f", "\u2028"]
FORMULAS = ["=1+1", "+1", "-1+k", "@SUM(A1)", "\t=1+1", "\r=1", "＝1+1", "\x00=1"]
UNSEEN = {c for text in HOSTILE for c in text if not c.isprintable()} - {"\n"}


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Token steps whose ranges, kernels, calls, threads and devices are called like that."""
    path, names = tmp_path_factory.mktemp("hostile") / "a.sqlite", [*HOSTILE, *FORMULAS][:16]
    n, at = len(names), np.arange(len(names)) * 1000
    host, numbers = {"process": [1] * n, "thread": [2] * n}, list(range(n))
    where = {"device": [0] * n, "context": [1] * n, "stream": [7] * n, "correlation": numbers, "process": [1] * n}
    formats.write(Trace.from_columns(
        kernels={"start": at + 100, "end": at + 600, "name": names, "short_name": names, **where},
        api={
            "start": [*(at + 10), *(at + 700)], "end": [*(at + 20), *(at + 800)],
            "process": [1] * 2 * n, "thread": [2] * 2 * n, "correlation": [*numbers, *range(100, 100 + n)],
            "name": ["cuLaunchKernel"] * n + [f"cudaStreamSynchronize{name}" for name in names],
        },
        nvtx={
            "start": at, "end": at + 900, "text": [f"token {name}" for name in names], "kind": ["push/pop"] * n,
            "domain": ["", *names[1:4], *[""] * (n - 4)], **host,
        },
        threads={"process": [1], "thread": [2], "name": [HOSTILE[0]]},
        devices={"device": [0], "name": [HOSTILE[1]]},
    ), path)  # fmt: skip
    return path


def _spelled(text):
    return "\n".join(map(spelled, text.split("\n")))


@pytest.mark.parametrize(
    "command", ["info", "tokens", "syncs", "gaps", "streams", "path", "whatif", "events", "compare", "scrub"]
)
def test_no_command_prints_what_steers_a_terminal(command, recording, tmp_path):
    more = {"events": ("kernels",), "compare": (recording,), "whatif": ("--without-syncs",), "scrub": (tmp_path / "b",)}
    for option in ((), ("--json",)):
        result = run(command, recording, *more.get(command, ()), *option, *["--force"] * (command == "scrub"))
        assert result.exit_code == 0, result.output
        assert not UNSEEN & set(result.output)
    json.loads(result.stdout)
    odd = tmp_path / "a\x1b[2Jb.sqlite"
    odd.write_bytes(b"SQLite format 3\0")
    result = run(command, odd, *more.get(command, ()))
    assert (result.exit_code, UNSEEN & set(result.output)) == (2, set())


@pytest.mark.parametrize("table", ["kernels", "nvtx", "api", "threads", "devices"])
def test_events_in_a_csv_are_neither_formulas_nor_controls(table, recording, tmp_path):
    for suffix in ("csv", "parquet"):
        assert run("events", recording, table, "--table", tmp_path / f"a.{suffix}").exit_code == 0
    assert not UNSEEN & set((tmp_path / "a.csv").read_bytes().decode())
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, recorded in zip(rows, pd.read_parquet(tmp_path / "a.parquet").to_dict("records"), strict=True):
        for column, text in recorded.items():
            if isinstance(text, str):
                assert row[column] == ("'" if text[:1] and text[0] in "=+-@＝" else "") + _spelled(text)
                assert not row[column].startswith(("=", "+", "-", "@", "\t", "\r"))


@given(st.lists(st.text(max_size=8) | st.none() | st.sampled_from(FORMULAS), min_size=1))
def test_any_column_keeps_its_rows_and_its_harmless_texts(texts):
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


@given(st.floats(-1e9, 1e9), st.integers(0, 4))
def test_numbers_with_a_sign(value, digits):
    there, back = signed(value, digits), signed(-value, digits)
    assert there[1:] == back[1:]
    assert {there[0], back[0]} in ({"+", "−"}, {"±"})
    assert (there[0] == "±") == (float(there[1:].replace(",", "")) == 0)
    texts = {"±0.0": -0.04, "+0.1": 0.05001, "−1,234.6": -1234.56, "−inf": -math.inf}
    assert {text: signed(number, 1) for text, number in texts.items()} == {text: text for text in texts}
    assert (percent(0.0153), percent(-0.00004, 2), percent(0.00004, 2)) == ("+1.5 %", "±0.00 %", "±0.00 %")
    assert (with_sign(-2e-10, "0 ns"), with_sign(-18, "18.0 µs")) == ("±0 ns", "−18.0 µs")
