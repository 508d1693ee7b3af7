"""`intertoken whatif` and `intertoken path`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tests.recordings import SAMPLES
from tests.tracer.test_whatif import with_steps
from tracer import read
from tracer.analysis.gaps import gap_report
from tracer.cli import main


def run(*arguments: object) -> object:
    return CliRunner().invoke(main, ["whatif", *map(str, arguments)])


def test_the_command_prints_a_table_and_json(tmp_path) -> None:
    name = SAMPLES / "llama1b-sccc-graph"
    text = run(name, "--without-syncs")
    assert text.exit_code == 0
    assert "sync 13 stays: the host reads what the copy before it brought" in text.output
    facts = json.loads(run(name, "--sync", "saaas,aaag", "--json").stdout)
    assert facts["schema"] == "intertoken.whatif/1"
    assert facts["edit"] == "saaas"
    assert set(facts["speedup"]) == {"estimate", "low", "high"}
    assert [p["edit"] for p in facts["predictions"]] == ["saaas", "aaag"]
    assert facts["gap_us"]["p50"] < facts["recorded"]["gap_us"]["p50"]
    out = tmp_path / "new.sqlite"
    assert run(name, "--sync", "aaag", "-o", out).exit_code == 0
    assert gap_report(*with_steps(read(out))).gap_us["p50"] < 60
    again = run(name, "--sync", "aaag", "-o", out)
    assert again.exit_code == 2
    assert "exists already" in again.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing is different"),
        (["--without-sync", "13"], "llama1b-sccc-graph: sync 13 cannot go: the host reads"),
        (["--without-sync", "x"], "not a list of positions"),
        (["--scale-kernels", "a"], "is not REGEX=FACTOR"),
        (["--scale-kernels", "a=-1"], "is not REGEX=FACTOR"),
        (["--scale-host", "nan"], "nan is no number"),
        (["--sync-latency-us", "nan"], "nan is no number"),
        (["--concurrent"], "has no graph.json"),
        (["--sync", "saaas,aaag", "-o", "x.sqlite"], "-o takes one prediction"),
        (["--graph"], "nothing to put into a graph"),
    ],
)
def test_bad_use_is_one_line(options: list[str], message: str) -> None:
    found = run(SAMPLES / "llama1b-sccc-graph", *options)
    assert found.exit_code == 2
    assert message in found.output


def test_the_path_command() -> None:
    found = CliRunner().invoke(main, ["path", str(SAMPLES / "llama1b-sccc-graph")])
    assert found.exit_code == 0
    assert "critical path of a token: 1,439.4 µs" in found.output
    assert "costs nothing: beside the path" in found.output
