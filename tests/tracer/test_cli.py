"""The command line: JSON as the design fixes it, tables for people, one clear line for bad input."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.recordings import LLAMA, SAMPLES, SIX
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.nsys_exports import DATA
from tracer import write
from tracer.cli import main

ANALYSES = ["info", "tokens", "syncs", "gaps", "streams"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def as_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def test_phases_and_patterns_choose() -> None:
    prompted = SAMPLES / "llama-1.1b-aaag-sequential-cuda-c4096-p2048-x2" / "node"
    facts = as_json("tokens", prompted)
    assert (facts["steps"], facts["prefill_steps"], facts["confidence"]) == (24, 2, 0.97)
    assert "2 prefill steps" in facts["notes"][-1]
    assert as_json("syncs", prompted, "--phase", "prefill")["steps"] == 2
    assert as_json("gaps", prompted, "--phase", "all", "--steps", "2:")["steps"] == 24
    assert {row["phase"] for row in as_json("tokens", prompted, "--phase", "all")["table"]} == {"prefill", "decode"}
    assert as_json("streams", LLAMA["sccc", "graph"], "--pattern", "GraphLaunch")["steps"] == 64
    assert as_json("info", LLAMA["sccc", "graph"], "--pattern", "GraphLaunch")["steps"] == 64
    for command in ANALYSES:
        wrong = run(command, SIX, "--pattern", "(")
        assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1), wrong.output
        assert "--pattern '(' is not a valid regular expression" in wrong.output


def test_convert_keeps_the_answers_and_overwrites_nothing(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    assert run("convert", LLAMA["sccc", "graph"], target).exit_code == 0
    assert as_json("syncs", target) == as_json("syncs", LLAMA["sccc", "graph"])
    again = run("convert", LLAMA["sccc", "graph"], target)
    assert again.exit_code == 2
    assert "already exists" in again.stderr


def bad_inputs(folder: Path) -> dict[str, Path]:
    empty_file, text, empty_folder, notes = (folder / n for n in ("empty.sqlite", "text.sqlite", "empty", "notes"))
    empty_file.touch()
    text.write_text("not a database, but long enough to have a header " * 40)
    empty_folder.mkdir()
    notes.mkdir()
    (notes / "readme.txt").write_text("nothing here")
    no_kernels = Script()
    no_kernels.sync(0, 10)
    write(no_kernels.trace, folder / "no-kernels")
    broken = folder / "broken"
    shutil.copytree(LLAMA["sccc", "graph"], broken)
    kernels = broken / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet"
    kernels.write_bytes(kernels.read_bytes()[:500])
    return {
        "missing": folder / "missing.sqlite", "empty": empty_file, "text": text, "empty folder": empty_folder,
        "no trace": notes, "no kernels": folder / "no-kernels", "truncated": broken,
    }  # fmt: skip


@pytest.mark.parametrize("case", ["missing", "empty", "text", "empty folder", "no trace", "no kernels", "truncated"])
@pytest.mark.parametrize("command", ["syncs", "gaps"])
def test_bad_input_is_one_clear_line_and_exit_code_2(tmp_path: Path, case: str, command: str) -> None:
    path = bad_inputs(tmp_path)[case]
    result = run(command, path)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert path.name in result.stderr


@pytest.mark.parametrize("rate", ["nan", "1e-300", "0", "-1", "inf", "fast"])
def test_a_senseless_rate_is_a_usage_error(rate: str) -> None:
    assert run("gaps", LLAMA["sccc", "graph"], "--untraced-tokens-per-s", rate).exit_code == 2


@pytest.mark.parametrize("command", ANALYSES)
def test_a_bad_range_is_one_line(command: str) -> None:
    result = run(command, SIX, "--range", "(")
    assert result.exit_code == (0 if command == "info" else 2)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("steps", ["5", "a:b", "1:2:3"])
def test_a_bad_slice_is_a_usage_error(steps: str) -> None:
    result = run("syncs", SIX, "--steps", steps)
    assert result.exit_code == 2
    assert "is not A:B" in result.stderr


def test_hostile_names_are_printed_as_they_are(tmp_path: Path) -> None:
    script = decode_loop("sasgAs", 5)
    for row in script.rows["kernels"]:
        row["name"] = row["short_name"] = "<img src=x onerror=alert(1)>[bold]k[/bold]"
    write(script.trace, tmp_path / "run")
    result = run("syncs", tmp_path / "run")
    assert result.exit_code == 0


@pytest.mark.parametrize(
    "arguments", [["info", "LONG"], ["convert", SIX, "LONG"], ["gaps", SIX, "--table", "LONG"], ["scrub", SIX, "LONG"]],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_path_that_the_system_refuses_is_one_line(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300 + ".csv" * ("--table" in arguments))
    result = run(*(path if argument == "LONG" else argument for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"intertoken: {path}: ")
    assert "File name too long" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_convert_and_scrub_tell_what_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run("convert", SIX, folder).exit_code == 0
    (folder / "graph.json").write_text("{}")
    (folder / "node").mkdir()
    told = run("convert", folder, tmp_path / "a.sqlite").stderr
    assert told == "note: not converted: graph.json, node (next to the recording)\n"


def test_files_of_an_arrowdir_are_not_left_out(tmp_path: Path) -> None:
    with tarfile.open(DATA / "nsys-2025.3-arrowdir.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    (folder / "other.txt").write_text("")
    removed = as_json("scrub", folder, tmp_path / "out")["removed"]
    assert [row["where"] for row in removed if row["where"].startswith("file ")] == ["file other.txt"]


def test_help_and_completion_import_no_command() -> None:
    """The list of commands, its completion and --version take as long as Python and click do."""
    script = "import sys; from tracer.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *words, modules = done.stdout.splitlines()
    assert not {"pandas", "numpy", "pyarrow", "rich", "pydantic", "dash"} & set(modules.split())
    listed = [line.split()[0] for line in words[words.index("Commands:") + 1 :] if line.startswith("  ")]
    completed = [item.value for item in main.shell_complete(click.Context(main), "")]
    assert listed[: len(completed)] == completed == main.list_commands(click.Context(main))


def test_help_of_a_command_imports_what_click_needs() -> None:
    """Completion of its options neither. `convert` and `run` import what their help lists, `gaps` and `watch` hold what
    they report."""
    commands = sorted(set(main.list_commands(click.Context(main))) - {"convert", "gaps", "run", "watch"})
    run = f"[main([command, '--help'], standalone_mode=False) for command in {commands}]"
    script = f"import sys; from tracer.cli import main; {run}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert len(commands) > 10
    assert "click" in modules
    assert not {"pandas", "numpy", "pyarrow", "scipy", "dash"} & set(modules)


def test_a_recording_without_sqlite_imports_no_driver_of_it() -> None:
    script = f"import sys; from tracer import read; read({str(SAMPLES / 'sync-beside')!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pandas" in done.stdout.split()
    assert not [name for name in done.stdout.split() if name.startswith("adbc")]


def test_a_command_of_another_package_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def mine() -> None:
        """Mine, and more."""

    monkeypatch.setitem(main.commands, "mine", mine)
    assert "mine       Mine, and more." in CliRunner().invoke(main, ["--help"]).stdout
