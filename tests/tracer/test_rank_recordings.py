"""Ranks and engines that share a device, in recordings beside the repository; skipped where these are absent."""

import lzma
from pathlib import Path

import pandas as pd
import pytest

from tracer import Trace, formats
from tracer.analysis.gaps import gap_report
from tracer.analysis.ranks import RankReport, rank_report
from tracer.analysis.tokens import find_steps

SHARED = Path(__file__).parents[3] / "shared" / "recordings"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository")


def unpacked(name: str, into: Path) -> Trace:
    path = into / Path(name).stem
    path.write_bytes(lzma.decompress((SHARED / name).read_bytes()))
    return formats.read(path, whole=False)


def reported(trace: Trace) -> tuple[RankReport, pd.DataFrame]:
    steps = find_steps(trace)
    return rank_report(trace, steps), gap_report(trace, steps).table


def test_two_ranks_are_two_devices_whatever_their_processes_call_them(tmp_path: Path) -> None:
    by_number, both_0 = (
        reported(unpacked(f"serving/{name}.sqlite.xz", tmp_path))
        for name in ("syn_1a_tp2_dev01", "syn_1b_tp2_both_dev0")
    )
    pd.testing.assert_frame_equal(by_number[0].table, both_0[0].table)
    pd.testing.assert_frame_equal(by_number[1], both_0[1])
    table = both_0[0].table
    assert table[["device", "steps"]].to_numpy().tolist() == [[0, 30], [1, 30]]
    assert (table["collectives"] == 34).all()
    assert both_0[0].waited_for is None  # both come at once


def test_two_engines_on_one_device_are_two_processes_or_threads(tmp_path: Path) -> None:
    processes, threads = (
        reported(unpacked(f"serving/{name}.sqlite.xz", tmp_path))
        for name in ("syn_2a_two_procs_one_gpu", "syn_2b_two_threads_one_gpu")
    )
    alike = [c for c in processes[0].table if c not in ("process", "thread")]
    pd.testing.assert_frame_equal(processes[0].table[alike], threads[0].table[alike])
    assert processes[0].table["steps"].tolist() == [60, 60]
    assert processes[0].table["process"].nunique() == 2
    assert threads[0].table["thread"].nunique() == 2
    for report, gaps in (processes, threads):
        assert "share device 0" in report.notes[0]
        assert gaps["other_process"].sum() > 0.7 * gaps["gap"].sum()


def test_the_rank_that_starts_last_is_waited_for(tmp_path: Path) -> None:
    """Both clocks are one here, so who starts last can be looked up: device 1, in 22 of 33 exchanges."""
    trace = unpacked("public/nsysai_mfu_2gpu_before.sqlite.xz", tmp_path)
    first, second = (mine.reset_index(drop=True) for _, mine in trace.communication().frame().groupby("device"))
    assert int((second["start"] > first["start"]).sum()) > len(first) / 2
    report, _ = reported(trace)
    assert report.waited_for is not None
    assert report.waited_for["device"] == 1
