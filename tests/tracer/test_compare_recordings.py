"""Comparisons of real recordings whose truth was measured without a profiler, and `intertoken compare`.

None may say a wrong direction: each program is compared with each other one of its model at every level of tracing and
across the levels, with the rates that were measured and without.
"""

from __future__ import annotations

import json
import os
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pytest

from tests.covering import each_value
from tests.recordings import LLAMA, SAMPLES, SIX, untold
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.steady import NSYS, side, trace_of
from tests.tracer.truths import facts_of, run
from tracer import formats, write
from tracer.analysis.compare import Side, compare

pytestmark = pytest.mark.usefixtures("all_resamples")
TRUTH: Final = 759.5 / 748.7
"""tokens/s of llama.cpp's saaas over those of sccc."""

PERIODS_US: Final = {
    "sccc sequential": 459, "saaas sequential": 434, "aaag sequential": 429, "sccc concurrent": 290,
    "saaas concurrent": 263.5, "aaag concurrent": 257.5,
}  # fmt: skip
"""Of the loop in six-strategies, untraced: the middle of what was measured."""


@cache
def run_at(path: str, within: str | None = None, rated: bool = True) -> Side:
    """A recording with the rates that it knows, or as if its run.json said what ran but not how fast."""
    trace = formats.read(SAMPLES / path)
    if not rated:
        trace.metadata["run"] = {k: v for k, v in trace.metadata["run"].items() if k not in ("measured", "ranges")}
    return side(trace, f"{path} {within or ''}", within=within)


def unlike(one: str, other: str) -> list[tuple[str, str]]:
    """Two recordings of llama.cpp or of our own runs, at any levels."""
    names = [{"graph": name, "node": f"{name}/node" if "cuda" in name else name.replace("graph", "node")}
             for name in (one, other)]  # fmt: skip
    return [(names[0][mine], names[1][theirs]) for mine, theirs in product(("graph", "node"), repeat=2)]


SCCC, SAAAS, GGG = (f"llama-1.1b-{strategy}-sequential-cuda" for strategy in ("sccc", "saaas", "ggg"))
PAIRS: Final = {
    **dict.fromkeys(unlike("llama1b-sccc-graph", "llama1b-saaas-graph"), TRUTH),
    **dict.fromkeys([*unlike(SAAAS, SCCC), *unlike(GGG, SCCC)], 0.9),
    **{("vllm-b8-graph", f"vllm-b8-{other}"): 1.0 for other in ("node", "torch")},
}
"""Recordings of one program under two strategies, or at two levels -> about how much faster the second one is."""


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_rates_give_the_true_sign_and_without_rates_what_was_traced_has_none(pair: tuple[str, str]) -> None:
    """The node-level pair of llama.cpp reads +3.0 % as traced, where +1.4 % is true; another such pair read −4.8 %."""
    rated = compare(*map(run_at, pair))
    assert rated.verdict == {TRUTH: "faster", 0.9: "slower", 1.0: "no difference shown"}[PAIRS[pair]]
    if PAIRS[pair] == TRUTH:
        assert rated.speedup.holds(TRUTH)
        assert rated.gap_us is None or rated.gap_us.holds(60 - 77)
    if not pair[0].startswith("llama-1.1b") or any("node" in name for name in pair):
        unrated = compare(*(run_at(name, rated=False) for name in pair))
        assert (unrated.verdict, unrated.basis, unrated.refusal is None) == ("no verdict", "traced", False)


@pytest.mark.parametrize(("one", "other"), each_value(combinations(PERIODS_US, 2)))
def test_six_strategies(one: str, other: str) -> None:
    """Node level stretches kernels that run side by side; one rate each, of one program, and right to 0.5 %."""
    truth = PERIODS_US[one] / PERIODS_US[other]
    rated = compare(*(run_at(SIX.name, f"run {name}") for name in (one, other)))
    direction = "faster" if truth > 1 else "slower"
    assert (rated.verdict, rated.speedup.estimate) == (direction, pytest.approx(truth, rel=0.01))
    unrated = compare(*(run_at(SIX.name, f"run {name}", rated=False) for name in (one, other)))
    assert unrated.verdict not in (("slower",) if truth > 1 else ("faster",))


GRAPH = [LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]]


def written(path: Path, period: int, **options: Any) -> Path:
    write(trace_of([period] * 12, **options), path)
    return path


def test_rates_of_steps_beside_rates_of_several_sequences(tmp_path: Path) -> None:
    rates = {"tokens_per_s": {"median": 4e6, "low": 3.9e6, "high": 4.1e6}, "steps_per_s": {"median": 1e6}}
    base, other = (written(tmp_path / name, 2100, run={"measured": rates}, source=NSYS) for name in "ab")
    runs = facts_of("compare", base, other, "--untraced-tokens-per-s", "5e5", "--untraced-tokens-per-s", "1e6")["runs"]
    assert [each["tokens_per_s"] for each in runs] == [2e6, 4e6]
    (tmp_path / "b.toml").write_text("[base]\nrecording = 'a'\nmax_slowdown = 0.6")
    options = ["--budget", str(tmp_path / "b.toml"), "--untraced-tokens-per-s", "5e5", "--json"]
    (line,) = json.loads(run("check", other, *options).stdout)["lines"]
    assert line["found"] == pytest.approx(0.5)


def test_runs_that_are_not_comparable_need_force(tmp_path: Path) -> None:
    base, other = (written(tmp_path / name, 2000) for name in "ab")
    for name, batch in (("a", 1), ("b", 8)):
        told = {"configuration": {"model": name, "batch": batch}}
        (tmp_path / name / "run.json").write_text(json.dumps(told))
    refused, forced = run("compare", base, other), run("compare", base, other, "--force")
    assert (refused.exit_code, refused.stderr.count("\n"), forced.exit_code) == (2, 1, 0)
    assert "a and b are not comparable: model a against b; batch 1 against 8 (--force" in refused.stderr
    assert "no verdict: not comparable, comparison forced: model a against b" in " ".join(forced.stdout.split())


def test_without_a_verdict_it_says_why_what_is_known_and_what_to_measure(tmp_path: Path) -> None:
    paths = [untold(path, tmp_path / path.name) for path in GRAPH]
    facts = facts_of("compare", *paths)
    base, other = facts["runs"]
    assert (facts["basis"], other["verdict"]) == ("traced", "no verdict")
    assert "5 syncs against 14" in other["why"]
    rates = "--untraced-tokens-per-s X,X,X --untraced-tokens-per-s Y,Y,Y"
    assert other["instead"].endswith(f"`intertoken compare {paths[0]} {paths[1]} {rates}`")
    nothing, change = {"estimate": None, "low": None, "high": None}, other["difference"]
    for figure in (other["speedup"], change["gap_us"], change["mean_gap_us"], *change["causes_us"].values()):
        assert figure == nothing
    assert (other["total_speedup"], other["needed"], base["tokens_per_s"]) == (None, None, None)
    assert (change["syncs_per_token"], change["copies_per_token"], change["launches_per_token"]) == (-9, 0, 0)
    assert abs(change["busy_us"]["estimate"]) < 1
    result = run("compare", *paths, "-o", tmp_path / "table.csv")
    table = pd.read_csv(tmp_path / "table.csv").set_index("figure")
    assert table.loc[["steps_per_s, ratio", "gap_us p50"], ["estimate", "low", "high"]].isna().all(axis=None)
    assert table.loc["steps_per_s, ratio", "base"] == pytest.approx(base["steps_per_s"])
    assert not any(word in result.stdout for word in ("faster", "slower"))


def test_a_run_whose_rate_is_unknown_does_not_take_the_others_verdict(tmp_path: Path) -> None:
    paths = [*GRAPH, untold(LLAMA["saaas", "node"], tmp_path / "llama1b-saaas-node")]
    runs = facts_of("compare", *paths)["runs"]
    assert [each.get("verdict") for each in runs] == [None, "faster", "no verdict"]
    assert [each["basis"] for each in runs] == ["untraced", "untraced", "traced"]
    words = " ".join(run("compare", *paths).stdout.split())
    assert "of llama1b-sccc-graph, llama1b-saaas-graph without a profiler; of llama1b-saaas-node of the" in words


BAD: Final[dict[str, list[object]]] = {
    "no such file": [GRAPH[0], "nowhere"],
    "given 1 times for 2 runs": [*GRAPH, "--untraced-tokens-per-s", "700"],
    "'nan' is not a rate": [*GRAPH, "--untraced-tokens-per-s", "nan", "--untraced-tokens-per-s", "1"],
    "given 3 times": [*GRAPH, *["--range", "x"] * 3],
    "need a directory of reports": [*GRAPH, "--workers", "2"],
    "no token step": [*GRAPH, "--steps", "500:"],
    "untraced rates come from each run.json": [SAMPLES, "--untraced-tokens-per-s", "700"],
}


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    """Steps that cannot be compared name the option that tells them: every second one computes before the one that
    precedes it; or there is only one."""
    script, one = Script(), decode_loop("sccg", 1)
    for step in range(12):
        start = 1000 * step
        script.range("execute_model", start, start + 900)
        late = (start + 2500, start + 2600) if step % 2 == 0 else (start + 30, start + 90)
        script.launch((start + 10, start + 20), late, stream=7 + step % 2)
        script.sync(start + 40, start + 50)
    one.range("step", 0, 900)
    cases = dict(BAD)
    for name, made, why in (("turned", script, "half of the 12 token steps"), ("one", one, "1 step, no two")):
        write(made.trace, path := tmp_path / f"{name}.json")
        found = run("compare", path, path)
        assert "--pattern takes the name of a range, kernel or API call that begins a step" in found.stderr
        cases[why] = [path, path]
    for message, arguments in cases.items():
        result = run("compare", *arguments)
        assert (result.exit_code, message in result.stderr, "Traceback" in result.output) == (2, True, False), message


def test_what_a_reader_of_any_figure_must_know_is_said_once_after_the_answer() -> None:
    node = SAMPLES / "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2" / "node"
    assert " ".join(run("compare", node, node.parent).output.split()).count("left out: 2 prefill steps") == 1
    words = " ".join(run("compare", LLAMA["sccc", "graph"], LLAMA["saaas", "node"]).stdout.split())
    assert words.index("is faster than") < words.index("per token") < words.index("recorded differently")


def test_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    base, other = written(tmp_path / "base", 2000), written(tmp_path / os.fsdecode(b"other\xff"), 1000)
    result = run("compare", base, other, "--table", tmp_path / "t.parquet")
    assert result.exit_code == 0, result.output
    assert "other? is faster than base" in result.stdout
