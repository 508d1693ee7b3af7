"""`intertoken record` without a profiler, over a driver without a GPU: any program, its children, and how they end."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import Build, run, sanitized, unless_sanitized
from tracer import read
from tracer.analysis.tokens import find_steps
from tracer.errors import FormatError, RecordError
from tracer.recorders import light, light_ring
from tracer.recorders.light import light_trace, read_rings
from tracer.recorders.window import Window, switched

TOKENS = 40
pytestmark = pytest.mark.usefixtures("recorder")


def test_a_decode_loop_and_what_is_said_of_it(built: Build, tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "", TOKENS)
    assert result.exit_code == 0, result.output
    trace = read(tmp_path / "out")
    assert trace.metadata["source"] == "light"
    assert trace.is_untraced
    assert len(trace["graph_launches"]) == 2 * TOKENS
    assert sorted(trace["graph_launches"]["graph"].value_counts().to_dict().items()) == [(-1, TOKENS), (1, TOKENS)]
    assert trace["memcpys"]["kind"].value_counts()[["HtoD", "DtoH"]].tolist() == [TOKENS, TOKENS]
    assert (trace["memcpys"]["start"] == trace["memcpys"]["end"]).all()
    assert trace["syncs"]["type"].unique().tolist() == ["stream"]
    assert trace["devices"]["name"].tolist() == ["Fake GPU"]
    assert not len(trace["kernels"])
    assert any("runs of eager launches" in note for note in trace.notes)
    assert not list(tmp_path.glob("intertoken-light-*"))


def test_two_engines_that_see_one_gpu_each_as_their_first_are_on_two_devices(built: Build, tmp_path: Path) -> None:
    engine = f"{built.folder / 'decode'} proc '' {TOKENS}"
    both = f"CUDA_VISIBLE_DEVICES=0 {engine} & CUDA_VISIBLE_DEVICES=1 {engine}; wait"
    result = run("record", "-o", tmp_path / "out", "--", "sh", "-c", both)
    assert result.exit_code == 0, result.output
    trace = read(tmp_path / "out")
    assert trace["devices"]["device"].tolist() == [0, 1]
    assert trace["graph_launches"].groupby("process")["device"].unique().map(list).sort_values().tolist() == [[0], [1]]
    assert sum("processes number the devices differently" in note for note in trace.notes) == 1


def test_processes_that_share_a_gpu_are_on_one_device(built: Build, tmp_path: Path) -> None:
    engine = f"{built.folder / 'decode'} proc '' {TOKENS}"
    run("record", "-o", tmp_path / "out", "--", "sh", "-c", f"{engine} & {engine}; wait")
    trace = read(tmp_path / "out")
    assert trace["devices"]["device"].tolist() == trace["graph_launches"]["device"].unique().tolist() == [0]
    assert trace["graph_launches"]["process"].nunique() == 2


def test_a_run_without_a_head_begins_where_the_work_before_it_ends(built: Build, tmp_path: Path) -> None:
    run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "behind", TOKENS)
    work = read(tmp_path / "out")["graph_launches"]
    assert work["graph"].tolist() == [-1, 1, -1] * TOKENS
    assert (work["start"].to_numpy()[2::3] >= work["end"].to_numpy()[1::3]).all()
    assert (work["end"] >= work["start"]).all()


def test_only_a_wait_for_a_stream_names_one(built: Build, tmp_path: Path) -> None:
    run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "events", 2)
    syncs = read(tmp_path / "out")["syncs"]
    assert syncs[["type", "stream", "event"]].to_numpy().tolist() == [
        ["stream", 13, -1], ["event", -1, syncs["event"][1]], ["context", -1, -1],
    ] * 2  # fmt: skip
    assert syncs["event"][1] > 0


def test_gaps_and_syncs_of_it_need_no_correction(built: Build, tmp_path: Path) -> None:
    run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "", TOKENS)
    gaps = json.loads(run("gaps", tmp_path / "out", "--json").stdout)
    assert gaps["distortion"] == 1.0
    assert gaps["idle_us"] == {}  # the runs take most of the time, and may idle
    assert gaps["busy_us"] is None
    assert not any("records are missing" in note for note in gaps["notes"])
    assert gaps["steps"] >= TOKENS - 3
    assert sum(gaps["causes_us"].values()) == pytest.approx(gaps["gap_us"]["mean"], abs=0.01)
    syncs = json.loads(run("syncs", tmp_path / "out", "--json").stdout)
    assert (syncs["syncs_per_token"], syncs["copies_per_token"], syncs["launches_per_token"]) == (1, 2, 3)


def test_children_and_shell_scripts_are_recorded(built: Build, tmp_path: Path) -> None:
    script = f"{built.folder}/decode proc '' 5 > /dev/null; {built.folder}/decode dlsym '' 7 > /dev/null; exit 9"
    result = run("record", "-o", tmp_path / "out", "--", "sh", "-c", script)
    assert result.exit_code == 9
    trace = read(tmp_path / "out")
    assert trace["graph_launches"].groupby("process", sort=False).size().tolist() == [10, 14]
    assert trace["processes"]["name"].tolist() == ["decode", "decode"]
    assert trace["api"]["start"].min() == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_killed_keeps_its_recording(built: Build, tmp_path: Path, end: signal.Signals) -> None:
    script = f"{built.folder}/decode proc killed; kill -{end.value} $$"
    result = run("record", "-o", tmp_path / "out", "--", "sh", "-c", script)
    assert result.exit_code == 128 + end
    assert f"ended by {end.name}; everything recorded until then is kept" in result.stderr
    assert len(read(tmp_path / "out")["graph_launches"]) == 4


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["sh", "-c", "ls / > /dev/null; true"], "sh, ls ran, and made no call of the CUDA driver"),
        (["env", "-i", "/bin/true"], "env ran, and made no call"),
    ],
)
def test_nothing_to_record_is_a_loud_error(tmp_path: Path, command: list[str], why: str) -> None:
    result = run("record", "-o", tmp_path / "out", "--", *command)
    assert result.exit_code == 2
    assert why in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_before_cuda_keeps_its_exit_code(tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--", "sh", "-c", "exit 5")
    assert result.exit_code == 5
    assert "nothing was recorded: the program ended with exit code 5; sh ran" in result.stderr


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--", "no-such-program")
    assert result.exit_code == 2
    assert "no-such-program cannot be run: No such file or directory" in result.stderr


@pytest.mark.parametrize(
    ("kilobytes", "told"),
    [pytest.param(0, None, marks=unless_sanitized("the sanitizer's runtime writes a file itself", "thread")),
     (64, "limit on the size of files is too low for a ring (ulimit -f); not recorded: process"),
     (1000, "1 parts of the recording are missing: the program's limit on the size of files is too low")],
)  # fmt: skip
def test_a_limit_on_the_size_of_files_kills_nobody(built: Build, tmp_path: Path, kilobytes: int, told: str) -> None:
    """With the signal's own action, which ends a program; of a ring of 320 KB none, or all but its stamps fits."""
    code = (
        f"ulimit -Sf {kilobytes * 1024 // 512}; {built.folder}/decode proc; code=$?; ulimit -Sf unlimited; exit $code"
    )
    plain = subprocess.run(
        ["sh", "-c", code], env=sanitized({"LD_LIBRARY_PATH": str(built.folder)}), capture_output=True, check=False
    )
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings) | {"INTERTOKEN_LIGHT_RECORDS": "4096"}
        done = subprocess.run(["sh", "-c", code], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr) == (0, b"")
        if told:
            trace = light.read_folder(rings)
            notes = trace.notes if trace else light.without_room(rings)
            assert [note for note in notes if told in note]
        else:  # not even its name
            assert (rings / "programs").read_text().split()[1::2] == ["sh"]


def test_the_programs_own_preload_stays(built: Build, tmp_path: Path) -> None:
    found = light.environment(Path("/a/light.so"), tmp_path, {"LD_PRELOAD": "libjemalloc.so", "X": "1"})
    assert found["LD_PRELOAD"] == "libjemalloc.so:/a/light.so"
    assert found["X"] == "1"


def test_a_ring_is_read_while_its_program_runs(built: Build, tmp_path: Path) -> None:
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as program:
            assert program.stdin
            assert program.stdout
            program.stdout.readline()
            (ring,) = read_rings(rings)
            assert len(ring.records) == 5
            program.stdin.write(b"\n")
            program.stdin.flush()
            program.stdout.readline()
            (ring,) = read_rings(rings)
            assert len(ring.records) == 10
            program.kill()
        assert len(light_trace(read_rings(rings))["api"]) == 10


PROGRAM = """
import ctypes, sys
driver = ctypes.CDLL("libcuda.so.1")
for n in range(2):
    for _ in range(5):
        driver.cuStreamSynchronize(None)
    print("made", flush=True)
    sys.stdin.readline()
"""


def test_device_times_are_brought_to_the_hosts_clock(built: Build, tmp_path: Path) -> None:
    """The fake device's clock is five seconds ahead of the host's."""
    run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "", TOKENS)
    trace = read(tmp_path / "out")
    graphs = trace["graph_launches"][trace["graph_launches"]["graph"] == 1]
    calls = trace["api"].set_index("correlation").loc[graphs["correlation"]]
    error = trace.metadata["clock"]["device_error_ns"]
    assert error < 100_000
    assert (np.abs(graphs["start"].to_numpy() - calls["start"].to_numpy()) <= error + 100_000).all()


TURNS = """
import ctypes, sys, time
driver = ctypes.CDLL("libcuda.so.1")
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    driver.cuStreamSynchronize(None)
    time.sleep(0.001)
"""


def test_a_window_of_a_run(tmp_path: Path) -> None:
    options = ("--after", 0.4, "--seconds", 0.4)
    result = run("record", "-o", tmp_path / "out", *options, "--", sys.executable, "-c", TURNS, "1.6")
    assert result.exit_code == 0, result.stderr
    api = read(tmp_path / "out")["api"]
    assert 0.2e9 < api["end"].max() < 0.7e9  # switched every 50 ms, on a busy machine later
    assert len(api) > 20


def test_a_window_in_which_nothing_came_is_said(built: Build, tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--after", 60, "--", built.folder / "decode", "proc")
    assert result.exit_code == 2
    assert "while the window was open" in result.stderr


def test_a_paused_program_keeps_counting_its_graphs(built: Build, tmp_path: Path) -> None:
    """The device counts every launch, so the host has to, or the stamps would go to other launches."""
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        subprocess.run(
            [built.folder / "decode", "proc", "", "9"], env={**environment, "INTERTOKEN_LIGHT_PAUSED": "1"}, check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (ring,) = read_rings(rings)
        in_graph = [int(word) >> 16 & 0xFFFFFF for word in ring.stamps[0]["word"] if int(word) >> 1 & 0x7FFF == 1]
        assert in_graph == [number for number in range(9) for _ in range(2)]
        assert not len(ring.records)


def test_some_steps_of_a_run(built: Build, tmp_path: Path) -> None:
    command = ("--", built.folder / "decode", "proc", "", TOKENS)
    assert run("record", "-o", tmp_path / "all", *command).exit_code == 0
    result = run("record", "-o", tmp_path / "out", "--steps", 10, *command)
    assert result.exit_code == 0, result.stderr
    whole, trace = read(tmp_path / "all"), read(tmp_path / "out")
    assert len(find_steps(trace)) == 10
    assert len(find_steps(whole)) > 30
    for name in ("graph_launches", "memcpys", "syncs"):
        assert 8 <= len(trace[name]) / (len(whole[name]) / TOKENS) <= 12
    result = run("record", "-o", tmp_path / "more", "--steps", 1000, *command)
    assert "of the 1000 requested steps" in result.stderr


def test_where_there_are_no_steps_none_are_left_out(built: Build, tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--steps", 10, "--", built.folder / "decode", "proc", "threads", 50)
    assert result.exit_code == 0
    assert "--steps has no effect: the trace has no kernels" in result.stderr
    assert len(read(tmp_path / "out")["api"]) == 200


def test_the_programs_own_window(built: Build, tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--profiler-window", "--", built.folder / "scenes", "windowed")
    assert result.exit_code == 0, result.stderr
    trace = read(tmp_path / "out")
    names = trace["api"]["name"].tolist()
    assert names == ["cuProfilerStart", *["cuGraphLaunch", "cuStreamSynchronize"] * 3, "cuProfilerStop"]
    assert len(trace["graph_launches"]) == 3


def test_a_program_without_a_window_of_its_own_is_said(built: Build, tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--profiler-window", "--", built.folder / "decode", "proc")
    assert result.exit_code == 2
    assert "while the window was open" in result.stderr


def test_one_window_at_a_time(tmp_path: Path) -> None:
    result = run("record", "-o", tmp_path / "out", "--profiler-window", "--after", 1, "--", "/bin/true")
    assert result.exit_code == 2
    assert "--profiler-window cannot be combined with" in result.stderr


def test_a_window_is_kept_while_its_program_goes_on(built: Build, tmp_path: Path) -> None:
    """Graphs are stamped on, and 65,536 launches take the place of all stamps of the window."""
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        environment |= {**Window(is_programs=True).variables, "FAKE_SILENT": "1"}
        with (
            switched(rings, Window(is_programs=True)),
            subprocess.Popen(
                [built.folder / "scenes", "windowed", "on"], env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            ) as program,
        ):  # fmt: skip
            assert program.stdin
            assert program.stdout
            program.stdout.readline()
            deadline = time.monotonic() + 30
            while not list((rings / "kept").glob("*.ring")) and time.monotonic() < deadline:
                time.sleep(0.02)
            program.stdin.write(b"\n")
            program.stdin.close()
            program.wait()
        trace = light.read_folder(rings)
        assert trace
        assert len(trace["graph_launches"]) == 3


def test_a_ring_that_was_not_begun_loses_no_other(built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    built.run("decode", "proc")
    (built.rings / "99-0.ring").write_bytes(bytes(4096))
    unread: list[str] = []
    assert len(read_rings(built.rings, unread)) == 1
    assert len(unread) == 1
    assert unread[0].startswith("process 99 is left out: ")
    with pytest.raises(FormatError, match=r"99-0\.ring"):
        read_rings(built.rings)


def test_a_path_that_cannot_be_preloaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="does not support spaces or colons"):
        light.environment(tmp_path / "a b" / "light.so", tmp_path)
