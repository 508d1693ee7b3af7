"""Call sites: the innermost function of the program around each call, from Python functions, ranges and call chains."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.handmade import THREAD, Script
from tests.tracer.truths import facts_of, rows, run
from tracer import analyse
from tracer.analysis.call_sites import (
    MEDIAN,
    NATIVE,
    PYTHON,
    RANGES,
    SLOW,
    by_function,
    call_sites,
    host_steps,
    stacks,
    without_counters,
)  # fmt: skip
from tracer.analysis.call_sites import sites_at as places_at
from tracer.model.columns import Names
from tracer.model.schema import MISSING
from tracer.model.trace import Trace
from tracer.reporting.exports import speedscope
from tracer.scrub import scrub

LLAMA_CPP = Path(__file__).parent / "data" / "llamacpp-light-call-sites.tar.gz"
"""llama-bench (sccc, one H100) under the light recorder with --call-sites, of a build with symbols; scrubbed."""


def sites_at(trace: Trace, *times: int, thread: int = THREAD, process: int = 100) -> list[list[str]]:
    """Site, what is below it, and source of calls that begin at these times."""
    return rows(places_at(trace, process, thread, np.array(times, dtype=np.int64)), "site", "through", "source")


NONE = ["", "", ""]


def test_the_site_is_the_programs_own_function_and_what_is_below_it_is_the_way() -> None:
    script = Script()
    script.function("engine/core.py(10): step", 0, 100)
    script.function("engine/runner.py(20): fetch", 10, 50)
    script.function("torch/cuda/streams.py(30): synchronize", 12, 48)
    script.function("<built-in method synchronize of Event object at 0x7f>", 13, 47)
    script.range("aten::copy_", 60, 70, domain="cpu_op")
    script.function("torch/_ops.py(1): __call__", 300, 309)
    step, fetch = (["engine/core.py(10): step", "", PYTHON], ["engine/runner.py(20): fetch", "", PYTHON])
    through = ["engine/runner.py(20): fetch", "torch/cuda/streams.py(30): synchronize", PYTHON]
    lowest = ["torch/_ops.py(1): __call__", "", PYTHON]  # where all functions are a framework's
    assert sites_at(script.trace, 5, 14, 49, 65, 100, 200, 303) == [step, through, fetch, step, NONE, NONE, lowest]
    ranges = Script()
    ranges.range("aten::copy_", 60, 70, domain="cpu_op")
    ranges.range("decode", 55, 90)
    found = sites_at(ranges.trace, 58, 65)  # without Python functions it is the innermost range
    assert found == [["decode", "", RANGES], ["aten::copy_", "", RANGES]]


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
    script = Script()
    for n, (start, end) in enumerate(intervals):
        script.function(f"a.py({n}): f", start, end)
    for time, (site, *_) in zip(times, sites_at(script.trace, *times), strict=True):
        around = {f"a.py({n}): f": end - start for n, (start, end) in enumerate(intervals) if start <= time < end}
        assert around.get(site) == min(around.values(), default=None)


GGML = "/opt/ggml/libggml-cuda.so"
CHAINS = {
    5: [("cudaStreamSynchronize", GGML), ("ggml_backend_cuda_synchronize", GGML),
        ("ggml_backend_sched_compute_splits", "/opt/ggml/libggml-base.so"), ("main", "/opt/llama-bench")],
    6: [("cuLaunchKernel", "/usr/lib/libcuda.so.1"), ("at::native::add", "/x/libtorch_cuda.so"),
        ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),
        ("/x/site-packages/torch/_ops.py(7): __call__", ""), ("/home/ada/decode.py(31): step", "")],
    7: [("cuLaunchKernel", "/usr/lib/libcuda.so.1"), ("at::native::add", "/x/libtorch_cuda.so"),
        ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12")],
}  # fmt: skip


def chained(chain_of: dict[int, int], chains: dict[int, list[tuple[str, str]]] = CHAINS) -> Trace:
    """Calls of 5 ns, 10 ns apart, each with its chain."""
    frames = [(chain, depth, *f) for chain, functions in chains.items() for depth, f in enumerate(functions)]
    chain, depth, symbol, module = (list(column) for column in zip(*reversed(frames), strict=True))
    starts = [10 * correlation for correlation in chain_of]
    api = {"start": starts, "end": [s + 5 for s in starts], "process": [1] * len(starts), "thread": [1] * len(starts),
           "correlation": list(chain_of), "name": ["cuStreamSynchronize"] * len(starts),
           "callchain": list(chain_of.values())}  # fmt: skip
    return Trace.from_columns(api=api, callchains={"chain": chain, "depth": depth, "symbol": symbol, "module": module})


def sites(trace: Trace) -> list[list[str]]:
    return rows(call_sites(trace, trace.api), "site", "through", "source")


def test_of_a_chain_it_is_the_innermost_function_that_is_neither_of_cuda_nor_of_a_framework() -> None:
    native = ["ggml_backend_cuda_synchronize (libggml-cuda.so)", "", NATIVE]
    assert sites(chained({1: 5, 2: 6, 3: 7, 4: MISSING, 5: 99})) == [
        native,
        ["/home/ada/decode.py(31): step", "at::native::add (libtorch_cuda.so)", PYTHON],
        ["at::native::add (libtorch_cuda.so)", "", NATIVE],
        NONE,
        NONE,
    ]
    kept, python = sites(scrub(chained({1: 5, 2: 6})))
    assert kept == native
    assert re.fullmatch(r"(/x[a-z]{10}){2}/decode\.py\(31\): step", python[0])


def test_between_calls_the_host_is_in_the_functions_that_both_have_on_their_stacks() -> None:
    """Before the first call and behind the last one nothing is known."""
    scheduler = ("ggml_backend_sched_compute_splits", "/opt/ggml/libggml-base.so")
    copies = [("cudaMemcpyAsync", GGML), ("ggml_backend_cuda_cpy_tensor_async", GGML), scheduler, CHAINS[5][-1]]
    python, later = (
        [(f"/x/torch/_ops.py({line}): __call__", ""), (f"/home/ada/decode.py({of}): step", "")]
        for line, of in ((7, 31), (9, 40))
    )
    trace = chained({1: 5, 2: 5, 3: 8, 4: 9, 5: 10}, CHAINS | {8: copies, 9: python, 10: later})
    times = [5, 12, 16, 27, 37, 46, 58]
    inside = "ggml_backend_cuda_synchronize (libggml-cuda.so)"
    assert sites_at(trace, *times, thread=1, process=1) == [
        NONE,
        [inside, "", NATIVE],
        [inside, "", NATIVE],
        ["ggml_backend_sched_compute_splits (libggml-base.so)", "", NATIVE],
        NONE,
        ["/home/ada/decode.py(31): step", "/x/torch/_ops.py(7): __call__", PYTHON],
        NONE,
    ]
    outer = "main (llama-bench);ggml_backend_sched_compute_splits (libggml-base.so)"
    assert [*stacks(trace, 1, 1, np.array(times))] == [
        "", f"{outer};{inside}", f"{outer};{inside}", outer, "",
        "/home/ada/decode.py(31): step;/x/torch/_ops.py(7): __call__", "",
    ]  # fmt: skip


def test_each_call_of_llama_cpp_is_made_by_its_function_of_ggml(tmp_path: Path) -> None:
    """Of a step: six inputs are set, each with a copy and a sync, and the backend is synchronised eight times."""
    with tarfile.open(LLAMA_CPP) as archive:
        archive.extractall(tmp_path, filter="data")
    found = facts_of("syncs", next(tmp_path.iterdir()), "--call-sites")["call_sites"]
    assert {(each["what"], each["site"].split(" ")[0]): round(each["per_step"]) for each in found} == {
        ("sync", "ggml_backend_cuda_synchronize"): 8,
        ("sync", "ggml_backend_cuda_buffer_set_tensor"): 6,
        ("asynchronous copy", "ggml_backend_cuda_buffer_set_tensor"): 6,
        ("asynchronous copy", "ggml_backend_cuda_get_tensor_async"): 1,
        ("graph launch", "ggml_backend_cuda_graph_compute"): 1,
    }


def test_sites_and_stacks_of_a_recording_add_up_to_its_idle_time(tmp_path: Path) -> None:
    path, folded = SAMPLES / "vllm-b1-graph-nvtx", tmp_path / "idle.folded"
    facts = facts_of("gaps", path, "--call-sites", "--stacks", folded)
    assert sum(row["idle_us"] for row in facts["idle_sites"]) == pytest.approx(facts["idle_us"]["mean"])
    lines = [line.rsplit(" ", 1) for line in folded.read_text().splitlines()]
    assert lines[0][0] == "execute_context_0(0)_generation_1(1)"
    assert sum(int(ns) for _, ns in lines) / 1e3 / 63 == pytest.approx(facts["idle_us"]["mean"])
    again = run("gaps", path, "--stacks", folded)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    wrong = run("gaps", path, "--stacks", tmp_path / "x.svg").stderr
    assert "the name of a file of stacks must end with .folded or .txt" in wrong


def test_numbers_that_count_steps_are_one_site() -> None:
    texts = ["token 0", "token 1", "split 0", "split 1", "split 0", "split 1", "layer7", "17"]
    assert [*without_counters(Names.of(texts))] == ["token N", "token N", *texts[2:]]


def test_stacks_of_single_steps_are_in_order_and_add_up_as_functions_and_for_viewers() -> None:
    """Steps of 1000 ns and two longer ones: a function for 600 ns of the step, with a launch of 100 and a sync of 200
    inside; what is longer is in a second function."""
    script, at = Script(), 0
    for length in [1000] * 18 + [1400, 2000]:
        script.range("token", at, at + length)
        script.function("m.py(7): step", at + 100, at + 700)
        script.launch((at + 200, at + 300), (at + 310, at + 400))
        script.sync(at + 400, at + 600)
        if length > 1000:
            script.function("m.py(9): slow", at + 800, at + length)
        at += length
    found = analyse(script.trace)
    chosen = median, slow = host_steps(found.trace, found.steps)
    assert (median.name, slow.name, slow.step) == (MEDIAN, SLOW, 18)
    assert (median.length_ns, slow.length_ns) == (1000, 1400)
    step = "token;m.py(7): step"
    assert rows(median.samples, "stack", "ns") == [
        ["token", 100], [step, 100], [f"{step};cudaLaunchKernel_v7000", 100], [step, 100],
        [f"{step};cudaStreamSynchronize_v3020", 200], [step, 100], ["token", 300],
    ]  # fmt: skip
    assert rows(slow.samples, "stack")[-1] == "token;m.py(9): slow"
    functions = {name: us for name, *us in rows(by_function(median.samples), "function", "self_us", "total_us")}
    assert (functions["m.py(7): step"], functions["token"]) == ([0.3, 0.6], [0.4, 1.0])
    assert sum(us for us, _ in functions.values()) == pytest.approx(1.0)
    file = json.loads(json.dumps(speedscope(chosen)))  # what file-format-spec.ts asks of sampled profiles
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = file["shared"]["frames"]
    assert {"name": "m.py(7): step", "file": "m.py", "line": 7} in frames
    assert all(set(frame) <= {"name", "file", "line", "col"} for frame in frames)
    assert [profile["name"] for profile in file["profiles"]] == ["median step (9)", "slow step (18)"]
    for profile in file["profiles"]:
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)
        assert min(profile["weights"]) > 0
        assert profile["startValue"] + sum(profile["weights"]) == profile["endValue"]
