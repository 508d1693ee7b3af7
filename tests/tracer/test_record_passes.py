"""`intertoken record --passes light,graph,node`: one run directory, in which the light pass corrects the others."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.tracer.fake_driver import Build
from tracer import read
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.model import run_json

TOKENS = 40


pytestmark = pytest.mark.usefixtures("cupti")


def program(built: Build, cuda: Path, tokens: int) -> str:
    """A shell command that decodes, with the driver that stands for the real one in each kind of pass."""
    light = f"LD_LIBRARY_PATH={built.folder} {built.folder}/decode proc '' {tokens} > /dev/null"
    return f'if [ -z "$CUDA_INJECTION64_PATH" ]; then {light}; else {cuda}/traced "" {tokens}; fi'


def record(target: Path, passes: str, *arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in ("record", "-o", target, "--passes", passes, *arguments)])


def test_each_pass_runs_the_command_and_gets_the_light_rate(built: Build, cuda: Path, tmp_path: Path) -> None:
    out, ran = tmp_path / "out", tmp_path / "ran"
    script = f"echo x >> {ran}; {program(built, cuda, TOKENS)}"
    result = record(out, "node,light,graph", "--", "sh", "-c", script)
    assert result.exit_code == 0, result.stderr
    assert ran.read_text() == "x\n" * 3
    light = read(out)
    assert light.metadata["source"] == "light"
    period = gap_report(light, find_steps(light)).period_us
    for level in ("graph", "node"):
        assert len(read(out / level)["kernels"]) == {"graph": 1, "node": 4}[level] * TOKENS
        run = json.loads((out / level / "run.json").read_text())
        assert (run["schema"], run["measured"]["pass"]) == (run_json.SCHEMA, level)
        assert run["measured"]["steps_per_s"]["median"] == pytest.approx(1e6 / period)
        assert run_json.steps_per_s(read(out / level)) == pytest.approx(1e6 / period)
    again = record(out, "light,graph,node", "--", "sh", "-c", script)
    assert again.exit_code == 2
    assert "already exists" in again.stderr
    assert record(out, "light,graph", "--force", "--", "sh", "-c", script).exit_code == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["graph"]


def test_a_light_pass_without_steps_hands_on_no_rate(built: Build, cuda: Path, tmp_path: Path) -> None:
    result = record(tmp_path / "out", "light,node", "--", "sh", "-c", program(built, cuda, 1))
    assert result.exit_code == 0, result.stderr
    assert json.loads((tmp_path / "out" / "node" / "run.json").read_text())["measured"] == {
        "pass": "node", "traced": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("passes", "name", "message"),
    [
        ("graph,node", "out", "several passes must include light, which corrects the others"),
        ("light,node", "out.json", "several passes need a directory, not a .json file"),
        ("light,kernels", "out", "'kernels' is not one of light, graph, node"),
    ],
)
def test_bad_choices_are_one_line_before_anything_runs(tmp_path: Path, passes: str, name: str, message: str) -> None:
    result = record(tmp_path / name, passes, "--", "sh", "-c", f"touch {tmp_path}/ran")
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / name).exists()
