"""Recordings that come, change and go while the dashboard runs."""

import os
import shutil

import pytest

from dashboard.app import Watch, fingerprint
from dashboard.reading.store import Progress, RunStore
from tests.dashboard.traces import GAP, decode
from tracer import formats


@pytest.fixture
def watched(tmp_path):
    formats.write(decode(), tmp_path / "a")
    store = RunStore([tmp_path])
    now = [0.0]
    watch = Watch(store, lambda: now[0])

    def later(looks=2):
        for _ in range(looks):
            now[0] += 1.5
            watch.revision()
        return watch.revision()

    return store, watch, later


def keys(store):
    return [run.key for run in store.runs()]


def test_new_changed_and_lost_recordings(watched, tmp_path):
    store, watch, later = watched
    assert watch.revision() == 0  # nobody asked for the runs yet, so none is read
    assert keys(store) == ["a"]
    first = store.runs()[0]
    assert later() == 2  # found, and read
    formats.write(decode(tokens=4), tmp_path / "b")
    assert later(1) == 2  # it may still be being written
    assert later(1) == 3
    assert keys(store) == ["a", "b"]
    assert store.runs()[0] is first
    assert later() == 4
    formats.write(decode(gap=2 * GAP), tmp_path / "a", replace=True)
    assert later() == 5
    assert store.runs()[0].summary.gap_p50_us == pytest.approx(200)
    assert keys(store) == ["a", "b"]
    shutil.rmtree(tmp_path / "b")
    assert later() == 7
    assert keys(store) == ["a"]
    assert store.progress() == Progress(1, 1)


def test_what_is_still_being_written_waits(watched, tmp_path):
    store, _, later = watched
    keys(store)
    for size in range(1, 5):
        (tmp_path / "growing.sqlite").write_bytes(b"x" * size)
        assert later(1) == 2
    assert later() == 3
    assert keys(store) == ["a", "growing"]
    assert store.runs()[1].trace is None


def test_keys_of_old_runs_stay_when_a_twin_comes(watched, tmp_path):
    store, _, later = watched
    assert keys(store) == ["a"]
    (tmp_path / "x").mkdir()
    formats.write(decode(), tmp_path / "x" / "a")
    later()
    assert keys(store) == ["a", "x/a"]


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
