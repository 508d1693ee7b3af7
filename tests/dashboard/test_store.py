"""Recordings are found, read in processes of their own in order of need, kept on disk and watched; each fails alone."""

import gzip
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from dashboard.app import Watch, create_app
from dashboard.pages import runs as of_page
from dashboard.pages.overview import progress_text
from dashboard.pages.overview.table import COLUMNS, row
from dashboard.reading import answers
from dashboard.reading import run as reading
from dashboard.reading.readers import Limits, Readers
from dashboard.reading.run import read_runs
from dashboard.reading.store import Progress, RunStore, find_traces
from dashboard.scene import timeline_of
from dashboard.serving import Serving
from dashboard.timeline import pyramid
from dashboard.view import View
from tests.dashboard.conftest import until, upload
from tests.dashboard.planted import plant
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tests.recordings import SAMPLES
from tests.tracer.handmade import Loop, loops
from tracer import Trace, formats, progress
from tracer.errors import TraceError
from tracer.stored import Cache
from tracer.whatif.edits import ScaleHost


class Gate:
    """Reading of some recordings that waits until it is let through."""

    def __init__(self, monkeypatch):
        self.closed, self.order = {}, []
        read = formats.read

        def slow(path, **options):
            name = Path(path).name
            self.order.append(name)
            if name in self.closed:
                progress.tell(1, 4)
                assert self.closed[name].wait(20)
            return read(path, **options)

        monkeypatch.setattr(formats, "read", slow)

    def close(self, name):
        self.closed[name] = threading.Event()

    def open(self, name):
        self.closed[name].set()


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    for name in gate.closed:
        gate.open(name)


@pytest.fixture
def recordings(tmp_path):
    for name in "abc":
        formats.write(decode(), tmp_path / "runs" / name)
    return tmp_path / "runs"


def keys(store):
    return [run.key for run in store.runs()]


def test_runs_come_one_by_one_and_say_how_far_they_are(gate, recordings):
    gate.close("b")
    store = RunStore([recordings])
    assert [(run.name, run.summary.problem) for run in store.so_far()] == [(n, "waiting to be read") for n in "abc"]
    assert (store.progress().read, store.progress().total, store.waited) == (0, 3, 0)
    store.read_ahead()
    store.read_ahead()
    until(lambda: gate.order == ["a", "b"])
    until(lambda: "25%" in (store.so_far()[1].summary.problem or ""))
    assert [row(run)["readable"] for run in store.so_far()] == [True, False, False]
    assert [run.key for run in store.ready("abc")] == ["a"]
    assert store.awaited("abcd") == ["b", "c"]
    assert store.waited > 0
    gate.open("b")
    until(lambda: store.progress().done)
    assert [run.key for run in store.ready("cba")] == ["c", "b", "a"]
    assert gate.order == ["a", "b", "c"]


def test_what_is_needed_does_not_wait_for_others_and_the_runs_of_a_link_are_read_first(gate, recordings):
    gate.close("a")
    store, linked = RunStore([recordings]), RunStore([recordings])
    store.read_ahead()
    until(lambda: gate.order == ["a"])
    assert [run.key for run in store.chosen(["c"])] == ["c"]
    assert store.named("b").tokens is not None
    assert store.named("nobody") is None
    assert store.progress().read == 2
    linked.read_ahead(["c", "b"])
    until(lambda: linked.progress().read == 2)
    assert linked.reading() == [], "while the page draws them"
    until(lambda: linked.reading() == ["a"])
    assert progress_text(linked.progress(), linked.reading()) == "2 of 3 recordings read; 1 left, now a"
    gate.open("a")
    assert len(store.runs()) == len(linked.runs()) == 3
    assert sorted(gate.order) == sorted("aabbcc")
    assert progress_text(linked.progress(), linked.reading()) == ""


def test_a_link_waits_for_its_runs_and_no_link_only_a_moment(gate, recordings, monkeypatch):
    gate.close("b")
    store, named = RunStore([recordings]), View(runs=("c", "b", "gone"))
    assert of_page.opened(named, store).runs == ("c", "b", "gone")
    store.chosen(["a"])
    assert of_page.opened(View(), store).runs is None
    store.read_ahead()
    monkeypatch.setattr(of_page, "PATIENCE", 0.0)
    assert of_page.opened(View(), store).runs == ("a",)
    gate.open("b")
    store.runs()
    assert of_page.opened(View(), store).runs == ("a", "c")
    assert of_page.opened(named, store).runs == ("c", "b", "gone")
    assert of_page.shown(named, store) == ["c", "b"]
    (said,) = of_page.missing(named, store)
    assert said == "The link names gone, which is not among the 3 recordings here."


def test_every_name_that_was_ever_shown_goes_on_working(tmp_path):
    formats.write(decode(), tmp_path / "one" / "same")
    alone = RunStore([tmp_path])
    (shown,) = [run.name for run in alone.runs()]
    formats.write(decode(tokens=7), tmp_path / "two" / "same")
    formats.write(decode(tokens=8), tmp_path / "report.sqlite")
    store = RunStore([tmp_path])
    assert keys(store) == ["one/same", "report", "two/same"]
    assert [run.name for run in store.runs()][::2] == ["one/same", "two/same"], "equal names have keys of their own"
    names = {shown: "one/same", "two/same": "two/same", "report": "report", "report.sqlite": "report",
             str(tmp_path / "two" / "same"): "two/same", "nobody": "nobody"}  # fmt: skip
    assert {name: store.key_of(name) for name in names} == names
    view = of_page.opened(View.parse(f"?run=report.sqlite&run={shown}&rate=700:report.sqlite&event=1.2.{shown}"), store)
    assert (view.runs, view.rates[0].run, view.event.run) == (("report", "one/same"), "report", "one/same")
    alone.refresh()  # a page that is open keeps what it has
    assert "same" in keys(alone)


def test_no_recording_takes_the_page_down_and_each_says_its_problem(tmp_path, monkeypatch, caplog):
    trace = decode()
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\x00" + b"junk" * 9)
    (tmp_path / "empty.sqlite").write_bytes(b"")
    (tmp_path / "unreadable.sqlite").symlink_to("/proc/self/mem")
    formats.write(Trace.from_columns(api={"start": [0], "end": [1], "name": ["cudaFree"]}), tmp_path / "bare")
    formats.write(Trace({name: table for name, table in trace.tables.items() if name != "api"}), tmp_path / "no-api")
    long = "llama-1.1b-saaas-sequential-cuda-c4096-p2048-x2"
    for name in (long, "fault"):
        formats.write(trace, tmp_path / name)

    def faulty(path, cache, readers):
        return 1 / 0 if path.name == "fault" else reading.read_runs(path, cache, readers)

    monkeypatch.setattr("dashboard.reading.store.read_runs", faulty)
    names = "broken.sqlite", "empty.sqlite", "bare", "no-api", long, "fault", "missing", "unreadable.sqlite"
    store = RunStore([tmp_path / name for name in names])
    runs = store.runs()
    rows = {run["name"]: run for run in map(row, runs)}
    assert {name for name, run in rows.items() if run["readable"]} == {long, "no-api"}
    for name, run in rows.items():
        assert run["readable"] or ("\n" not in run["about"] and run["about"].startswith(f"{name}: "))
    assert "API" in store.named("no-api").summary.problem
    assert "fault: cannot be shown: ZeroDivisionError: division by zero" in store.named("fault").summary.problem
    assert "Traceback" in caplog.text
    assert len(store.chosen([run.key for run in runs])) == 2
    assert rows[long]["short"] == "llama-1.1b-saaas-seque…96-p2048-x2", "a long name loses its middle"
    assert rows[long]["about"].startswith(long)
    assert COLUMNS[0]["tooltipField"] == "about"
    (said,) = of_page.missing(View(runs=("broken",)), store)
    assert said.startswith("broken cannot be shown: ")
    assert "truncated" in said


def test_directories_are_searched_two_levels_deep(tmp_path):
    for place in ("x/one", "x/y/z/three", ".hidden/four"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        formats.write(decode(2), tmp_path / place)
    for given in (tmp_path, tmp_path / "x" / "one"):
        assert find_traces([given]) == [tmp_path / "x" / "one"]


def test_a_recording_of_several_runs_is_listed_by_its_ranges(tmp_path):
    trace = decode(8)
    nvtx = trace["nvtx"].astype({"text": "str", "domain": "str"})
    outer = nvtx.iloc[[0, 4]].assign(text=["run A", "run B"])
    outer["start"], outer["end"] = [0, 4 * PERIOD], [4 * PERIOD - 500, 8 * PERIOD]
    over_device = outer.assign(domain="gpu_user_annotation", process=-1, thread=-1)  # as PyTorch repeats them
    tables = dict(trace.tables) | {"nvtx": pd.concat([nvtx, outer, over_device])}
    formats.write(Trace(tables, {"source": "host"}), tmp_path / "both")
    found = [(run.key, run.name, run.summary.steps) for run in RunStore([tmp_path / "both"]).runs()]
    assert found == [("both~run A", "both · run A", 4), ("both~run B", "both · run B", 4)]


def test_new_changed_and_lost_recordings_are_seen_once_they_are_written(tmp_path):
    formats.write(decode(), tmp_path / "a")
    store, now = RunStore([tmp_path]), [0.0]
    watch = Watch(store, lambda: now[0])

    def later(looks=2):
        for _ in range(looks):
            now[0] += 1.5
            watch.revision()
        return watch.revision()

    assert watch.revision() == 0  # nobody asked for the runs yet, so none is read
    assert keys(store) == ["a"]
    first = store.runs()[0]
    assert later() == 2  # found, and read
    formats.write(decode(tokens=4), tmp_path / "b")
    assert [later(1), later(1)] == [2, 3], "it may still be being written"
    assert keys(store) == ["a", "b"]
    assert store.runs()[0] is first
    assert later() == 4
    formats.write(decode(gap=2 * GAP), tmp_path / "a", replace=True)
    assert later() == 5
    assert store.runs()[0].summary.gap_p50_us == pytest.approx(200)
    shutil.rmtree(tmp_path / "b")
    assert later() == 7
    assert (keys(store), store.progress()) == (["a"], Progress(1, 1))
    for size in range(1, 5):
        (tmp_path / "growing.sqlite").write_bytes(b"x" * size)
        assert later(1) == 7
    later()
    assert keys(store) == ["a", "growing"]
    assert store.runs()[1].trace is None
    (tmp_path / "x").mkdir()
    formats.write(decode(), tmp_path / "x" / "a")
    later()
    assert keys(store) == ["a", "growing", "x/a"], "the old one keeps its key when a twin comes"


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def recording(tmp_path):
    formats.write(decode(tokens=12), tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


def test_a_second_opening_reads_no_trace_and_draws_the_same_until_the_recording_changes(
    cache, recording, reads, monkeypatch, tmp_path
):
    monkeypatch.setattr(pyramid, "FEW", 10)

    def drawn(run):
        plot = timeline_of([run], View(token=3, range=(-4 * PERIOD, 4 * PERIOD)), "light", 900)
        return json.dumps(plot, default=np.ndarray.tolist)

    bare, first, second = (read_runs(recording, given)[0] for given in (None, cache, cache))
    assert len(reads) == 2
    assert any(row.pyramid.levels for row in second.rows)
    for run in (first, second):
        assert (run.summary, drawn(run)) == (bare.summary, drawn(bare))
        assert_frame_equal(run.gaps.table, bare.gaps.table)
        assert_frame_equal(run.waits, bare.waits, check_column_type=False)
        assert_frame_equal(run.steps.table, bare.steps.table)
    assert len(reads) == 2
    assert second.syncs.signature == bare.syncs.signature  # what is not kept comes from the trace
    assert len(reads) == 3
    shutil.rmtree(recording)
    formats.write(decode(tokens=5), recording)
    (run,) = read_runs(recording, cache)
    assert (len(reads), len(run.tokens)) == (4, 5)
    shutil.copytree(recording, tmp_path / "inbox" / "b")
    entries = len(list(cache.directory.iterdir()))
    assert len(RunStore([recording], inbox=tmp_path / "inbox", cache=cache).runs()) == 2
    assert len(list(cache.directory.iterdir())) == entries, "uploads are not kept"


def test_a_damaged_entry_is_thrown_away(cache, recording, reads, caplog):
    (whole,) = read_runs(recording, cache)
    for number, damage in enumerate(("tree", "cut", "class", "no tree", "other tree"), 2):
        (entry,) = cache.directory.iterdir()
        tree, arrays = entry / "value.json", entry / "arrays"
        match damage:
            case "tree":
                tree.write_text(tree.read_text()[:-5])
            case "cut":
                os.truncate(arrays, arrays.stat().st_size // 2)
            case "class":
                tree.write_text(tree.read_text().replace('"class": "Steps"', '"class": "Path"'))
            case "no tree":
                tree.unlink()
            case "other tree":
                tree.write_text(json.dumps({"bytes": arrays.stat().st_size, "value": [3]}))
        for _ in range(2):
            (run,) = read_runs(recording, cache)
            assert (len(reads), run.summary) == (number, whole.summary), damage


def test_the_longest_unused_make_room_and_what_was_left_unfinished_goes_a_day_later(tmp_path, recording, caplog):
    probe = Cache(tmp_path / "probe")
    read_runs(recording, probe)
    (entry,) = probe.directory.iterdir()
    cache = Cache(tmp_path / "cache", most_bytes=int(2.5 * sum(path.stat().st_size for path in entry.iterdir())))
    paths = [recording.with_name(name) for name in "bcd"]
    for number, path in enumerate(paths):
        shutil.copytree(recording, path)
        read_runs(path, cache)
        os.utime(cache.entry(path), (number, number))
        if number == 1:
            read_runs(paths[0], cache)  # used again, so the other one goes
    assert [cache.entry(path).exists() for path in paths] == [True, False, True]
    places = [probe.directory / name for name in ("new-1-old", "new-2-young")]
    for place in places:
        place.mkdir()
        (place / "x").touch()
    os.utime(places[0], (0, 0))
    read_runs(paths[0], probe)
    assert [place.exists() for place in places] == [False, True]
    (tmp_path / "file").write_text("")
    (run,) = read_runs(recording, Cache(tmp_path / "file" / "cache"))
    assert len(run.tokens) == 12, "a cache that cannot be written costs nothing but time"
    assert "cannot cache" in caplog.text


def test_all_that_is_known_of_an_engines_recording_is_kept(cache, caplog):
    first, again = (read_runs(SAMPLES / "vllm-b8-graph-nvtx", cache)[0] for _ in range(2))
    assert not caplog.records
    assert again.summary == first.summary
    assert (again.steps.phases, again.steps.regimes) == (first.steps.phases, first.steps.regimes)
    assert [(row.device, row.place) for row in again.holes] == [(row.device, row.place) for row in first.holes] != []
    assert all(kept.events.equals(row.events) for kept, row in zip(again.holes, first.holes, strict=True))
    assert again.gaps.idle.causes_us == first.gaps.idle.causes_us


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
    client = create_app([], Serving(uploads=tmp_path / "inbox", readers=readers)).server.test_client()
    send = partial(upload, client)
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


ARENAS = Path(__file__).parent / "data" / "arenas.txt"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep no arenas")
def test_threads_share_two_arenas_so_that_what_they_free_is_not_spread_over_many():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    given, left = (subprocess.check_output([sys.executable, ARENAS, how], env=environment).count(b"<heap nr=")
                   for how in ("given", "left"))  # fmt: skip
    assert given <= 2 < left


def test_a_recording_of_several_engines_is_listed_by_them(tmp_path):
    """Each is a run in every list of runs, in links, and after the recording is read from the cache."""
    formats.write(loops(Loop(107_300, 600_000), Loop(68_600, 240_000, 80, thread=102)), tmp_path / "two")
    cache = Cache(tmp_path / "kept")
    for _ in range(2):
        store = RunStore([tmp_path / "two"], cache=cache)
        found = [(run.key, run.summary.steps, run.summary.gap_p50_us, run.gaps.gap_us["p50"]) for run in store.runs()]
        assert found == [
            ("two~process 100 thread 101 device 0", 40, 107.3, 107.3),
            ("two~process 100 thread 102 device 0", 80, 68.6, 68.6),
        ]
    one, other = store.runs()
    assert (one.part, other.bounds.thread) == ("process 100 thread 101 device 0", "102")
    linked = View.parse(View(runs=(other.key,)).query())
    assert [run.key for run in store.chosen(linked.runs)] == [other.key]
    predicted = answers.what_if(store, other, "half", lambda: [ScaleHost(0.5)]).result(60).runs[-1]
    assert len(predicted.steps) == 80
