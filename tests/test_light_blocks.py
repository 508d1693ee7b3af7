"""The benchmarks that run an engine in blocks: whole, over an engine like vLLM and a driver without a GPU."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.thorough import thorough
from tests.tracer import fake_cuda
from tests.tracer.fake_driver import Build
from tracer import read

ROOT = Path(__file__).parents[1]


@pytest.fixture
def engine_like_vllm(tmp_path: Path) -> dict[str, str]:
    """An environment in which `import vllm` finds an engine, with a driver and a CUPTI, that need no GPU."""
    driver, cuda = tmp_path / "driver", tmp_path / "cuda"
    driver.mkdir()
    cuda.mkdir()
    built = Build.into(driver)
    fake_cuda.build(cuda)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho Fake GPU, 1.0\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    return {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FAKE_SILENT": "1",
        "PYTHONPATH": f"{ROOT / 'tests' / 'fake_vllm'}:{ROOT}",
        "FAKE_DRIVER": str(built.folder / "libcuda.so.1"), "FAKE_TRUTH": str(cuda / "libcuda.so.1"),
        "FAKE_CUPTI": str(cuda / "libcupti.so.13"),
    }  # fmt: skip


def benchmark(name: str, *arguments: str, folder: Path, env: dict[str, str]) -> str:
    """Run a benchmark in a folder; return what it printed."""
    command = [sys.executable, ROOT / "benchmarks" / name, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@thorough
@pytest.mark.parametrize("in_child", [True, False])
def test_a_round_over_an_engine_like_vllm(tmp_path: Path, engine_like_vllm: dict[str, str], in_child: bool) -> None:
    given = {**engine_like_vllm, "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(in_child))}
    printed = benchmark("light_blocks.py", "vllm", "-o", "out.json", "--cases", "b1,b8", "--pairs", "3", "--steps",
                        "40", "--turns", "0.4", folder=tmp_path, env=given)  # fmt: skip
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found["cases"]) == ["b1", "b8"]
    for case in found["cases"].values():
        assert len(case["slowdown"]) == 3
        assert len(case["rates"]["recorded"]) == len(case["rates"]["paused"]) == len(case["told"]["idle_us"]) == 3
        assert case["told"]["graph_launches"] + case["told"]["kernels"] >= 3 * 40
        assert case["truth"]["busy_us"] > 0
        assert len(case["turns"]["recorded_us"]) == len(case["turns"]["paused_us"]) > 0  # about 6 on an idle machine
        assert case["truth"]["turns"] <= len(case["turns"]["paused_us"])
        assert len(case["truth"].get("told_over_paused", ())) == (3 if case["truth"]["turns"] else 0)
    assert "b8: slowdown" in printed


def test_turns_are_compared_with_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 ms, of 1.1 ms in recorded turns; those that begin early in a turn, or lie in two, do not count."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    light_turns = importlib.import_module("light_turns")
    since = 10 + 0.03 * np.arange(8)
    on = np.array([False, True, True, False] * 2)
    times = [10.0]
    while times[-1] < since[-1] + 0.03:
        turn = np.searchsorted(since, times[-1] - light_turns.SETTLE_S / 2, side="right") - 1
        times.append(times[-1] + (0.0011 if on[max(turn, 0)] else 0.001))
    found = light_turns.compared([np.array(times[:90]), np.array(times[90:])], since, on)
    assert found["recorded_us"] == pytest.approx([1100] * 4)
    assert found["paused_us"] == pytest.approx([1000] * 4)
    assert found["recorded"] == [1, 2, 5, 6]


@thorough
def test_advice_is_measured_on_an_engine_like_vllm(tmp_path: Path, engine_like_vllm: dict[str, str]) -> None:
    benchmark("advice_measure.py", "-o", "out", "--groups", "vllm", "--vllm", "synchronous,full", "--vllm-pairs", "2",
              folder=tmp_path, env=engine_like_vllm)  # fmt: skip
    measured = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert measured["failed"] == {}
    (change,) = measured["changes"]
    assert (change["before"], change["recordings"]) == ("synchronous", {"light": ["vllm-synchronous"]})
    assert [len(rates) for rates in change["rates"].values()] == [2, 2]
    benchmark("advice_check.py", "out", "--json", "a.json", folder=tmp_path, env=engine_like_vllm)
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert row["why"] == "this recording does not allow the edit"  # it was read: a graph and a kernel, waited for


@thorough
def test_piecewise_graphs_are_recorded_in_both_passes(tmp_path: Path, engine_like_vllm: dict[str, str]) -> None:
    benchmark("advice_measure.py", "-o", "out", "--groups", "vllm", "--vllm", "full,piecewise", "--vllm-pairs", "2",
              folder=tmp_path, env=engine_like_vllm)  # fmt: skip
    measured = json.loads((tmp_path / "out" / "measured.json").read_text())
    (change,) = measured["changes"]
    window = "vllm-piecewise-window/light,node"
    assert change["recordings"] == {"light": ["vllm-piecewise"], "light,node": [window]}
    trace = read(tmp_path / "out" / window)
    assert len(trace["graph_launches"]) == len(trace["kernels"]) == 65  # of the window alone
    benchmark("advice_check.py", "out", "--json", "a.json", folder=tmp_path, env=engine_like_vllm)
    assert [row["pass"] for row in json.loads((tmp_path / "a.json").read_text())["rows"]] == ["light", "light,node"]


@thorough  # `test_advice_check.py` has a round over other programs
def test_loops_are_measured_and_recorded_in_one_process(tmp_path: Path, engine_like_vllm: dict[str, str]) -> None:
    benchmark("advice_measure.py", "-o", "out", "--groups", "loops", "--repeats", "3", "--passes", "light",
              "--loop-options=--steps 40 --device cpu", "--loop-program", str(ROOT / "tests" / "fake_advice_loops.py"),
              folder=tmp_path, env=engine_like_vllm)  # fmt: skip
    measured = json.loads((tmp_path / "out" / "measured.json").read_text())
    (change,) = measured["changes"]  # the other loops fail, which does not keep this one from being measured
    assert (change["group"], change["recordings"]) == ("needless-sync", {"light": ["needless-sync/light"]})
    assert [len(rates) for rates in (*change["rates"].values(), change["recorded"])] == [3, 3, 3]
    trace = read(tmp_path / "out" / "needless-sync" / "light")
    assert len(trace["graph_launches"]) == 3 * 40  # of the recorded turns alone
    benchmark("advice_check.py", "out", "--json", "a.json", folder=tmp_path, env=engine_like_vllm)
    (row,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert row["results_equal"] is True
    assert row["predicted"]["estimate"] >= 1
