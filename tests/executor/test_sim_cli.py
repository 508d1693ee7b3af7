"""`intertoken run --backend sim`: run directories like any other, and clear words where it cannot be."""

import json

import pytest
from click.testing import CliRunner

from tracer.cli import main


def run(*arguments):
    return CliRunner().invoke(main, ["run", "--tokens", "4", "--repeats", "2", *map(str, arguments)])


def test_two_runs_write_the_same_recording(tmp_path):
    options = ("--backend", "sim", "--sync", "aaag", "--concurrency", "branches")
    assert [run(*options, "-o", tmp_path / runs).exit_code for runs in ("a", "b")] == [0, 0]
    a, b = (tmp_path / runs / "tiny-aaag-branches-sim" for runs in ("a", "b"))
    assert json.loads((a / "run.json").read_text())["measured"] == json.loads((b / "run.json").read_text())["measured"]
    table = "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    assert (a / table).stat().st_size == (b / table).stat().st_size


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--backend", "sim", "--profile", "wdm"), "unknown profile 'wdm'"),
        (("--backend", "sim", "--profile", "none.json"), "no profile none.json"),
        (("--backend", "cpu", "--profile", "wddm"), "backend 'cpu' takes no cost profile"),
        (("--backend", "sim", "--passes", "node"), "backend 'sim' has no node pass"),
    ],
)
def test_what_cannot_be(tmp_path, options, said):
    done = run(*options, "-o", tmp_path / "runs")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()


def test_help_says_that_nothing_is_computed():
    assert "computes nothing" in " ".join(run("--help").stdout.split())
