"""`intertoken check`: text, JSON, JUnit, GitHub annotations, exit codes, and bad input."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import LLAMA, SAMPLES, SIX
from tests.tracer.handmade import decode_loop
from tracer import write
from tracer.analysis.budget import Line, Scope
from tracer.analysis.budget_check import Finding
from tracer.cli import main
from tracer.reporting import verdicts

SCCC, SAAAS = LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]
BUDGET = SAMPLES / "llama1b-saaas.toml"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def file(folder: Path, text: str, name: str = "budget.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_json() -> None:
    result = run(SCCC, "--budget", BUDGET, "--json")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert (facts["schema"], facts["kept"], facts["budget"]) == ("intertoken.check/1", False, str(BUDGET))
    lines = {line["name"]: line for line in facts["lines"]}
    surplus = lines["syncs"].pop("surplus")
    assert lines["syncs"] == {
        "range": None, "device": None, "site": None, "name": "syncs", "found": 14.0,
        "allowed": {"min": 5.0, "max": 5.0}, "verdict": "broken", "excess": 9.0, "interval": None,
    }  # fmt: skip
    assert surplus["name"] == "cudaStreamSynchronize_v3020"
    assert lines["tokens_per_s.untraced"]["allowed"] == {"min": 755.0, "max": None}
    assert lines["class"]["allowed"] == ["saaas"]


def test_junit_has_a_case_for_each_line(tmp_path: Path) -> None:
    target = tmp_path / "check.xml"
    for _ in range(2):  # it is replaced
        assert run(SCCC, "--budget", BUDGET, "--junit", target).exit_code == 1
    (suite,) = ElementTree.parse(target).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("9", "7")
    failures = {case.get("name"): case.find("failure") for case in suite}
    assert failures["copies"] is None
    assert failures["syncs"] is not None
    assert "found 14, allowed 5, 9 too many; first surplus call: cudaStream" in str(failures["syncs"].get("message"))


def test_what_is_not_shown_is_said_and_breaks_nothing(tmp_path: Path) -> None:
    budget = file(tmp_path, "gap_us.untraced.p50.max = 70")
    result = run(LLAMA["sccc", "node"], "--budget", budget, "--junit", tmp_path / "x.xml", "--github")
    assert result.exit_code == 0
    assert "inconclusive" in result.stdout
    assert f"::warning file={budget},title=token budget%3A gap_us.untraced.p50::" in result.stdout
    (suite,) = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert suite.get("failures") == "0"
    assert "inconclusive" in str(suite[0].findtext("system-out"))


def test_github_annotations() -> None:
    result = run(SCCC, "--budget", BUDGET, "--github")
    annotations = [line for line in result.stdout.splitlines() if line.startswith("::")]
    assert len(annotations) == 7
    assert annotations[0].startswith(f"::error file={BUDGET},title=token budget%3A syncs::syncs: found 14, allowed 5")


@given(st.text(), st.text(alphabet="a%:,\r\n:"), st.text())
def test_annotations_and_junit_hold_any_text(within: str, file_name: str, found: str) -> None:
    """Nothing in a recording or a path can begin a line, end a property or break the XML."""
    finding = Finding(Line(Scope(within), "signature", ("s g",)), found, "broken")
    annotation = verdicts.github(finding, Path(file_name))
    assert annotation is not None
    assert len(annotation.splitlines()) == 1
    properties, _, _ = annotation.removeprefix("::error ").partition("::")
    assert [part.partition("=")[0] for part in properties.split(",")] == ["file", "title"]
    file_property = properties.split(",")[0].removeprefix("file=")
    for escape, letter in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        file_property = file_property.replace(escape, letter)
    assert file_property == str(Path(file_name))
    (suite,) = ElementTree.fromstring(verdicts.junit([finding], Path("r"), Path(file_name)))
    assert len(suite) == 1


def test_write_budget_then_check(tmp_path: Path) -> None:
    target = tmp_path / "new.toml"
    assert run(SIX, "--range", "run aaag concurrent", "--write-budget", target).exit_code == 0
    assert '[range."run aaag concurrent"]\nsyncs = 1\n' in target.read_text()
    assert run(SIX, "--budget", target).exit_code == 0
    again = run(SIX, "--range", "run sccc concurrent", "--write-budget", target)
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    assert run(SIX, "--range", "run sccc concurrent", "--write-budget", target, "--force").exit_code == 0
    assert run(SIX, "--budget", target, "--steps", "3:9").exit_code == 0


def bad(folder: Path) -> dict[str, tuple[list[Any], str]]:
    """Arguments behind the recording, and what the one line says."""
    latin = folder / "latin.toml"
    latin.write_bytes(b"class = '\xe9'")
    return {
        "neither": ([], "either --budget FILE or --write-budget FILE"),
        "both": (["--budget", BUDGET, "--write-budget", folder / "a.toml"], "either --budget"),
        "json and github": (["--budget", BUDGET, "--json", "--github"], "choose one"),
        "no file": (["--budget", folder / "none.toml"], "none.toml: No such file"),
        "folder": (["--budget", folder], "Is a directory"),
        "no TOML": (["--budget", file(folder, "syncs =", "a.toml")], "a.toml: not valid TOML: Invalid value"),
        "no limit": (["--budget", file(folder, f"syncs = {'9' * 5000}", "f.toml")], "f.toml: not valid TOML: Exceeds"),
        "nested": (["--budget", file(folder, f"a = {'[' * 5000}", "g.toml")], "g.toml: not valid TOML: "),
        "base's name": (
            ["--budget", file(folder, 'base = {recording = "a\\u0000", max_slowdown = 1}', "h.toml")], "h.toml: base: "
        ),
        "no text": (["--budget", latin], "latin.toml: not valid TOML"),
        "unknown key": (["--budget", file(folder, "synks = 1", "c.toml")], "c.toml: unknown key synks"),
        "unknown cause": (["--budget", file(folder, "causes_us.traced.x.max = 1", "d.toml")], "d.toml: unknown cause"),
        "no range": (["--budget", file(folder, "[range.x]\nsyncs = 1", "e.toml")], "no NVTX range 'x'"),
        "JUnit's name": (["--budget", BUDGET, "--junit", folder / "a.txt"], "a JUnit XML file must end with .xml"),
        "budget's name": (["--write-budget", folder / "a.json"], "the name of a budget must end with .toml"),
        "no steps": (["--budget", BUDGET, "--steps", "900:"], "no token step in 900:"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "case",
    ["neither", "both", "json and github", "no file", "folder", "no TOML", "no text", "no limit", "nested",
     "base's name", "unknown key", "unknown cause", "no range", "JUnit's name", "budget's name", "no steps"],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, case: str) -> None:
    arguments, said = bad(tmp_path)[case]
    result = run(SAAAS, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_an_untraced_line_of_an_unknown_rate_names_the_recording(tmp_path: Path) -> None:
    script = decode_loop("sg", 5)
    for token in range(5):
        script.range("token", token * 1000, token * 1000 + 900)
    write(script.trace, tmp_path / "run")
    budget = file(tmp_path, "gap_us.untraced.p50.max = 1")
    result = run(tmp_path / "run", "--budget", budget)
    assert result.exit_code == 2
    assert "run: the gap without a profiler is unknown; give --untraced-tokens-per-s" in result.stderr
    assert run(tmp_path / "run", "--budget", budget, "--untraced-tokens-per-s", 2e6).exit_code == 0
