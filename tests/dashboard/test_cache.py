"""What the page needs of a recording is kept on disk: the same when it is read back, renewed, bounded."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from dashboard.reading.run import read_runs
from dashboard.reading.store import RunStore
from dashboard.scene import timeline_of
from dashboard.timeline import pyramid
from dashboard.timeline.align import Tokens
from dashboard.view import View
from tests.dashboard.traces import PERIOD, decode
from tests.recordings import SAMPLES
from tracer import formats, stored
from tracer.stored import Cache


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def recording(tmp_path):
    formats.write(decode(tokens=12), tmp_path / "runs" / "a")
    return tmp_path / "runs" / "a"


def test_uploads_are_not_kept(cache, recording, tmp_path):
    inbox = tmp_path / "inbox"
    shutil.copytree(recording, inbox / "b")
    assert len(RunStore([recording], inbox=inbox, cache=cache).runs()) == 2
    assert len(list(cache.directory.iterdir())) == 1


@pytest.fixture
def reads(monkeypatch):
    """Which recordings are read."""
    paths, read = [], formats.read
    monkeypatch.setattr(formats, "read", lambda path, **options: paths.append(path) or read(path, **options))
    return paths


def _drawn(run, low=-4 * PERIOD, high=4 * PERIOD):
    return timeline_of([run], View(token=3, range=(low, high)), "light", 900)


def _entry(cache):
    (entry,) = cache.directory.iterdir()
    return entry


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


def test_a_second_opening_reads_no_trace_and_draws_the_same(cache, recording, reads, monkeypatch):
    monkeypatch.setattr(pyramid, "FEW", 10)
    (bare,) = read_runs(recording)
    (first,) = read_runs(recording, cache)
    assert len(reads) == 2
    (second,) = read_runs(recording, cache)
    assert any(row.pyramid.levels for row in second.rows)
    for run in (first, second):
        assert run.summary == bare.summary
        assert json.dumps(_drawn(run), default=np.ndarray.tolist) == json.dumps(_drawn(bare), default=np.ndarray.tolist)
        assert_frame_equal(run.gaps.table, bare.gaps.table)
        assert_frame_equal(run.waits, bare.waits, check_column_type=False)
        assert_frame_equal(run.steps.table, bare.steps.table)
    assert len(reads) == 2
    assert second.syncs.signature == bare.syncs.signature  # what is not kept comes from the trace
    assert len(reads) == 3


def test_a_recording_that_changed_is_read_anew(cache, recording, reads):
    read_runs(recording, cache)
    shutil.rmtree(recording)
    formats.write(decode(tokens=5), recording)
    (run,) = read_runs(recording, cache)
    assert len(reads) == 2
    assert len(run.tokens) == 5


@pytest.mark.parametrize("damage", ["tree", "cut", "class", "no tree", "other tree"])
def test_a_damaged_entry_is_thrown_away(cache, recording, reads, damage, caplog):
    (whole,) = read_runs(recording, cache)
    tree, arrays = _entry(cache) / "value.json", _entry(cache) / "arrays"
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
    (run,) = read_runs(recording, cache)
    assert len(reads) == 2
    assert run.summary == whole.summary
    read_runs(recording, cache)
    assert len(reads) == 2


def test_the_longest_unused_make_room(tmp_path, recording):
    probe = Cache(tmp_path / "probe")
    read_runs(recording, probe)
    size = sum(path.stat().st_size for path in _entry(probe).iterdir())
    cache = Cache(tmp_path / "cache", most_bytes=int(2.5 * size))
    paths = [recording.with_name(name) for name in "bcd"]
    for number, path in enumerate(paths):
        shutil.copytree(recording, path)
        read_runs(path, cache)
        os.utime(cache.entry(path), (number, number))
        if number == 1:
            read_runs(paths[0], cache)  # used again, so the other one goes
    assert [cache.entry(path).exists() for path in paths] == [True, False, True]


def test_what_was_left_unfinished_goes_a_day_later(cache, recording):
    places = [cache.directory / name for name in ("new-1-old", "new-2-young")]
    for place in places:
        place.mkdir(parents=True)
        (place / "x").touch()
    os.utime(places[0], (0, 0))
    read_runs(recording, cache)
    assert [place.exists() for place in places] == [False, True]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, recording, caplog):
    (tmp_path / "file").write_text("")
    (run,) = read_runs(recording, Cache(tmp_path / "file" / "cache"))
    assert len(run.tokens) == 12
    assert "cannot cache" in caplog.text


@pytest.mark.parametrize("name", ["vllm-b8-graph-nvtx", "llama1b-sccc-graph"])
def test_all_that_is_known_of_an_engines_recording_is_kept(name, cache, caplog):
    first, again = (read_runs(SAMPLES / name, cache)[0] for _ in range(2))
    assert not caplog.records
    assert (again.summary, again.steps.phases, again.steps.regimes) == (
        first.summary, first.steps.phases, first.steps.regimes
    )  # fmt: skip
    assert [(row.device, row.place) for row in again.holes] == [(row.device, row.place) for row in first.holes] != []
    assert all(kept.events.equals(row.events) for kept, row in zip(again.holes, first.holes, strict=True))
    assert again.gaps.idle.causes_us == first.gaps.idle.causes_us
