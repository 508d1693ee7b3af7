"""What-ifs and advice beside what was measured without a profiler, and what the commands make of them."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.recordings import LLAMA, SAMPLES, untold
from tests.tracer.bases import based
from tests.tracer.engines import Host
from tests.tracer.handmade import Script
from tests.tracer.steady import trace_of
from tests.tracer.truths import facts_of, run
from tracer import read, write
from tracer.analysis.interval import SHOWN
from tracer.errors import CannotTellError, EmptyTraceError, UnsafePlanError
from tracer.model import run_json
from tracer.whatif.changes import Edit
from tracer.whatif.edits import FollowStrategy, ReadLater, ScaleHost, ScaleKernels, WithoutSyncs
from tracer.whatif.graph_edits import IntoGraph, OneGraph
from tracer.whatif.prediction import NO_MARGIN, predict

LADDER = ["saaas", "aaas", "aaag", "ggg"]


def ours(strategy: str, mode: str = "sequential") -> Path:
    return SAMPLES / f"llama-1.1b-{strategy}-{mode}-cuda"


@cache
def rate(path: Path) -> float:
    found = run_json.tokens_per_s(read(path))
    assert found is not None
    return found


def test_the_ladder_of_the_h200_is_predicted_from_sccc() -> None:
    """Tokens/s within 2 % (the median within 0.5 %), and the order as measured."""
    base = based(read(ours("sccc")))
    found = [predict(base, [FollowStrategy(name)]) for name in LADDER]
    errors = []
    for prediction, name in zip(found, LADDER, strict=True):
        errors.append(abs(prediction.predicted.tokens_per_s / rate(ours(name)) - 1))
        assert prediction.speedup.low < rate(ours(name)) / rate(ours("sccc")) < prediction.speedup.high
    assert max(errors) < 0.02
    assert np.median(errors) < 0.005
    rates = [prediction.predicted.tokens_per_s for prediction in found]
    assert rates == sorted(rates)


@pytest.mark.parametrize("mode", ["sequential", "branches"])
def test_a_node_pass_with_the_rate_predicts_what_was_measured(mode: str) -> None:
    """None of these was used to make the model; its margin comes from other programs, too."""
    base = based(read(ours("sccc", mode) / "node"), rate(ours("sccc", mode)))
    for strategy in LADDER:
        found = predict(base, [FollowStrategy(strategy)])
        assert found.speedup.holds(rate(ours(strategy, mode)) / rate(ours("sccc", mode))), strategy
        assert found.speedup.estimate > 1


LEVELS: dict[str, tuple[Path, Path, float | None]] = {
    "light sccc": (ours("sccc"), ours("sccc") / "node", rate(ours("sccc"))),
    "light aaag": (ours("aaag"), ours("aaag") / "node", rate(ours("aaag"))),
    "graph sccc": (LLAMA["sccc", "graph"], LLAMA["sccc", "node"], 748.7),
    "graph saaas": (LLAMA["saaas", "graph"], LLAMA["saaas", "node"], 759.5),
    "graph vllm": (SAMPLES / "vllm-b8-graph", SAMPLES / "vllm-b8-node", None),
}
"""Recordings of one program on two levels, the second of which names each kernel, and its rate."""
EDITS: list[Edit] = [*map(FollowStrategy, LADDER), WithoutSyncs(), ReadLater(), ScaleHost(0.5), OneGraph(), IntoGraph()]


@pytest.mark.parametrize("level", LEVELS)
def test_levels_of_one_program_agree_within_their_margins_or_say_why_they_have_none(level: str) -> None:
    """The margins of both hold a common speed-up; where a prediction has no margin, a note says why."""
    coarse, fine, known = LEVELS[level]
    bases = [based(read(path), known) for path in (coarse, fine)]
    compared = 0
    for edit in EDITS:
        found = []
        for base in bases:
            with suppress(EmptyTraceError, UnsafePlanError):
                found.append(predict(base, [edit], timeline=False))
        bounds = [each.speedup.bounds for each in found]
        if len(found) == 2 and None not in bounds:
            compared += 1
            assert max(low for low, _ in bounds) <= min(high for _, high in bounds), edit
        for each in found:
            assert each.speedup.bounds is not None or set(each.notes) & set(NO_MARGIN), edit
    assert compared == (0 if "vllm" in level else 5)


@pytest.mark.parametrize("level", [name for name in LEVELS if "vllm" not in name])
def test_where_graphs_are_whole_both_ends_hold_what_the_named_kernels_give(level: str) -> None:
    """Of all kernels the same; of the products only the node pass tells which they are."""
    coarse, fine, known = LEVELS[level]
    whole, named = (based(read(path), known) for path in (coarse, fine))
    every = [predict(base, [ScaleKernels(".", 0.8)], timeline=False).speedup.estimate for base in (whole, named)]
    assert every[0] == pytest.approx(every[1], rel=0.01)
    with pytest.raises(CannotTellError, match=r"between × 1\.0000 .none. and × ") as refusal:
        predict(whole, [ScaleKernels("mul_mat", 0.8)], timeline=False)
    most = float(re.findall(r"× (\d\.\d+) .all", str(refusal.value))[0])
    assert most == pytest.approx(every[0], abs=1e-4)
    assert 1 < predict(named, [ScaleKernels("mul_mat", 0.8)], timeline=False).speedup.estimate < most * 1.01


@pytest.fixture
def unrated(tmp_path: Path) -> Path:
    """llama.cpp without its run.json."""
    return untold(LLAMA["sccc", "graph"], tmp_path / "a")


def test_a_rate_is_the_same_whoever_tells_it_and_changes_nothing_of_what_was_not_traced(unrated: Path) -> None:
    """Without one there is no answer about the engine."""
    known = run("whatif", LLAMA["sccc", "graph"], "--sync", "saaas")
    given = run("whatif", unrated, "--untraced-tokens-per-s", 748.7, "--sync", "saaas")
    head, *lines = known.stdout.splitlines()
    assert head.split() == given.stdout.splitlines()[0].split() == ["as", "recorded", "corrected", "saaas"]
    gap = next(line for line in lines if line.lstrip().startswith("gap p50"))
    assert gap.split()[-3:-1] == ["149.2", "78.1"]
    assert gap in given.stdout
    without = run("whatif", unrated, "--sync", "saaas").stdout
    assert "withheld" in without
    assert "without the rate the prediction includes the profiler: give --untraced-tokens-per-s" in without
    facts = facts_of("whatif", unrated, "--sync", "saaas")
    assert (facts["speedup"], facts["tokens_per_s"], facts["corrected"], facts["base"]) == (None, None, None, "traced")
    light = ["whatif", ours("sccc"), "--without-syncs", "--json"]
    assert run(*light).stdout == run(*light, "--untraced-tokens-per-s", 5).stdout


BAD: dict[str, list[str]] = {
    "no change given": [],
    "llama1b-sccc-graph: sync 13 cannot be removed: the host reads": ["--without-sync", "13"],
    "not a list of positions": ["--without-sync", "x"],
    "is not REGEX=FACTOR": ["--scale-kernels", "a=-1"],
    "nan is not a number": ["--scale-host", "nan"],
    "-o writes one prediction": ["--sync", "saaas,aaag", "-o", "x.sqlite"],
    "nothing to put into a graph": ["--graph"],
}


def test_bad_use_is_one_line(tmp_path: Path) -> None:
    for message, options in BAD.items():
        found = run("whatif", LLAMA["sccc", "graph"], *options)
        assert (found.exit_code, message in found.output) == (2, True), options
    write(trace_of([2000]), tmp_path / "one")
    found = run("advise", tmp_path / "one", "--steps", "0:1")
    assert (found.exit_code, found.stderr.count("\n"), str(tmp_path / "one") in found.stderr) == (2, 1, True)


def test_the_path_and_the_syncs_of_training_are_per_step_and_long_names_are_cut(tmp_path: Path) -> None:
    host = Host(Script())
    kernels = {"K": {"layers": 3}, "n": {"names": ["gemm<" + "int, " * 100 + ">"]},
               "t": {"names": ["softmax_backward", "multi_tensor_apply_kernel"]}}  # fmt: skip
    for i in range(4):
        begin = host.now
        host.play("cnKtf", kernels)
        host.script.range(f"ProfilerStep#{i}", begin, host.now - 5)
        host.script.range("Optimizer.step#AdamW.step", begin + 10, begin + 30)
    write(host.script.trace, tmp_path / "run")
    path, syncs = (run(name, tmp_path / "run").output for name in ("path", "syncs"))
    assert "critical path of a step" in path
    assert "gemm<int, " in path
    assert path.count("int, ") < 40
    assert "syncs per step" in syncs
    assert "token" not in path + syncs


def test_advice_of_our_own_runs_holds_what_was_measured() -> None:
    """Each strategy was run on the same machine; its gain lies inside the margin."""
    facts = facts_of("advise", base := ours("saaas"))
    strategies = [one for one in facts["advice"] if one["edit"] in LADDER]
    assert strategies
    for one in strategies:
        assert one["speedup"]["low"] < rate(ours(one["edit"])) / rate(base) < one["speedup"]["high"], one["edit"]
        assert one["shown_by"] == f"intertoken whatif {base} --sync {one['edit']}"
        assert one["conditions"]
    gains = [one["speedup"]["estimate"] for one in facts["advice"]]
    assert gains == sorted(gains, reverse=True)
    assert facts["bound"] > max(gains)
    assert all(one["speedup"]["low"] > 1 + SHOWN for one in facts["advice"])
    assert all(one["speedup"]["low"] is None or one["speedup"]["low"] <= 1 + SHOWN for one in facts["unsure"])


def test_advice_of_llama_cpp_with_its_own_rate_and_without(unrated: Path) -> None:
    """saaas gained 1.44 % there (748.7 to 759.5 tokens/s); no sync by itself gains for sure. It is known by its
    kernels, and names the edits."""
    known = facts_of("advise", LLAMA["sccc", "graph"])
    by_edit = {one["edit"]: one for one in known["advice"]}
    assert by_edit["saaas"]["speedup"]["low"] < 759.5 / 748.7 < by_edit["saaas"]["speedup"]["high"]
    facts = facts_of("advise", unrated)
    assert (facts["base"], facts["advice"], facts["unsure"]) == ("traced", [], [])
    given = facts_of("advise", unrated, "--untraced-tokens-per-s", 748.7)
    for key in ("edit", "speedup", "conditions"):
        assert [one[key] for one in given["advice"]] == [one[key] for one in known["advice"]]
    command = given["advice"][0]["shown_by"]
    assert command == f"intertoken whatif {unrated} --untraced-tokens-per-s 748.7 --sync ggg"
    assert facts_of(*command.split()[1:])["speedup"] == given["advice"][0]["speedup"]


def test_advice_and_path_say_where_in_the_program_the_calls_are(tmp_path: Path) -> None:
    trace = read(LLAMA["sccc", "graph"])
    chains = trace["api"]["name"].astype(str).str.contains("StreamSynchronize").map({True: 1, False: 2})
    trace.tables["api"] = trace["api"].assign(callchain=chains.astype("int64"))
    trace.tables["callchains"] = pd.DataFrame(
        {"chain": [1, 1, 2], "depth": [0, 1, 0], "symbol": ["cudaStreamSynchronize", "ggml_sync", "ggml_launch"],
         "module": ["/a/libggml-cuda.so"] * 3}
    ).astype({"symbol": "category", "module": "category"})  # fmt: skip
    write(trace, path := tmp_path / "with-chains")
    facts = facts_of("advise", path)
    assert facts["advice"]
    assert all(one["sites"] == ["ggml_sync (libggml-cuda.so)"] for one in facts["advice"] if one["edit"] != "ggg")
    calls = facts_of("path", path, "--call-sites")["calls"]
    sites = {(call["letter"] == "s", call["site"]) for call in calls}
    assert sites == {(True, "ggml_sync (libggml-cuda.so)"), (False, "ggml_launch (libggml-cuda.so)")}
