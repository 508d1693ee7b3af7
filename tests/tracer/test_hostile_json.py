"""JSON that parsers cannot bear: refused in pieces before they see it, and only where it is no text."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import ijson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.kineto import event, read, write
from tests.tracer.test_formats_chrome import error_of
from tracer import formats
from tracer.errors import printable
from tracer.files.bounded import MOST_DIGITS, Pieces
from tracer.formats import chrome

EVENT = json.dumps(event("cpu_op", "op", 1, 1))
LONG = "1" * 4301  # what CPython refuses to make a number of
REFUSED = {
    "a number that ends the process": (f'[{EVENT}, {{"ts": {LONG}}}]', "contains a number with more than 100 digits"),
    "one below zero": (f'[{EVENT}, {{"ts": -{LONG}}}]', "contains a number with more than 100 digits"),
    "a fraction": (f'[{EVENT}, {{"ts": 0.{LONG}}}]', "contains a number with more than 100 digits"),
    "an exponent": (f'[{EVENT}, {{"ts": 1e{LONG}}}]', "contains a number with more than 100 digits"),
    "one that never ends": (f'[{EVENT}, {{"ts": ' + "7" * 2_000_000, "contains a number with more than 100 digits"),
    "one before the events": (
        f'{{"a": {LONG}, "traceEvents": [{EVENT}]}}',
        "contains a number with more than 100 digits",
    ),
    "one instead of events": (f'{{"traceEvents": {LONG}}}', "contains a number with more than 100 digits"),
    "one behind the events": (
        f'{{"traceEvents": [{EVENT}], "a": {LONG}}}',
        "contains a number with more than 100 digits",
    ),
    "one far behind": (f"[{','.join([EVENT] * 12_000)}, {LONG}]", "contains a number with more than 100 digits"),
    "an exponent that no decimal has": (f'[{EVENT}, {{"ts": 1e{"9" * 30}}}]', "whose exponent is out of range"),
    "a text without end": (f'[{EVENT}, {{"name": "' + "x" * 3_000_000, "contains a string longer than 1 MiB"),
    "a text of quotes": (f'[{EVENT}, {{"name": "' + '\\"' * 1_000_000, "contains a string longer than 1 MiB"),
    "a key without end": (f'[{EVENT}, {{"' + "x" * 3_000_000 + '": 1}]', "a string longer than 1 MiB"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_what_no_parser_may_see(tmp_path: Path, case: str, suffix: str) -> None:
    text, message = REFUSED[case]
    path = write(tmp_path / f"a.{suffix}", text.encode())
    start = time.process_time()
    found = error_of(path)
    assert message in found
    assert len(found) < len(str(path)) + 100
    assert time.process_time() - start < 5


def test_a_process_of_its_own_survives_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", REFUSED["a number that ends the process"][0].encode())
    done = subprocess.run([sys.executable, "-m", "tracer.cli", "info", str(path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"intertoken: {path}: contains a number with more than 100 digits, so it is not a trace\n"


def test_numbers_that_no_column_has_room_for(tmp_path: Path) -> None:
    numbers = ["1e999999999", "-1e999999999", "1e-999999999", "0e999999999", "1E+19", "9" * 100, "0." + "9" * 100]
    fields = ("ts", "dur", "pid", "tid", "id")
    texts = [f'{EVENT[:-1]}, "{field}": {number}}}' for field in fields for number in numbers]
    sizes = f'{{"grid": [{", ".join(numbers[:3])}], "device": {numbers[0]}, "stream": {numbers[5]}}}'
    texts += [f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": {n}, "args": {sizes}}}' for n in numbers]
    outer = f'{{"baseTimeNanoseconds": 1e999999999, "distributedInfo": {{"rank": {"9" * 100}, "world_size": 2}}'
    start = time.process_time()
    trace = read(tmp_path, f'{outer}, "schemaVersion": 1, "traceEvents": [{",".join(texts)}]}}'.encode())
    assert trace.metadata["source"] == "PyTorch profiler"
    assert len(trace["nvtx"]) + len(trace["kernels"]) + sum(int(note.split()[0]) for note in trace.notes) == len(texts)
    assert time.process_time() - start < 5


def test_many_places_where_the_events_might_begin(tmp_path: Path) -> None:
    before = ",".join(['"traceEvents"'] * 80_000)
    start = time.process_time()
    assert read(tmp_path, f'{{"a": [{before}], "traceEvents": [{EVENT}]}}'.encode())["nvtx"]["text"].tolist() == ["op"]
    assert time.process_time() - start < 5


def test_sniffing_sees_no_more_than_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr(ijson, "parse", parse)
    monkeypatch.setattr(ijson, "items", parse)
    monkeypatch.setattr(chrome, "parsed", parse)
    assert formats.is_trace(write(tmp_path / "a.json", f'{{"a": 1, "traceEvents": [{EVENT}]}}'.encode()))
    assert formats.is_trace(write(tmp_path / "b.json", REFUSED["one before the events"][0].encode()))
    assert not formats.is_trace(write(tmp_path / "c.txt", REFUSED["one before the events"][0].encode()))


@given(
    structure=st.recursive(
        st.integers(0, 10**130) | st.text('"\\1', max_size=150) | st.just("é" * 50),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\1', max_size=110), inner, max_size=3),
        max_leaves=6,
    ),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
)
def test_pieces_are_judged_as_the_whole(structure: Any, cuts: list[int]) -> None:
    text = json.dumps(structure, ensure_ascii=False).encode()
    expected = not any(len(str(number)) > MOST_DIGITS for number in _numbers(structure))
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = Pieces()
    assert _is_fine(pieces, *(text[a:b] for a, b in pairwise(places))) == expected


def test_errors_cut_long_numbers() -> None:
    assert printable(f"a is {'7' * 300}, not 1") == "a is 7777777777..., not 1"
    assert printable(f"sum {'7' * 64}") == f"sum {'7' * 64}"


def _numbers(value: Any) -> list[int]:
    if isinstance(value, list | dict):
        return [n for inner in (value.values() if isinstance(value, dict) else value) for n in _numbers(inner)]
    return [value] if isinstance(value, int) else []


def _is_fine(pieces: Pieces, *texts: bytes) -> bool:
    try:
        for text in texts:
            pieces.check(text)
    except ValueError:
        return False
    return True
