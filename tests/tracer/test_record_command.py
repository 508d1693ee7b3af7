"""`intertoken record --call-sites` where there is neither CUPTI nor nsys, and with a stand-in for nsys."""

import gzip
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tracer import formats, read
from tracer.cli import main
from tracer.commands.record import python_program
from tracer.errors import FormatError

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


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def bare_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with nothing but what the test puts there, and the shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_call_sites_of_other_programs_need_nsys(bare_path: Path, tmp_path: Path) -> None:
    if shutil.which("nsys"):
        pytest.skip("nsys is installed here")
    result = run("record", "-o", tmp_path / "out", "--passes", "node", "--call-sites", "--", "/bin/true")
    assert result.exit_code == 2
    assert "nsys" in result.stderr
    assert "install Nsight Systems" in result.stderr
    assert not (tmp_path / "out").exists()


def test_it_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    result = run("record", "-o", tmp_path / "out", "--passes", "node", "--", "/bin/true")
    assert result.exit_code == 2
    assert "already exists" in result.stderr


def test_call_sites_of_other_programs_come_from_nsys(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "nsys").write_text(NSYS)
    (bare_path / "nsys").chmod((bare_path / "nsys").stat().st_mode | stat.S_IEXEC)
    (bare_path / "export.sqlite").write_bytes(gzip.decompress(EXPORT.read_bytes()))
    result = run("record", "-o", tmp_path / "out", "--passes", "node", "--call-sites", "--", "/bin/sh", "-c", "exit 7")
    assert result.exit_code == 7
    assert len(read(tmp_path / "out")["graph_launches"]) == 64


def test_a_nsys_that_is_killed_is_said_and_leaves_nothing(bare_path: Path, tmp_path: Path) -> None:
    (bare_path / "nsys").write_text("#!/bin/sh\nkill -9 $$\n")
    (bare_path / "nsys").chmod(0o755)
    result = run("record", "-o", tmp_path / "out", "--passes", "node", "--call-sites", "--", "/bin/true")
    assert result.exit_code == 137
    assert result.stderr == f"intertoken: {tmp_path / 'out'}: nothing was recorded: nsys ended by SIGKILL\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_report_needs_nsys_and_says_the_command(bare_path: Path, tmp_path: Path) -> None:
    if shutil.which("nsys"):
        pytest.skip("nsys is installed here")
    (tmp_path / "a.nsys-rep").write_text("report")
    with pytest.raises(FormatError, match=r"nsys export --type sqlite -o a.sqlite a.nsys-rep"):
        formats.read(tmp_path / "a.nsys-rep")


def test_what_counts_as_a_python_program_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert python_program(["python", "script.py", "--x"]) == ("script.py", "--x")
    assert python_program(["python", "-m", "module", "1"]) == ("-m", "module", "1")
    assert python_program(["python", "-c", "print()"]) is None
    assert python_program(["python"]) is None
    assert python_program(["/bin/true"]) is None
    assert python_program(["no-such-program"]) is None
