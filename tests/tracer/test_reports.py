"""Many reports: which are found, their rows, the overview, and Dask that loses none."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.recordings import LLAMA
from tests.tracer.handmade import decode_loop
from tests.tracer.steady import trace_of
from tests.tracer.test_ranks import ALL_REDUCE, STEPS, ranks
from tracer import write
from tracer.batch import COLUMNS, find_reports, overview, report_rows, table_of_reports
from tracer.batch_dask import analyse, connected
from tracer.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def report(path: Path, period: int = 2000, steps: int = 8) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(trace_of([period] * steps), path)
    return path


def one_step(path: Path) -> Path:
    script = decode_loop("aagAs", 1)
    script.range("token", 0, 400)
    write(script.trace, path)
    return path


def damaged(path: Path) -> Path:
    path.write_bytes(b"SQLite format 3\0" + b"\0" * 100)
    return path


def test_reports_are_found_at_any_depth_once(tmp_path: Path) -> None:
    expected = [
        report(tmp_path / "a" / "rank0" / "deep" / "r.sqlite"),
        report(tmp_path / "a" / "rank1"),
        damaged(tmp_path / "broken.sqlite"),
        report(tmp_path / "run"),
    ]
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "run.json").write_text("{}")
    shutil.copytree(tmp_path / "run", tmp_path / "run" / "node")
    (tmp_path / "a" / "rank0" / "deep" / "r.nsys-rep").write_bytes(b"x")
    (tmp_path / "README.md").write_text("none")
    (tmp_path / ".cache").mkdir()
    report(tmp_path / ".cache" / "hidden.sqlite")
    assert find_reports(tmp_path) == sorted([*expected, tmp_path / "half"])


def test_rows_say_what_a_report_says(tmp_path: Path) -> None:
    path = report(tmp_path / "nightly" / "rank3" / "r.sqlite", period=2000)
    (row,) = report_rows(path, tmp_path)
    expected = {
        "report": "nightly/rank3/r.sqlite", "run": "nightly", "rank": 3, "device": 0, "recorded_steps_per_s": 500_000,
        "gap_p50_us": 0.2, "sync_us": 0.15, "launch_us": 0.05, "busy_us": 1.8, "compute_us": 1.8, "class": "none",
        "syncs_per_token": 1.0, "launches_per_token": 1.0,
    }  # fmt: skip
    assert {key: row[key] for key in expected} == pytest.approx(expected)
    assert np.isnan(row["recorded_tokens_per_s"])  # nothing tells how many a step gains
    assert sum(row[f"{cause}_us"] for cause in ("sync", "copy", "launch", "host", "other")) == pytest.approx(0.2)
    assert set(row) <= set(COLUMNS)


@pytest.mark.parametrize(
    ("place", "run", "rank"),
    [
        ("base_rank12.sqlite", "base", 12),
        ("x/Rank-2/r.sqlite", "x", 2),
        ("x/rank_0/y/r_rank1.sqlite", "x/y/r", 1),
        ("frank3.sqlite", ".", None),
        ("plain.sqlite", ".", None),
    ],
)
def test_run_and_rank_come_from_the_path(tmp_path: Path, place: str, run: str, rank: int | None) -> None:
    (row,) = report_rows(tmp_path / place, tmp_path)  # it need not exist to have a place
    assert (row["run"], row["rank"]) == (run, rank)
    assert "no such file" in row["problem"]


def test_a_recording_of_one_step_was_read(tmp_path: Path) -> None:
    (row,) = report_rows(one_step(tmp_path / "one.sqlite"), tmp_path)
    assert (row["steps"], row["problem"]) == (1, "one step: no period")
    found = overview(table_of_reports([row]))
    assert found.runs["unread"].tolist() == [0]
    assert found.problems.to_numpy().tolist() == [["one.sqlite", 1, "one step: no period"]]


def test_each_device_has_a_row() -> None:
    two = LLAMA["sccc", "graph"].parent / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2"
    rows = report_rows(two, two.parent)
    assert [row["device"] for row in rows] == [0, 1]
    assert {row["gpu"] for row in rows} == {"NVIDIA H200"}


def rows_of(run: str, rates: list[float], ranks: list[int | None]) -> list[dict[str, object]]:
    return [
        {"report": f"{run}/{i}", "run": run, "rank": rank, "device": 0, "recorded_steps_per_s": rate}
        for i, (rate, rank) in enumerate(zip(rates, ranks, strict=True))
    ]


def test_the_overview_names_the_slowest_rank_and_the_outliers() -> None:
    rows = rows_of("a", [100.0, 100.2, 99.9, 80.0, 100.1, 99.8], [0, 1, 2, 3, 0, 1])
    rows += [*rows_of("b", [50.0, 50.0], [None, None]), {"report": "b/x", "run": "b", "problem": "damaged"}]
    found = overview(table_of_reports(rows))
    a, b = found.runs.to_dict("records")
    assert (a["slowest_rank"], a["slowest_ratio"], a["outliers"]) == (3, pytest.approx(99.95 / 80), 1)
    assert (b["reports"], b["unread"], b["ranks"]) == (3, 1, 0)
    assert pd.isna(b["slowest_rank"])
    assert found.outliers[["report", "rank"]].to_numpy().tolist() == [["a/3", 3]]
    assert found.problems[["report", "problem"]].to_numpy().tolist() == [["b/x", "damaged"]]


def test_runs_that_hardly_scatter_have_no_outliers() -> None:
    assert not len(overview(table_of_reports(rows_of("a", [100.0] * 9 + [100.1], [None] * 10))).outliers)


def test_a_table_of_nothing_but_problems_can_be_written(tmp_path: Path) -> None:
    table = table_of_reports([{"report": "x", "run": ".", "problem": "damaged"}])
    table.to_parquet(tmp_path / "t.parquet")
    assert list(pd.read_parquet(tmp_path / "t.parquet")) == list(COLUMNS)
    assert overview(table).runs["unread"].tolist() == [1]


def test_a_killed_worker_loses_no_report(tmp_path: Path) -> None:
    """Many reports on a process that is killed midway; three in four are damaged (and quick)."""
    count = 32
    first = report(tmp_path / "rank0")
    for rank in range(4, count, 4):
        shutil.copytree(first, tmp_path / f"rank{rank}")
    broken = [damaged(tmp_path / f"rank{rank}.sqlite").name for rank in range(count) if rank % 4]
    killed: list[int] = []
    with connected(None, 1) as client:
        processes = client.run(os.getpid)

        def kill_one(done: int, total: int) -> None:
            if done == total // 2:
                killed.append(next(iter(processes.values())))
                os.kill(killed[0], signal.SIGKILL)

        paths = find_reports(tmp_path)
        table = analyse(paths, tmp_path, client, tell=kill_one)
        left = client.run(os.getpid).values()
    assert len(processes) == 1
    assert len(killed) == 1
    assert killed[0] not in left
    assert table["report"].tolist() == sorted(path.name for path in paths)
    assert sorted(table["rank"]) == list(range(count))
    assert table.loc[table["problem"] != "", "report"].tolist() == sorted(broken)
    assert np.allclose(table["gap_p50_us"].dropna(), 0.2)


@pytest.fixture
def beside_another() -> Iterator[None]:
    """Dask's usual port is taken, here or by another program."""
    with ExitStack() as held:
        with suppress(OSError):
            held.enter_context(socket.create_server(("127.0.0.1", 8787)))
        yield


@pytest.mark.usefixtures("beside_another")
def test_a_directory_is_compared_on_the_command_line(tmp_path: Path) -> None:
    for rank, period in enumerate([2000, 2000, 3000]):
        report(tmp_path / "in" / "x" / f"rank{rank}", period)
    damaged(tmp_path / "in" / "broken.sqlite")
    one_step(tmp_path / "in" / "y" / "one.sqlite")
    target = tmp_path / "results.parquet"
    arguments = ["compare", str(tmp_path / "in"), "-o", str(target), "--workers", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    table = pd.read_parquet(target)
    assert table["report"].tolist() == ["broken.sqlite", "x/rank0", "x/rank1", "x/rank2", "y/one.sqlite"]
    assert "unread: broken.sqlite" in result.stdout
    assert "\ny/one.sqlite: one step: no period\n" in result.stdout
    assert result.stdout.count("one.sqlite") == 1
    assert "5 reports, 5 rows" in result.stdout
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def test_what_is_no_directory_of_reports_is_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ([tmp_path], "no reports in or below"),
        ([tmp_path / "nowhere"], "give a second run to compare it with"),
        ([tmp_path, "--scheduler", "tcp://127.0.0.1:1"], "no reports in or below"),
        ([LLAMA["sccc", "graph"]], "give a second run to compare it with"),
    ):
        result = CliRunner().invoke(main, ["compare", *map(str, arguments)])
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_without_a_scheduler_or_dask_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report(tmp_path / "r.sqlite")
    monkeypatch.setattr("tracer.batch_dask._CONNECT_S", 0.2)
    result = CliRunner().invoke(main, ["compare", str(tmp_path), "--scheduler", "tcp://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "no Dask scheduler answers" in result.stderr
    monkeypatch.delitem(sys.modules, "tracer.batch_dask")
    monkeypatch.setitem(sys.modules, "distributed", None)
    result = CliRunner().invoke(main, ["compare", str(tmp_path)])
    assert result.exit_code == 2
    assert "pip install 'intertoken[dask]'" in result.stderr


def test_a_name_that_is_not_utf_8_can_be_written(tmp_path: Path) -> None:
    path = report(tmp_path / os.fsdecode(b"caf\xe9") / "r")
    table = table_of_reports(report_rows(path, tmp_path))
    assert table["report"].tolist() == ["caf?/r"]
    table.to_parquet(tmp_path / "t.parquet")


def test_runs_of_other_strategies_are_no_outliers_of_each_other() -> None:
    configured = [f'{{"strategy": "{name}"}}' for name in ["sccc"] * 6 + ["ggg"] * 2]
    rates = [1000, 1001, 1002, 1003, 1004, 1005, 2000, 2001]
    rows = [
        {"report": str(i), "run": ".", "device": 0, "recorded_steps_per_s": rate, "configuration": text}
        for i, (rate, text) in enumerate(zip(rates, configured, strict=True))
    ]
    found = overview(table_of_reports([*rows, {"report": "broken", "run": ".", "problem": "damaged"}]))
    assert len(found.outliers) == 0
    assert found.runs.set_index("run")["reports"].to_dict() == {".": 1, ". sccc": 6, ". ggg": 2}
    assert found.runs["unread"].sum() == 1


def test_reports_of_other_recorders_are_no_outliers_of_each_other() -> None:
    sources = ["nsys 2025.3"] * 6 + ["PyTorch profiler"] * 2
    rows = rows_of(".", [1000, 1001, 1002, 1003, 1004, 1005, 500, 501], [None] * 8)
    found = overview(table_of_reports([row | {"source": source} for row, source in zip(rows, sources, strict=True)]))
    assert len(found.outliers) == 0
    assert found.runs.set_index("run")["reports"].to_dict() == {". nsys": 6, ". PyTorch": 2}


def rank_rows(run: str, durations: list[list[int]]) -> list[dict[str, object]]:
    return [
        {
            "report": f"{run}/{rank}",
            "run": run,
            "rank": rank,
            "problem": "one step",
            "collectives": {"AllReduce": times},
        }
        for rank, times in enumerate(durations)
    ]


def test_the_overview_names_the_rank_that_the_others_wait_for() -> None:
    rows = rank_rows("a", [[9000, 8000], [1000, 3000], [9000, 2000]]) + rank_rows("b", [[5], [5]])
    found = overview(table_of_reports(rows))
    a, b = found.runs.to_dict("records")
    assert (a["waited_for_rank"], a["waited_for_share"]) == (1, pytest.approx(16 / 23))
    assert pd.isna(b["waited_for_rank"])
    assert found.ranks.query("run == 'a'")["waiting_us"].tolist() == [7.0, 0.5, 4.0]


def test_two_recordings_of_one_rank_are_not_matched() -> None:
    twice = [row | {"rank": 0} for row in rank_rows("a", [[9000], [1000]])]
    assert not len(overview(table_of_reports(twice)).ranks)


def test_a_report_of_a_rank_has_its_idle_and_communication(tmp_path: Path) -> None:
    path = tmp_path / "rank3.sqlite"
    write(ranks([100]), path)
    (row,) = report_rows(path, tmp_path)
    assert (row["rank"], row["collectives"]) == (3, {ALL_REDUCE: [2890] * STEPS})
    assert row["step_communication_us"] == pytest.approx(2.89)


def test_exchanges_of_two_ranks_are_not_matched_over_all(tmp_path: Path) -> None:
    trace, path = ranks([100]), tmp_path / "rank3.sqlite"
    for column in ("name", "short_name"):
        names = trace["kernels"][column].cat.rename_categories({ALL_REDUCE: "ncclDevKernel_SendRecv"})
        trace.tables["kernels"] = trace["kernels"].assign(**{column: names})
    write(trace, path)
    (row,) = report_rows(path, tmp_path)
    assert (row["rank"], row["collectives"]) == (3, {})
    assert row["step_communication_us"] == pytest.approx(2.89)
