"""The program's own ranges and marks in light recordings."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from tests.tracer.fake_driver import Build
from tracer.recorders import light
from tracer.recorders.light import light_trace

COLUMNS = ["text", "kind", "domain", "category", "color", "payload"]


def ranges(built: Build) -> tuple[pd.DataFrame, str]:
    """The nvtx table of the last run, and its notes."""
    trace = light_trace([built.ring()])
    return trace["nvtx"], "; ".join(trace.notes)


def test_every_kind_of_them(built: Build) -> None:
    built.run("ranges", "all")
    table, notes = ranges(built)
    step = ["step", "push/pop", "engine", 7, 0xFF00FF00, -3.0]
    outer, inner = (["outer", "push/pop", "", -1, -1, None], ["inner", "push/pop", "", -1, -1, None])
    found = table[COLUMNS].astype(object).where(table[COLUMNS].notna(), None).to_numpy().tolist()
    assert found == [
        ["request", "start/end", "", -1, -1, None], *[step, outer, inner] * 2,
        ["müde", "mark", "", -1, -1, 2.5], ["open", "push/pop", "", -1, -1, None],
    ]  # fmt: skip
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    assert (start[1:4] <= start[1]).sum() == 1
    assert end[3] <= end[2] <= end[1] <= start[4]  # inner in outer in step, before the next
    assert end[0] >= start[7]  # ended by another thread, behind the mark
    assert start[7] == end[7]
    assert "1 NVTX ranges were still open at the end" in notes
    assert light_trace([built.ring()])["api"]["name"].tolist() == ["cuStreamSynchronize"]


def test_ends_in_another_window_are_not_taken_for_theirs(built: Build) -> None:
    built.run("ranges", "pauses", INTERTOKEN_LIGHT_PAUSED="program")
    table, notes = ranges(built)
    assert table["text"].tolist() == ["first", "second"]
    assert table["end"].iloc[0] == table["end"].iloc[1]  # with the recording
    assert "1 NVTX ranges were still open" in notes


def test_texts_that_were_overwritten_are_said(built: Build) -> None:
    built.run("ranges", "many", "200000", INTERTOKEN_LIGHT_RECORDS="524288")
    ring = built.ring()
    assert ring.texts
    table, notes = ranges(built)
    gone = 200_000 - len(table)
    assert table["text"].tolist() == [f"step {i} of many, of its own" for i in range(gone, 200_000)]
    assert f"{gone} NVTX ranges are left out" in notes
    assert gone > 10_000


def test_without_the_recorder_nobody_listens(built: Build) -> None:
    environment = built.environment()
    del environment["INTERTOKEN_LIGHT"]
    done = subprocess.run([built.folder / "ranges", "all"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "nobody listens\n"


PROGRAM = """
import ctypes, nvtx
driver = ctypes.CDLL("libcuda.so.1")
driver.cuStreamSynchronize(None)
for step in range(3):
    with nvtx.annotate("step", domain="engine", color="green", payload=step):
        driver.cuStreamSynchronize(None)
with nvtx.annotate("default"):
    pass
"""


def test_the_python_package(built: Build) -> None:
    for old in built.rings.iterdir():
        old.unlink()
    subprocess.run([sys.executable, "-c", PROGRAM], env=built.environment(), check=True)
    table, _ = ranges(built)
    assert table["text"].tolist() == ["step"] * 3 + ["default"]
    assert table["domain"].tolist()[:3] == ["engine"] * 3
    assert table["payload"].tolist()[:3] == [0, 1, 2]
    calls = light_trace([built.ring()])["api"]["start"].to_numpy()
    assert ((calls[1:] >= table["start"].to_numpy()[:3]) & (calls[1:] <= table["end"].to_numpy()[:3])).all()
    assert np.diff(table["start"]).min() > 0


def test_another_listener_stays(tmp_path: Path) -> None:
    found = light.environment(Path("/a/light.so"), tmp_path, {"NVTX_INJECTION64_PATH": "/b/other.so"})
    assert found["NVTX_INJECTION64_PATH"] == "/b/other.so"
    for given in ({}, {"NVTX_INJECTION64_PATH": "/c/lib/libcupti.so.13"}):  # this process's own CUPTI recorder left it
        found = light.environment(Path("/a/light.so"), tmp_path, given)
        assert found["NVTX_INJECTION64_PATH"] == "/a/light.so"
