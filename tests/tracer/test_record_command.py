"""`intertoken record` of one pass or several, with stand-ins for CUPTI and nsys and without either."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.tracer.fake_driver import Build, run
from tracer import formats, read
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.commands.record import python_program
from tracer.errors import FormatError
from tracer.model import run_json

EXPORT = Path(__file__).parent / "data" / "llama1b-saaas-graph.sqlite.gz"
NSYS = """#!/bin/sh
# Stands for nsys: `profile` runs the command and leaves a report, `export` turns one into the SQLite beside this file.
mode=$1; shift
out=""; last=""
while [ $# -gt 0 ]; do
  case $1 in -o) out=$2; shift 2 ;; --type|--force-overwrite) shift 2 ;; --*) shift ;; *) break ;; esac
done
if [ $mode = profile ]; then echo report > "$out"; exec "$@"; fi
cp "$(dirname "$0")/export.sqlite" "$out"
"""
WITH_NSYS = ("--passes", "node", "--call-sites", "--")
TOKENS = 40


@pytest.fixture
def bare_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing but what the test puts there, and the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_call_sites_of_other_programs_and_reports_need_nsys(bare_path: Path, tmp_path: Path) -> None:
    if shutil.which("nsys"):
        pytest.skip("nsys is installed here")
    result = run("record", "-o", tmp_path / "out", *WITH_NSYS, "/bin/true")
    assert result.exit_code == 2
    assert "install Nsight Systems" in result.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "a.nsys-rep").write_text("report")
    with pytest.raises(FormatError, match=r"nsys export --type sqlite -o a.sqlite a.nsys-rep"):
        formats.read(tmp_path / "a.nsys-rep")


def test_call_sites_of_other_programs_come_from_nsys(bare_path: Path, tmp_path: Path) -> None:
    """One that is killed leaves nothing."""
    nsys, out = bare_path / "nsys", tmp_path / "out"
    nsys.write_text("#!/bin/sh\nkill -9 $$\n")
    nsys.chmod(0o755)
    result = run("record", "-o", out, *WITH_NSYS, "/bin/true")
    assert result.exit_code == 137
    assert result.stderr == f"intertoken: {out}: nothing was recorded: nsys ended by SIGKILL\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]
    nsys.write_text(NSYS)
    (bare_path / "export.sqlite").write_bytes(gzip.decompress(EXPORT.read_bytes()))
    assert run("record", "-o", out, *WITH_NSYS, "/bin/sh", "-c", "exit 7").exit_code == 7
    assert len(read(out)["graph_launches"]) == 64


def test_what_counts_as_a_python_program_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for command, program in {
        "python script.py --x": ("script.py", "--x"), "python -m module 1": ("-m", "module", "1"),
        "python -c print()": None, "python": None, "/bin/true": None, "no-such-program": None,
    }.items():  # fmt: skip
        assert python_program(command.split()) == program, command


def program(built: Build, cuda: Path, tokens: int) -> str:
    """A shell command that decodes, with the driver that stands for the real one in each kind of pass."""
    light = f"LD_LIBRARY_PATH={built.folder} {built.folder}/decode proc '' {tokens} > /dev/null"
    return f'if [ -z "$CUDA_INJECTION64_PATH" ]; then {light}; else {cuda}/traced "" {tokens}; fi'


@pytest.mark.usefixtures("cupti")
def test_each_pass_runs_the_command_and_gets_the_light_rate(built: Build, cuda: Path, tmp_path: Path) -> None:
    out, ran = tmp_path / "out", tmp_path / "ran"
    script = ("--", "sh", "-c", f"echo x >> {ran}; {program(built, cuda, TOKENS)}")
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
def test_a_light_pass_without_steps_hands_on_no_rate(built: Build, cuda: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("record", "-o", out, "--passes", "light,node", "--", "sh", "-c", program(built, cuda, 1))
    assert result.exit_code == 0, result.stderr
    assert json.loads((out / "node" / "run.json").read_text())["measured"] == {"pass": "node", "traced": False}


def test_bad_choices_are_one_line_before_anything_runs(tmp_path: Path) -> None:
    for passes, name, message in (
        ("graph,node", "out", "several passes must include light, which corrects the others"),
        ("light,node", "out.json", "several passes need a directory, not a .json file"),
        ("light,kernels", "out", "'kernels' is not one of light, graph, node"),
    ):
        result = run("record", "-o", tmp_path / name, "--passes", passes, "--", "sh", "-c", f"touch {tmp_path}/ran")
        assert (result.exit_code, message in result.stderr) == (2, True), passes
        assert not list(tmp_path.iterdir())
