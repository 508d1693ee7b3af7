"""The preloaded library in programs that end streams and contexts, share them between threads, fail, fork and exec."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import HERE, Build, calls, compiler_or_skip
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, RECORD, Ring, graph_of
from tracer.recorders.light_work import stamped_work
from tracer.recorders.symbols import kernel_names

ALL = "1000000000000"  # percent: all runs and parts are sampled
AHEAD_NS = 5_000_000_000  # the fake device's clock, of the host's


def numbers(ring: Ring, call: str) -> list[int]:
    """Of the calls of a name, which launch of a graph or which run they are."""
    return ring.records["number"][np.array(calls(ring)) == call].tolist()


def in_graphs(ring: Ring) -> list[int]:
    """Which launches of graphs the heads of a ring tell."""
    words = ring.stamps[0]["word"]
    is_head = (words & 1 == 0) & (words >> 1 & 0x7FFF > 0)
    return (words[is_head] >> 16 & 0xFFFFFF).tolist()


@pytest.mark.parametrize("scene", ["destroyed", "destroyed_elsewhere"])
def test_a_run_ends_before_its_stream_does(built: Build, scene: str) -> None:
    assert built.run("scenes", scene) == "head eager tail cuStreamDestroy_v2 cuCtxSynchronize \n"
    assert calls(built.ring()) == ["cuLaunchKernel", "cuStreamDestroy_v2", "cuCtxSynchronize"]


def test_a_stream_with_the_handle_of_another_is_not_behind_it(built: Build) -> None:
    a_run = "head eager tail "
    said = built.run("scenes", "handle_again")
    assert said == f"{a_run}cuEventRecord cuStreamDestroy_v2 {a_run}cuStreamSynchronize \n"


def test_a_run_ends_before_its_context_does(built: Build) -> None:
    assert built.run("scenes", "ended_context") == "head eager tail cuCtxDestroy_v2 cuCtxSynchronize \n"


def test_whoever_waits_for_a_stream_ends_its_run(built: Build) -> None:
    assert built.run("scenes", "waited_elsewhere") == "head eager tail cuStreamSynchronize " * 2 + "\n"
    assert numbers(built.ring(), "cuLaunchKernel") == [1, 2]


def test_threads_launch_into_one_run_of_a_stream(built: Build) -> None:
    assert built.run("scenes", "launched_elsewhere") == "head eager eager tail cuStreamSynchronize \n"
    assert numbers(built.ring(), "cuLaunchKernel") == [1, 1]


def test_per_thread_default_streams_are_streams_of_their_own(built: Build) -> None:
    assert built.run("scenes", "own_streams") == "head eager eager eager tail cuStreamSynchronize " * 3 + "\n"
    trace = light_trace([built.ring()])
    assert trace["graph_launches"]["stream"].nunique() == 3
    assert trace["syncs"]["stream"].tolist() == trace["graph_launches"]["stream"].tolist()


@pytest.mark.parametrize("scene", ["threads", "threads_of_two"])
def test_a_wait_in_another_thread_or_context_does_not_move_the_clock(built: Build, scene: str) -> None:
    built.run("scenes", scene)
    clock = stamped_work(built.ring()).alignments[0]
    assert clock is not None
    assert clock.error_ns is not None
    assert clock.contradictions == 0
    assert (np.abs(clock.ns + AHEAD_NS) <= clock.error_ns).all()


def test_a_launch_that_fails_is_not_counted(built: Build) -> None:
    built.run("scenes", "failed_launches")
    ring = built.ring()
    made = (np.array(calls(ring)) == "cuGraphLaunch") & (ring.records["result"] == 0)
    assert ring.records["number"][made].tolist() == in_graphs(ring) == [0, 1, 2, 3, 4]
    work = stamped_work(ring)
    assert (len(work.table), work.unmatched, work.untimed) == (5, 0, 0)


def test_ids_of_graphs_that_are_gone_are_given_again(built: Build) -> None:
    built.run("scenes", "many_graphs", FAKE_SILENT="1", INTERTOKEN_LIGHT_RECORDS="262144")
    ring = built.ring()
    assert ring.counters["graphs_left_many"] == 0
    assert ring.counters["graphs_stamped"] == 70_000
    work = stamped_work(ring)
    assert (len(work.table), work.unmatched, work.untimed) == (70, 0, 0)
    assert (work.table["end"] >= work.table["start"]).all()


def test_stamps_that_are_overwritten_are_said_and_their_cost_stays_known(built: Build) -> None:
    built.run("scenes", "many_launches", FAKE_SILENT="1", INTERTOKEN_LIGHT_RECORDS="262144")
    ring = built.ring()
    assert stamped_work(ring).costs[0] is not None
    trace = light_trace([ring])
    assert len(trace["graph_launches"]) == 65_536
    assert len(trace["api"]) == 2 * 65_536
    assert trace["api"]["start"].min() == 0
    (note,) = [note for note in trace.notes if "stamps are kept only" in note]
    assert note.endswith(f"last 65536 graphs and runs of launches; the {2 * 4_464 + 1} calls before them are left out")


def test_a_run_gets_its_tail_whatever_context_is_current(built: Build) -> None:
    a_run = "head eager tail "
    assert built.run("scenes", "other_context") == (
        f"{a_run}cuStreamSynchronize " * 2 + "head eager cuCtxSynchronize tail cuCtxSynchronize_v2 \n"
    )
    ring = built.ring()
    assert ring.counters["runs_left"] == 0
    assert [context.device for context in ring.contexts] == [0, 1]
    assert len(stamped_work(ring).table) == 3
    assert light_trace([ring])["syncs"]["device"].tolist() == [0, 0, 1, 0]  # of the stream; its own for a context


def test_an_executable_graph_is_updated_whatever_context_is_current(built: Build) -> None:
    assert built.run("scenes", "update_elsewhere") == "head eager eager tail cuStreamSynchronize \n"


def test_contexts_that_are_not_told_apart_are_said(built: Build) -> None:
    assert built.run("scenes", "many_contexts").count("head") == 32
    assert any("contexts after the first 32 have no times" in note for note in light_trace([built.ring()]).notes)


def test_what_a_query_says_is_not_changed(built: Build) -> None:
    """A tail before it would be work that has not ended."""
    said = built.run("scenes", "asked", FAKE_SLOW="1").split()
    first, second = said.index("cuStreamQuery"), said.index("cuStreamSynchronize")
    assert said[:first] == ["head", "eager"]
    assert Counter(said[first:second])["tail"] == 1
    ring = built.ring()
    assert ring.counters["runs_left"] == 1
    work = stamped_work(ring)
    assert work.table["is_stamped"].tolist() == [False, True]
    notes = light_trace([ring]).notes
    assert any("1 runs of launches have an unknown end: they ended before a wait" in note for note in notes)
    assert any("1 of the graph launches are runs of eager launches without stamps" in note for note in notes)


def test_a_profiler_may_call_the_driver_from_within_a_launch(built: Build) -> None:
    """Also when that launch is a stamp's."""
    done = Counter(built.run("scenes", "called_back").split())
    assert done["eager"] == done["cuStreamSynchronize"] == 2
    assert Counter(calls(built.ring()))["cuLaunchKernel"] == 2


def test_a_fork_while_graphs_are_launched_leaves_no_lock(built: Build) -> None:
    built.run("scenes", "forks_while_busy", FAKE_SILENT="1")


def test_a_program_that_calls_exec_has_a_ring_more(built: Build) -> None:
    built.run("scenes", "execs")
    rings = built.read()
    assert [ring.path.name for ring in rings] == [f"{rings[0].process}-{n}.ring" for n in range(2)]
    trace = light_trace(rings)
    assert len(trace["api"]) == 2
    assert not trace["api"].duplicated(["process", "correlation"]).any()
    assert trace["processes"]["process"].tolist() == [rings[0].process]


def test_a_program_has_its_name_and_the_title_that_it_gives_itself(built: Build) -> None:
    built.run("scenes", "titled")
    assert built.ring().program == "VLLM::EngineCor (scenes)"
    assert (built.rings / "programs").read_text().split()[1] == "scenes"


def test_kernels_have_the_names_with_which_the_program_looks_them_up(built: Build) -> None:
    """Also a function of a kernel, and a name that is said after the launch; what nobody says is a number."""
    built.run("scenes", "named")
    ring = built.ring()
    launches = ring.records[np.array(calls(ring)) == "cuLaunchKernel"]
    gemv = "gemv(float const*, float*, int)"
    assert list(kernel_names(ring.path, launches)) == ["eager", gemv, gemv, "one?two?three", "kernel 5"]
    assert set(light_trace([ring])["kernels"]["short_name"]) <= {"eager", "gemv", "one?two?three", "kernel 5"}
    assert ring.counters["names_left"] == 0
    path = ring.path.with_name(f"{ring.path.name}.names")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().count("\n") == 4  # each name once, however often it is asked for


def test_a_handle_has_the_name_that_it_had_when_it_was_launched(tmp_path: Path) -> None:
    """A module was unloaded, and the next one has its kernel at the same address; the last line is cut off."""
    (tmp_path / "1-0.ring.names").write_text("0\ta\tfirst\n5\ta\tsecond\n7\tb\tother\nnone\n9\tc")
    launches = np.zeros(5, RECORD)
    launches["sequence"], launches["object"] = [1, 5, 6, 7, 9], [10, 10, 10, 11, 12]
    assert list(kernel_names(tmp_path / "1-0.ring", launches)) == ["first", "first", "second", "other", "kernel 3"]


def test_legacy_and_per_thread_streams_are_told_apart(built: Build) -> None:
    assert built.run("scenes", "legacy_flag") == "cuStreamSynchronize cuStreamSynchronize_ptsz \n"
    assert calls(built.ring()) == ["cuStreamSynchronize", "cuStreamSynchronize_ptsz"]


def test_where_there_is_no_driver_none_is_found(built: Build) -> None:
    assert built.run("scenes", "probe") == "nothing nothing error\n"


@pytest.fixture(scope="module")
def hooked(built: Build) -> Build:
    """Programs with a library of their own that interposes the driver."""
    hook, driver = built.folder / "libhook.so", built.folder / "libcuda.so.1"
    for command in (
        ["-shared", "-fPIC", "-Wl,--no-as-needed", "-o", hook, HERE / "hook.c", driver, "-ldl"],
        ["-DLINKED", "-o", built.folder / "linked", HERE / "hooked.c", hook, driver],
        ["-o", built.folder / "hooked", HERE / "hooked.c", "-ldl"],
    ):
        subprocess.run([compiler_or_skip(), "-w", *command], check=True)
    return built


def test_a_library_behind_ours_goes_on_interposing(hooked: Build) -> None:
    assert hooked.run("linked") == "hook rc 0\n"
    assert calls(hooked.ring()) == ["cuCtxSynchronize"]


def test_a_library_before_ours_goes_on_interposing(hooked: Build) -> None:
    assert hooked.run("linked", LD_PRELOAD=str(hooked.folder / "libhook.so")) == "hook rc 0\n"
    assert calls(hooked.ring()) == ["cuCtxSynchronize"]


def test_what_is_looked_up_in_another_library_is_called_there(hooked: Build) -> None:
    assert hooked.run("hooked", str(hooked.folder / "libhook.so")) == "hook rc 0\nrc 0\n"
    ring = hooked.ring()
    assert calls(ring) == ["cuCtxSynchronize"]
    assert ring.counters["entries_left"] == 0  # counted before there was a ring


def test_a_script_has_its_own_name(built: Build, tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "serve").chmod(0o755)
    for old in built.rings.iterdir():
        old.unlink()
    subprocess.run([tmp_path / "serve"], env=built.environment(), check=True)
    assert (built.rings / "programs").read_text().split()[1] == "serve"


def marks(ring: Ring) -> str:
    """Of the records of a ring, in order: "b" for a stamp right before, "a" for one right behind it, "-" for none."""
    numbers = ring.records["number"].tolist()
    return "".join(("b" * bool(n & BEFORE) + "a" * bool(n & BEHIND)) or "-" for n in numbers)


GATE = ["gate", "tail", "tail", "nothing", "tail"]


def test_every_launch_and_copy_of_a_part_has_a_stamp_behind_it(built: Build) -> None:
    said = built.run("scenes", "parts", INTERTOKEN_LIGHT_BUDGET=ALL).split()
    ring = built.ring()
    at = [i for i, name in enumerate(said) if name == "gate"]
    parts = re.findall("ba+", marks(ring).replace("-", ""))
    assert len(at) == len(parts) > 0
    assert all(said[i : i + 6] == [*GATE, "eager"] for i in at)
    assert max(map(len, parts)) <= 1 + 8 + 1  # launches, and the copy
    assert said.count("tail") == 2 + 3 * len(parts) + marks(ring).count("a")
    inside = graph_of(ring.stamps[0]["word"]) == INSIDE_GRAPH
    assert inside.sum() == said.count("tail") - 2
    assert [said.count(name) for name in ("head", "eager", "cuMemcpyHtoDAsync_v2")] == [2, 80, 2]
    assert len(stamped_work(ring).table) == 2


def test_parts_are_as_far_apart_as_is_wished(built: Build) -> None:
    assert built.run("scenes", "parts", INTERTOKEN_LIGHT_BUDGET="0.01", FAKE_LAUNCH_NS="300000").count("gate") == 1
    assert "gate" not in built.run("scenes", "parts", INTERTOKEN_LIGHT_BUDGET="0").split()


def test_a_gate_that_opened_itself_spoils_the_stamps_inside(built: Build) -> None:
    """One too many: what they tell is not used."""
    late = built.run("scenes", "parts", INTERTOKEN_LIGHT_BUDGET=ALL, FAKE_LATE="1").split()
    ring = built.ring()
    parts = re.findall("ba+", marks(ring).replace("-", ""))
    assert late.count("tail") == 2 + 4 * len(parts) + marks(ring).count("a")
    assert stamped_work(ring).kernels.timed == 0


def test_a_part_ends_where_its_thread_waits(built: Build) -> None:
    """What is launched behind the wait is in another part, if in any; the stamps before it are not late."""
    said = built.run("scenes", "waits_between", INTERTOKEN_LIGHT_BUDGET=ALL).split()
    assert "cuEventSynchronize" in said
    ring = built.ring()
    at = said.index("cuEventSynchronize")
    assert said[:at] == ["head", *GATE, "eager", "tail"]
    assert marks(ring).count("ba-") == marks(ring).count("a") == said.count("gate")
    assert stamped_work(ring).kernels.timed == said.count("gate")


def test_no_stamp_is_captured(built: Build) -> None:
    said = built.run("scenes", "captured_between", INTERTOKEN_LIGHT_BUDGET=ALL).split()
    assert said == ["head", *GATE, "eager", "tail", "eager", "tail", "cuStreamSynchronize"]


STEPS, LAUNCH_NS = 3_000, "3000"


@pytest.fixture(scope="module")
def sampled(built: Build) -> Ring:
    """Steps of four runs, recorded with a budget that is far from enough for stamps at the ends of all of them."""
    built.run("scenes", "sampled", str(STEPS), FAKE_SILENT="1", FAKE_LAUNCH_NS=LAUNCH_NS,
              INTERTOKEN_LIGHT_BUDGET="8", INTERTOKEN_LIGHT_RECORDS="65536")  # fmt: skip
    return built.ring()


def test_stamps_of_runs_take_their_share_of_the_time_and_no_more(sampled: Ring) -> None:
    wall = sampled.records["end"].max() - sampled.records["begin"].min()
    stamps = sum(len(each) for each in sampled.stamps)
    spent = sampled.counters["run_stamps_ns"]
    assert spent >= int(LAUNCH_NS) * stamps  # all stamps are accounted for
    assert 0.01 * wall < spent < 0.08 * wall + 20e6  # the last sample may be long on a busy machine
    assert sampled.counters["runs"] == 4 * STEPS
    assert sampled.counters["runs_left"] == 0


def test_every_run_and_launch_of_a_step_is_sampled(sampled: Ring) -> None:
    """Not those after a pause alone, or the same one of each step."""
    records = sampled.records[np.array(calls(sampled)) == "cuLaunchKernel"]
    numbers = records["number"]
    kernel, run = records["object"], numbers & 0xFFFFFF
    words = np.concatenate([each["word"] for each in sampled.stamps])
    with_ends = (words[graph_of(words) == 0] >> np.uint64(16)).astype(np.int64) & 0xFFFFFF
    for sample in (kernel[np.isin(run, with_ends)], kernel[numbers & BEFORE > 0], kernel[numbers & BEHIND > 0]):
        counts = np.array(list(Counter(sample.tolist()).values()))
        assert len(counts) == 4
        assert counts.min() > 0.02 * counts.sum()


def test_samples_do_not_grow_a_ring(built: Build, sampled: Ring) -> None:
    """However long a program runs: its file keeps its size, and the last stamps are the ones that are left."""
    built.run("scenes", "sampled", "1", INTERTOKEN_LIGHT_BUDGET="8", INTERTOKEN_LIGHT_RECORDS="65536")
    small = built.ring().path.stat().st_size
    built.run("scenes", "sampled", "20000", FAKE_SILENT="1", INTERTOKEN_LIGHT_BUDGET=ALL,
              INTERTOKEN_LIGHT_RECORDS="65536")  # fmt: skip
    ring = built.ring()
    assert ring.path.stat().st_size == small
    assert len(ring.stamps[0]) == ring.places < ring.counters["runs"] * 2
