"""`intertoken record --passes graph|node` of any program and its children, over a driver and a CUPTI without a GPU."""

import signal
import stat
import subprocess
import time
from collections import Counter

import pytest

from tests.tracer.fake_driver import compiler_or_skip, run
from tracer import read
from tracer.errors import FormatError
from tracer.model.trace import Trace
from tracer.recorders import cupti_library, cupti_run, light_ring
from tracer.recorders.light import read_rings

pytestmark = pytest.mark.usefixtures("cupti")
TOKENS = 40
GRAPH = ["norm", "gemv", "add"]


def record(target, *arguments, level="node", code=0, says=""):
    """The recording that the command leaves; an empty one where its exit code is 2 and it leaves none."""
    result = run("record", "-o", target, "--passes", level, *arguments)
    assert result.exit_code == code, result.stderr
    assert says in result.stderr
    assert target.exists() == (code != 2)
    return read(target) if code != 2 else Trace({})


@pytest.fixture(scope="module")
def traced(cuda):
    """A program that decodes."""
    return cuda / "traced"


def test_the_node_level_has_every_kernel_and_call(traced, tmp_path):
    trace = record(tmp_path / "out", "--", traced, "", TOKENS)
    kernels = trace["kernels"].sort_values(["correlation", "start"])  # those of a graph end after its launch
    assert kernels["short_name"].astype(str).tolist() == [*GRAPH, "sample"] * TOKENS
    assert kernels["name"].astype(str).iloc[3] == "sample(float*, int)"
    assert Counter(trace["api"]["name"].astype(str)) == {
        "cuMemcpyHtoDAsync_v2": TOKENS, "cuGraphLaunch": TOKENS, "cuLaunchKernel": TOKENS,
        "cuStreamSynchronize": 2 * TOKENS,
    }  # fmt: skip
    assert len(trace["syncs"]) == 2 * TOKENS
    assert trace["memcpys"]["bytes"].tolist() == [16] * TOKENS
    assert trace["devices"]["name"].astype(str).tolist() == ["Fake GPU"]
    assert trace["processes"]["name"].astype(str).tolist() == ["traced"]
    assert trace["threads"][["process", "thread"]].to_numpy().tolist() == [trace["processes"]["process"].tolist() * 2]
    assert trace["api"]["start"].min() == 0
    assert (trace.metadata["source"], trace.metadata["graph_trace"]) == ("cupti 13.0.1", "node")
    assert abs(trace.metadata["start_utc_ns"] - time.time_ns()) < 60e9
    assert trace.notes == []


def test_records_of_a_newer_version_are_as_long_as_it_states(traced, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_VERSION", "130701")
    record(tmp_path / "out", "--", traced, "", TOKENS, code=2, says="CUPTI API version 130701 is not supported")
    monkeypatch.setenv("FAKE_GROWN", "64")
    trace = record(tmp_path / "new", "--", traced, "", TOKENS)
    assert Counter(trace["kernels"]["short_name"].astype(str)) == dict.fromkeys([*GRAPH, "sample"], TOKENS)
    assert (len(trace["memcpys"]), len(trace["syncs"]), len(trace["api"])) == (TOKENS, 2 * TOKENS, 5 * TOKENS)
    assert trace.metadata["source"] == "cupti 13.7.1"
    (note,) = trace.notes
    assert note.startswith("CUPTI 13.7.1 is newer than 13.5.0, the last whose records are known")


def test_the_graph_level_has_a_row_for_each_graph_and_skipped_calls_are_a_choice(traced, tmp_path, monkeypatch):
    monkeypatch.setattr(cupti_run, "SKIPPED", "cuCtxGetCurrent")
    trace = record(tmp_path / "out", "--", traced, "", TOKENS, level="graph")
    assert len(trace["graph_launches"]) == TOKENS
    assert trace["kernels"]["short_name"].astype(str).tolist() == ["sample"] * TOKENS
    assert trace.metadata["graph_trace"] == "graph"
    assert (trace["api"]["name"].astype(str) == "cuCtxGetDevice").sum() == TOKENS


ENDED = "it was killed, called exec, or is still running: up to the last second of it is missing"


@pytest.mark.parametrize(
    ("what", "code", "processes", "loops", "note"),
    [
        ("execs", 0, 2, 2, ""), ("forks early", 0, 2, 2, ""), ("forks", 0, 1, 1, ""), ("threads", 0, 1, 5, ""),
        ("left", 3, 1, 1, ""), ("Left", 4, 1, 1, ""), ("handles", 40 + signal.SIGTERM, 1, 1, ""),
        ("killed", 137, 1, 1, ENDED), ("crashed", 134, 1, 1, ENDED), ("becomes", 0, 1, 2, ENDED),
    ],
)  # fmt: skip
def test_all_processes_and_threads_are_recorded_however_they_end(traced, tmp_path, what, code, processes, loops, note):
    says = "everything recorded until then is kept" if code > 128 else ""
    trace = record(tmp_path / "out", "--", traced, what, TOKENS, code=code, says=says)
    assert trace["kernels"]["process"].nunique() == len(trace["processes"]) == processes
    assert len(trace["kernels"]) == 4 * TOKENS * loops
    assert trace["api"].groupby(["process", "thread"]).size().sum() == 5 * TOKENS * loops
    assert trace["api"].groupby(["process", "thread"]).ngroups == (5 if what == "threads" else processes)
    assert not trace["api"].duplicated(["process", "correlation"]).any()
    assert set(trace["kernels"]["correlation"]) <= set(trace["api"]["correlation"])
    assert [said.partition("): ")[2] for said in trace.notes] == [note] * bool(note)


def test_a_cupti_that_hangs_does_not_keep_the_program(traced, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_HUNG", "1")
    begun = time.monotonic()
    result = run("record", "-o", tmp_path / "out", "--passes", "node", "--", traced, "left", TOKENS)
    assert (result.exit_code, time.monotonic() - begun < 20) == (3, True)
    assert "no CUDA program did any work that CUPTI reports" in result.stderr


def test_what_does_not_fit_is_counted(traced, tmp_path, monkeypatch):
    monkeypatch.setenv("INTERTOKEN_LIGHT_RECORDS", "4096")
    monkeypatch.setattr(cupti_run, "_LIMIT", 2 << 20)
    trace = record(tmp_path / "out", "--", traced, "", 4000)
    (note,) = trace.notes
    dropped, _, said = note.partition("): ")[2].partition(" ")
    assert said == "activity records were dropped: there was no buffer or no space for them"
    records = sum(len(trace[name]) for name in ("kernels", "memcpys", "syncs", "api", "devices"))
    assert int(dropped) + records == 4000 * (4 + 1 + 2 + 5) + 1
    assert records > 4000


DAMAGES = {
    "kind": lambda content: bytes([99]) + content[1:], "cut": lambda content: content[:-100],
    "version": lambda content: content[:8] + (140_000).to_bytes(4, "little") + content[12:],
}  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "said"),
    [("kind", "a block of unknown kind 99 at byte 0"), ("cut", "the last buffer is incomplete"),
     ("version", "CUPTI API version 140000 is not supported")],
)  # fmt: skip
def test_a_damaged_file_is_said_and_loses_no_other(traced, damage, said):
    """Files are the user's alone, and none belongs to a program that runs."""
    with light_ring.folder() as rings:
        cupti_run.record([str(traced), "execs", str(TOKENS)], "node", rings)
        assert {stat.S_IMODE(path.stat().st_mode) for path in rings.iterdir()} == {0o600}
        assert light_ring.running_rings() == []
        one, _ = sorted(rings.glob("*.ring.cupti"))
        one.write_bytes(DAMAGES[damage](one.read_bytes()))
        failures = []
        trace = cupti_run.read_folder(rings, failures)
        assert len(trace["kernels"]) == 4 * TOKENS
        assert said in "; ".join([*failures, *trace.notes])
        if damage == "kind":
            with pytest.raises(FormatError, match="damaged"):
                cupti_run.read_activities(one.with_suffix(""))


def test_a_libcupti_that_does_not_load_or_fit_is_said(traced, tmp_path, monkeypatch):
    library = tmp_path / "libcupti.so.9"
    monkeypatch.setattr(cupti_library, "find", lambda: str(library))
    record(tmp_path / "out", "--", traced, code=2, says="libcupti.so.9: cannot open shared object file")
    (tmp_path / "empty.c").write_text("int cuptiNothing;\n")
    subprocess.run([compiler_or_skip(), "-shared", "-o", library, tmp_path / "empty.c"], check=True)
    record(tmp_path / "out", "--", traced, code=2, says="libcupti has no function cuptiGetVersion")


def test_both_recorders_can_record_one_process(traced, built, cuda):
    """The way benchmarks/light_beside_cupti.py compares them; neither loses anything through the other."""
    with light_ring.folder() as rings:
        told = cupti_run.settings("node", str(cuda / "libcupti.so.13")) + "wrap driver\n"
        (rings / light_ring.SETTINGS).write_text(told)
        given = cupti_run.environment(built.folder / "light.so", rings)
        subprocess.run([traced, "", str(TOKENS)], env=given, check=True)
        (ring,) = read_rings(rings)
        trace = cupti_run.read_folder(rings)
    assert len(trace["kernels"]) == 4 * TOKENS
    assert Counter(ring.calls[call] for call in ring.records["call"])["cuGraphLaunch"] == TOKENS
