"""`intertoken record --passes graph|node` of any program and its children, over a driver and a CUPTI without a GPU."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from tests.tracer import fake_cuda
from tests.tracer.fake_driver import Build, compiler_or_skip, run, unless_sanitized
from tracer import read
from tracer.errors import FormatError
from tracer.model.trace import Trace
from tracer.recorders import cupti_library, cupti_run, light_ring
from tracer.recorders.light import read_rings

pytestmark = pytest.mark.usefixtures("cupti")
TOKENS = 40
GRAPH = ["norm", "gemv", "add"]


def record(target: Path, *arguments: object, level: str = "node") -> Result:
    return run("record", "-o", target, "--passes", level, *arguments)


def traced(target: Path, cuda: Path, what: str = "", tokens: int = TOKENS, level: str = "node") -> Trace:
    """A recording of the program doing this."""
    result = record(target, "--", cuda / "traced", what, tokens, level=level)
    assert result.exit_code == 0, result.stderr
    return read(target)


def test_the_node_level_has_every_kernel_and_call(cuda: Path, tmp_path: Path) -> None:
    trace = traced(tmp_path / "out", cuda)
    kernels = trace["kernels"].sort_values(["correlation", "start"])  # those of a graph end after its launch
    assert kernels["short_name"].astype(str).tolist() == [*GRAPH, "sample"] * TOKENS
    assert kernels["name"].astype(str).iloc[3] == "sample(float*, int)"
    assert Counter(trace["api"]["name"].astype(str)) == {
        "cuMemcpyHtoDAsync_v2": TOKENS, "cuGraphLaunch": TOKENS, "cuLaunchKernel": TOKENS,
        "cuStreamSynchronize": 2 * TOKENS,
    }  # fmt: skip
    assert len(trace["syncs"]) == 2 * TOKENS
    assert trace["memcpys"]["bytes"].tolist() == [16] * TOKENS
    assert trace["devices"]["name"].astype(str).tolist() == ["Fake GPU"]
    assert trace["processes"]["name"].astype(str).tolist() == ["traced"]
    assert trace["threads"][["process", "thread"]].to_numpy().tolist() == [trace["processes"]["process"].tolist() * 2]
    assert trace["api"]["start"].min() == 0
    assert {name: trace.metadata[name] for name in ("source", "graph_trace")} == {
        "source": "cupti 13.0.1", "graph_trace": "node",
    }  # fmt: skip
    assert abs(trace.metadata["start_utc_ns"] - time.time_ns()) < 60e9
    assert trace.notes == []


def test_the_graph_level_has_a_row_for_each_graph(cuda: Path, tmp_path: Path) -> None:
    trace = traced(tmp_path / "out", cuda, level="graph")
    assert len(trace["graph_launches"]) == TOKENS
    assert trace["kernels"]["short_name"].astype(str).tolist() == ["sample"] * TOKENS
    assert trace.metadata["graph_trace"] == "graph"


def test_calls_that_are_not_skipped_are_recorded(cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_run, "SKIPPED", "cuCtxGetCurrent")
    trace = traced(tmp_path / "out", cuda)
    assert (trace["api"]["name"].astype(str) == "cuCtxGetDevice").sum() == TOKENS


@pytest.mark.parametrize(("what", "processes"), [("execs", 2), ("forks early", 2), ("forks", 1), ("threads", 1)])
def test_children_and_threads(cuda: Path, tmp_path: Path, what: str, processes: int) -> None:
    trace = traced(tmp_path / "out", cuda, what)
    of_each = trace["kernels"].groupby("process").size()
    assert len(of_each) == len(trace["processes"]) == processes
    loops = 5 if what == "threads" else processes
    assert of_each.sum() == 4 * TOKENS * loops
    assert not trace["api"].duplicated(["process", "correlation"]).any()
    assert trace.notes == []
    if what == "threads":
        assert trace["api"].groupby("thread").size().tolist() == [5 * TOKENS] * 5


def test_two_engines_that_see_one_gpu_each_as_their_first_are_on_two_devices(cuda: Path, tmp_path: Path) -> None:
    engine = f"{cuda / 'traced'} '' {TOKENS}"
    both = f"CUDA_VISIBLE_DEVICES=0 {engine} & CUDA_VISIBLE_DEVICES=1 {engine}; wait"
    assert record(tmp_path / "out", "--", "sh", "-c", both).exit_code == 0
    trace = read(tmp_path / "out")
    assert trace["devices"]["device"].tolist() == [0, 1]
    for table in ("kernels", "memcpys"):
        devices = trace[table].groupby("process")["device"].unique().map(list)
        assert sorted(devices) == [[0], [1]], table
    assert len(trace.notes) == 1
    assert "processes number the devices differently" in trace.notes[0]


def test_a_program_that_becomes_another_is_one_process(cuda: Path, tmp_path: Path) -> None:
    trace = traced(tmp_path / "out", cuda, "becomes")
    assert len(trace["processes"]) == 1
    assert len(trace["kernels"]) == 8 * TOKENS
    assert not trace["api"].duplicated(["process", "correlation"]).any()
    launches = trace["api"].loc[trace["api"]["name"].astype(str) == "cuLaunchKernel", "correlation"]
    assert set(trace["kernels"]["correlation"]) >= set(launches)
    assert [note.partition("): ")[2] for note in trace.notes] == [
        "it was killed, called exec, or is still running: up to the last second of it is missing"
    ]


@pytest.mark.parametrize(
    ("what", "code", "is_whole"),
    [("left", 3, True), ("Left", 4, True), ("handles", 40 + signal.SIGTERM, True), ("killed", 137, False),
     ("crashed", 134, False)],
)  # fmt: skip
def test_however_it_ends_its_recording_is_kept(
    cuda: Path, tmp_path: Path, what: str, code: int, is_whole: bool
) -> None:
    result = record(tmp_path / "out", "--", cuda / "traced", what, TOKENS)
    assert result.exit_code == code
    trace = read(tmp_path / "out")
    assert len(trace["kernels"]) == 4 * TOKENS
    assert ("everything recorded until then is kept" in result.stderr) != is_whole
    assert any("was killed" in note for note in trace.notes) != is_whole


def test_a_cupti_that_hangs_does_not_keep_the_program(
    cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HUNG", "1")
    begun = time.monotonic()
    result = record(tmp_path / "out", "--", cuda / "traced", "left", TOKENS)
    assert result.exit_code == 3
    assert time.monotonic() - begun < 20
    assert "no CUDA program did any work that CUPTI reports" in result.stderr


def test_what_does_not_fit_is_counted(cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERTOKEN_LIGHT_RECORDS", "4096")
    monkeypatch.setattr(cupti_run, "_LIMIT", 2 << 20)
    trace = traced(tmp_path / "out", cuda, tokens=4000)
    (note,) = trace.notes
    words = note.partition("): ")[2].split()
    assert " ".join(words[1:]) == "activity records were dropped: there was no buffer or no space for them"
    records = [len(trace[name]) for name in ("kernels", "memcpys", "syncs", "api", "devices")]
    assert int(words[0]) + sum(records) == 4000 * (4 + 1 + 2 + 5) + 1
    assert sum(records) > 4000


def test_files_are_the_users_alone(cuda: Path) -> None:
    with light_ring.folder() as rings:
        cupti_run.record([str(cuda / "traced")], "node", rings)
        assert {stat.S_IMODE(path.stat().st_mode) for path in rings.iterdir()} == {0o600}
        assert len(list(rings.glob("*.ring.cupti"))) == 1
        assert light_ring.running_rings() == []


@pytest.mark.parametrize("damage", ["kind", "cut", "version"])
def test_a_damaged_file_is_said_and_loses_no_other(cuda: Path, damage: str) -> None:
    with light_ring.folder() as rings:
        cupti_run.record([str(cuda / "traced"), "execs", str(TOKENS)], "node", rings)
        one, other = sorted(rings.glob("*.cupti"))
        content = bytearray(one.read_bytes())
        if damage == "kind":
            content[0] = 99
        elif damage == "version":
            content[8:12] = (140_000).to_bytes(4, "little")
        else:
            del content[-100:]
        one.write_bytes(content)
        failures: list[str] = []
        trace = cupti_run.read_folder(rings, failures)
        assert trace is not None
        assert len(trace["kernels"]) == 4 * TOKENS
        text = "; ".join([*failures, *trace.notes])
        wanted = {
            "kind": "a block of unknown kind 99 at byte 0",
            "version": "CUPTI API version 140000 is not supported",
            "cut": "the last buffer is incomplete",
        }
        assert wanted[damage] in text
        if damage == "kind":
            (ring,) = [ring for ring in read_rings(rings) if one.name.startswith(ring.path.name)]
            with pytest.raises(FormatError, match="damaged"):
                cupti_run.read_activities(ring.path)
        assert other.exists()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("FAKE_VERSION", "140000", "CUPTI API version 140000 is not supported"),
     ("FAKE_REFUSES", "10", "cuptiActivityEnable(10) failed with FAKE: the driver allows profiling to administrators")],
)  # fmt: skip
def test_what_cupti_refuses_is_said(
    cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    result = record(tmp_path / "out", "--", cuda / "traced")
    assert result.exit_code == (2 if variable == "FAKE_VERSION" else 0)
    assert "(traced)" in result.stderr
    assert message in result.stderr


def test_a_libcupti_that_does_not_load_is_said(cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_library, "find", lambda: str(tmp_path / "libcupti.so.9"))
    result = record(tmp_path / "out", "--", cuda / "traced")
    assert result.exit_code == 2
    assert "libcupti.so.9: cannot open shared object file" in result.stderr
    source = tmp_path / "empty.c"
    source.write_text("int cuptiNothing;\n")
    subprocess.run([compiler_or_skip(), "-shared", "-o", tmp_path / "libcupti.so.9", source], check=True)
    result = record(tmp_path / "out", "--", cuda / "traced")
    assert result.exit_code == 2
    assert "libcupti has no function cuptiGetVersion" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_program_without_cuda_is_named(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--", "/bin/sh", "-c", f"{cuda}/traced none")
    assert result.exit_code == 2
    assert "nothing was recorded: sh, traced ran, and made no CUDA call" in result.stderr
    assert not (tmp_path / "out").exists()


def test_beside_another_profiler_nothing_is_run(cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/libOther.so")
    result = record(tmp_path / "out", "--", "/bin/sh", "-c", f"touch {tmp_path}/ran")
    assert result.exit_code == 2
    assert "CUDA_INJECTION64_PATH names another profiler (libOther.so)" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_program_that_uses_cupti_itself_is_said(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--", cuda / "traced", "profiles", TOKENS)
    assert result.exit_code == 2
    assert "1 of CUPTI's buffers were not returned: the program itself uses CUPTI (torch.profiler" in result.stderr


def test_the_programs_own_window(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--profiler-window", "--", cuda / "traced", "window", TOKENS)
    assert result.exit_code == 0, result.stderr
    trace = read(tmp_path / "out")
    assert len(trace["kernels"]) == 4 * TOKENS
    names = trace["api"]["name"].astype(str).tolist()
    assert (names[0], names[-1]) == ("cuProfilerStart", "cuProfilerStop")
    result = record(tmp_path / "none", "--profiler-window", "--", cuda / "traced", "", TOKENS)
    assert result.exit_code == 2
    assert "nothing was recorded while the window was open" in result.stderr


def test_some_steps_of_a_run(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--steps", 10, "--", cuda / "traced", "", TOKENS)
    assert result.exit_code == 0, result.stderr
    assert 8 <= len(read(tmp_path / "out")["memcpys"]) <= 12


TURNS = """
import ctypes, sys, time
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    driver.cuLaunchKernel(b"turn")
    time.sleep(0.001)
"""


def test_a_window_of_a_run(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--after", 1.5, "--seconds", 1, "--", sys.executable, "-c", TURNS, "4")
    assert result.exit_code == 0, result.stderr
    api = read(tmp_path / "out")["api"]
    assert 1 < len(api) < 1100  # of some 3500; how many is up to the machine
    assert api["end"].max() - api["start"].min() < 1.1e9


RANGES = """
import ctypes, nvtx
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
for token in range(20):
    with nvtx.annotate("token", payload=token):
        driver.cuLaunchKernel(b"sample")
"""


def test_nvtx_ranges_are_on_the_clock_of_the_calls(cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "--", sys.executable, "-c", RANGES)
    assert result.exit_code == 0, result.stderr
    trace = read(tmp_path / "out")
    ranges, calls = trace["nvtx"], trace["api"]
    assert ranges["text"].astype(str).tolist() == ["token"] * 20
    assert ranges["payload"].tolist() == list(range(20))
    late = ranges["start"].to_numpy() - calls["start"].to_numpy(), calls["end"].to_numpy() - ranges["end"].to_numpy()
    assert np.max(late) < 1_000, "ns: the two clocks are read one after the other, between which anything may run"


def test_each_pass_of_several(cuda: Path, built: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The light pass wraps this driver's calls as far as it has them."""
    result = run("record", "-o", tmp_path / "out", "--passes", "light,graph,node", "--", cuda / "traced", "", TOKENS)
    assert result.exit_code == 0, result.stderr
    assert read(tmp_path / "out").metadata["source"] == "light"
    for level in ("graph", "node"):
        assert read(tmp_path / "out" / level).metadata["graph_trace"] == level


def waiting(cuda: Path, target: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """`intertoken record` of a program that has decoded and waits, of which CUPTI's buffers were taken; its folder."""
    environment = {**os.environ, "LD_PRELOAD": str(cuda / "libcupti.so.13"), "TMPDIR": str(target.parent)}
    command = ["record", "-o", target, "--passes", "graph", "--", cuda / "traced", "waits", str(TOKENS)]
    recorder = subprocess.Popen(
        [sys.executable, "-m", "tracer.cli", *command], env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert recorder.stdout is not None
    assert recorder.stdout.readline() == b"ready\n"
    (child,) = Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()
    variables = dict(each.partition("=")[::2] for each in Path(f"/proc/{child}/environ").read_text().split("\0"))
    return recorder, Path(variables["INTERTOKEN_LIGHT"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_program_and_keeps_its_recording(cuda: Path, tmp_path: Path, number: signal.Signals) -> None:
    recorder, folder = waiting(cuda, tmp_path / "out")
    recorder.send_signal(number)
    _, stderr = recorder.communicate(timeout=60)
    assert recorder.returncode == 128 + number
    assert f"ended by {number.name}; everything recorded until then is kept" in stderr.decode()
    assert len(read(tmp_path / "out")["graph_launches"]) == TOKENS
    assert not folder.exists()


def test_a_killed_recorder_leaves_what_can_be_recovered(
    cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, folder = waiting(cuda, tmp_path / "out")
    monkeypatch.setattr(light_ring, "_MEMORY", folder.parent)  # wherever most space was
    recorder.kill()
    recorder.wait()
    for stream in (recorder.stdout, recorder.stderr):  # which the program goes on holding
        assert stream is not None
        stream.close()
    try:
        result = run("record", "-o", tmp_path / "out", "--recover", folder)
        assert result.exit_code == 0, result.stderr
        assert "was killed, called exec, or is still running" in result.stderr
        assert len(read(tmp_path / "out")["graph_launches"]) == TOKENS
    finally:
        os.killpg(recorder.pid, signal.SIGKILL)


def test_both_recorders_can_record_one_process(cuda: Path, built: Build) -> None:
    """The way benchmarks/light_beside_cupti.py compares them; neither loses anything through the other."""
    with light_ring.folder() as rings:
        told = cupti_run.settings("node", str(cuda / "libcupti.so.13")) + "wrap driver\n"
        (rings / light_ring.SETTINGS).write_text(told)
        given = cupti_run.environment(built.folder / "light.so", rings)
        subprocess.run([cuda / "traced", "", str(TOKENS)], env=given, check=True)
        (ring,) = read_rings(rings)
        trace = cupti_run.read_folder(rings)
    assert trace is not None
    assert len(trace["kernels"]) == 4 * TOKENS
    assert Counter(ring.calls[call] for call in ring.records["call"])["cuGraphLaunch"] == TOKENS


@unless_sanitized("has a sanitizer of its own")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    compiler = compiler_or_skip()
    runtime = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    found = subprocess.run([compiler, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip(f"{compiler} has no {runtime}")
    flags = [f"-fsanitize={sanitizer}", "-g", "-O0"]
    built = Build.library(tmp_path, flags)
    fake_cuda.build(tmp_path, flags)
    for what, code in {"": 0, "threads": 0, "forks": 0, "execs": 0, "left": 3, "profiles": 0, "window": 0}.items():
        with light_ring.folder() as rings:
            (rings / light_ring.SETTINGS).write_text(cupti_run.settings("node", str(tmp_path / "libcupti.so.13")))
            given = cupti_run.environment(built, rings, {"LD_PRELOAD": found.stdout.strip()})
            given |= {"LD_LIBRARY_PATH": str(tmp_path), "ASAN_OPTIONS": "detect_leaks=0"}
            program = [tmp_path / "traced", what, "2000" if what == "threads" else "3"]
            done = subprocess.run(program, env=given, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (code, ""), what
            assert what == "profiles" or cupti_run.read_folder(rings) is not None
