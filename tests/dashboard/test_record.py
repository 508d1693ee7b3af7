"""Recordings that readers start: the process that watches, and what the page says of it."""

import os
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

import dashboard.cli
from dashboard.pages.record.callbacks import found, in_words, job_of, plan_of, start
from dashboard.pages.record.form import RecordView
from dashboard.reading.store import RunStore
from dashboard.recording.job import CANCELLED, DONE, FAILED, RUNNING, STOPPED, Files, Job
from dashboard.recording.runner import Runner
from dashboard.recording.supervise import Supervisor, put
from dashboard.view import View
from tests.dashboard.traces import decode
from tests.tracer.places import small_disk  # noqa: F401
from tracer import formats
from tracer.errors import UsageError

PLAYS = textwrap.dedent(
    """
    import json, os, pathlib, signal, sys, time
    how, out = sys.argv[1], pathlib.Path(sys.argv[-1])

    def tell(units, whole=None, runs=0):
        line = {"schema": "intertoken.progress/1", "units": [units, 4], "steps": [units * 10, 40],
                "runs": [runs, 2], "whole": whole}
        print(json.dumps(line), flush=True)

    tell(0)
    (out / "one").mkdir(parents=True)
    (out / "two").mkdir()
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "refused":
        print("noise\\nintertoken: there is too little of it", flush=True)
        sys.exit(2)
    tell(2)
    tell(3, "one", 1)
    print("x" * 10_000_000, flush=True)
    print("pid", os.getpid(), flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how != "quick":
        time.sleep(60)
    """
)


@pytest.fixture
def runner(tmp_path):
    with closing(Runner(tmp_path / "runs", [sys.executable, "-c", PLAYS], grace=0.3)) as runner:
        yield runner


def until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def ended(runner):
    until(lambda: runner.job().status != RUNNING, "its end")
    return runner.job()


def child_of(runner):
    """The process id that the command printed."""

    def pids():
        return [int(line.split()[1]) for line in runner.job().lines if line.startswith("pid ")]

    until(pids, "the child")
    return pids()[0]


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except OSError:
        return True


def left_in(runner):
    return sorted(path.name for path in runner.files.output.iterdir()), runner.files.staging.exists()


def test_a_recording_moves_whole_runs_keeps_a_bounded_log_and_makes_room_for_the_next(runner):
    assert runner.job() is None
    for runs in (["one"], ["one", "one-2"]):
        runner.start(["quick"])
        job = ended(runner)
        assert (job.status, job.problem) == (DONE, "")
        assert left_in(runner) == ([".intertoken-record", *runs], False)
        assert job.whole == runs[-1:]
        assert (list(job.units), list(job.steps), list(job.runs)) == ([3, 4], [30, 40], [1, 2])
        assert len("".join(job.lines)) < 5_000
        assert job.lines[0] == "x" * 2_000


def test_cancelling_keeps_whole_runs_and_kills_what_does_not_listen(runner):
    other = Runner(runner.files.output, runner._command)  # of another server process
    for how in ("sleep", "deaf"):
        runner.start([how])
        pid = child_of(runner)
        for server in (runner, other):
            with pytest.raises(UsageError, match="is already running"):
                server.start(["quick"])
        assert other.job().number == runner.job().number
        other.cancel()
        assert ended(runner).status == CANCELLED
        assert is_gone(pid)
        with pytest.raises(UsageError, match="Nothing is being recorded"):
            other.cancel()
    assert left_in(runner) == ([".intertoken-record", "one", "one-2"], False)


def test_a_child_that_dies_says_why_in_one_line(runner):
    runner.start(["killed"])
    job = ended(runner)
    assert (job.status, job.whole) == (FAILED, ["one"])
    assert job.problem.startswith("ended by SIGKILL; perhaps it ran out of memory")
    runner.start(["refused"])
    job = ended(runner)
    assert (job.status, job.problem) == (FAILED, "there is too little of it")
    assert job.lines == ["noise", "intertoken: there is too little of it"]


def test_a_recording_ends_with_its_server_in_order(runner):
    runner.start(["sleep"])
    pid = child_of(runner)
    runner.close()
    assert runner.job().status == STOPPED
    assert is_gone(pid)


SERVER = """
import pathlib, sys, time
from dashboard.recording.runner import Runner
runner = Runner(pathlib.Path(sys.argv[1]), [sys.executable, "-c", sys.argv[2]], grace=0.3)
runner.start(["deaf"])
time.sleep(60)
"""


def test_a_recording_ends_with_a_server_that_is_killed(tmp_path, runner):
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(runner.files.output), PLAYS])
    until(lambda: runner.job() is not None, "a job")
    pid = child_of(runner)
    server.kill()
    server.wait()
    assert ended(runner).status == STOPPED
    assert is_gone(pid)


def test_a_recording_ends_with_the_process_that_watches_it(runner, monkeypatch):
    runner.start(["sleep"])
    pid = child_of(runner)
    runner._supervisor.kill()
    runner._supervisor.wait()
    monkeypatch.setattr("dashboard.recording.job._SILENCE", 0)
    until(lambda: is_gone(pid), "its end")
    assert (runner.job().status, runner.job().problem) == (FAILED, "its process has ended")
    runner.start(["quick"])
    assert ended(runner).status == DONE


def test_what_cannot_be_started_or_written_is_said(tmp_path):
    with closing(Runner(tmp_path / "runs", [str(tmp_path / "nowhere")])) as runner:
        runner.start([])
        assert "cannot be started: No such file" in ended(runner).problem
        with pytest.raises(UsageError, match="cannot be started"):
            runner._ask([])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--record-to"):
        Runner(tmp_path / "file" / "runs").start([])


def test_a_run_gets_a_free_name(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").symlink_to(tmp_path / "nowhere")
    (tmp_path / "staging" / "a").mkdir(parents=True)
    assert put(tmp_path / "staging" / "a", tmp_path) == "a-3"
    assert (tmp_path / "a-3").is_dir()


def supervise(runner):
    """Watch a quick command in this process."""
    runner.files.folder.mkdir(parents=True)
    job = Job("1", [*runner._command, "quick", str(runner.files.staging)], time.time())
    server, end = os.pipe()
    try:
        Supervisor(runner.files, job, 0.3).run(server)
    finally:
        os.close(server)
        os.close(end)


def test_a_disk_that_is_full_for_a_while_ends_no_recording(runner, monkeypatch):
    full = []

    def write(place, job):
        if job.status == RUNNING:
            full.append(job.status)
            raise OSError(28, "No space left on device")
        written(place, job)

    written = Files.write
    monkeypatch.setattr(Files, "write", write)
    supervise(runner)
    assert full
    assert (runner.job().status, runner.job().whole) == (DONE, ["one"])


def test_a_run_that_cannot_be_put_in_place_is_no_success(runner, monkeypatch):
    def put(run, output):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("dashboard.recording.supervise.put", put)
    supervise(runner)
    assert runner.job().status == FAILED
    assert runner.job().problem == f"one: cannot be moved to {runner.files.output}: Read-only file system"
    assert left_in(runner) == ([".intertoken-record"], False)


def test_on_a_full_disk_nothing_is_started_or_left(small_disk):  # noqa: F811
    (small_disk / "filler").write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize))
    runner = Runner(small_disk / "runs", [sys.executable, "-c", PLAYS])
    with pytest.raises(UsageError, match=r"runs cannot be written to \(No space left on device\)"):
        runner.start(["quick"])
    assert {path.name for path in runner.files.folder.iterdir()} <= {"lock"}


def test_runs_go_through_no_link_that_waits_for_them(runner, tmp_path):
    runner.files.folder.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    runner.files.staging.symlink_to(tmp_path / "elsewhere")
    runner.start(["quick"])
    assert ended(runner).status == DONE
    assert os.listdir(tmp_path / "elsewhere") == []


def test_how_long_it_still_takes_and_what_is_said():
    job = Job("1", ["x"], started=100.0)
    assert job.left(110) is None
    assert in_words(job, 104) == "Starting … 4 s elapsed."
    job.began, job.units, job.steps, job.runs = 110.0, (1, 4), (9, 38), (1, 2)
    assert job.share == 0.25
    assert job.left(120) == pytest.approx(30)
    assert in_words(job, 120).endswith("9 of 38 token steps. 20 s elapsed, about 30 s left.")
    job.status, job.ended = CANCELLED, 175.0
    assert in_words(job, 999).startswith("Cancelled after 1 min 15 s: 1 of 2 runs complete")


def test_a_real_run_is_planned_recorded_and_found(tmp_path):
    formats.write(decode(), tmp_path / "runs" / "a")
    store = RunStore([tmp_path / "runs"])
    assert [run.key for run in store.runs()] == ["a"]
    with closing(Runner(tmp_path / "runs")) as runner:
        until(lambda: runner.options() is not None, "the options")
        racing = RecordView(View(), {"concurrency": "branches", "allocator": "sequential"})
        until(lambda: plan_of(runner, racing)[2], "a refusal")
        assert "'stream_aware', which has none" in plan_of(runner, racing)[2]
        with pytest.raises(UsageError, match="has data races"):
            start(runner, racing)
        with pytest.raises(UsageError, match="has no 'gpu'"):
            start(runner, RecordView(View(), {"backend": "gpu"}))
        assert runner.job() is None

        view = RecordView(View(theme="dark"), {"strategies": "sccc,ggg", "tokens": "3", "repeats": "2"})
        until(lambda: plan_of(runner, view)[1].startswith("2 runs"), "a plan")
        command, said, refused = plan_of(runner, view)
        assert command == f"intertoken run --sync sccc,ggg --tokens 3 --repeats 2 -o {tmp_path / 'runs'}"
        assert (said, refused) == ("2 runs: tiny-sccc-sequential, tiny-ggg-sequential", "")
        start(runner, view)
        job = ended(runner)
        assert (job.status, job.problem, list(job.steps)) == (DONE, "", [20, 20])
        assert job.whole == ["tiny-sccc-sequential", "tiny-ggg-sequential"]
        until(lambda: found(store, runner, job), "the runs")
        links = [item.children for item in job_of(store, runner, view, time.time())[5]]
        assert [a.href for a in links] == [
            "../?run=tiny-sccc-sequential&theme=dark", "../?run=tiny-ggg-sequential&theme=dark",
            "../?run=tiny-sccc-sequential&run=tiny-ggg-sequential&theme=dark",
        ]  # fmt: skip
    assert {run.key for run in store.runs()} == {"a", *job.whole}


def test_runs_go_where_they_are_told_or_are_gone_with_the_command(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(dashboard.cli, "serve", lambda app, host, port, serving, private: seen.append(serving.runner))
    monkeypatch.setattr("dashboard.app.RunStore", lambda paths, **_: seen.append(list(paths)) or RunStore(paths))
    formats.write(decode(), tmp_path / "a")
    for options in (["--record-to", str(tmp_path / "new" / "runs")], []):
        assert CliRunner().invoke(dashboard.cli.dashboard, [str(tmp_path / "a"), *options]).exit_code == 0
    first, told, second, otherwise = seen
    assert first == [tmp_path / "a", tmp_path / "new" / "runs"]
    assert told.shown == tmp_path / "new" / "runs"
    assert told.shown.is_dir()
    assert second == [tmp_path / "a", otherwise.shown]
    assert not otherwise.shown.exists()
