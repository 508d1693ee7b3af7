"""Call sites: the innermost function of the program around each call, against brute force and a recording of vLLM."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.handmade import Script
from tests.tracer.test_truths import SHARED
from tracer.analysis.call_sites import PYTHON, RANGES, by_site, call_sites, without_counters
from tracer.analysis.gaps import gap_report
from tracer.analysis.idle_sites import idle_by_site, idle_stacks
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.model.schema import PYTHON_FUNCTION
from tracer.model.trace import Trace

LLAMA_CPP = Path(__file__).parent / "data" / "llamacpp-light-call-sites.tar.gz"
"""llama-bench (sccc, one H100) under the light recorder with --call-sites, of a build with symbols; scrubbed."""
VLLM = SHARED / "vllm" / "torch-stack-b1.json.gz"


def trace_of(*ranges: tuple[int, int, str, str], thread: int = 1) -> Trace:
    """Ranges as (start, end, domain, text)."""
    start, end, domain, text = (list(column) for column in zip(*ranges, strict=True)) if ranges else ([], [], [], [])
    return Trace.from_columns(
        nvtx={"start": start, "end": end, "process": [1] * len(start), "thread": [thread] * len(start),
              "domain": domain, "text": text, "kind": ["push/pop"] * len(start)},
    )  # fmt: skip


def calls_at(*times: int, thread: int = 1) -> pd.DataFrame:
    starts = np.array(times, dtype=np.int64)
    return pd.DataFrame({"start": starts, "end": starts + 1, "process": 1, "thread": thread})


PROGRAM = [
    (0, 100, PYTHON_FUNCTION, "engine/core.py(10): step"),
    (10, 50, PYTHON_FUNCTION, "engine/runner.py(20): fetch"),
    (12, 48, PYTHON_FUNCTION, "torch/cuda/streams.py(30): synchronize"),
    (13, 47, PYTHON_FUNCTION, "<built-in method synchronize of Event object at 0x7f>"),
    (60, 70, "cpu_op", "aten::copy_"),
]


def test_the_site_is_the_programs_own_function_and_what_is_below_it_is_the_way() -> None:
    found = call_sites(trace_of(*PROGRAM), calls_at(5, 14, 49, 65, 100, 200))
    assert found["site"].tolist() == [
        "engine/core.py(10): step", "engine/runner.py(20): fetch", "engine/runner.py(20): fetch",
        "engine/core.py(10): step", "", "",
    ]  # fmt: skip
    assert found["through"].tolist() == ["", "torch/cuda/streams.py(30): synchronize", "", "", "", ""]
    assert found["source"].tolist() == [PYTHON] * 4 + [""] * 2


def test_without_python_functions_it_is_the_innermost_range() -> None:
    found = call_sites(
        trace_of(*[r for r in PROGRAM if r[2] == "cpu_op"], (55, 90, "NVTX", "decode")), calls_at(58, 65)
    )
    assert found[["site", "source"]].to_numpy().tolist() == [["decode", RANGES], ["aten::copy_", RANGES]]


def test_where_all_functions_are_a_frameworks_the_lowest_is_told() -> None:
    found = call_sites(trace_of((0, 9, PYTHON_FUNCTION, "torch/_ops.py(1): __call__")), calls_at(3))
    assert found.iloc[0].tolist() == ["torch/_ops.py(1): __call__", "", PYTHON]


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Intervals that nest."""
    found: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        edges = sorted(draw(st.lists(st.integers(low, high), max_size=6)))
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            found.append((start, end))
            if depth and end - start > 1:
                fill(start, end, depth - 1)

    fill(0, 60, 3)
    return found


@given(nested(), st.lists(st.integers(-1, 62), max_size=12))
def test_it_is_the_innermost_by_brute_force(intervals: list[tuple[int, int]], times: list[int]) -> None:
    ranges = [(start, end, PYTHON_FUNCTION, f"a.py({n}): f") for n, (start, end) in enumerate(intervals)]
    found = call_sites(trace_of(*ranges), calls_at(*times))["site"].tolist()
    for time, site in zip(times, found, strict=True):
        around = [(start, end, text) for start, end, _, text in ranges if start <= time < end]
        shortest = min((end - start for start, end, _ in around), default=0)
        assert (site == "") == (not around)
        assert not around or site in [text for start, end, text in around if end - start == shortest]


@pytest.mark.skipif(not VLLM.exists(), reason="the recording is not here")
def test_vllm_waits_in_one_line_of_its_source() -> None:
    result = CliRunner().invoke(main, ["syncs", str(VLLM), "--call-sites", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    sites = pd.DataFrame(facts["call_sites"])
    sync = sites[sites["what"] == "sync"]
    assert sync["site"].tolist() == ["vllm/v1/worker/gpu/async_utils.py(48): get_output"]
    assert sync["through"].tolist() == ["torch/cuda/streams.py(245): synchronize"]
    (graph,) = sites.loc[sites["what"] == "graph launch", "site"]
    assert graph == "vllm/v1/worker/gpu/cudagraph_utils.py(302): run_fullgraph"
    assert (sites["source"] == PYTHON).all()
    assert sites["per_step"].sum() * facts["steps"] == pytest.approx(round(sites["per_step"].sum() * facts["steps"]))


def test_idle_time_is_split_where_functions_begin_and_end() -> None:
    """Two steps of 100 ns, of which the device idles 60; the host is in `a` for 25 of these, in `b` inside it for 15,
    5 of that in a call, and in nothing for 20."""
    script = Script()
    for at in (0, 100, 200):
        script.range("token", at - 5, at + 95)
        script.launch((at - 5, at), (at, at + 40))
        script.range("m.py(1): a", at + 45, at + 85, domain=PYTHON_FUNCTION)
        script.range("m.py(9): b", at + 50, at + 65, domain=PYTHON_FUNCTION)
        script.sync(at + 55, at + 60)
    trace = script.trace
    steps = find_steps(trace, pattern="token")
    idle = gap_report(trace, steps).idle
    found = idle_by_site(trace, steps, idle).set_index("site")
    assert found["idle_us"].to_dict() == pytest.approx({"m.py(1): a": 0.025, "m.py(9): b": 0.015, "token": 0.02})
    assert found["calls_us"].to_dict() == pytest.approx({"m.py(1): a": 0, "m.py(9): b": 0.005, "token": 0.005})
    assert found["share"].tolist() == pytest.approx([25 / 60, 20 / 60, 15 / 60])
    assert idle_stacks(trace, steps, idle).to_dict() == {
        "token": 40, "token;m.py(1): a": 50, "token;m.py(1): a;m.py(9): b": 30,
    }  # fmt: skip


def test_stacks_are_written_once_and_as_viewers_read_them(tmp_path: Path) -> None:
    def gaps(*arguments: object) -> Result:
        return CliRunner().invoke(main, ["gaps", str(SAMPLES / "vllm-b1-graph-nvtx"), "--json", *map(str, arguments)])

    folded = tmp_path / "idle.folded"
    facts = json.loads(gaps("--stacks", folded).stdout)
    lines = [line.rsplit(" ", 1) for line in folded.read_text().splitlines()]
    assert lines[0][0] == "execute_context_0(0)_generation_1(1)"
    assert sum(int(ns) for _, ns in lines) / 1e3 / 63 == pytest.approx(facts["idle_us"]["mean"])
    again = gaps("--stacks", folded)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    assert "the name of a file of stacks must end with .folded or .txt" in gaps("--stacks", tmp_path / "x.svg").stderr


@pytest.mark.parametrize("name", ["vllm-b8-torch", "vllm-b1-graph-nvtx", "llama1b-sccc-graph"])
def test_of_every_recording_the_sites_add_up_to_the_idle_time(name: str) -> None:
    result = CliRunner().invoke(main, ["gaps", str(SAMPLES / name), "--call-sites", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert sum(row["idle_us"] for row in facts["idle_sites"]) == pytest.approx(facts["idle_us"]["mean"])
    shown = CliRunner().invoke(main, ["gaps", str(SAMPLES / name), "--call-sites"])
    assert "host, while the device idles" in shown.stdout


def test_rows_are_by_what_then_by_time_and_count_every_call() -> None:
    calls = pd.DataFrame({
        "letter": list("ksak"), "name": ["l", "s", "c", "l"], "start": [0, 10, 20, 30], "end": [5, 19, 21, 42],
    })  # fmt: skip
    sites = pd.DataFrame({"site": ["x", "y", "x", "z"], "through": "", "source": RANGES})
    table = by_site(calls, sites, 2)
    assert table["what"].tolist() == ["sync", "asynchronous copy", "kernel launch", "kernel launch"]
    assert table["site"].tolist() == ["y", "x", "z", "x"]
    assert table["per_step"].tolist() == [0.5] * 4
    assert table["us_per_step"].tolist() == pytest.approx([0.0045, 0.0005, 0.006, 0.0025])


def test_numbers_that_count_steps_are_one_site():
    texts = pd.Series(["token 0", "token 1", "split 0", "split 1", "split 0", "split 1", "layer7", "17"])
    expected = ["token N", "token N", "split 0", "split 1", "split 0", "split 1", "layer7", "17"]
    assert without_counters(texts).tolist() == expected
    assert without_counters(texts.astype("category")).tolist() == expected


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    with tarfile.open(LLAMA_CPP) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def test_each_call_of_llama_cpp_is_made_by_its_function_of_ggml(llama_cpp: Path) -> None:
    """Of a step: six inputs are set, each with a copy and a sync, and the backend is synchronised eight times."""
    done = CliRunner().invoke(main, ["syncs", str(llama_cpp), "--call-sites", "--json"])
    sites = {(each["what"], each["site"].split(" ")[0]): each for each in json.loads(done.stdout)["call_sites"]}
    assert {key: round(site["per_step"]) for key, site in sites.items()} == {
        ("sync", "ggml_backend_cuda_synchronize"): 8,
        ("sync", "ggml_backend_cuda_buffer_set_tensor"): 6,
        ("asynchronous copy", "ggml_backend_cuda_buffer_set_tensor"): 6,
        ("asynchronous copy", "ggml_backend_cuda_get_tensor_async"): 1,
        ("graph launch", "ggml_backend_cuda_graph_compute"): 1,
    }
