"""Recordings are found, read in the background in order of need, kept on disk, and watched while they come and go."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from dashboard.app import Watch, create_app, fingerprint
from dashboard.pages import runs as of_page
from dashboard.pages.overview import progress_text
from dashboard.pages.overview.table import COLUMNS, row
from dashboard.reading import run as reading
from dashboard.reading.run import read_runs
from dashboard.reading.store import Progress, RunStore, find_traces
from dashboard.scene import timeline_of
from dashboard.timeline import pyramid
from dashboard.timeline.align import Tokens
from dashboard.view import View
from tests.dashboard.traces import GAP, PERIOD, decode
from tests.recordings import SAMPLES
from tracer import Trace, formats, progress, stored
from tracer.stored import Cache


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


def until(condition, seconds=20):
    end = threading.Event()
    for _ in range(seconds * 100):
        if condition():
            return
        end.wait(0.01)
    raise AssertionError("it did not come to that")


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


def test_fingerprints_see_a_name_a_time_and_a_size_and_bear_what_is_gone(tmp_path):
    assert fingerprint([tmp_path / "nowhere"]) == ()
    file = tmp_path / "x" / "y" / "file"
    file.parent.mkdir(parents=True)
    file.write_text("a")
    before = fingerprint([tmp_path])
    assert fingerprint([tmp_path]) == before
    os.utime(file, ns=(1, 1))
    assert fingerprint([tmp_path]) != before
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / ".hidden").write_text("")
    assert not any(".hidden" in entry[0] for entry in fingerprint([tmp_path]))


def test_many_at_once_while_recordings_come_and_go(tmp_path):
    formats.write(decode(), tmp_path / "a")
    server = create_app([tmp_path]).server
    assert server.test_client().get("/download/gaps.csv?run=a").status_code == 200
    stop, problems = threading.Event(), []

    def read():
        client = server.test_client()
        while not stop.wait(0.05):
            for address in ("/revision", "/healthz", "/download/runs.json", "/download/gaps.csv?run=a"):
                answer = client.get(address)
                if answer.status_code != 200:
                    problems.append((address, answer.status_code))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    client = server.test_client()

    def counted(total):
        until(lambda: client.get("/healthz").get_json()["runs"] == {"read": total, "total": total}, 60)

    formats.write(decode(tokens=3), tmp_path / "new.json")
    counted(2)
    (tmp_path / "new.json").unlink()
    counted(1)
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def recording(tmp_path):
    formats.write(decode(tokens=12), tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


@pytest.fixture
def reads(monkeypatch):
    """Which recordings are read."""
    paths, read = [], formats.read
    monkeypatch.setattr(formats, "read", lambda path, **options: paths.append(path) or read(path, **options))
    return paths


def test_a_snapshot_gives_back_what_it_was_given(tmp_path):
    value = {
        "plain": [1, 2.5, None, True, "µ<b>", (1, "two")],
        "tokens": Tokens(*(np.arange(n, dtype=np.int64) for n in (3, 3, 3, 0, 3))),
        "same": np.full(5000, 7, np.int32),
        "frame": pd.DataFrame({
            "number": np.arange(3), "share": [0.5, np.nan, 1.0], "name": pd.Categorical(["b", "a", "b"]),
            "text": pd.Series(["x", "", "y"], dtype="str"), "yes": [True, False, True],
        }),
        "empty": pd.DataFrame({"start": np.zeros(0, np.int64), "name": pd.Categorical([])}),
    }  # fmt: skip
    stored.save_value(value, tmp_path)
    found = stored.load_value(tmp_path, [Tokens])
    assert found["plain"] == value["plain"]
    for name in ("step", "start", "end", "gap"):
        np.testing.assert_array_equal(getattr(found["tokens"], name), getattr(value["tokens"], name))
    np.testing.assert_array_equal(found["same"], value["same"])
    assert (tmp_path / "arrays").stat().st_size < 2000
    assert_frame_equal(found["frame"], value["frame"])
    assert found["empty"].columns.tolist() == ["start", "name"]
    assert not found["frame"]["number"].to_numpy().flags.writeable
    with pytest.raises(KeyError, match="Tokens"):
        stored.load_value(tmp_path, [])
    with pytest.raises(TypeError, match="Path"):
        stored.save_value(Path("x"), tmp_path)


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


@pytest.mark.parametrize("name", ["vllm-b8-graph-nvtx", "llama1b-sccc-graph"])
def test_all_that_is_known_of_an_engines_recording_is_kept(name, cache, caplog):
    first, again = (read_runs(SAMPLES / name, cache)[0] for _ in range(2))
    assert not caplog.records
    assert again.summary == first.summary
    assert (again.steps.phases, again.steps.regimes) == (first.steps.phases, first.steps.regimes)
    assert [(row.device, row.place) for row in again.holes] == [(row.device, row.place) for row in first.holes] != []
    assert all(kept.events.equals(row.events) for kept, row in zip(again.holes, first.holes, strict=True))
    assert again.gaps.idle.causes_us == first.gaps.idle.causes_us
