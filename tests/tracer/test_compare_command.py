"""`intertoken compare` on the command line: JSON as the design fixes it, words for people, one line for bad input."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from tests.recordings import LLAMA, SAMPLES
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.steady import NSYS, trace_of
from tracer import write
from tracer.cli import main

pytestmark = pytest.mark.usefixtures("all_resamples")

GRAPH = [LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def as_json(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def written(path: Path, period: int, **options: Any) -> Path:
    write(trace_of([period] * 12, **options), path)
    return path


def test_rates_of_the_engine_s_own_benchmark(tmp_path: Path) -> None:
    base, other = (written(tmp_path / name, 2000, source=NSYS) for name in "ab")
    rate = "--untraced-tokens-per-s"
    single = as_json(base, other, rate, 520_000, rate, 530_000)["runs"][1]
    assert single["speedup"] == {"estimate": pytest.approx(53 / 52), "low": None, "high": None}
    assert single["verdict"] == "no interval"
    repeats = as_json(base, other, rate, "519000,520000,521000", rate, "529000,530000,531000")["runs"][1]
    assert 1 < repeats["speedup"]["low"] < 53 / 52 < repeats["speedup"]["high"]
    assert repeats["gap_us"]["p50"] == pytest.approx(1e6 / 530_000 - 1.8, abs=1e-3)


def test_runs_that_are_not_comparable_need_force(tmp_path: Path) -> None:
    base, other = written(tmp_path / "a", 2000), written(tmp_path / "b", 2000)
    (tmp_path / "a" / "run.json").write_text('{"configuration": {"model": "a", "batch": 1}}')
    (tmp_path / "b" / "run.json").write_text('{"configuration": {"model": "b", "batch": 8}}')
    refused = run(base, other)
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert "a and b are not comparable: model a against b; batch 1 against 8 (--force" in refused.stderr
    forced = run(base, other, "--force")
    assert forced.exit_code == 0
    assert "no verdict: not comparable, comparison forced: model a against b" in " ".join(forced.stdout.split())
    other_run = as_json(base, other, "--force")["runs"][1]
    assert (other_run["verdict"], other_run["speedup"]["estimate"]) == ("no verdict", 8.0)


def test_another_level_of_tracing_is_said_before_the_verdict() -> None:
    result = run(LLAMA["sccc", "graph"], LLAMA["saaas", "node"])
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert "llama1b-saaas-node by nsys at node level (period × 1.2" in words
    assert "llama1b-sccc-graph by nsys at graph level (period × 1.05)" in words
    assert words.index("recorded differently") < words.index("is faster than") < words.index("per token")


def unrated(path: Path, name: str) -> Path:
    """A recording as nsys left it, without what run.json says."""
    shutil.copytree(SAMPLES / name, path / name)
    (path / name / "run.json").unlink()
    return path / name


@pytest.mark.parametrize("level", ["graph", "node"])
def test_without_a_verdict_it_says_why_what_is_known_and_what_to_measure(tmp_path: Path, level: str) -> None:
    paths = [unrated(tmp_path, LLAMA[s, level].name) for s in ("sccc", "saaas")]
    facts = as_json(*paths)
    base, other = facts["runs"]
    assert (facts["basis"], other["verdict"]) == ("traced", "no verdict")
    assert "5 syncs against 14" in other["why"]
    rates = "--untraced-tokens-per-s X,X,X --untraced-tokens-per-s Y,Y,Y"
    assert other["instead"].endswith(f"`intertoken compare {paths[0]} {paths[1]} {rates}`")
    nothing = {"estimate": None, "low": None, "high": None}
    change = other["difference"]
    assert [other["speedup"], change["gap_us"], change["mean_gap_us"], *change["causes_us"].values()] == [nothing] * (
        3 + len(base["causes_us"])
    )
    assert (other["total_speedup"], other["needed"]) == (None, None)
    assert (change["syncs_per_token"], change["copies_per_token"], change["launches_per_token"]) == (-9, 0, 0)
    assert abs(change["busy_us"]["estimate"]) < 1
    assert other["sentence"].split(": ")[1] == "no verdict"
    result = run(*paths, "-o", tmp_path / "table.csv")
    assert result.exit_code == 0
    table = pd.read_csv(tmp_path / "table.csv").set_index("figure")
    assert table.loc[["steps_per_s, ratio", "gap_us p50"], ["estimate", "low", "high"]].isna().all(axis=None)
    assert base["tokens_per_s"] is None  # nothing tells how many a step gains
    assert table.loc["steps_per_s, ratio", "base"] == pytest.approx(base["steps_per_s"])
    words = " ".join(result.stdout.split())
    assert "faster" not in words
    assert "slower" not in words


def test_a_run_whose_rate_is_unknown_does_not_take_the_others_verdict(tmp_path: Path) -> None:
    paths = [LLAMA["sccc", "graph"], LLAMA["saaas", "graph"], unrated(tmp_path, "llama1b-saaas-node")]
    facts = as_json(*paths)
    assert [each.get("verdict") for each in facts["runs"]] == [None, "faster", "no verdict"]
    assert [each["basis"] for each in facts["runs"]] == ["untraced", "untraced", "traced"]
    words = " ".join(run(*paths).stdout.split())
    assert "of llama1b-sccc-graph, llama1b-saaas-graph without a profiler; of llama1b-saaas-node of the" in words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([GRAPH[0], "nowhere"], "no such file"),
        ([*GRAPH, "--untraced-tokens-per-s", "700"], "given 1 times for 2 runs"),
        ([*GRAPH, "--untraced-tokens-per-s", "nan", "--untraced-tokens-per-s", "1"], "'nan' is not a rate"),
        ([*GRAPH, *["--range", "x"] * 3], "given 3 times"),
        ([*GRAPH, "--workers", "2"], "need a directory of reports"),
        ([*GRAPH, "--steps", "500:"], "no token step"),
        ([SAMPLES, "--untraced-tokens-per-s", "700"], "untraced rates come from each run.json"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[object], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_what_a_reader_of_any_figure_must_know_is_said_once() -> None:
    node = SAMPLES / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2" / "node"
    result = run(node, node.parent)
    assert result.exit_code == 0, result.output
    assert " ".join(result.output.split()).count("left out: 2 prefill steps") == 1


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    base, other = written(tmp_path / "base", 2000), written(tmp_path / os.fsdecode(b"other\xff"), 1000)
    result = run(base, other, "--table", tmp_path / "t.parquet")
    assert result.exit_code == 0, result.output
    assert "other? is faster than base" in result.stdout


def test_rates_of_steps_beside_rates_of_several_sequences(tmp_path: Path) -> None:
    rates = {"tokens_per_s": {"median": 4e6, "low": 3.9e6, "high": 4.1e6}, "steps_per_s": {"median": 1e6}}
    base, other = (written(tmp_path / name, 2100, run={"measured": rates}, source="nsys 2025.3") for name in "ab")
    runs = as_json(base, other, "--untraced-tokens-per-s", "5e5", "--untraced-tokens-per-s", "1e6")["runs"]
    assert [each["tokens_per_s"] for each in runs] == [2e6, 4e6]
    budget = tmp_path / "b.toml"
    budget.write_text("[base]\nrecording = 'a'\nmax_slowdown = 0.6")
    checked = CliRunner().invoke(
        main, ["check", str(other), "--budget", str(budget), "--untraced-tokens-per-s", "5e5", "--json"]
    )
    (line,) = json.loads(checked.stdout)["lines"]
    assert line["found"] == pytest.approx(0.5)


def test_steps_that_cannot_be_compared_name_the_option_that_tells_them(tmp_path: Path) -> None:
    """Every second one computes before the one that precedes it; or there is only one."""
    script = Script()
    for step in range(12):
        start = 1000 * step
        script.range("execute_model", start, start + 900)
        late = (start + 2500, start + 2600) if step % 2 == 0 else (start + 30, start + 90)
        script.launch((start + 10, start + 20), late, stream=7 + step % 2)
        script.sync(start + 40, start + 50)
    write(script.trace, tmp_path / "turned.json")
    one = decode_loop("sccg", 1)
    one.range("step", 0, 900)
    write(one.trace, tmp_path / "one.json")
    for name, why in (("turned", "no rate: half of the 12 token steps"), ("one", "no gap: 1 step(s), no two")):
        result = run(tmp_path / f"{name}.json", tmp_path / f"{name}.json")
        assert result.exit_code == 2
        assert f"{name}.json: {why}" in result.stderr
        assert "--pattern takes the name of a range, kernel or API call that begins a step" in result.stderr
