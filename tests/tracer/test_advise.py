"""`intertoken advise`: what is worth changing, against what was measured, and what is not told."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from tests.recordings import LLAMA, SAMPLES
from tests.thorough import thorough
from tests.tracer.handmade import Script
from tests.tracer.steady import trace_of
from tracer import read, write
from tracer.analysis.advice import effort_of, engine_of
from tracer.analysis.interval import SHOWN
from tracer.analysis.whatif.host_edits import FollowStrategy, ReadLater
from tracer.analysis.whatif.prediction import UNMEASURED
from tracer.cli import main
from tracer.engines.engine import COPIES, RUN_AHEAD, Setting
from tracer.model import run_json
from tracer.text import percent

OURS = {name: SAMPLES / f"llama-1.1b-{name}-sequential-cuda" for name in ("sccc", "saaas", "aaas", "aaag", "ggg")}


@cache
def run(*arguments: object) -> Result:
    """What the command says, which is asked once: no test changes a recording after asking."""
    return CliRunner().invoke(main, ["advise", *map(str, arguments)])


def advised(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert isinstance(facts, dict)
    return facts


def measured(path: Path) -> float:
    rate = run_json.tokens_per_s(read(path))
    assert rate is not None
    return rate


@pytest.mark.parametrize("base", ["sccc", "saaas"])
def test_advice_of_our_own_runs_holds_what_was_measured(base: str) -> None:
    """Each strategy was run on the same machine; its gain lies inside the margin."""
    facts = advised(OURS[base])
    assert facts["schema"] == "intertoken.advise/1"
    strategies = [one for one in facts["advice"] if one["edit"] in OURS]
    assert strategies
    for one in strategies:
        true = measured(OURS[one["edit"]]) / measured(OURS[base])
        assert one["speedup"]["low"] < true < one["speedup"]["high"], one["edit"]
        assert one["shown_by"] == f"intertoken whatif {OURS[base]} --sync {one['edit']}"
        assert one["conditions"]
    gains = [one["speedup"]["estimate"] for one in facts["advice"]]
    assert gains == sorted(gains, reverse=True)
    assert all(one["speedup"]["low"] > 1 + SHOWN for one in facts["advice"])
    assert all(one["speedup"]["low"] is None or one["speedup"]["low"] <= 1 + SHOWN for one in facts["unsure"])
    assert facts["bound"] > max(gains)


def test_advice_of_llama_cpp_with_its_own_rate() -> None:
    """saaas gained 1.44 % there (748.7 to 759.5 tokens/s); no sync by itself gains for sure."""
    facts = advised(LLAMA["sccc", "graph"])
    by_edit = {one["edit"]: one["speedup"] for one in facts["advice"]}
    assert by_edit["saaas"]["low"] < 759.5 / 748.7 < by_edit["saaas"]["high"]
    assert not [edit for edit in by_edit if edit.startswith("without sync ")]
    of_host = {
        "input copies merged",
        "host work after the launch",
        "input copies after the launch",
        "device sampling, results read a step later",
    }
    assert {one["edit"] for one in facts["unsure"]} == of_host | {f"without sync {n}" for n in (*range(1, 12), 14)}
    assert all(one["speedup"]["low"] is None for one in facts["unsure"] if one["edit"] in of_host)


@pytest.mark.parametrize(
    "name",
    [
        "transformers-static",
        *(pytest.param(n, marks=thorough) for n in ("vllm-b1-graph", "vllm-b1-node-nvtx", "vllm-b8-node")),
    ],
)
def test_an_engine_that_idles_for_its_hosts_code_gets_no_figure(name: str) -> None:
    facts = advised(SAMPLES / name)
    assert facts["advice"] == []
    assert all(one["speedup"]["low"] is None for one in facts["unsure"])
    words = " ".join(run(SAMPLES / name).stdout.split())
    assert "no edit is predicted to gain more than its margin" in words
    assert "the device idles mainly because of the host" in words


def test_under_a_profiler_without_a_rate_there_is_no_advice(tmp_path: Path) -> None:
    path = tmp_path / "a"
    shutil.copytree(LLAMA["sccc", "graph"], path)
    (path / "run.json").unlink()
    facts = advised(path)
    assert (facts["base"], facts["advice"], facts["unsure"]) == ("traced", [], [])
    assert run(path).stdout.startswith("no advice: without the rate the prediction includes the profiler")
    assert run(path, "--markdown").stdout.startswith("no advice")
    given = advised(path, "--untraced-tokens-per-s", 748.7)
    known = advised(LLAMA["sccc", "graph"])
    for key in ("edit", "speedup", "conditions"):
        assert [one[key] for one in given["advice"]] == [one[key] for one in known["advice"]]
    command = given["advice"][0]["shown_by"]
    assert command == f"intertoken whatif {path} --untraced-tokens-per-s 748.7 --sync ggg"
    shown = CliRunner().invoke(main, [*command.split()[1:], "--json"])
    assert json.loads(shown.stdout)["speedup"] == given["advice"][0]["speedup"]


def test_where_nothing_is_to_be_gained_it_says_how_much_the_device_idles() -> None:
    words = " ".join(run(OURS["ggg"]).stdout.split())
    assert "no edit is predicted to gain more than its margin" in words
    assert "the device idles for 0% of a step" in words


def test_markdown_is_a_table_and_a_list(tmp_path: Path) -> None:
    lines = run(OURS["sccc"], "--markdown").stdout.splitlines()
    assert lines[:2] == ["| what | gain | model margin | steps/s |", "| --- | --- | --- | --- |"]
    rows = [line for line in lines[2:] if line.startswith("|")]
    assert rows
    assert all(line.count("|") == 5 for line in rows)
    assert all(line.startswith("- ") for line in lines[2 + len(rows) :] if line)


def test_the_text_tells_the_estimates_of_the_json_that_have_no_margin() -> None:
    facts = advised(LLAMA["sccc", "graph"])
    (line,) = (each.strip() for each in run(LLAMA["sccc", "graph"]).stdout.splitlines() if "without a margin" in each)
    told = line.removeprefix("predicted without a margin: ").removesuffix(f"; {UNMEASURED}")
    without = [one for one in facts["unsure"] if one["speedup"]["low"] is None]
    assert without
    assert told == ", ".join(f"{one['edit']} {percent(one['speedup']['estimate'] - 1)}" for one in without)


def test_effort_is_by_the_kind_of_change() -> None:
    efforts = {one["edit"]: one["effort"].split(":")[0] for one in advised(LLAMA["sccc", "graph"])["advice"]}
    assert efforts == {"ggg": "large", **dict.fromkeys(("aaag", "aaas", "saaas"), "medium"), "without syncs": "small"}
    words = run(LLAMA["sccc", "graph"]).stdout
    assert "aaag, aaas, saaas: effort medium: the code that copies a step's inputs changes" in words
    switch = Setting(RUN_AHEAD, "--async", "1")
    assert effort_of(ReadLater(), (switch,)) == "small: a setting of the engine"
    assert effort_of(FollowStrategy("aaag"), (Setting(COPIES, "`f`", "1"),)).startswith("medium")


def test_markdown_has_the_eager_launches_of_the_json() -> None:
    facts = advised(SAMPLES / "vllm-b1-graph")
    _, _, table = run(SAMPLES / "vllm-b1-graph", "--markdown").stdout.partition("Eager launches outside the graph")
    heads, rule, *rows = (line for line in table.splitlines() if line.startswith("|"))
    assert {line.count("|") for line in (heads, rule, *rows)} == {7}
    for one, line in zip(facts["eager_launches"], rows, strict=True):
        kernel, *_, gain = line.strip("| ").split(" | ")
        assert kernel.strip("`") in one["kernel"]
        assert gain == percent(one["speedup"] - 1)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    write(trace_of([2000]), tmp_path / "one")
    result = run(tmp_path / "one", "--steps", "0:1")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert str(tmp_path / "one") in result.stderr


@pytest.mark.parametrize(
    ("kernels", "name"),
    [
        (["vllm::rms_norm_kernel", "quantize_q8_1<__half>"], "vLLM"),
        (["void vllm::act", "tensorrt_llm::kernels::cutlass_kernels::gemm"], "vLLM"),
        (["at::native::add", "quantize_q8_1<__half>"], "llama.cpp"),
    ],
)
def test_kernels_that_an_engine_takes_from_another_do_not_name_it(kernels: list[str], name: str) -> None:
    script = Script()
    for at, kernel in enumerate(kernels):
        script.launch((10 * at, 10 * at + 1), (10 * at + 2, 10 * at + 5), name=kernel)
    found = engine_of(script.trace)
    assert found is not None
    assert found.name == name


def test_the_engine_is_known_by_its_kernels_and_names_the_edits() -> None:
    facts = advised(LLAMA["sccc", "graph"])
    assert facts["engine"] == "llama.cpp"
    names = {one["edit"]: [setting["name"] for setting in one["settings"]] for one in facts["advice"]}
    assert names["aaag"] == ["`ggml_backend_sched_compute_splits` in ggml/src/ggml-backend.cpp"]
    assert names["without syncs"] == []
    assert facts["unused"] == []  # each step is one graph launch
    assert "aaag, aaas, saaas: in llama.cpp `ggml_backend_sched_compute_splits`" in " ".join(
        run(LLAMA["sccc", "graph"]).stdout.split()
    )
    assert advised(OURS["sccc"])["engine"] is None


def test_settings_that_are_off_are_named_without_a_prediction() -> None:
    """Eager transformers replay no graph; vLLM's asynchronous scheduling and whole graphs were on."""
    facts = advised(SAMPLES / "transformers-eager")
    assert (facts["engine"], [setting["change"] for setting in facts["unused"]]) == (
        "PyTorch",
        ["one graph launch per step"],
    )
    words = " ".join(run(SAMPLES / "transformers-eager").stdout.split())
    assert 'does not use: `torch.compile(mode="reduce-overhead")`' in words
    facts = advised(SAMPLES / "vllm-b1-graph")
    assert (facts["engine"], facts["unused"]) == ("vLLM", [])
    assert advised(SAMPLES / "transformers-static")["unused"] == []


def test_advice_and_path_say_where_in_the_program_the_calls_are(tmp_path: Path) -> None:
    trace = read(LLAMA["sccc", "graph"])
    names = trace["api"]["name"].astype(str)
    is_sync = names.str.contains("StreamSynchronize")
    trace.tables["api"] = trace["api"].assign(callchain=is_sync.map({True: 1, False: 2}).astype("int64"))
    trace.tables["callchains"] = pd.DataFrame(
        {"chain": [1, 1, 2], "depth": [0, 1, 0], "symbol": ["cudaStreamSynchronize", "ggml_sync", "ggml_launch"],
         "module": ["/a/libggml-cuda.so"] * 3}
    ).astype({"symbol": "category", "module": "category"})  # fmt: skip
    write(trace, tmp_path / "with-chains")
    facts = advised(tmp_path / "with-chains")
    assert facts["advice"]
    assert all(one["sites"] == ["ggml_sync (libggml-cuda.so)"] for one in facts["advice"] if one["edit"] != "ggg")
    assert "the calls are made in ggml_sync (libggml-cuda.so)" in " ".join(run(tmp_path / "with-chains").stdout.split())
    shown = CliRunner().invoke(main, ["path", str(tmp_path / "with-chains"), "--call-sites", "--json"])
    sites = {(call["letter"] == "s", call["site"]) for call in json.loads(shown.stdout)["calls"]}
    assert sites == {(True, "ggml_sync (libggml-cuda.so)"), (False, "ggml_launch (libggml-cuda.so)")}
    assert all(one["sites"] == [] for one in advised(LLAMA["sccc", "graph"])["advice"])
