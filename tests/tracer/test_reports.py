"""Many reports: which are found, their rows, the overview, and Dask that loses none."""

import os
import shutil
import signal
import socket
import sys
from contextlib import ExitStack, suppress

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.recordings import LLAMA
from tests.tracer.handmade import decode_loop
from tests.tracer.steady import trace_of
from tests.tracer.truths import DATA, scene
from tracer import write
from tracer.batch import COLUMNS, analyse, connected, find_reports, overview, report_rows, table_of_reports
from tracer.cli import main
from tracer.files.bounded import tomllib

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def report(path, period=2000, steps=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    write(trace_of([period] * steps), path)
    return path


def one_step(path):
    script = decode_loop("aagAs", 1)
    script.range("token", 0, 400)
    write(script.trace, path)
    return path


def damaged(path):
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    return path


def test_reports_are_found_at_any_depth_once(tmp_path):
    expected = [
        report(tmp_path / "a" / "rank0" / "deep" / "r.sqlite"), report(tmp_path / "a" / "rank1"),
        damaged(tmp_path / "broken.sqlite"), report(tmp_path / "run"),
    ]  # fmt: skip
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{}")
    shutil.copytree(tmp_path / "run", tmp_path / "run" / "node")
    (tmp_path / "a" / "rank0" / "deep" / "r.nsys-rep").write_bytes(b"x")
    (tmp_path / "README.md").write_text("none")
    report(tmp_path / ".cache" / "hidden.sqlite")
    assert find_reports(tmp_path) == sorted([*expected, tmp_path / "half"])


def test_rows_say_what_a_report_says(tmp_path):
    (row,) = report_rows(report(tmp_path / "nightly" / "rank3" / "r.sqlite", period=2000), tmp_path)
    expected = {
        "report": "nightly/rank3/r.sqlite", "run": "nightly", "rank": 3, "device": 0, "recorded_steps_per_s": 500_000,
        "gap_p50_us": 0.2, "sync_us": 0.15, "launch_us": 0.05, "busy_us": 1.8, "compute_us": 1.8, "class": "none",
        "syncs_per_token": 1.0, "launches_per_token": 1.0,
    }  # fmt: skip
    assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert np.isnan(row["recorded_tokens_per_s"])  # nothing tells how many a step gains
    assert sum(row[f"{cause}_us"] for cause in ("sync", "copy", "launch", "host", "other")) == pytest.approx(0.2)
    assert set(row) <= set(COLUMNS)
    two = LLAMA["sccc", "graph"].parent / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2"
    assert [(row["device"], row["gpu"]) for row in report_rows(two, two.parent)] == [
        (device, "NVIDIA H200") for device in (0, 1)
    ]


def test_run_and_rank_come_from_the_path(tmp_path):
    for place, run, rank in (
        ("base_rank12.sqlite", "base", 12), ("x/Rank-2/r.sqlite", "x", 2), ("x/rank_0/y/r_rank1.sqlite", "x/y/r", 1),
        ("frank3.sqlite", ".", None), ("plain.sqlite", ".", None),
    ):  # fmt: skip
        (row,) = report_rows(tmp_path / place, tmp_path)  # it need not exist to have a place
        assert (row["run"], row["rank"]) == (run, rank)
        assert "no such file" in row["problem"]


def test_reports_without_figures_are_in_the_table(tmp_path):
    (row,) = report_rows(one_step(tmp_path / "one.sqlite"), tmp_path)
    assert (row["steps"], row["problem"]) == (1, "one step: no period")
    found = overview(table_of_reports([row]))
    assert found.runs["unread"].tolist() == [0]  # it was read
    assert found.problems.to_numpy().tolist() == [["one.sqlite", 1, "one step: no period"]]
    path = report(tmp_path / os.fsdecode(b"caf\xe9") / "r")  # whose name is not UTF-8
    broken = {"report": "x", "run": ".", "problem": "damaged"}
    for rows, names in ((report_rows(path, tmp_path), ["caf?/r"]), ([broken], ["x"])):
        table = table_of_reports(rows)
        table.to_parquet(tmp_path / "t.parquet")
        assert (list(table), table["report"].tolist()) == (list(COLUMNS), names)
    assert overview(table).runs["unread"].tolist() == [1]


def rows_of(run, rates, ranks, **more):
    return [
        {"report": f"{run}/{i}", "run": run, "rank": rank, "device": 0, "recorded_steps_per_s": rate}
        | {name: values[i] for name, values in more.items()}
        for i, (rate, rank) in enumerate(zip(rates, ranks, strict=True))
    ]


def test_the_overview_names_the_slowest_rank_and_the_outliers():
    rows = rows_of("a", [100.0, 100.2, 99.9, 80.0, 100.1, 99.8], [0, 1, 2, 3, 0, 1])
    rows += [*rows_of("b", [50.0, 50.0], [None, None]), {"report": "b/x", "run": "b", "problem": "damaged"}]
    found = overview(table_of_reports(rows))
    a, b = found.runs.to_dict("records")
    assert (a["slowest_rank"], a["slowest_ratio"], a["outliers"]) == (3, pytest.approx(99.95 / 80), 1)
    assert (b["reports"], b["unread"], b["ranks"], pd.isna(b["slowest_rank"])) == (3, 1, 0, True)
    assert found.outliers[["report", "rank"]].to_numpy().tolist() == [["a/3", 3]]
    assert found.problems[["report", "problem"]].to_numpy().tolist() == [["b/x", "damaged"]]


def test_only_reports_that_are_alike_and_scatter_have_outliers():
    assert not len(overview(table_of_reports(rows_of("a", [100.0] * 9 + [100.1], [None] * 10))).outliers)
    rates = [1000, 1001, 1002, 1003, 1004, 1005, 2000, 2001]
    for more, runs in (
        ({"configuration": [f'{{"strategy": "{name}"}}' for name in ["sccc"] * 6 + ["ggg"] * 2]}, ("sccc", "ggg")),
        ({"source": ["nsys 2025.3"] * 6 + ["PyTorch profiler"] * 2}, ("nsys", "PyTorch")),
    ):
        rows = rows_of(".", rates, [None] * 8, **more)
        found = overview(table_of_reports([*rows, {"report": "broken", "run": ".", "problem": "damaged"}]))
        assert len(found.outliers) == 0
        assert found.runs.set_index("run")["reports"].to_dict() == {".": 1, f". {runs[0]}": 6, f". {runs[1]}": 2}


def test_the_overview_names_the_rank_that_the_others_wait_for():
    def rank_rows(run, durations):
        facts = {"run": run, "problem": "one step"}
        return [{"report": f"{run}/{rank}", "rank": rank, "collectives": {"AllReduce": times}, **facts}
                for rank, times in enumerate(durations)]  # fmt: skip

    rows = rank_rows("a", [[9000, 8000], [1000, 3000], [9000, 2000]]) + rank_rows("b", [[5], [5]])
    found = overview(table_of_reports(rows))
    a, b = found.runs.to_dict("records")
    assert (a["waited_for_rank"], a["waited_for_share"]) == (1, pytest.approx(16 / 23))
    assert pd.isna(b["waited_for_rank"])
    assert found.ranks.query("run == 'a'")["waiting_us"].tolist() == [7.0, 0.5, 4.0]
    twice = [row | {"rank": 0} for row in rank_rows("a", [[9000], [1000]])]  # two recordings of one rank
    assert not len(overview(table_of_reports(twice)).ranks)


def test_a_report_of_a_rank_has_its_communication_and_collectives(tmp_path):
    both = tomllib.loads((DATA / "ranks.toml").read_text(encoding="utf-8"))["scene"]["ranks"]
    trace = scene(both | {"each": [event for event in both["each"] if event[-1]["process"] == 100]})
    (all_reduce,) = (name for name in trace["kernels"]["name"].cat.categories if name.startswith("nccl"))
    for kernel, collectives in ((all_reduce, {all_reduce: [2890] * both["steps"]}), ("ncclDevKernel_SendRecv", {})):
        for column in ("name", "short_name"):  # exchanges of two ranks are not matched over all
            names = trace["kernels"][column].cat.rename_categories({all_reduce: kernel})
            trace.tables["kernels"] = trace["kernels"].assign(**{column: names})
        (path := tmp_path / kernel).mkdir()
        write(trace, path / "rank3.sqlite")
        (row,) = report_rows(path / "rank3.sqlite", path)
        assert (row["rank"], row["collectives"]) == (3, collectives)
        assert row["step_communication_us"] == pytest.approx(2.89)


def test_a_killed_worker_loses_no_report(tmp_path):
    """Many reports on a process that is killed midway; three in four are damaged (and quick)."""
    count = 16
    first = report(tmp_path / "rank0")
    for rank in range(4, count, 4):
        shutil.copytree(first, tmp_path / f"rank{rank}")
    broken = [damaged(tmp_path / f"rank{rank}.sqlite").name for rank in range(count) if rank % 4]
    killed = []
    with connected(None, 1) as client:
        (process,) = client.run(os.getpid).values()

        def kill_it(done, total):
            if done == total // 2 and not killed:
                killed.append(process)
                os.kill(process, signal.SIGKILL)

        paths = find_reports(tmp_path)
        table = analyse(paths, tmp_path, client, tell=kill_it)
        left = client.run(os.getpid).values()
    assert killed == [process]
    assert process not in left
    assert table["report"].tolist() == sorted(path.name for path in paths)
    assert sorted(table["rank"]) == list(range(count))
    assert table.loc[table["problem"] != "", "report"].tolist() == sorted(broken)
    assert np.allclose(table["gap_p50_us"].dropna(), 0.2)


def test_a_directory_is_compared_on_the_command_line(tmp_path):
    for rank, period in enumerate([2000, 2000, 3000]):
        report(tmp_path / "in" / "x" / f"rank{rank}", period)
    damaged(tmp_path / "in" / "broken.sqlite")
    (tmp_path / "in" / "y").mkdir()
    one_step(tmp_path / "in" / "y" / "one.sqlite")
    target = tmp_path / "results.parquet"
    arguments = ["compare", str(tmp_path / "in"), "-o", str(target), "--workers", "1"]
    with ExitStack() as held:  # Dask's usual port is taken, here or by another program
        with suppress(OSError):
            held.enter_context(socket.create_server(("127.0.0.1", 8787)))
        result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    names = ["broken.sqlite", "x/rank0", "x/rank1", "x/rank2", "y/one.sqlite"]
    assert pd.read_parquet(target)["report"].tolist() == names
    for said in ("unread: broken.sqlite", "\ny/one.sqlite: one step: no period\n", "5 reports, 5 rows"):
        assert result.stdout.count(said) == 1
    again = CliRunner().invoke(main, arguments)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)


def test_what_cannot_be_compared_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    report(tmp_path / "in" / "r.sqlite")
    monkeypatch.setattr("tracer.batch._CONNECT_S", 0.2)
    for arguments, message in (
        ([tmp_path / "empty"], "no reports in or below"), ([tmp_path / "nowhere"], "give a second run to compare it"),
        ([LLAMA["sccc", "graph"]], "give a second run to compare it with"),
        ([tmp_path / "in", "--scheduler", "tcp://127.0.0.1:1"], "no Dask scheduler answers"),
        ([tmp_path / "in"], "pip install 'intertoken[dask]'"),
    ):  # fmt: skip
        if "pip" in message:
            monkeypatch.setitem(sys.modules, "distributed", None)
        result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
        assert (result.exit_code, message in result.stderr, result.stderr.count("\n")) == (2, True, 1), message
