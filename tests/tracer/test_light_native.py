"""The preloaded library against a driver without a GPU: what it records, and what it must not do."""

import os
import re
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import Build, calls, compiler_or_skip, sanitized, sanitizing, unless_sanitized
from tracer.errors import FormatError
from tracer.recorders import native
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import RECORD, STAMP, Ring, read_ring

TOKEN = "cuMemcpyHtoDAsync_v2 {}eager eager {}{}first second {}cuMemcpyDtoHAsync_v2 cuStreamSynchronize "
STAMPED = TOKEN.format("head ", "tail ", "head ", "tail ")
BARE = TOKEN.format("", "", "", "")
RUNS_ALONE = TOKEN.format("head ", "tail ", "", "")

A_TOKEN = [
    "cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuLaunchKernel", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2",
    "cuStreamSynchronize",
]  # fmt: skip
DECODED = [
    "cuGraphInstantiateWithFlags", *A_TOKEN, *A_TOKEN[:3], "cuGraphExecUpdate_v2", *A_TOKEN[3:], *A_TOKEN,
    "cuGraphExecDestroy",
]  # fmt: skip


def words(ring: Ring) -> list[tuple[int, int, int]]:
    """Of each stamp of the program's work: graph, number, and whether it is a tail."""
    return [(int(w) >> 1 & 0x7FFF, int(w) >> 16 & 0xFFFFFF, int(w) & 1) for each in ring.stamps for w in each["word"]]


NATIVE = Path(native.__file__).parent


def test_no_two_things_in_the_kernels_have_one_name() -> None:
    """A parameter with the name of a kernel makes ptxas 12.9, and the driver's compiler, end with a fault."""
    source = (NATIVE / "device.c").read_text(encoding="utf-8")
    kernels = re.findall(r"\.entry (\w+)\(([^)]*)\)", source)
    names = [name for name, _ in kernels]
    assert names == ["stamp", "gate", "nothing"]
    assert len(set(names)) == len(names)
    for name, parameters in kernels:
        given = re.findall(r"\.u64 (\w+)", parameters)
        assert len(set(given)) == len(given), name
        assert not {*given} & {*names, "counters"}, name


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc1", "direct"])
def test_a_decode_loop_however_it_gets_the_driver(built: Build, way: str) -> None:
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


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc2", "again", "own"])
def test_every_call_by_every_way(built: Build, way: str) -> None:
    """cuGetProcAddress by its first and second interface, found by itself, and that of the per-thread stream."""
    made = built.run("every", way).split()
    ring = built.ring()
    assert len(made) > 100
    assert calls(ring) == made
    assert ring.counters["entries_left"] == 0
    own = ring.records[[name.endswith("_ptsz") for name in calls(ring)]]
    assert set(own["stream"]) == {2}  # CU_STREAM_PER_THREAD


def test_an_interface_newer_than_ours_is_left_alone_and_counted(built: Build) -> None:
    made = built.run("every", "later").split()
    assert not list(built.rings.glob("*.ring"))  # nothing of it came by
    assert len(made) > 100


def test_without_the_recorder_nothing_is_done(built: Build) -> None:
    done = subprocess.run(
        [built.folder / "decode", "proc"], capture_output=True, text=True, check=True,
        env=sanitized({"LD_LIBRARY_PATH": str(built.folder), "LD_PRELOAD": str(built.folder / "light.so")}),
    )  # fmt: skip
    assert done.stdout == f"2 nodes; {BARE * 3}\n"


@pytest.mark.parametrize(("stamps", "token"), [("none", BARE), ("graphs", TOKEN.format("", "", "head ", "tail "))])
def test_stamps_are_as_wished(built: Build, stamps: str, token: str) -> None:
    assert built.run("decode", "proc", INTERTOKEN_LIGHT_STAMPS=stamps) == f"2 nodes; {token * 3}\n"
    assert calls(built.ring()) == DECODED


@pytest.mark.parametrize(
    ("what", "counter"),
    [("conditional", "graphs_left_conditional"), ("memory", "graphs_left_memory"),
     ("child_memory", "graphs_left_memory"), ("device", "graphs_left_device")],
)  # fmt: skip
def test_graphs_that_cannot_be_stamped_are_left_alone_and_counted(built: Build, what: str, counter: str) -> None:
    said = built.run("decode", "proc", what)
    assert Counter(said.split())["head"] == 3  # of the runs
    ring = built.ring()
    assert ring.counters[counter] == 1
    assert ring.counters["graphs_stamped"] == 0
    assert not ring.records["graph"].any()


def test_a_graph_with_a_child_is_stamped_as_a_whole(built: Build) -> None:
    token = TOKEN.format("head ", "tail ", "head ", "tail ").replace("first second", "first second second child")
    assert built.run("decode", "proc", "child") == f"3 nodes; {token * 3}\n"


@pytest.mark.parametrize(
    ("broken", "counter"),
    [("FAKE_REFUSES_STAMPS", "graphs_left_refused"), ("FAKE_NO_NODES", "graphs_left_refused"),
     ("FAKE_NO_JIT", "stamps_failed"), ("FAKE_NO_REGISTER", "stamps_failed")],
)  # fmt: skip
def test_a_driver_that_refuses_what_we_add_still_does_what_the_program_asks(
    built: Build, broken: str, counter: str
) -> None:
    said = built.run("decode", "proc", **{broken: "1"})
    assert said == f"2 nodes; {(BARE if counter == 'stamps_failed' else RUNS_ALONE) * 3}\n"
    assert built.ring().counters[counter] == 1
    assert calls(built.ring()) == DECODED


def test_a_run_behind_stamped_work_needs_no_head(built: Build) -> None:
    token = "cuMemcpyHtoDAsync_v2 head eager eager tail head first second tail eager tail cuMemcpyDtoHAsync_v2 "
    assert built.run("decode", "proc", "behind") == f"2 nodes; {(token + 'cuStreamSynchronize ') * 3}\n"


def test_nothing_is_put_into_a_capture(built: Build) -> None:
    captured = "cuStreamBeginCapture_v2 " + TOKEN.format("", "", "head ", "tail ") + "cuStreamEndCapture "
    assert built.run("decode", "proc", "capture") == f"2 nodes; {STAMPED}{captured}{STAMPED}\n"
    launches = built.ring().records[[name == "cuGraphLaunch" for name in calls(built.ring())]]
    assert launches["graph"].tolist() == [1, 0, 0]  # what it was captured into runs its stamps, too
    assert built.ring().counters["graphs_left_captured"] == 1


def test_a_context_that_is_reset_is_loaded_anew(built: Build) -> None:
    said = built.run("decode", "proc", "reset")
    assert said.count("head") == 6
    ring = built.ring()
    assert [len(stamps) for stamps in ring.stamps] == [4, 8]
    assert [len(chain) for chain in ring.chains] == [64, 64]
    assert [context.has_stamps for context in ring.contexts] == [True, True]


def test_errors_reach_the_program_and_the_record(built: Build) -> None:
    built.run("decode", "proc", code=6, FAKE_FAILS="cuStreamSynchronize")
    (failed,) = built.ring().records[built.ring().records["result"] != 0]
    assert (built.ring().calls[failed["call"]], failed["result"]) == ("cuStreamSynchronize", 700)


def test_threads_lose_nothing(built: Build) -> None:
    built.run("decode", "proc", "threads", "1000")
    ring = built.ring()
    assert ring.written == len(ring.records) == 4000
    assert sorted(Counter(ring.records["thread"].tolist()).values()) == [1000] * 4


def test_a_full_ring_keeps_the_last_and_counts_the_others(built: Build) -> None:
    built.run("decode", "proc", "threads", "20000")
    ring = built.ring()
    assert (ring.written, ring.capacity, ring.overwritten) == (80000, 4096, 80000 - 4096)
    assert len(ring.records) > 4096 - 4  # a thread that slept for a round may have left an old one
    assert (np.diff(ring.records["sequence"].astype(np.int64)) > 0).all()


def test_a_fork_gets_its_own_ring(built: Build) -> None:
    built.run("decode", "proc", "forks")
    parent, child = built.read()
    assert (len(parent.records), len(child.records)) == (4, 2)
    assert child.parent == parent.process
    assert set(child.records["thread"]) == {child.process}
    assert [context.name for context in child.contexts] == ["Fake GPU"]


def test_a_fork_that_runs_another_program_is_recorded_too(built: Build) -> None:
    built.run("decode", "proc", "execs")
    parent, child = built.read()
    assert len(parent.records) == 4
    assert calls(child) == ["cuGraphInstantiateWithFlags", *A_TOKEN, "cuGraphExecDestroy"]


def test_a_program_that_closes_all_its_files_goes_on_being_recorded(built: Build) -> None:
    built.run("decode", "proc", "closed")
    assert calls(built.ring()) == DECODED


def test_what_was_recorded_survives_kill_9(built: Build) -> None:
    built.run("decode", "proc", "killed", code=-9)
    assert calls(built.ring()) == DECODED[: 1 + len(A_TOKEN) + 1 + len(A_TOKEN)]
    assert len(words(built.ring())) == 8


def test_a_program_without_cuda_leaves_its_name_alone(built: Build) -> None:
    for old in built.rings.iterdir():
        old.unlink()
    subprocess.run(["/bin/sh", "-c", "ls / > /dev/null; true"], env=built.environment(), check=True)
    assert [path.name for path in built.rings.iterdir()] == ["programs"]
    assert [line.split()[1] for line in (built.rings / "programs").read_text().splitlines()] == ["sh", "ls"]


def test_a_program_finds_its_own_libraries_functions(built: Build) -> None:
    """dlsym(RTLD_NEXT, ...) asks for whom by the return address: numpy and ctypes must go on finding theirs."""
    code = "import ctypes, numpy; print(ctypes.CDLL(None).getpid() == __import__('os').getpid(), numpy.ones(3).sum())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=built.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "True 3.0\n"


def test_files_are_the_users_alone(built: Build) -> None:
    built.run("decode", "proc")
    assert {stat.S_IMODE(path.stat().st_mode) for path in built.rings.iterdir()} == {0o600}


@pytest.mark.parametrize("how", ["link", "others", "relative", "missing"])
def test_a_folder_that_is_not_the_users_alone_is_not_written_to(built: Build, tmp_path: Path, how: str) -> None:
    folder = tmp_path / "rings"
    folder.mkdir(mode=0o700)
    given = str(folder)
    if how == "link":
        (tmp_path / "link").symlink_to(folder)
        given = str(tmp_path / "link")
    elif how == "others":
        folder.chmod(0o750)
    elif how == "relative":
        given = os.path.relpath(folder)
    else:
        given += "-not"
    assert built.run("decode", "proc", INTERTOKEN_LIGHT=given) == f"2 nodes; {BARE * 3}\n"
    assert not list(folder.iterdir())


def test_a_link_in_the_folder_is_not_followed(built: Build, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    for old in built.rings.iterdir():
        old.unlink()
    (built.rings / "programs").symlink_to(target)
    subprocess.run(["/bin/true"], env=built.environment(), check=True)
    assert target.read_text() == "mine"
    (built.rings / "programs").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a setuid program")
def test_a_setuid_program_is_left_alone(built: Build, tmp_path: Path) -> None:
    """Linked to the library, because the loader itself already refuses to preload into such a program."""
    source = tmp_path / "main.c"
    source.write_text("""
        int cuStreamSynchronize(void *);
        int main(void) { return cuStreamSynchronize(0) == 12345; }
        const char *__asan_default_options(void) { return "detect_leaks=0"; } /* it cannot read its environment */
    """)
    program, light = tmp_path / "setuid", built.folder / "light.so"
    where = f"-Wl,-rpath,{built.folder}"
    subprocess.run([compiler_or_skip(), "-w", *sanitizing(), "-o", program, source, light, where], check=True)
    for folder in {built.folder, tmp_path, *built.folder.parents, *tmp_path.parents}:
        if Path(tempfile.gettempdir()) in folder.parents:
            folder.chmod(0o755)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    for old in built.rings.iterdir():
        old.unlink()
    os.chown(built.rings, 65534, 65534)
    try:
        environment = sanitized({"INTERTOKEN_LIGHT": str(built.rings)})
        done = subprocess.run([program], env=environment, capture_output=True, check=False)
    finally:
        os.chown(built.rings, 0, 0)
    assert done.returncode == 0
    assert not list(built.rings.iterdir())


@pytest.mark.parametrize("damage", ["empty", "magic", "version", "short", "capacity", "names"])
def test_what_is_no_ring_is_said(built: Build, tmp_path: Path, damage: str) -> None:
    built.run("decode", "proc")
    content = bytearray(built.ring().path.read_bytes())
    match damage:
        case "empty":
            content.clear()
        case "magic":
            content[0] = 0
        case "version":
            content[8] = 99
        case "short":
            del content[-1000:]
        case "capacity":
            content[24:32] = b"\xff" * 8
        case "names":
            at = content.index(b"cuMemcpyHtoDAsync_v2")
            content[at : at + 4] = b"\xff\xfe\x00\x00"
    path = tmp_path / "1-0.ring"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"1-0\.ring"):
        read_ring(path)


def test_a_time_that_cannot_be_holds_nobody_up(built: Build, tmp_path: Path) -> None:
    """Of 2 ** 62 ns there are too many windows of half a second to look at each."""
    built.run("decode", "proc", "", "40")
    content = bytearray(built.ring().path.read_bytes())
    stamps = 65536 + 4096 * RECORD.itemsize
    last = stamps + STAMP.itemsize * (64 + 4 * 40 - 1)  # behind those of the chain
    content[last : last + 8] = (2**62).to_bytes(8, "little")
    (tmp_path / "1-0.ring").write_bytes(content)
    assert len(light_trace([read_ring(tmp_path / "1-0.ring")])["api"]) == 243


@unless_sanitized("has a sanitizer of its own")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str) -> None:
    compiler = compiler_or_skip()
    runtime = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    found = subprocess.run([compiler, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip(f"{compiler} has no {runtime}")
    built = Build.into(tmp_path, [f"-fsanitize={sanitizer}", "-g", "-O0"])
    built.extra = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    for what in ("", "child", "memory", "threads", "forks", "reset"):
        built.run("decode", "proc", what, "2000" if what == "threads" else "3")
    built.run("every", "proc2")
    for scene in ("destroyed_elsewhere", "crowd", "other_context", "many_contexts", "own_streams"):
        built.run("scenes", scene)
    for scene in ("crowd", "parts", "waits_between"):
        built.run("scenes", scene, INTERTOKEN_LIGHT_BUDGET="50")
    built.run("ranges", "all")
