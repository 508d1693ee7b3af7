"""The preloaded library in programs of a driver without a GPU: what it records, and what it must not do."""

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.programs import PROGRAMS
from tests.tracer.fake_driver import HERE, calls, compiler_or_skip, sanitized, sanitizing
from tracer.analysis.waits import poll_loops
from tracer.recorders import native
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import BEFORE, BEHIND, INSIDE_GRAPH, graph_of
from tracer.recorders.light_work import stamped_work
from tracer.recorders.symbols import kernel_names

TOKEN = "cuMemcpyHtoDAsync_v2 {}eager eager {}{}first second {}cuMemcpyDtoHAsync_v2 cuStreamSynchronize "
STAMPED, BARE = TOKEN.format("head ", "tail ", "head ", "tail "), TOKEN.format("", "", "", "")

A_TOKEN = [
    "cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuLaunchKernel", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2",
    "cuStreamSynchronize",
]  # fmt: skip
DECODED = [
    "cuGraphInstantiateWithFlags", *A_TOKEN, *A_TOKEN[:3], "cuGraphExecUpdate_v2", *A_TOKEN[3:], *A_TOKEN,
    "cuGraphExecDestroy",
]  # fmt: skip


def words(ring):
    """Of each stamp of the program's work: graph, number, and whether it is a tail."""
    return [(int(w) >> 1 & 0x7FFF, int(w) >> 16 & 0xFFFFFF, int(w) & 1) for each in ring.stamps for w in each["word"]]


NATIVE = Path(native.__file__).parent


def test_no_two_things_in_the_kernels_have_one_name():
    """A parameter with the name of a kernel makes ptxas 12.9, and the driver's compiler, end with a fault."""
    source = (NATIVE / "device.c").read_text(encoding="utf-8")
    kernels = re.findall(r"\.entry (\w+)\(([^)]*)\)", source)
    names = [name for name, _ in kernels]
    assert names == ["stamp", "gate", "answers", "nothing"]
    for name, parameters in kernels:
        given = re.findall(r"\.u64 (\w+)", parameters)
        assert len({*given, *names, "counters"}) == len(given) + len(names) + 1, name


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc1", "direct"])
def test_a_decode_loop_however_it_gets_the_driver(built, way):
    program = "decode_linked" if way == "direct" else "decode"
    assert built.run(program, way) == f"2 nodes; {STAMPED * 3}\n"
    ring = built.ring()
    assert calls(ring) == DECODED
    assert ring.program == program
    records = ring.records
    assert (records["end"] >= records["begin"]).all()
    assert (np.diff(records["end"]) >= 0).all()
    copies = records[records["copy_kind"] > 0]
    assert copies[["bytes", "copy_kind"]].tolist() == [(16, 1), (64, 2)] * 3
    launches = records[[name == "cuLaunchKernel" for name in calls(ring)]]
    assert set(launches["bytes"]) == {1}  # blocks
    assert launches["number"].tolist() == [1, 1, 2, 2, 3, 3]
    assert len(set(launches["object"])) == 1
    graphs = records[records["graph"] > 0]
    assert graphs["number"].tolist() == [0, 0, 0, 1, 2, 0]
    assert len(set(graphs["object"])) == 1
    assert words(ring) == [w for n in range(3) for w in [(0, n + 1, 0), (0, n + 1, 1), (1, n, 0), (1, n, 1)]]
    assert (ring.contexts[0].device, ring.contexts[0].name) == (0, "Fake GPU")


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc2", "again", "own", "later"])
def test_every_call_by_every_way(built, way):
    """cuGetProcAddress by its first and second interface, found by itself, and that of the per-thread stream. One that
    is newer than ours is left alone, and nothing of it comes by."""
    made = built.run("every", way).split()
    assert len(made) > 100
    rings = built.read()
    assert len(rings) == (way != "later")
    for ring in rings:
        assert calls(ring) == made
        assert ring.counters["entries_left"] == 0
        own = ring.records[[name.endswith("_ptsz") for name in calls(ring)]]
        assert set(own["stream"]) == {2}  # CU_STREAM_PER_THREAD


def test_without_the_recorder_nothing_is_done(built):
    done = subprocess.run(
        [built.folder / "decode", "proc"], capture_output=True, text=True, check=True,
        env=sanitized({"LD_LIBRARY_PATH": str(built.folder), "LD_PRELOAD": str(built.folder / "light.so")}),
    )  # fmt: skip
    assert done.stdout == f"2 nodes; {BARE * 3}\n"
    environment = built.environment()
    del environment["INTERTOKEN_LIGHT"]
    done = subprocess.run([built.folder / "ranges", "all"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "nobody listens\n"


def test_a_full_ring_keeps_the_last_and_counts_the_others(built):
    built.run("decode", "proc", "threads", "20000")
    ring = built.ring()
    assert (ring.written, ring.capacity, ring.overwritten) == (80000, 4096, 80000 - 4096)
    assert len(ring.records) > 4096 - 4  # a thread that slept for a round may have left an old one
    assert (np.diff(ring.records["sequence"].astype(np.int64)) > 0).all()


def test_a_fork_gets_its_own_ring(built):
    built.run("decode", "proc", "forks")
    parent, child = built.read()
    assert (len(parent.records), len(child.records)) == (4, 2)
    assert child.parent == parent.process
    assert set(child.records["thread"]) == {child.process}
    assert [context.name for context in child.contexts] == ["Fake GPU"]


def test_a_folder_that_is_not_the_users_alone_is_not_written_to(built, tmp_path):
    """Nor is a link in it followed."""
    folder, link, open_to_others = tmp_path / "rings", tmp_path / "link", tmp_path / "others"
    folder.mkdir(mode=0o700)
    open_to_others.mkdir()
    open_to_others.chmod(0o750)
    link.symlink_to(folder)
    for given in (link, open_to_others, os.path.relpath(folder), tmp_path / "missing"):
        assert built.run("decode", "proc", INTERTOKEN_LIGHT=str(given)) == f"2 nodes; {BARE * 3}\n", given
    assert not [*folder.iterdir(), *open_to_others.iterdir()]
    target = tmp_path / "precious"
    target.write_text("mine")
    built.clear()
    (built.rings / "programs").symlink_to(target)
    subprocess.run(["/bin/true"], env=built.environment(), check=True)
    assert target.read_text() == "mine"
    (built.rings / "programs").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a setuid program")
def test_a_setuid_program_is_left_alone(built, tmp_path):
    """Linked to the library, because the loader itself already refuses to preload into such a program."""
    source = tmp_path / "main.c"
    source.write_text(PROGRAMS["waits, linked to the library"])
    program, light = tmp_path / "setuid", built.folder / "light.so"
    where = f"-Wl,-rpath,{built.folder}"
    subprocess.run([compiler_or_skip(), "-w", *sanitizing(), "-o", program, source, light, where], check=True)
    for folder in {built.folder, tmp_path, *built.folder.parents, *tmp_path.parents}:
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    built.clear()
    os.chown(built.rings, 65534, 65534)
    try:
        environment = sanitized({"INTERTOKEN_LIGHT": str(built.rings)})
        done = subprocess.run([program], env=environment, capture_output=True, check=False)
    finally:
        os.chown(built.rings, 0, 0)
    assert done.returncode == 0
    assert not list(built.rings.iterdir())


COLUMNS = ["text", "kind", "domain", "category", "color", "payload"]


def ranges(built):
    """The nvtx table of the last run, and its notes."""
    trace = light_trace([built.ring()])
    return trace["nvtx"], "; ".join(trace.notes)


def test_every_kind_of_them(built):
    built.run("ranges", "all")
    table, notes = ranges(built)
    step = ["step", "push/pop", "engine", 7, 0xFF00FF00, -3.0]
    outer, inner = (["outer", "push/pop", "", -1, -1, None], ["inner", "push/pop", "", -1, -1, None])
    found = table[COLUMNS].astype(object).where(table[COLUMNS].notna(), None).to_numpy().tolist()
    assert found == [
        ["request", "start/end", "", -1, -1, None], *[step, outer, inner] * 2,
        ["müde", "mark", "", -1, -1, 2.5], ["open", "push/pop", "", -1, -1, None],
    ]  # fmt: skip
    start, end = table["start"].to_numpy(), table["end"].to_numpy()
    assert (start[1:4] <= start[1]).sum() == 1
    assert end[3] <= end[2] <= end[1] <= start[4]  # inner in outer in step, before the next
    assert end[0] >= start[7]  # ended by another thread, behind the mark
    assert start[7] == end[7]
    assert "1 NVTX ranges were still open at the end" in notes
    assert light_trace([built.ring()])["api"]["name"].tolist() == ["cuStreamSynchronize"]


def test_ends_in_another_window_are_not_taken_for_theirs(built):
    built.run("ranges", "pauses", INTERTOKEN_LIGHT_PAUSED="program")
    table, notes = ranges(built)
    assert table["text"].tolist() == ["first", "second"]
    assert table["end"].iloc[0] == table["end"].iloc[1]  # with the recording
    assert "1 NVTX ranges were still open" in notes


def test_texts_that_were_overwritten_are_said(built):
    built.run("ranges", "many", "150000", INTERTOKEN_LIGHT_RECORDS="524288")
    assert built.ring().texts
    table, notes = ranges(built)
    gone = 150_000 - len(table)
    assert table["text"].tolist() == [f"step {i} of many, of its own" for i in range(gone, 150_000)]
    assert f"{gone} NVTX ranges are left out" in notes
    assert gone > 1_000


ALL = "1000000000000"  # percent: all runs and parts are sampled
AHEAD_NS = 5_000_000_000  # the fake device's clock, of the host's


ROWS = json.loads((Path(__file__).parent / "data" / "light_programs.json").read_text())
"""Programs of the fake driver: what it did for them (`said`, how it begins, or how often), and what is recorded."""


def field_of(ring, call, name):
    """A field of all records of a call that did not fail."""
    return ring.records[name][(np.array(calls(ring)) == call) & (ring.records["result"] == 0)].tolist()


def in_graphs(ring):
    """Which launches of graphs the heads of a ring tell."""
    words = ring.stamps[0]["word"]
    is_head = (words & 1 == 0) & (words >> 1 & 0x7FFF > 0)
    return (words[is_head] >> 16 & 0xFFFFFF).tolist()


FACTS = {
    "runs": lambda ring, work, trace: field_of(ring, "cuLaunchKernel", "number"),
    "launches": lambda ring, work, trace: calls(ring).count("cuLaunchKernel"),
    "graph_numbers": lambda ring, work, trace: field_of(ring, "cuGraphLaunch", "number"),
    "heads": lambda ring, work, trace: in_graphs(ring),
    "stamped_launches": lambda ring, work, trace: field_of(ring, "cuGraphLaunch", "graph"),
    "failed": lambda ring, work, trace: {ring.calls[r["call"]]: r["result"] for r in ring.records if r["result"]},
    "stamps": lambda ring, work, trace: [len(stamps) for stamps in ring.stamps],
    "chains": lambda ring, work, trace: [len(chain) for chain in ring.chains],
    "has_stamps": lambda ring, work, trace: [context.has_stamps for context in ring.contexts],
    "devices": lambda ring, work, trace: [context.device for context in ring.contexts],
    "devices_of_syncs": lambda ring, work, trace: trace["syncs"]["device"].tolist(),  # the stream's, or the context's
    "streams": lambda ring, work, trace: [trace[of]["stream"].unique().tolist() for of in ("graph_launches", "syncs")],
    "work": lambda ring, work, trace: [len(work.table), work.unmatched, work.untimed],
    "is_stamped": lambda ring, work, trace: work.table["is_stamped"].tolist(),
    "timed": lambda ring, work, trace: work.kernels.timed == marks(ring).count("ba-") == marks(ring).count("a") > 0,
    "program": lambda ring, work, trace: ring.program,
}


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['run']} {' '.join(row.get('env', ''))}" for row in ROWS])
def test_programs_do_the_same_and_are_recorded(built, row):
    row = dict(row)
    why, env, code = row.pop("why"), row.pop("env", {}), row.pop("code", 0)
    said = built.run(*row.pop("run").split(), code=code, **env).partition("; ")
    words = (said[2] or said[0]).split()
    if "token" in row:
        row["said"] = f"cuMemcpyHtoDAsync_v2 {row.pop('token')} cuMemcpyDtoHAsync_v2 cuStreamSynchronize " * 3
    assert words == row.pop("said", " ".join(words)).split(), why
    assert words[: len(row.get("begins", "").split())] == row.pop("begins", "").split(), why
    assert {word: words.count(word) for word in row.get("count", {})} == row.pop("count", {}), why
    ring = built.read()[0]
    work, trace = stamped_work(ring), light_trace([ring])
    assert (work.table["end"] >= work.table["start"]).all(), why
    done = [word for word in words if word.startswith("cu")]
    times = np.where([call == "cuStreamQuery" for call in calls(ring)], ring.records["bytes"], 1).clip(min=1)
    assert [call for call in np.repeat(calls(ring), times.astype(int)) if call in done] == done, why
    for name, value in row.pop("counters", {}).items():
        assert ring.counters[name] == value, f"{why}: {name}"
    for note in row.pop("notes", []):
        assert any(note in each for each in trace.notes), f"{why}: {note}"
    assert {asked: FACTS[asked](ring, work, trace) for asked in row} == row, why


@pytest.mark.parametrize("scene", ["threads", "threads_of_two"])
def test_a_wait_in_another_thread_or_context_does_not_move_the_clock(built, scene):
    built.run("scenes", scene)
    clock = stamped_work(built.ring()).alignments[0]
    assert clock.contradictions == 0
    assert (np.abs(clock.ns + AHEAD_NS) <= clock.error_ns).all()


def test_stamps_that_are_overwritten_are_said_and_their_cost_stays_known(built):
    built.run("scenes", "many_launches", FAKE_SILENT="1", INTERTOKEN_LIGHT_RECORDS="262144")
    ring = built.ring()
    assert stamped_work(ring).costs[0] is not None
    trace = light_trace([ring])
    assert len(trace["graph_launches"]) == 65_536
    assert len(trace["api"]) == 2 * 65_536
    assert trace["api"]["start"].min() == 0
    (note,) = [note for note in trace.notes if "stamps are kept only" in note]
    assert note.endswith(f"last 65536 graphs and runs of launches; the {2 * 4_464 + 1} calls before them are left out")


def test_a_program_that_calls_exec_has_a_ring_more(built):
    built.run("scenes", "execs")
    rings = built.read()
    assert [ring.path.name for ring in rings] == [f"{rings[0].process}-{n}.ring" for n in range(2)]
    trace = light_trace(rings)
    assert len(trace["api"].drop_duplicates(["process", "correlation"])) == len(trace["api"]) == 2
    assert trace["processes"]["process"].tolist() == [rings[0].process]


def test_a_script_has_its_own_name(built, tmp_path):
    (tmp_path / "serve").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "serve").chmod(0o755)
    built.clear()
    subprocess.run([tmp_path / "serve"], env=built.environment(), check=True)
    assert (built.rings / "programs").read_text().split()[1] == "serve"


def test_kernels_have_the_names_with_which_the_program_looks_them_up(built):
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


def test_libraries_before_and_behind_ours_go_on_interposing(built):
    """What is looked up in another library is called there."""
    hook, driver = built.folder / "libhook.so", built.folder / "libcuda.so.1"
    for command in (
        ["-shared", "-fPIC", "-Wl,--no-as-needed", "-o", hook, HERE / "hook.c", driver, "-ldl"],
        ["-DLINKED", "-o", built.folder / "linked", HERE / "hooked.c", hook, driver],
        ["-o", built.folder / "hooked", HERE / "hooked.c", "-ldl"],
    ):
        subprocess.run([compiler_or_skip(), "-w", *command], check=True)
    for program, extra, said in (
        (["linked"], {}, "hook rc 0\n"),
        (["linked"], {"LD_PRELOAD": str(hook)}, "hook rc 0\n"),
        (["hooked", str(hook)], {}, "hook rc 0\nrc 0\n"),
    ):
        assert built.run(*program, **extra) == said
        ring = built.ring()
        assert calls(ring) == ["cuCtxSynchronize"]
        assert ring.counters["entries_left"] == 0  # counted before there was a ring


def marks(ring):
    """Of the records of a ring, in order: "b" for a stamp right before, "a" for one right behind it, "-" for none."""
    numbers = ring.records["number"].tolist()
    return "".join(("b" * bool(n & BEFORE) + "a" * bool(n & BEHIND)) or "-" for n in numbers)


GATE = ["gate", "tail", "tail", "nothing", "tail"]


def test_every_launch_and_copy_of_a_part_has_a_stamp_behind_it(built):
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


def test_a_gate_that_opened_itself_spoils_the_stamps_inside(built):
    """One too many: what they tell is not used."""
    late = built.run("scenes", "parts", INTERTOKEN_LIGHT_BUDGET=ALL, FAKE_LATE="1").split()
    ring = built.ring()
    parts = re.findall("ba+", marks(ring).replace("-", ""))
    assert late.count("tail") == 2 + 4 * len(parts) + marks(ring).count("a")
    assert stamped_work(ring).kernels.timed == 0


STEPS, LAUNCH_NS = 3_000, "3000"


@pytest.fixture(scope="module")
def sampled(built):
    """Steps of four runs, recorded with a budget that is far from enough for stamps at the ends of all of them."""
    built.run("scenes", "sampled", str(STEPS), FAKE_SILENT="1", FAKE_LAUNCH_NS=LAUNCH_NS,
              INTERTOKEN_LIGHT_BUDGET="8", INTERTOKEN_LIGHT_RECORDS="65536")  # fmt: skip
    return built.ring()


def test_stamps_of_runs_take_their_share_of_the_time_and_no_more(sampled):
    wall = sampled.records["end"].max() - sampled.records["begin"].min()
    stamps = sum(len(each) for each in sampled.stamps)
    spent = sampled.counters["run_stamps_ns"]
    assert spent >= int(LAUNCH_NS) * stamps  # all stamps are accounted for
    assert 0.01 * wall < spent < 0.08 * wall + 20e6  # the last sample may be long on a busy machine
    assert sampled.counters["runs"] == 4 * STEPS
    assert sampled.counters["runs_left"] == 0


def test_every_run_and_launch_of_a_step_is_sampled(sampled):
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


def test_every_kernel_of_a_step_is_sampled_within_a_few_hundred_steps(built):
    """Also the first of a short run, after much else, with the default share of the time; on a busy machine, where each
    sample takes more of it, within more steps."""
    for steps in (400, 1200, 2400):
        built.run("scenes", "decodes", str(steps), FAKE_SILENT="1", FAKE_LAUNCH_NS=LAUNCH_NS,
                  INTERTOKEN_LIGHT_BUDGET="0.2", INTERTOKEN_LIGHT_RECORDS="131072")  # fmt: skip
        ring = built.ring()
        launches = ring.records[np.array(calls(ring)) == "cuLaunchKernel"]
        often = launches[-steps * 16 :]
        told = Counter(often["object"][often["number"] & BEHIND > 0].tolist())
        if set(told) == set(often["object"].tolist()):
            break
    assert set(told) == set(often["object"].tolist())
    unsampled = ring.records[stamped_work(ring).kernels.unsampled]
    assert not set(unsampled["object"].tolist()) & set(told)
    wall = ring.records["end"].max() - ring.records["begin"].min()
    assert ring.counters["run_stamps_ns"] < 0.002 * wall + 1e6 + 20e6


def test_a_stream_that_waits_for_another_begins_a_run(built):
    """When its work goes on is not known from its own stamps: the run gets a head."""
    said = " ".join(built.run("scenes", "decodes", "3", "ahead").split())
    beside = "head eager eager eager eager tail cuEventRecord cuStreamWaitEvent"
    before = "head eager eager eager eager eager eager eager eager tail cuEventRecord"
    graph = "head eager tail eager eager eager eager tail cuEventRecord cuStreamWaitEvent"
    assert f"{beside} {before} {graph} {beside} {before} {graph}" in said


def test_samples_do_not_grow_a_ring(built, sampled):
    """However long a program runs: its file keeps its size, and the last stamps are the ones that are left."""
    built.run("scenes", "sampled", "1", INTERTOKEN_LIGHT_BUDGET="8", INTERTOKEN_LIGHT_RECORDS="65536")
    small = built.ring().path.stat().st_size
    built.run("scenes", "sampled", "17000", FAKE_SILENT="1", INTERTOKEN_LIGHT_BUDGET=ALL,
              INTERTOKEN_LIGHT_RECORDS="65536")  # fmt: skip
    ring = built.ring()
    assert ring.path.stat().st_size == small
    assert len(ring.stamps[0]) == ring.places < ring.counters["runs"] * 2


def test_equal_queries_in_a_row_are_one_record_with_their_number(built):
    """A program that polls makes a million in a second."""
    said = built.run("scenes", "clocked", "polls", "150", FAKE_SLOW="1").split()
    ring = built.ring()
    queries = ring.records[[name == "cuStreamQuery" for name in calls(ring)]]
    early, late = queries[queries["result"] == 600], queries[queries["result"] == 0]
    assert len(early) == len(late) == said.count("eager")
    assert early["bytes"].sum() + len(late) == said.count("cuStreamQuery") > 5 * len(late)
    assert (early["end"] > early["begin"]).all()
    assert (early["end"] <= late["begin"]).all()
    assert (early["end"] - early["begin"] > 1_000_000).mean() > 0.8  # busy for 2 ms
    trace = light_trace([ring])
    polled = trace["api"].query("name == 'cuStreamQuery'")
    assert polled["count"].clip(lower=1).sum() == said.count("cuStreamQuery")
    loops = poll_loops(trace)
    assert loops.queries.sum() == said.count("cuStreamQuery")
    assert len(loops) == len(late)
    assert (loops.end - loops.start > 1_000_000).mean() > 0.8


def test_queries_of_several_threads_are_apart(built):
    built.run("scenes", "crowd", FAKE_SLOW="1")
    records = built.ring().records
    assert (np.diff(records["sequence"].astype(np.int64)) == 1).all()
    assert built.ring().lost == 0


def test_host_functions_run_once_on_a_thread_of_the_driver_and_that_is_recorded(built):
    """One that is captured is left as it is, and counted."""
    assert built.run("scenes", "host_functions").startswith("12 functions; ")
    ring = built.ring()
    names = calls(ring)
    assert ring.counters["functions_captured"] == 1
    assert words(ring) == [(0, 1, 0), (0, 1, 1), (0, 2, 1), (0, 3, 0), (0, 3, 1)]  # each ends a run
    trace = light_trace([ring])
    api = trace["api"].astype({"name": str}).set_index("name")
    assert sorted(names) == sorted([
        *["cuLaunchKernel"] * 3, *["cuLaunchHostFunc"] * 3, *["cuLaunchHostFunc callback"] * 2, "cuStreamAddCallback",
        "cuStreamAddCallback callback", "cuStreamWriteValue32_v2", *["cuStreamSynchronize"] * 2,
    ])  # fmt: skip
    runs, puts = api.loc["cuLaunchHostFunc callback"], api.loc["cuLaunchHostFunc"]
    assert (runs["end"] - runs["start"] > 1_900_000).all()
    assert set(runs["correlation"]) == set(puts["correlation"].iloc[[0, 2]])
    assert not set(runs["thread"]) & set(puts["thread"])
    assert api.loc["cuStreamAddCallback callback", "correlation"] == api.loc["cuStreamAddCallback", "correlation"]
    assert len(trace["streams"]) == 2  # the program's, and the legacy one
    assert any("1 host functions were captured into CUDA graphs" in note for note in trace.notes)
