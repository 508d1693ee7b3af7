"""`intertoken watch` over a driver without a GPU: rings of programs that still run."""

import queue
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from rich.console import Console

from tests.tracer.fake_driver import run
from tests.tracer.handmade import Loop, loops
from tests.tracer.light_engine import Engine
from tracer import read
from tracer.commands.watch import Live, figures, live, metrics, serve, table_of
from tracer.recorders import light, light_ring

STEPS = 200
ROW = Live(7, 'a"b', 100, 3, 1, 700.5, (100.0, 120.0), (80.0, 90.0), 14.0, 1.0,
           {"time_us": {"p50": 1200.0, "p5": 4.0}, "launches": {"p50": 3.0, "p5": 0.0}})  # fmt: skip


@pytest.fixture
def program(built, recorder):
    """A program that decoded under the recorder and still runs; its id."""
    with light_ring.folder() as rings:
        environment = light.environment(built.folder / "light.so", rings)
        command = [built.folder / "decode", "proc", "stays", str(STEPS)]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as running:
            running.stdout.readline()
            yield running.pid
            running.kill()


def test_what_runs_is_shown_with_the_figures_of_any_recording(program, monkeypatch):
    """And what stopped launching without."""
    (row,) = live()
    assert (row.process, row.program, row.device) == (program, "decode", 0)
    assert row.calls == 6 * STEPS + 3  # its graph is made, updated and ended, too
    assert (row.syncs, row.launches) == (1, 3)
    assert row.gap_us
    assert row.steps_per_s
    assert 0 < row.gap_us[0] <= row.gap_us[1]
    assert row.steps_per_s > 0
    later = time.monotonic_ns() + 95 * 10**9
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    (row,) = live()
    assert (row.process, row.device, row.steps_per_s, row.calls) == (program, None, None, 6 * STEPS + 3)
    assert row.why.startswith("no call for 9")
    assert "steps_per_second{" not in metrics([row])


def test_what_a_program_does_now_is_shown_and_not_what_it_did_for_longest():
    """After 200 steps of 1 ms it replays a graph of 3 ms; of the last launch the stamps are not written yet."""
    made = Engine()
    for step in range(250):
        made.now += 100_000
        made.graph(step, *((1_000_000, 5) if step < 200 else (3_000_000, 6)))
        made.wait()
    made.stamps = made.stamps[:-2]
    (row,) = figures(made.ring())
    assert row.steps_per_s == pytest.approx(1e9 / 3_108_000, rel=0.01)


def test_each_engine_in_a_process_has_a_row(monkeypatch):
    trace = loops(Loop(107_300, 600_000), Loop(68_600, 240_000, 80, thread=102))
    monkeypatch.setattr("tracer.commands.watch.light_trace", lambda rings: trace)
    made = Engine()
    made.graph(0, 1000)
    rows = list(figures(made.ring()))
    assert [(row.thread, row.gap_us[0], row.device) for row in rows] == [(101, 107.3, 0), (102, 68.6, 0)]
    assert f'{{process="{rows[0].process}",program="{rows[0].program}",thread="102",device="0"}}' in metrics(rows)
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table_of(rows))
    assert "thread 101" in shown.get()


def test_a_window_of_what_runs_is_kept_as_a_recording(program, tmp_path, monkeypatch):
    result = run("watch", program, "--keep", tmp_path / "all")
    assert result.exit_code == 0, result.output
    whole = read(tmp_path / "all")
    assert len(whole["graph_launches"]) == 2 * STEPS
    since = whole.metadata["clock"]["origin_ns"] + int(whole["api"]["start"].iloc[3 * STEPS])
    monkeypatch.setattr(time, "monotonic_ns", lambda: since + 5 * 10**9)  # the program waits since its last call
    result = run("watch", "--keep", tmp_path / "half", "--last", "5")
    assert result.exit_code == 0
    silent = 5 - (whole["api"]["end"].max() - whole["api"]["start"].iloc[3 * STEPS]) / 1e9
    note = f"the last call was {silent:.1f} s before the end of the 5 s that were kept"
    kept = read(tmp_path / "half")
    assert note in result.stderr
    assert note in kept.notes
    assert len(kept["api"]) == pytest.approx(len(whole["api"]) / 2, abs=8)
    assert len(kept["graph_launches"]) == pytest.approx(STEPS, abs=4)
    assert kept["api"]["end"].max() == whole["api"]["end"].max()
    assert set(kept["graph_launches"]["correlation"]) <= set(kept["api"]["correlation"])
    monkeypatch.setattr(time, "monotonic_ns", lambda: since + 90 * 10**9)
    for name, why in (("half", "already exists"), ("late", "no call began in the last 5 s; the last one ended ")):
        refused = run("watch", "--keep", tmp_path / name, "--last", "5")
        assert (refused.exit_code, why in refused.stderr) == (2, True)
    assert not (tmp_path / "late").exists()


def test_what_cannot_be_shown_or_kept_is_said(tmp_path, monkeypatch):
    """A program that ended is not shown."""
    monkeypatch.setattr(light_ring, "_MEMORY", tmp_path)
    result = run("watch", "vllm", "--keep", tmp_path / "out")
    assert result.exit_code == 2
    assert "no process with id vllm or vllm in its name runs under the light recorder" in result.stderr
    assert run("watch", "--last", "1").exit_code == 2
    assert not (tmp_path / "out").exists()
    folder = tmp_path / "intertoken-light-1-x"
    folder.mkdir()
    (folder / "999999999-0.ring").touch()
    assert "no program is running under the light recorder" in run("watch", "--once").stdout
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("watch", "--prometheus", taken.getsockname()[1])
    assert (result.exit_code, "in use" in result.stderr) == (2, True)


def test_metrics_are_prometheus_text_and_served_on_loopback():
    text = metrics([ROW, Live(8, "idle", 5, 0, why="no steps")])
    for line in (
        "# TYPE intertoken_calls_total counter",
        'intertoken_calls_total{process="7",program="a\\"b"} 100\n',
        'intertoken_calls_overwritten_total{process="8",program="idle"} 0\n',
        'intertoken_step_gap_seconds{process="7",program="a\\"b",device="1",quantile="0.95"} 9e-05\n',
        'intertoken_steps_per_second{process="7",program="a\\"b",device="1"} 700.5\n',
        'intertoken_run_ahead_seconds{process="7",program="a\\"b",device="1",quantile="0.05"} 4e-06\n',
        'intertoken_run_ahead_launches{process="7",program="a\\"b",device="1",quantile="0.5"} 3\n',
    ):
        assert line in text
    assert text.count('program="idle"') == 2
    told = queue.Queue()
    threading.Thread(target=serve, args=(0, lambda: [ROW], told.put), daemon=True).start()
    address = told.get(timeout=10)
    assert address.startswith("127.0.0.1:")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert answer.read().decode() == metrics([ROW])
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://{address}/", timeout=10)
    refused.value.close()


def test_names_are_no_markup():
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table_of([Live(7, "[/x]", 100, 3, why="[bold]nothing")]))
    assert "[/x]" in shown.get()
    assert "[bold]nothing" in shown.get()
