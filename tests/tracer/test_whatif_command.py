"""`intertoken whatif` and `intertoken path`."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from tests.recordings import SAMPLES
from tests.tracer.engines import Host, layers
from tests.tracer.handmade import Script
from tracer import write
from tracer.cli import main


def run(*arguments: object) -> object:
    return CliRunner().invoke(main, ["whatif", *map(str, arguments)])


def test_recorded_corrected_and_predicted_are_columns(tmp_path) -> None:
    """Without a rate there is no corrected one, and no answer about the engine; with it there is, whoever tells it."""
    name = tmp_path / "recording"
    shutil.copytree(SAMPLES / "llama1b-sccc-graph", name)
    told = json.loads((name / "run.json").read_text())
    del told["measured"]
    (name / "run.json").write_text(json.dumps(told))
    without, given, known = (
        run(*arguments, "--sync", "saaas")
        for arguments in ([name], [name, "--untraced-tokens-per-s", 748.7], [SAMPLES / "llama1b-sccc-graph"])
    )
    assert given.stdout == known.stdout
    head, *lines = known.stdout.splitlines()
    assert head.split() == ["as", "recorded", "corrected", "saaas"]
    gap = next(line for line in lines if line.lstrip().startswith("gap p50"))
    assert gap.split()[-3:-1] == ["149.2", "78.1"]
    assert "95 %" not in known.stdout
    assert "withheld" in without.stdout
    assert "corrected" not in without.stdout
    assert "without the rate the prediction includes the profiler: give --untraced-tokens-per-s" in without.stdout
    facts = json.loads(run(name, "--sync", "saaas", "--json").stdout)
    assert facts["speedup"] is facts["tokens_per_s"] is facts["corrected"] is None
    assert facts["base"] == "traced"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "no change given"),
        (["--without-sync", "13"], "llama1b-sccc-graph: sync 13 cannot be removed: the host reads"),
        (["--without-sync", "x"], "not a list of positions"),
        (["--scale-kernels", "a"], "is not REGEX=FACTOR"),
        (["--scale-kernels", "a=-1"], "is not REGEX=FACTOR"),
        (["--scale-host", "nan"], "nan is not a number"),
        (["--sync-latency-us", "nan"], "nan is not a number"),
        (["--sync", "saaas,aaag", "-o", "x.sqlite"], "-o writes one prediction"),
        (["--graph"], "nothing to put into a graph"),
    ],
)
def test_bad_use_is_one_line(options: list[str], message: str) -> None:
    found = run(SAMPLES / "llama1b-sccc-graph", *options)
    assert found.exit_code == 2
    assert message in found.output


def test_the_path_and_the_syncs_of_training_are_per_step_and_long_names_are_cut(tmp_path) -> None:
    host = Host(Script())
    name = "gemm<" + "int, " * 100 + ">"
    for i in range(4):
        begin = host.now
        host.copy()
        host.kernels([name, *layers(3), "softmax_backward", "multi_tensor_apply_kernel"])
        host.fetch()
        host.script.range(f"ProfilerStep#{i}", begin, host.now - 5)
        host.script.range("Optimizer.step#AdamW.step", begin + 10, begin + 30)
    write(host.script.trace, tmp_path / "run")
    path, syncs = (CliRunner().invoke(main, [name, str(tmp_path / "run")]).output for name in ("path", "syncs"))
    assert "critical path of a step" in path
    assert "µs per step" in path
    assert "gemm<int, " in path
    assert path.count("int, ") < 40
    assert "syncs per step" in syncs
    assert "token" not in path + syncs


def test_a_rate_changes_nothing_of_what_was_not_traced() -> None:
    arguments = ["whatif", str(SAMPLES / "llama-1.1b-sccc-sequential-cuda"), "--without-syncs", "--json"]
    without, given = (CliRunner().invoke(main, [*arguments, *rate]) for rate in ([], ["--untraced-tokens-per-s", "5"]))
    assert without.stdout == given.stdout
