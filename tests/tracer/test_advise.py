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
from tests.tracer.handmade import Script
from tests.tracer.steady import trace_of
from tracer import read, write
from tracer.analysis.advice import engine_of
from tracer.analysis.interval import SHOWN
from tracer.cli import main
from tracer.model import run_json

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
