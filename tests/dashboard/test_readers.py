"""Recordings are read in processes of their own: what ends one of them costs one recording, and the page says so."""

import gzip
import io
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from contextlib import closing
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


def sending(client):
    """Upload data under a name; the answer to its last slice."""

    def send(name, data):
        key = client.post("/upload", query_string={"name": name, "size": len(data)}).get_json()["id"]
        for at in range(0, len(data), SLICE):
            answer = client.put(f"/upload/{key}?at={at}", data=data[at : at + SLICE])
        return answer

    return send


def test_what_ends_a_reader_costs_one_recording_and_the_page_says_what_happened(tmp_path, readers):
    for name in ("a", *SAID, "z"):
        formats.write(decode(tokens=9), tmp_path / f"{name}.sqlite")
    client = create_app([tmp_path], Serving(readers=readers)).server.test_client()
    table = {row["run"]: row for row in client.get("/download/runs.json").get_json()}
    expected = {name: f"{tmp_path / name}.sqlite: {said}" for name, said in SAID.items()}
    assert {name: row["problem"] for name, row in table.items()} == expected | {"a": None, "z": None}
    assert [table[name]["steps"] for name in "az"] == [9, 9]
    assert client.get("/").status_code == 200
    with client.get("/download/recording.zip?run=a") as answer:
        assert answer.status_code == 200


def test_what_takes_too_long_is_ended(tmp_path):
    formats.write(decode(tokens=9), tmp_path / "slow.sqlite")
    with closing(Readers(Limits(seconds=1), plant)) as readers:
        (run,) = RunStore([tmp_path], readers=readers).runs()
    said = f"{tmp_path}/slow.sqlite: reading it took longer than 1 s (--reader-seconds); it is not shown"
    assert run.summary.problem == said


def test_an_upload_is_checked_and_unpacked_in_the_process_that_reads_it(tmp_path, readers, monkeypatch):
    (tmp_path / "inbox").mkdir()
    for name in ("a.json", "dir", "good.sqlite"):
        formats.write(decode(tokens=9), tmp_path / name)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in (tmp_path / "dir").iterdir():
            archive.write(file, file.name)
    padded = gzip.compress((tmp_path / "a.json").read_bytes() + b" " * 30_000_000)
    many = gzip.compress(b" " * 1_000_000) + gzip.compress(b" ") * 50_000
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

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    send = sending(create_app([], Serving(uploads=tmp_path / "inbox", readers=readers)).server.test_client())
    good = (tmp_path / "good.sqlite").read_bytes()
    for name, data, said in (
        ("killer.json", KILLER, "contains a number with more than 100 digits, so it is not a trace"),
        ("abort.sqlite", good, SAID["abort"]),
    ):
        refused = send(name, data)
        assert (refused.status_code, refused.get_json()) == (422, {"error": said})
    assert not list((tmp_path / "inbox").glob("*"))[1:]
    assert send("good.sqlite", good).get_json()["run"] == "good"
    assert send("a.json.gz", padded).get_json()["run"] == "a.json.gz"
    assert sum(here) < 10 << 20  # what tells its format
    begin = time.process_time()
    assert send("b.json.gz", many).get_json()["error"].startswith("has more than 1,000 gzip members")
    assert time.process_time() - begin < 0.5
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert send("c.zip", zipped.getvalue()).get_json()["run"] == "c"
    assert send("d.zip", zipped.getvalue()[:-40]).get_json()["error"] == "d.zip: truncated zip file"


def test_the_same_is_shown_as_if_it_were_read_here(readers, tmp_path):
    path = SAMPLES / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2"
    here, elsewhere = read_runs(path), read_runs(path, Cache(tmp_path / "cache"), readers)
    assert [run.key for run in here] == [run.key for run in elsewhere]
    for one, other in zip(here, elsewhere, strict=True):
        assert one.summary == other.summary
        assert len(one.rows) == len(other.rows)
        for table, frame in one.trace.tables.items():
            assert_frame_equal(frame, other.trace[table], obj=table)
        assert (other.trace.notes, other.trace.metadata) == (one.trace.notes, one.trace.metadata)


def test_a_trace_is_read_for_its_analysis_and_once_for_itself_and_what_is_gone_between_is_said(
    tmp_path, readers, monkeypatch
):
    formats.write(decode(tokens=9), tmp_path / "a.sqlite")
    cache, done, do = Cache(tmp_path / "cache"), [], readers.do
    monkeypatch.setattr(readers, "do", lambda path, work, *given: done.append(work.__name__) or do(path, work, *given))
    monkeypatch.setattr("tracer.formats.read", lambda *_, **__: pytest.fail("read in the server"))
    for _ in range(2):
        (run,) = read_runs(tmp_path / "a.sqlite", cache, readers)
        assert len(run.trace["kernels"]) == 9 * KERNELS
        long = [frame[name] for frame in run.trace.tables.values() for name in frame if len(frame) > 1]
        strides = {column.to_numpy().strides for column in long if column.dtype == "int64"}
        assert strides == {(8,)}  # as compiled code wants them
    assert done == ["keep_runs", "keep_trace"]
    (run,) = read_runs(tmp_path / "a.sqlite", None, readers)
    (tmp_path / "a.sqlite").unlink()
    with pytest.raises(TraceError, match=r"a\.sqlite: no such file"):
        run.trace  # noqa: B018


def test_how_far_it_is_reaches_the_page(tmp_path, readers):
    told, enough = [], threading.Event()
    store = RunStore([tmp_path], readers=readers)
    (tmp_path / "long.json").write_text("[" + ",".join([json.dumps({"ph": "C", "name": "x" * 100})] * 200_000) + "]")
    (place,) = store._places()
    tell = place._tell
    place._tell = lambda share: (told.append(share), enough.set() if 0 < share < 1 else None, tell(share))
    store.read_ahead()
    assert store.wait(60)
    assert enough.is_set()
    assert all(0 <= a <= b <= 1 for a, b in pairwise(told))


def test_nothing_is_left_of_readers_that_are_killed_or_closed_and_they_are_replaced(tmp_path):
    within, found = tmp_path / "within", []
    within.mkdir()
    for name in ("a", "b", "killed", "slow"):
        formats.write(decode(tokens=9), tmp_path / f"{name}.sqlite")
    with closing(Readers(Limits(10**9, 300), plant, within)) as readers:

        def problem(name):
            return read_runs(tmp_path / f"{name}.sqlite", None, readers)[0].summary.problem

        assert problem("a") is None
        kept = set(within.rglob("*"))
        assert problem("killed").endswith("its reader process ended (signal KILL); it is not shown")
        assert set(within.rglob("*")) < kept  # less the reader's own directory
        assert readers.cache.directory.is_dir()
        assert problem("a") is None
        for process in readers._idle:
            os.kill(process._process.pid, signal.SIGKILL)
            process._process.join()
        assert problem("b") is None, "one that was reading nothing is replaced"
        asked = threading.Thread(target=lambda: found.append(problem("slow")))
        asked.start()
        while readers._idle:
            asked.join(0.01)
        folder, pids = readers.cache.directory, [process._process.pid for process in readers._all]
    asked.join(30)
    assert "slow.sqlite: its reader process ended" in found[0]
    assert not folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


ARENAS = """
import ctypes, sys, threading
from dashboard.reading.readers import give_memory_back

if sys.argv[1] == "given":
    give_memory_back()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(8)
threads = [threading.Thread(target=lambda: (libc.malloc(ctypes.c_size_t(1000)), together.wait())) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no arenas")
def test_threads_share_two_arenas_so_that_what_they_free_is_not_spread_over_many():
    def arenas(how):
        done = subprocess.run([sys.executable, "-c", ARENAS, how], capture_output=True, text=True, check=True)
        return done.stdout.count("<heap nr=")

    assert arenas("given") <= 2 < arenas("left")
