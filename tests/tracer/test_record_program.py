"""`intertoken record` of any program over drivers without a GPU: one suite over the light recorder and CUPTI; several
passes; and a stand-in for nsys."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.programs import PROGRAMS
from tests.tracer.fake_driver import run
from tests.tracer.nsys_exports import DATA, real_export
from tracer import formats, read
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.commands.record import python_program
from tracer.errors import FormatError
from tracer.model import run_json
from tracer.model.trace import CONDITIONAL
from tracer.recorders import light_ring

TOKENS = 40
REFUSALS = json.loads((DATA / "record_refusals.json").read_text())


@pytest.fixture(params=["light", "node"])
def level(request):
    """One after the other, each with the driver that stands for the real one."""
    request.getfixturevalue({"light": "recorder", "node": "cupti"}[request.param])
    return request.param


@pytest.fixture
def program(level, built, cuda):
    """A program that decodes; it takes what it does beside, and how many tokens."""
    return f"{built.folder}/decode proc" if level == "light" else f"{cuda}/traced"


def record(target, level, *arguments):
    result = run("record", "-o", target, "--passes", level, *arguments)
    assert result.exit_code == 0, result.stderr
    return read(target)


def test_what_cannot_be_recorded_is_said(level, program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, row in enumerate(REFUSALS):
        if level not in row["says"]:
            continue
        target = tmp_path / str(number)
        words = [word for each in row["run"] for word in ([each] if each != "PROGRAM" else program.split())]
        with monkeypatch.context() as patched:
            for name, value in row.get("env", {}).items():
                patched.setenv(name, value)
            result = run("record", "-o", target, "--passes", level, *words)
        assert result.exit_code == row["code"], row
        assert row["says"][level] in result.stderr, row
        assert target.exists() == (row["code"] == 0), row
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("seen", ["0 1", "0 0"])
def test_two_engines_have_the_devices_that_they_see(level, program, tmp_path, seen):
    """Each sees one GPU as its first."""
    both = "".join(f"CUDA_VISIBLE_DEVICES={device} {program} '' {TOKENS} & " for device in seen.split())
    trace = record(tmp_path / "out", level, "--", "sh", "-c", f"{both} wait")
    for table in ("memcpys", "graph_launches" if level == "light" else "kernels"):
        devices = trace[table].groupby("process")["device"].unique().map(list)
        assert sorted(devices) == [[int(device)] for device in seen.split()], table
    assert trace["devices"]["device"].tolist() == sorted({int(device) for device in seen.split()})
    said = sum("processes number the devices differently" in note for note in trace.notes)
    assert said == (seen == "0 1")


def test_some_steps_of_a_run(level, program, tmp_path):
    command = ("--", *program.split(), "", TOKENS)
    whole = record(tmp_path / "all", level, *command)
    trace = record(tmp_path / "out", level, "--steps", 10, *command)
    assert len(find_steps(trace)) == 10
    assert len(find_steps(whole)) > 30
    for name in ("memcpys", "syncs"):
        assert 8 <= len(trace[name]) / (len(whole[name]) / TOKENS) <= 12


def test_the_programs_own_window(level, program, built, tmp_path):
    command = [built.folder / "scenes", "windowed"] if level == "light" else [program, "window", 3]
    trace = record(tmp_path / "out", level, "--profiler-window", "--", *command)
    names = trace["api"]["name"].astype(str).tolist()
    assert (names[0], names[-1], names.count("cuGraphLaunch")) == ("cuProfilerStart", "cuProfilerStop", 3)
    assert len(trace["graph_launches"]) + (trace["kernels"]["name"].astype(str) == "gemv").sum() == 3


def test_a_window_of_a_run(level, tmp_path):
    window = ("--after", 0.8, "--seconds", 0.4)
    api = record(tmp_path / "out", level, *window, "--", sys.executable, "-c", PROGRAMS["waits in turns"], "2")["api"]
    assert 20 < len(api) < 600  # of some 1700; how many is up to the machine
    assert api["end"].max() - api["start"].min() < 0.7e9  # switched every 50 ms, on a busy machine later


def test_ranges_of_the_python_package_are_on_the_clock_of_the_calls(level, tmp_path):
    trace = record(tmp_path / "out", level, "--", sys.executable, "-c", PROGRAMS["ranges"])
    ranges, calls = trace["nvtx"], trace["api"][trace["api"]["name"].astype(str) == "cuStreamSynchronize"]
    assert ranges["text"].astype(str).tolist() == ["step"] * 20 + ["default"]
    assert ranges["domain"].astype(str).tolist() == ["engine"] * 20 + [""]
    assert ranges["payload"].tolist()[:20] == list(range(20))
    start, end = ranges["start"].to_numpy()[:20], ranges["end"].to_numpy()[:20]
    late = np.maximum(start - calls["start"].to_numpy(), calls["end"].to_numpy() - end).max()
    assert late < (1_000 if level == "node" else 1), "ns: CUPTI's and our clock are read one after the other"
    assert np.diff(ranges["start"]).min() > 0


@pytest.mark.parametrize(
    ("level", "number"),
    [("light", signal.SIGKILL), ("node", signal.SIGKILL), ("node", signal.SIGTERM), ("node", signal.SIGINT)],
    indirect=["level"],
)
def test_a_signal_ends_the_program_and_keeps_its_recording_and_what_a_killed_recorder_left_is_recovered(
    level, program, built, cuda, tmp_path, number
):
    """Of a program that has decoded and waits, of which CUPTI's buffers were taken."""
    out, what = tmp_path / "out", {"light": "stays", "node": "waits"}[level]
    paths = [built.folder / "light.so", cuda / "libcupti.so.13", tmp_path]
    command = ["record", "-o", out, "--passes", level, "--", *program.split(), what, str(TOKENS)]
    command = [sys.executable, "-c", PROGRAMS["record over stand-ins"], *paths, *command]
    tool = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, start_new_session=True)
    assert tool.stdout.readline()  # the program is done, and waits
    tool.send_signal(number)
    if number != signal.SIGKILL:
        said = tool.communicate(timeout=60)[1].decode()
        assert tool.returncode == 128 + number
        assert f"ended by {number.name}; everything recorded until then is kept" in said
        assert not light_ring.left_folders()
    else:
        tool.wait()
        (left,) = light_ring.left_folders()
        assert not out.exists()
        try:
            result = run("record", "-o", tmp_path / "other", "--passes", level, "--", *program.split())
            advice = f"`intertoken record -o TRACE --recover {left}`"
            assert f"note: a killed recorder left a recording: {advice}" in result.stderr
            result = run("record", "-o", out, "--recover", left)
            assert result.exit_code == 0, result.stderr
            assert ("was killed, called exec, or is still running" in result.stderr) == (level == "node")
        finally:
            os.killpg(tool.pid, signal.SIGKILL)
            tool.communicate()
        assert not left.exists()
    trace = read(out)
    assert len(trace["graph_launches"]) + (trace["kernels"]["name"].astype(str) == "gemv").sum() in (TOKENS, 2 * TOKENS)


WITH_NSYS = ("--passes", "node", "--call-sites", "--")


@pytest.fixture
def bare_path(monkeypatch, tmp_path):
    """A PATH with nothing but what the test puts there, and the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_call_sites_of_other_programs_and_reports_need_nsys(bare_path, tmp_path):
    if shutil.which("nsys"):
        pytest.skip("nsys is installed here")
    result = run("record", "-o", tmp_path / "out", *WITH_NSYS, "/bin/true")
    assert result.exit_code == 2
    assert "install Nsight Systems" in result.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "a.nsys-rep").write_text("report")
    with pytest.raises(FormatError, match=r"nsys export --type sqlite -o a.sqlite a.nsys-rep"):
        formats.read(tmp_path / "a.nsys-rep")


def test_call_sites_of_other_programs_come_from_nsys(bare_path, tmp_path):
    """One that is killed leaves nothing."""
    nsys, out = bare_path / "nsys", tmp_path / "out"
    nsys.write_text("#!/bin/sh\nkill -9 $$\n")
    nsys.chmod(0o755)
    result = run("record", "-o", out, *WITH_NSYS, "/bin/true")
    assert result.exit_code == 137
    assert result.stderr == f"intertoken: {out}: nothing was recorded: nsys ended by SIGKILL\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    nsys.write_text(PROGRAMS["nsys"])
    real_export(bare_path / "export.sqlite")
    assert run("record", "-o", out, *WITH_NSYS, "/bin/sh", "-c", "exit 7").exit_code == 7
    assert len(read(out)["graph_launches"]) == 64


def test_what_counts_as_a_python_program_of_this_installation(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for command, program in {
        "python script.py --x": ("script.py", "--x"), "python -m module 1": ("-m", "module", "1"),
        "python -c print()": None, "python": None, "/bin/true": None, "no-such-program": None,
    }.items():  # fmt: skip
        assert python_program(command.split()) == program, command


def at_each_level(built, cuda, tokens, what=""):
    """A shell command that decodes, with the driver that stands for the real one in each kind of pass."""
    light = f"LD_LIBRARY_PATH={built.folder} {built.folder}/decode proc '{what}' {tokens} > /dev/null"
    return f'if [ -z "$CUDA_INJECTION64_PATH" ]; then {light}; else {cuda}/traced "" {tokens}; fi'


@pytest.mark.usefixtures("cupti")
def test_each_pass_runs_the_command_and_gets_the_light_rate(built, cuda, tmp_path):
    out, ran = tmp_path / "out", tmp_path / "ran"
    script = ("--", "sh", "-c", f"echo x >> {ran}; {at_each_level(built, cuda, TOKENS)}")
    result = run("record", "-o", out, "--passes", "node,light,graph", *script)
    assert result.exit_code == 0, result.stderr
    assert ran.read_text() == "x\n" * 3
    light = read(out)
    assert light.metadata["source"] == "light"
    period = gap_report(light, find_steps(light)).period_us
    for level, kernels in {"graph": 1, "node": 4}.items():
        trace = read(out / level)
        assert len(trace["kernels"]) == kernels * TOKENS
        told = json.loads((out / level / "run.json").read_text())
        assert (told["schema"], told["measured"]["pass"]) == (run_json.SCHEMA, level)
        assert told["measured"]["steps_per_s"]["median"] == run_json.steps_per_s(trace) == pytest.approx(1e6 / period)
    again = run("record", "-o", out, "--passes", "light,graph,node", *script)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    assert run("record", "-o", out, "--passes", "light,graph", "--force", *script).exit_code == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["graph"]


@pytest.mark.usefixtures("cupti")
def test_a_program_whose_graphs_have_conditional_nodes_gets_no_node_pass(built, cuda, tmp_path):
    """Under CUPTI at node level it may crash. The other passes are recorded, and the node pass alone is."""
    out, script = tmp_path / "out", ("--", "sh", "-c", at_each_level(built, cuda, TOKENS, "conditional"))
    result = run("record", "-o", out, "--passes", "light,graph,node", *script)
    assert result.exit_code == 2
    assert "1 with conditional nodes" in result.stderr
    assert f"intertoken: {out}: no node pass: CUDA graphs of the program have conditional nodes (1" in result.stderr
    assert [path.name for path in out.iterdir() if path.is_dir()] == ["graph"]
    assert read(out).metadata[CONDITIONAL] == 1
    assert run("record", "-o", tmp_path / "node", "--passes", "node", *script).exit_code == 0


@pytest.mark.usefixtures("cupti")
def test_a_segmentation_fault_at_node_level_is_said_with_its_likely_cause(tmp_path):
    for level, is_hinted in {"graph": False, "node": True}.items():
        result = run("record", "-o", tmp_path / "out", "--passes", level, "--", "sh", "-c", "kill -SEGV $$")
        assert result.exit_code == 139
        assert "ended by SIGSEGV" in result.stderr
        assert ("where graphs have conditional nodes" in result.stderr) == is_hinted


@pytest.mark.usefixtures("cupti")
def test_a_light_pass_without_steps_hands_on_no_rate(built, cuda, tmp_path):
    out = tmp_path / "out"
    result = run("record", "-o", out, "--passes", "light,node", "--", "sh", "-c", at_each_level(built, cuda, 1))
    assert result.exit_code == 0, result.stderr
    assert json.loads((out / "node" / "run.json").read_text())["measured"] == {"pass": "node", "traced": False}


def test_bad_choices_are_one_line_before_anything_runs(tmp_path):
    for passes, name, message in (
        ("graph,node", "out", "several passes must include light, which corrects the others"),
        ("light,node", "out.json", "several passes need a directory, not a .json file"),
        ("light,kernels", "out", "'kernels' is not one of light, graph, node"),
    ):
        result = run("record", "-o", tmp_path / name, "--passes", passes, "--", "sh", "-c", f"touch {tmp_path}/ran")
        assert (result.exit_code, message in result.stderr) == (2, True), passes
        assert not list(tmp_path.iterdir())
