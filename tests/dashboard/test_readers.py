"""Recordings are read in processes of their own: what ends one of them costs one recording, and the page says so."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from contextlib import closing, contextmanager
from itertools import pairwise

import pytest
from pandas.testing import assert_frame_equal

from dashboard.app import create_app
from dashboard.reading.readers import Limits, Readers
from dashboard.reading.run import read_runs
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.uploads import SLICE
from tests.dashboard.planted import plant
from tests.dashboard.traces import KERNELS, decode
from tests.recordings import SAMPLES
from tracer import formats
from tracer.errors import TraceError
from tracer.stored import Cache

KILLER = b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 4301 + b"}]}"
SAID = {
    "abort": "its reader process ended (signal ABRT); it is not shown",
    "exit": "its reader process ended (exit code 3); it is not shown",
    "hungry": "reading it takes more than 0.3 GB of memory (--reader-memory); it is not shown",
    "bytes": "reading it takes more than 0.3 GB of memory (--reader-memory); it is not shown",
    "faulty": "cannot be shown: ZeroDivisionError: a fault? of ours",
}


@pytest.fixture(scope="module")
def readers():
    with closing(Readers(Limits(3 * 10**8, 300), plant)) as readers:
        yield readers


@pytest.fixture
def recordings(tmp_path):
    for name in ("a", *SAID, "z"):
        formats.write(decode(tokens=9), tmp_path / "runs" / f"{name}.sqlite")
    return tmp_path / "runs"


def test_what_ends_a_reader_costs_one_recording(recordings, readers):
    store = RunStore([recordings], readers=readers)
    runs = {run.key: run for run in store.runs()}
    problems = {key: run.summary.problem for key, run in runs.items()}
    expected = {name: f"{recordings / name}.sqlite: {said}" for name, said in SAID.items()} | {"a": None, "z": None}
    assert problems == expected
    assert [len(run.steps) for run in (runs["a"], runs["z"])] == [9, 9]


def test_what_takes_too_long_is_ended(tmp_path):
    formats.write(decode(tokens=9), tmp_path / "slow.sqlite")
    with closing(Readers(Limits(seconds=1), plant)) as readers:
        (run,) = RunStore([tmp_path], readers=readers).runs()
    said = f"{tmp_path}/slow.sqlite: reading it took longer than 1 s (--reader-seconds); it is not shown"
    assert run.summary.problem == said


def test_the_page_says_what_happened_and_goes_on(recordings, readers):
    client = create_app([recordings], Serving(readers=readers)).server.test_client()
    table = client.get("/download/runs.csv").get_data(as_text=True)
    assert all(said in table for said in SAID.values())
    assert client.get("/").status_code == 200
    with client.get("/download/recording.zip?run=a") as answer:
        assert answer.status_code == 200


def test_an_upload_that_once_ended_the_process(tmp_path, readers):
    (tmp_path / "inbox").mkdir()
    formats.write(decode(tokens=9), tmp_path / "good.sqlite")
    client = create_app([], Serving(uploads=tmp_path / "inbox", readers=readers)).server.test_client()

    def send(name, data):
        key = client.post("/upload", query_string={"name": name, "size": len(data)}).get_json()["id"]
        return [client.put(f"/upload/{key}?at={at}", data=data[at : at + SLICE]) for at in range(0, len(data), SLICE)]

    (refused,) = send("killer.json", KILLER)
    assert refused.status_code == 422
    assert refused.get_json() == {"error": "contains a number with more than 100 digits, so it is not a trace"}
    (aborted,) = send("abort.sqlite", (tmp_path / "good.sqlite").read_bytes())
    assert aborted.status_code == 422
    assert aborted.get_json() == {"error": SAID["abort"]}
    assert not list((tmp_path / "inbox").glob("*"))[1:]
    assert send("good.sqlite", (tmp_path / "good.sqlite").read_bytes())[-1].get_json()["run"] == "good"


def test_an_upload_is_checked_and_unpacked_in_the_process_that_reads_it(tmp_path, readers, monkeypatch):
    (tmp_path / "inbox").mkdir()
    formats.write(decode(tokens=9), tmp_path / "a.json")
    formats.write(decode(tokens=9), tmp_path / "dir")
    unpacker, here = zlib.decompressobj, []

    class Counted:
        def __init__(self, *given, **named):
            self._true = unpacker(*given, **named)

        def decompress(self, *given):
            found = self._true.decompress(*given)
            here.append(len(found))
            return found

        def __getattr__(self, name):
            return getattr(self._true, name)

    client = create_app([], Serving(uploads=tmp_path / "inbox", readers=readers)).server.test_client()
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (tmp_path / "dir").iterdir():
            archive.write(file, file.name)
    padded = gzip.compress((tmp_path / "a.json").read_bytes() + b" " * 30_000_000)
    many = gzip.compress(b" " * 1_000_000) + gzip.compress(b" ") * 50_000
    monkeypatch.setattr(zlib, "decompressobj", Counted)

    def send(name, data):
        key = client.post("/upload", query_string={"name": name, "size": len(data)}).get_json()["id"]
        answers = [
            client.put(f"/upload/{key}?at={at}", data=data[at : at + SLICE]) for at in range(0, len(data), SLICE)
        ]
        return answers[-1].get_json()

    assert send("a.json.gz", padded)["run"] == "a.json.gz"
    assert sum(here) < 10 << 20  # what tells its format
    begin = time.process_time()
    assert send("b.json.gz", many)["error"].startswith("has more than 1,000 gzip members")
    assert time.process_time() - begin < 0.5
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert send("c.zip", zipped.getvalue())["run"] == "c"
    assert send("d.zip", zipped.getvalue()[:-40])["error"] == "d.zip: truncated zip file"


@contextmanager
def ended(process):
    """Whatever fails, nobody waits for it."""
    try:
        yield
    finally:
        process.kill()


def test_the_server_outlives_an_upload_that_once_ended_it(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", "from tracer.cli import main; main()", "dashboard", "--port", "0", "--no-open"]
    options = ("--no-cache", "--no-token")
    started = subprocess.Popen([*command, *options], env=environment, text=True, stdout=subprocess.PIPE)
    with started as process, ended(process):
        address = re.search("http://[^ ]+/", process.stdout.readline())[0]

        def ask(method, path, data=None):
            request = urllib.request.Request(f"{address}{path}", data, {"Origin": address.rstrip("/")}, method=method)
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as refused:
                with refused:
                    return refused.code, json.load(refused)

        for name, data, expected in (
            ("killer.json", KILLER, (422, "contains a number with more than 100 digits, so it is not a trace")),
            ("good.json", b'[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1}]', (200, None)),
        ):
            _, begun = ask("POST", f"upload?name={name}&size={len(data)}", b"")
            status, answer = ask("PUT", f"upload/{begun['id']}?at=0", data)
            assert (status, answer.get("error")) == expected
        assert ask("GET", "healthz")[0] == 200
        (own,) = tmp_path.glob("intertoken-*")
        assert len(list(own.glob("read-*"))) == 1
        process.terminate()
        assert process.wait(30) == 0
    assert not list(tmp_path.glob("intertoken-*"))


@pytest.mark.parametrize("name", ["llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2", "sync-beside"])
def test_the_same_is_shown_as_if_it_were_read_here(name, readers, tmp_path):
    here, elsewhere = read_runs(SAMPLES / name), read_runs(SAMPLES / name, Cache(tmp_path / "cache"), readers)
    assert [run.key for run in here] == [run.key for run in elsewhere]
    for one, other in zip(here, elsewhere, strict=True):
        assert one.summary == other.summary
        assert len(one.rows) == len(other.rows)
        for table, frame in one.trace.tables.items():
            assert_frame_equal(frame, other.trace[table], obj=table)
        assert other.trace.notes == one.trace.notes
        assert other.trace.metadata == one.trace.metadata


def test_a_trace_is_read_for_its_analysis_and_once_for_itself(tmp_path, readers, monkeypatch):
    formats.write(decode(tokens=9), tmp_path / "a")
    cache, done, do = Cache(tmp_path / "cache"), [], readers.do
    monkeypatch.setattr(readers, "do", lambda path, work, *given: done.append(work.__name__) or do(path, work, *given))
    monkeypatch.setattr("tracer.formats.read", lambda *_, **__: pytest.fail("read in the server"))
    for _ in range(2):
        (run,) = read_runs(tmp_path / "a", cache, readers)
        start = run.trace["kernels"]["start"].to_numpy()
        assert {
            frame[name].to_numpy().strides
            for frame in run.trace.tables.values()
            for name in frame
            if frame[name].dtype == "int64" and len(frame) > 1
        } == {(8,)}  # as compiled code wants them
    assert done == ["keep_runs", "keep_trace"]
    assert len(start) == 9 * KERNELS


def test_what_is_gone_between_is_said(tmp_path, readers):
    formats.write(decode(tokens=9), tmp_path / "a.sqlite")
    (run,) = read_runs(tmp_path / "a.sqlite", None, readers)
    (tmp_path / "a.sqlite").unlink()
    with pytest.raises(TraceError, match=r"a\.sqlite: no such file"):
        run.trace  # noqa: B018


def test_how_far_it_is_reaches_the_page(tmp_path, readers):
    told, enough = [], threading.Event()
    store = RunStore([tmp_path], readers=readers)
    (tmp_path / "long.json").write_text("[" + ",".join([json.dumps({"ph": "C", "name": "x" * 50})] * 400_000) + "]")
    place = store._places()[0]
    tell = place._tell
    place._tell = lambda share: (told.append(share), enough.set() if 0 < share < 1 else None, tell(share))
    store.read_ahead()
    assert store.wait(60)
    assert enough.is_set()
    assert all(0 <= a <= b <= 1 for a, b in pairwise(told))


def test_readers_that_were_reading_nothing_are_replaced(tmp_path, readers):
    formats.write(decode(tokens=9), tmp_path / "a")
    assert read_runs(tmp_path / "a", None, readers)[0].tokens is not None
    for process in readers._idle:
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.join()
    formats.write(decode(tokens=8), tmp_path / "b")
    assert read_runs(tmp_path / "b", None, readers)[0].tokens is not None


def test_nothing_is_left_of_a_reader_that_is_killed(tmp_path):
    (tmp_path / "within").mkdir()
    for name in ("a", "killed"):
        formats.write(decode(tokens=9), tmp_path / f"{name}.sqlite")
    with closing(Readers(Limits(10**9, 300), plant, tmp_path / "within")) as readers:
        (good,) = read_runs(tmp_path / "a.sqlite", None, readers)
        kept = set((tmp_path / "within").rglob("*"))
        (run,) = read_runs(tmp_path / "killed.sqlite", None, readers)
        assert good.summary.problem is None
        assert run.summary.problem.endswith("its reader process ended (signal KILL); it is not shown")
        assert set((tmp_path / "within").rglob("*")) < kept  # less the reader's own directory
        assert readers.cache.directory.is_dir()


def test_nothing_is_left_of_readers_that_are_closed(tmp_path):
    readers = Readers(Limits(10**9, 60), plant)
    formats.write(decode(tokens=9), tmp_path / "slow.sqlite")
    asked = threading.Thread(target=lambda: found.append(read_runs(tmp_path / "slow.sqlite", None, readers)))
    found = []
    asked.start()
    while not readers._all:
        asked.join(0.01)
    folder, pids = readers.cache.directory, [process._process.pid for process in readers._all]
    readers.close()
    asked.join(30)
    assert "slow.sqlite: its reader process ended" in found[0][0].summary.problem
    assert not folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
