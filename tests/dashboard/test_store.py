"""Recordings are read in the background and in order of need, and none waits for another."""

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboard import cli
from dashboard.pages import runs as of_page
from dashboard.pages.overview import progress_text
from dashboard.pages.overview.table import row
from dashboard.reading import run as reading
from dashboard.reading.store import RunStore
from dashboard.view import View
from tests.dashboard.traces import decode
from tracer import formats, progress
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

    def close(self, *names):
        self.closed |= {name: threading.Event() for name in names}

    def open(self, *names):
        for name in names:
            self.closed[name].set()


@pytest.fixture
def gate(monkeypatch):
    gate = Gate(monkeypatch)
    yield gate
    gate.open(*gate.closed)


@pytest.fixture
def recordings(tmp_path):
    for name in "abc":
        formats.write(decode(tokens=6), tmp_path / "runs" / name)
    return tmp_path / "runs"


def _until(condition, seconds=20):
    end = threading.Event()
    for _ in range(seconds * 100):
        if condition():
            return
        end.wait(0.01)
    raise AssertionError("it did not come to that")


def test_runs_come_one_by_one_and_say_how_far_they_are(gate, recordings):
    gate.close("b")
    store = RunStore([recordings])
    assert [(run.name, run.summary.problem) for run in store.so_far()] == [(n, "waiting to be read") for n in "abc"]
    assert (store.progress().read, store.progress().total, store.waited) == (0, 3, 0)
    store.read_ahead()
    store.read_ahead()
    _until(lambda: gate.order == ["a", "b"])
    _until(lambda: "25%" in (store.so_far()[1].summary.problem or ""))
    assert [row(run)["readable"] for run in store.so_far()] == [True, False, False]
    assert [run.key for run in store.ready("abc")] == ["a"]
    assert store.awaited("abcd") == ["b", "c"]
    assert store.waited > 0
    gate.open("b")
    _until(lambda: store.progress().done)
    assert [run.key for run in store.ready("cba")] == ["c", "b", "a"]
    assert gate.order == ["a", "b", "c"]


def test_what_is_needed_does_not_wait_for_others(gate, recordings):
    gate.close("a")
    store = RunStore([recordings])
    store.read_ahead()
    _until(lambda: gate.order == ["a"])
    assert [run.key for run in store.chosen(["c"])] == ["c"]
    assert store.named("b").tokens is not None
    assert store.named("nobody") is None
    assert store.progress().read == 2
    gate.open("a")
    assert len(store.runs()) == 3
    assert sorted(gate.order) == ["a", "b", "c"]


def test_a_fault_of_ours_keeps_no_other_recording_from_being_shown(recordings, monkeypatch, caplog):
    def faulty(path, cache, readers):
        if path.name == "a":
            raise ZeroDivisionError("one in a million")
        return reading.read_runs(path, cache, readers)

    monkeypatch.setattr("dashboard.reading.store.read_runs", faulty)
    store = RunStore([recordings])
    store.read_ahead()
    _until(lambda: store.progress().done)
    assert [run.tokens is not None for run in store.so_far()] == [False, True, True]
    assert "a: cannot be shown: ZeroDivisionError: one in a million" in store.so_far()[0].summary.problem
    assert "Traceback" in caplog.text


def test_a_link_waits_for_its_runs_and_no_link_only_a_moment(gate, recordings, monkeypatch):
    gate.close("b")
    store = RunStore([recordings])
    named = View(runs=("c", "b", "gone"))
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


def test_the_runs_of_a_link_are_read_first(gate, recordings):
    gate.close("a")
    store = RunStore([recordings])
    store.read_ahead(["c", "b"])
    _until(lambda: store.progress().read == 2)
    assert sorted(gate.order[:2]) == ["b", "c"]
    assert store.reading() == [], "while the page draws them"
    _until(lambda: store.reading() == ["a"])
    assert progress_text(store.progress(), store.reading()) == "2 of 3 recordings read; 1 left, now a"
    gate.open("a")
    assert len(store.runs()) == 3
    assert progress_text(store.progress(), store.reading()) == ""


def test_every_name_that_was_ever_shown_goes_on_working(tmp_path):
    formats.write(decode(tokens=6), tmp_path / "one" / "same")
    alone = RunStore([tmp_path])
    (shown,) = [run.name for run in alone.runs()]
    formats.write(decode(tokens=7), tmp_path / "two" / "same")
    formats.write(decode(tokens=8), tmp_path / "report.sqlite")
    store = RunStore([tmp_path])
    assert [run.key for run in store.runs()] == ["one/same", "report", "two/same"]
    names = {shown: "one/same", "two/same": "two/same", "report": "report", "report.sqlite": "report",
             str(tmp_path / "two" / "same"): "two/same", "nobody": "nobody"}  # fmt: skip
    assert {name: store.key_of(name) for name in names} == names
    view = of_page.opened(View.parse(f"?run=report.sqlite&run={shown}&rate=700:report.sqlite&event=1.2.{shown}"), store)
    assert view.runs == ("report", "one/same")
    assert (view.rates[0].run, view.event.run) == ("report", "one/same")
    alone.refresh()  # a page that is open keeps what it has
    assert "same" in [run.key for run in alone.runs()]


def test_a_recording_without_steps_says_why_nothing_of_it_is_shown(tmp_path):
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\x00 but not really")
    store = RunStore([tmp_path])
    store.runs()
    (said,) = of_page.missing(View(runs=("broken",)), store)
    assert said.startswith("broken cannot be shown: ")
    assert "truncated" in said


class Served:
    """In the place of a server: asks the app for its table until all is read."""

    effective_port = 1

    def __init__(self, app):
        self.client = app.test_client()

    def run(self):
        callback = next(c for c in self.client.get("/_dash-dependencies").get_json() if "runs.rowData" in c["output"])
        names = [part.split(".") for part in callback["output"].strip(".").split("...")]
        values = {"pathname": "/"}
        given = {
            kind: [{**known, "value": values.get(known["property"])} for known in callback[kind]]
            for kind in ("inputs", "state")
        }
        asked = {
            "output": callback["output"], "outputs": [{"id": key, "property": name} for key, name in names],
            "changedPropIds": ["url.pathname"], **given,
        }  # fmt: skip
        post = self.client.post
        _until(lambda: post("/_dash-update-component", json=asked).get_json()["response"]["reading"]["disabled"])

    def close(self):
        pass


@pytest.mark.parametrize("forgets", [False, True])
def test_the_command_keeps_what_it_reads_where_it_is_told(recordings, tmp_path, monkeypatch, forgets):
    monkeypatch.setattr("dashboard.serving.patience.listen", lambda app, *_: Served(app))
    options = ["--no-cache"] if forgets else ["--cache", str(tmp_path / "kept")]
    result = CliRunner().invoke(cli.dashboard, [str(recordings), "--no-open", "--no-token", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "kept").exists() != forgets
    if not forgets:
        assert len(list((tmp_path / "kept").iterdir())) == 3
        assert reading.read_runs(recordings / "a", Cache(tmp_path / "kept"))[0].tokens is not None
