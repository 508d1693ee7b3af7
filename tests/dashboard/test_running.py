"""What runs under the light recorder, on the record page: its figures, and a part of it kept as a recording."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver import Keys
from selenium.webdriver.common.by import By

from dashboard.pages.record.running import figures_of, process_of, processes_of, seconds_of
from dashboard.recording import running as running_module
from dashboard.recording.runner import Runner
from dashboard.recording.running import Running
from dashboard.serving import Serving
from tests.dashboard.conftest import faults, served
from tests.dashboard.test_answers_browser import Page
from tests.dashboard.test_record import until
from tests.tracer.fake_driver import Build
from tests.tracer.steady import trace_of
from tracer import read
from tracer.errors import EmptyTraceError, UsageError
from tracer.recorders import light_folder, light_program
from tracer.recorders.live import Live

ROW = Live(7, "python3 <b>", 1234, 0, 1, 701.26, (100.0, 120.0), (80.0, 90.0), 14.0, 1.0)
WITHOUT = Live(8, "idle", 3, 0, why="no token steps")


def test_figures_are_those_of_watch_in_words():
    lines = figures_of([ROW, WITHOUT])
    assert list(lines[0].values()) == [
        "7", "python3 <b>", "1", "701.3", "100 µs", "120 µs", "80.0 µs", "90.0 µs", "14", "1", "1,234", "",
    ]  # fmt: skip
    assert list(lines[1].values()) == ["8", "idle", *["–"] * 8, "3", "no token steps"]
    assert processes_of([ROW, ROW, WITHOUT]) == [
        {"value": "7", "label": "python3 <b> (7)"}, {"value": "8", "label": "idle (8)"},
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "x", [1], {}, "1" * 60, 10**400, 1.5, True])
def test_seconds_are_a_positive_number(value):
    with pytest.raises(UsageError, match="Enter seconds above 0"):
        seconds_of(value)


def test_seconds_and_processes_that_are_taken():
    assert [seconds_of(value) for value in (None, "", "0.5", "10")] == [None, None, 0.5, 10.0]
    assert process_of("7") == 7
    for value in (None, 7, "x", "-7", "7" * 11, "٧"):
        with pytest.raises(UsageError, match="Select a running process"):
            process_of(value)


def test_a_process_is_kept_under_a_name_of_plain_characters(tmp_path: Path):
    asked = []
    running = Running(
        tmp_path / "runs", Path("runs"), lambda: [ROW], lambda *args: asked.append(args) or trace_of([9] * 9)
    )
    until(lambda: running.rows() == [ROW], "the first look")
    assert running.said() == ""
    with pytest.raises(UsageError, match="Select a running process"):
        running.keep(8, None)
    running.keep(7, 2.5)
    until(lambda: running.said().startswith("Saved as"), "the recording")
    assert asked == [(7, 2.5)]
    (kept,) = (tmp_path / "runs").iterdir()
    assert kept.name.startswith("python3_b_-7-")
    assert "." not in kept.name
    assert running.said() == f"Saved as runs/{kept.name}: {len(read(kept))} events. It is in the table of runs."


def test_a_look_that_fails_is_followed_by_another(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch):
    monkeypatch.setattr(running_module, "EVERY_S", 0.0)
    looks = iter([OSError("a ring that went"), MemoryError()])

    def look():
        for problem in looks:
            raise problem
        return [ROW]

    running = Running(tmp_path, Path("runs"), look)
    until(lambda: running.rows() == [ROW], "the third look")
    assert caplog.text.count("cannot list running processes") == 2


def test_what_cannot_be_kept_is_said(tmp_path: Path):
    def gone(*_: object):
        raise EmptyTraceError("it has ended")

    running = Running(tmp_path, Path("runs"), lambda: [ROW], gone)
    until(lambda: running.rows() == [ROW], "the first look")
    running.keep(7, None)
    until(lambda: running.said() == "Nothing was saved: it has ended", "the problem")
    (tmp_path / "file").touch()
    running = Running(tmp_path / "file" / "x", Path("runs"), lambda: [ROW], lambda *_: trace_of([9] * 9))
    until(lambda: running.rows() == [ROW], "the first look")
    running.keep(7, None)
    until(lambda: "runs cannot be written to" in running.said(), "the problem")


@pytest.fixture
def program(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A program that decoded under the recorder and still runs; its id."""
    built = Build.into(tmp_path_factory.mktemp("light"))
    monkeypatch.setattr(light_folder, "_MEMORY", tmp_path_factory.mktemp("memory"))
    with light_folder.folder() as rings:
        environment = light_program.environment(built.folder / "light.so", rings)
        environment["INTERTOKEN_LIGHT_BUDGET"] = "0"  # nothing is sampled at random
        with subprocess.Popen(
            [built.folder / "decode", "proc", "stays", "200"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**environment, "LD_LIBRARY_PATH": str(built.folder), "PATH": os.environ["PATH"]},
        ) as running:  # fmt: skip
            assert running.stdout
            running.stdout.readline()
            yield running.pid
            running.kill()


@pytest.mark.browser
def test_a_running_program_is_seen_and_kept_with_the_keyboard(browser, program: int, tmp_path: Path):
    faults(browser)
    page = Page(browser)
    with (
        closing(Runner(tmp_path / "runs", grace=2)) as runner,
        served(tmp_path / "runs", Serving(runner=runner)) as address,
    ):
        page.open(f"{address}record/?theme=light")
        page.says("running", str(program))
        page.says("running", "decode")
        page.press("keep", Keys.ENTER)
        page.says("keep-refused", "Select a running process")
        page.press("running-process", Keys.ENTER)
        option = page.until(
            lambda: browser.find_elements(By.XPATH, f"//*[contains(text(), 'decode ({program})')]"), "it"
        )
        option[-1].click()
        page.press("keep", Keys.ENTER)
        page.says("said-of-keep", "Saved as")
        assert faults(browser) == []
        browser.get("about:blank")  # the page asks on, and the server ends
    (kept,) = (tmp_path / "runs").glob("decode-*")
    assert len(read(kept)["graph_launches"]) == 400
