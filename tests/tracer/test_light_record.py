"""`intertoken record` without a profiler, over a driver without a GPU: what is said of programs and their children, the
folders that a recorder leaves, and how much memory rings take."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import run, unless_sanitized
from tests.tracer.places import mounted
from tracer import formats, read
from tracer.errors import RecordError, TraceError
from tracer.files.output import lock_folder
from tracer.recorders import light, light_ring
from tracer.recorders.light import read_rings
from tracer.recorders.window import Window, switched

TOKENS = 40
TMPFS = ("-t", "tmpfs", "-o")  # as /dev/shm of a container
pytestmark = pytest.mark.usefixtures("recorder")


def until(holds):
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


def decoded(built, target, *arguments):
    """A recording of the program `decode`."""
    result = run("record", "-o", target, "--", built.folder / "decode", "proc", *arguments)
    assert result.exit_code == 0, result.output
    return read(target)


def test_a_decode_loop_and_what_is_said_of_it(built, tmp_path):
    """Gaps and syncs need no correction. The fake device's clock is five seconds ahead of the host's."""
    trace = decoded(built, tmp_path / "out", "", TOKENS)
    assert trace.metadata["source"] == "light"
    assert trace.is_untraced
    assert sorted(trace["graph_launches"]["graph"].value_counts().to_dict().items()) == [(-1, TOKENS), (1, TOKENS)]
    assert trace["memcpys"]["kind"].value_counts()[["HtoD", "DtoH"]].tolist() == [TOKENS, TOKENS]
    assert (trace["memcpys"]["start"] == trace["memcpys"]["end"]).all()
    assert trace["syncs"]["type"].unique().tolist() == ["stream"]
    assert trace["devices"]["name"].tolist() == ["Fake GPU"]
    assert not len(trace["kernels"])
    assert any("runs of eager launches" in note for note in trace.notes)
    assert not list(tmp_path.glob("intertoken-light-*"))
    graphs = trace["graph_launches"][trace["graph_launches"]["graph"] == 1]
    calls = trace["api"].set_index("correlation").loc[graphs["correlation"]]
    error = trace.metadata["clock"]["device_error_ns"]
    assert error < 100_000
    assert (np.abs(graphs["start"].to_numpy() - calls["start"].to_numpy()) <= error + 100_000).all()
    gaps = json.loads(run("gaps", tmp_path / "out", "--json").stdout)
    assert gaps["distortion"] == 1.0
    assert (gaps["idle_us"], gaps["busy_us"]) == ({}, None)  # the runs take most of the time, and may idle
    assert not any("records are missing" in note for note in gaps["notes"])
    assert gaps["steps"] >= TOKENS - 3
    syncs = json.loads(run("syncs", tmp_path / "out", "--json").stdout)
    assert (syncs["syncs_per_token"], syncs["copies_per_token"], syncs["launches_per_token"]) == (1, 2, 3)


def test_a_run_without_a_head_begins_where_the_work_before_it_ends(built, tmp_path):
    work = decoded(built, tmp_path / "out", "behind", TOKENS)["graph_launches"]
    assert work["graph"].tolist() == [-1, 1, -1] * TOKENS
    assert (work["start"].to_numpy()[2::3] >= work["end"].to_numpy()[1::3]).all()
    assert (work["end"] >= work["start"]).all()


def test_only_a_wait_for_a_stream_names_one(built, tmp_path):
    syncs = decoded(built, tmp_path / "out", "events", 2)["syncs"]
    event = syncs["event"][1]
    assert event > 0
    assert syncs[["type", "stream", "event"]].to_numpy().tolist() == [
        ["stream", 13, -1], ["event", -1, event], ["context", -1, -1],
    ] * 2  # fmt: skip


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_killed_keeps_its_recording(built, tmp_path, end):
    script = f"{built.folder}/decode proc killed; kill -{end.value} $$"
    result = run("record", "-o", tmp_path / "out", "--", "sh", "-c", script)
    assert result.exit_code == 128 + end
    assert f"ended by {end.name}; everything recorded until then is kept" in result.stderr
    assert len(read(tmp_path / "out")["graph_launches"]) == 4


@pytest.mark.parametrize(
    ("kilobytes", "told"),
    [pytest.param(0, None, marks=unless_sanitized("the sanitizer's runtime writes a file itself", "thread")),
     (64, "limit on the size of files is too low for a ring (ulimit -f); not recorded: process"),
     (1000, "1 parts of the recording are missing: the program's limit on the size of files is too low")],
)  # fmt: skip
def test_a_limit_on_the_size_of_files_is_said(built, kilobytes, told):
    """Of a ring of 320 KB none, or all but its stamps fits."""
    code = f"ulimit -Sf {2 * kilobytes}; {built.folder}/decode proc; code=$?; ulimit -Sf unlimited; exit $code"
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings) | {"INTERTOKEN_LIGHT_RECORDS": "4096"}
        done = subprocess.run(["sh", "-c", code], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        if told:
            trace = light.read_folder(rings)
            notes = trace.notes if trace else light.without_room(rings)
            assert [note for note in notes if told in note]
        else:  # not even its name
            assert (rings / "programs").read_text().split()[1::2] == ["sh"]


def test_a_paused_program_keeps_counting_its_graphs(built, tmp_path):
    """The device counts every launch, so the host has to, or the stamps would go to other launches."""
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        environment["INTERTOKEN_LIGHT_PAUSED"] = "1"
        subprocess.run([built.folder / "decode", "proc", "", "9"], env=environment, check=True, stdout=-1)
        (ring,) = read_rings(rings)
        in_graph = [int(word) >> 16 & 0xFFFFFF for word in ring.stamps[0]["word"] if int(word) >> 1 & 0x7FFF == 1]
        assert in_graph == [number for number in range(9) for _ in range(2)]
        assert not len(ring.records)


def test_a_window_is_kept_while_its_program_goes_on(built, tmp_path):
    """Graphs are stamped on, and 65,536 launches take the place of all stamps of the window."""
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        environment |= {**Window(is_programs=True).variables, "FAKE_SILENT": "1"}
        command = [built.folder / "scenes", "windowed", "on"]
        with (
            switched(rings, Window(is_programs=True)),
            subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) as program,
        ):
            program.stdout.readline()
            until(lambda: list((rings / "kept").glob("*.ring")))
            program.communicate(b"\n")
        trace = light.read_folder(rings)
        assert len(trace["graph_launches"]) == 3


def test_the_environment_of_the_program_stays(tmp_path):
    ours = Path("/a/light.so")
    found = light.environment(ours, tmp_path, {"LD_PRELOAD": "libjemalloc.so", "X": "1"})
    assert found["LD_PRELOAD"] == "libjemalloc.so:/a/light.so"
    assert found["X"] == "1"
    with pytest.raises(RecordError, match="does not support spaces or colons"):
        light.environment(tmp_path / "a b" / "light.so", tmp_path)
    found = light.environment(ours, tmp_path, {"NVTX_INJECTION64_PATH": "/b/other.so"})
    assert found["NVTX_INJECTION64_PATH"] == "/b/other.so"
    for given in ({}, {"NVTX_INJECTION64_PATH": "/c/lib/libcupti.so.13"}):  # this process's own CUPTI recorder left it
        assert light.environment(ours, tmp_path, given)["NVTX_INJECTION64_PATH"] == "/a/light.so"


def test_folders_of_recorders_that_live_are_left_alone_and_empty_ones_removed(tmp_path):
    """Also where their process cannot be seen, as in another container that shares the memory."""
    with light_ring.folder() as made:
        (made / "1-0.ring").touch()
        assert light_ring.left_folders() == []
        result = run("record", "-o", tmp_path / "out", "--recover", made)
        assert result.exit_code == 2
        assert "not a folder left by a light recorder of this user" in result.stderr
        assert made.is_dir()
    assert not made.exists()
    left = tmp_path / "intertoken-light-x"
    left.mkdir()
    os.close(lock_folder(left))
    assert light_ring.left_folders() == []
    assert not left.exists()  # it was empty


@pytest.mark.parametrize("how", [TraceError("out: cannot be written: No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_stays_in_memory(built, tmp_path, monkeypatch, how):
    def fails(*arguments, **options):
        raise how

    with monkeypatch.context() as patched:
        patched.setattr(formats, "write", fails)
        result = run("record", "-o", tmp_path / "out", "--", built.folder / "decode", "proc", "", TOKENS)
    assert result.exit_code != 0
    (left,) = light_ring.left_folders()
    assert f"the recording is kept: `intertoken record -o TRACE --recover {left}`" in result.stderr
    assert run("record", "-o", tmp_path / "out", "--recover", left).exit_code == 0
    assert len(read(tmp_path / "out")["graph_launches"]) == 2 * TOKENS


def used(path):
    """Bytes of a file that take memory."""
    return path.stat().st_blocks * 512


def test_rings_of_programs_that_ended_take_little_memory(built, tmp_path):
    built.run("decode", "proc", "", str(TOKENS))
    before = built.ring()
    assert used(before.path) > 2_000_000
    with light_ring.kept_small(built.rings):
        until(lambda: used(before.path) <= 800_000)
    assert used(before.path) <= 800_000
    after = built.ring()
    assert (after.records == before.records).all()
    assert (after.stamps[0] == before.stamps[0]).all()


def test_rings_are_bounded_together(built, tmp_path):
    """Of three programs the last finds no room, and the one before it none for its stamps."""
    ring = 65536 + 4096 * 64
    decode = f"{built.folder}/decode proc '' 2 > /dev/null"
    names = 65536  # of kernels, beside the ring
    most = str(2 * (ring + names) + (131072 + 4096) * 16 + 50_000)
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        environment |= {"INTERTOKEN_LIGHT_BYTES": most, "INTERTOKEN_LIGHT_RECORDS": "4096"}
        subprocess.run(["sh", "-c", f"{decode}; {decode}; {decode}"], check=True, env=environment)
        first, second = read_rings(rings)
        assert (first.counters["stamps_failed"], second.counters["stamps_failed"]) == (0, 1)
        trace = light.read_folder(rings)
        (note,) = [note for note in trace.notes if "not recorded" in note]
        assert note.endswith("(decode)")
        assert "not enough space for a ring in" in note
        assert "half of which is kept free; not recorded: process" in note
        (note,) = [note for note in trace.notes if "1 parts of the recording are missing" in note]
        assert f"process {second.process} (decode)" in note


def free(folder):
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize


def test_all_rings_together_leave_half_of_the_shared_memory_free(built, tmp_path):
    """Of what is free without them, however many programs begin one after the other."""
    with mounted(tmp_path / "small", *TMPFS, "size=8m,mode=700", "none") as small:
        before = free(small)
        environment = light.environment(built.folder / "light.so", small)
        for _ in range(12):
            subprocess.run([built.folder / "decode", "proc"], env=environment, check=True, stdout=subprocess.DEVNULL)
        assert free(small) >= before // 2
        rings = read_rings(small)
        assert 1 <= len(rings) < 12
        said = (small / "programs").read_text()
        assert said.count("!space ") == 12 - len(rings)


def test_eight_living_processes_are_recorded_in_64_megabytes(built, tmp_path):
    """The /dev/shm of a container: all of them begin at once, with stamps, and half of it stays free."""
    with mounted(tmp_path / "shm", *TMPFS, "size=64m,mode=700", "none") as small:
        before = free(small)
        environment = light.environment(built.folder / "light.so", small)
        command = [built.folder / "decode", "proc", "stays", "40"]
        programs = [subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) for _ in range(8)]
        for program in programs:
            assert program.stdout.readline()
        assert free(small) >= before // 2
        for program in programs:
            program.communicate(b"\n")
        rings = read_rings(small)
        assert len(rings) == 8
        assert [ring.counters["stamps_failed"] for ring in rings] == [0] * 8
        assert all(len(ring.stamps[0]) for ring in rings)
        assert "!" not in (small / "programs").read_text()
