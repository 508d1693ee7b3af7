"""The benchmarks: what they make of predictions, rates and turns, and that the page of measured tables and the README
say what the files of results say."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.tracer import kineto
from tests.tracer.fake_driver import Build
from tests.tracer.nsys_exports import export
from tests.tracer.rocm_files import Database, hip
from tracer.model.fits import fits_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    """Scripts import each other by name, as where one of them is run."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def report(beside_each_other):
    return importlib.import_module("report")


def result(name):
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_is_written_from_the_results(report):
    assert report.TARGET.read_text(encoding="utf-8") == report.report(), "run `python benchmarks/report.py`"


def test_every_result_names_its_commit_and_machine():
    for path in (BENCHMARKS / "results").glob("gpu_*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["machine"]["gpu"].startswith("NVIDIA"), path.name
        assert found["machine"]["driver"], path.name
        assert len(found["commit"]) == 7, path.name
        assert found["date"].startswith("20"), path.name


def test_scripts_of_the_page_are_there(report):
    names = set(re.findall(r"`(\w+\.py)`", report.report())) - {"gap_by_rate.py"}  # kept in its commit
    assert len(names) > 20
    assert {name for name in names if not (BENCHMARKS / name).is_file()} == set()


def test_what_the_makefile_runs_is_there():
    makefile, here = (BENCHMARKS.parent / "Makefile").read_text(encoding="utf-8"), BENCHMARKS.parent
    core = re.search(r"^LOWEST_CORE := (.*)$", makefile, re.MULTILINE)[1].split()
    scripts = " ".join(re.findall(r"for name in ([\w ]+);", makefile)).split()
    named = [*(f"tests/tracer/test_{name}.py" for name in core), *(f"benchmarks/{name}.py" for name in scripts)]
    assert core
    assert scripts
    assert [name for name in named if not (here / name).is_file()] == []


def test_what_the_words_of_the_page_say_of_results():
    """That logits are bitwise the same, and that ours and nsys count the same."""
    for name in ("gpu_concurrency", "gpu_pipeline"):
        assert {row["logits_differ"] for row in result(name)["rows"]} == {0}
    assert result("executor_light")["logits_equal"]
    shown = result("traced_passes")["shown"]
    for level in ("graph", "node"):
        assert shown[level]["per_step"] == shown[f"nsys-{level}"]["per_step"]


def test_figures_of_the_readme_are_results():
    """The section on accuracy gives what the files say."""
    text = (BENCHMARKS.parent / "README.md").read_text(encoding="utf-8")
    section = text.split("## How accurate it is")[1].split("\n## ")[0]
    blocks = result("light_blocks")["runs"]
    by_events = [100 * (run["truth"]["told_over_same_block"][0] - 1) for run in blocks if "truth_by" in run]
    vllm = [
        100 * (run["slowdown"][0] - 1) for run in blocks
        if "budget_percent_after_4_ms_of_samples" in run and run["engine"].startswith("vllm") and "H200" in run["gpu"]
    ]  # fmt: skip
    node = [row for row in result("tracing_overhead")["rows"] if (row["by"], row["level"]) == ("nsys", "node")]
    times = [row["idle_us"] / row["truth_us"][0] for row in node]
    whatifs, changes = result("whatif_prediction"), result("advice_check")["summary"]
    for figure in (
        f"{min(by_events):.1f} to {max(by_events):.1f} %", f"{min(vllm):.2f} to {max(vllm):.2f} %",
        f"factor of {min(times):.0f} to {max(times):.0f}", f"{len(whatifs['rows'])} what-ifs",
        f"{whatifs['summary']['median_error_percent']} %",
        f"{changes['predictions']} changes", f"{changes['median_error_percent']:.1f} %",
    ):  # fmt: skip
        assert figure in section, figure


def test_margins_are_those_of_the_measured_cases():
    """The constants are no smaller than what all cases ask for, and the table counts every row once."""
    found = result("whatif_prediction")
    lines = {line["recordings"]: line for line in found["coverage"]}
    names = importlib.import_module("whatif_coverage").GROUPS
    margins = fits_of("NVIDIA H200").margins
    for kind, margin in (
        ("ladder", margins.fewer_calls), ("llama.cpp graph", margins.fewer_calls_graph),
        ("llama.cpp node", margins.fewer_calls_node), ("eager", margins.one_graph),
    ):  # fmt: skip
        line = lines[names[kind]]
        assert line["share"] <= margin.share < line["share"] + 0.01
        assert (line["inside"] + line["outside"], line["programs"]) == (margin.cases, margin.programs)
        assert line["inside"] >= (0.75 if kind == "llama.cpp node" else 0.85) * margin.cases
    *kinds, without = found["coverage"]
    assert sum(line["cases"] for line in kinds) == len(found["rows"])
    assert without["withheld"] == without["cases"] > 0


def test_a_left_out_program_does_not_teach_its_own_margin():
    """One program far off widens the others' margins, not its own."""
    rows = [
        {"kind": "ladder", "run": f"{name} b1", "predicted": {"estimate": 1.1}, "measured": {"median": measured}}
        for name, measured in (("a", 1.1), ("b", 1.12), ("c", 1.3))
    ]
    found = importlib.import_module("whatif_coverage").with_margins(rows)
    assert [row["holds"] for row in found] == [True, True, False]
    assert found[0]["predicted"]["high"] > 1.29
    assert found[2]["predicted"]["high"] < 1.13


def row(advice_check, estimate, low, high, measured):
    return advice_check.judged(
        {"group": "g", "before": "b", "edit": "e", "pass": "light", "results_equal": True, "listed": low is not None,
         "predicted": {"estimate": estimate, "low": low, "high": high},
         "measured": dict(zip(("median", "low", "high"), measured, strict=True))}
    )  # fmt: skip


def test_a_prediction_is_judged_by_sign_error_and_margin():
    advice_check = importlib.import_module("advice_check")
    good = row(advice_check, 1.05, 1.02, 1.08, (1.04, 1.03, 1.05))
    wrong = row(advice_check, 1.05, 1.04, 1.06, (0.97, 0.96, 0.98))
    nothing = row(advice_check, 1.05, None, None, (1.0, 0.98, 1.02))
    assert (good["sign_right"], good["inside"]) == (True, True)
    assert good["error_percent"] == pytest.approx(100 * (1.05 / 1.04 - 1))
    assert (wrong["sign_right"], wrong["inside"]) == (False, False)
    assert nothing["sign_right"] is None
    assert "inside" not in nothing
    found = advice_check.summary([good, wrong, nothing])
    assert (found["predictions"], found["with_margin"], found["inside_margin"]) == (3, 2, 1)
    assert found["wrong_sign"] == ["g b e (light)"]
    assert found["not_told_from_zero"] == ["g b e (light)"]


def test_a_ratio_is_that_of_medians_or_of_neighbours_with_its_interval():
    ratio = importlib.import_module("advice_check").ratio
    found = ratio([110.0, 110.0, 110.0], [100.0, 100.0, 100.0], paired=False)
    assert found == {"median": pytest.approx(1.1), "low": pytest.approx(1.1), "high": pytest.approx(1.1)}
    assert ratio([110.0, 220.0, 55.0], [100.0, 200.0, 50.0], paired=True) == found  # drifting


def test_programs_are_run_recorded_and_compared(tmp_path, monkeypatch):
    advice_check, advice_measure = map(importlib.import_module, ("advice_check", "advice_measure"))
    Build.into(tmp_path)
    program = tmp_path / "program.sh"
    program.write_text(f'#!/bin/sh\n{tmp_path}/decode proc "$1" 100 > /dev/null\necho steps/s $2\necho result same\n')
    program.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    pair = ("fake", "without syncs", r"steps/s (\d+)", f"{program} events 100", f"{program} none 150")
    advice_measure.main(["-o", str(tmp_path / "out"), "--groups", "fake", "--repeats", "2", "--passes", "light",
                         "--pair", *pair])  # fmt: skip
    advice_check.main([str(tmp_path / "out"), "--json", str(tmp_path / "a.json")])
    (found,) = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert found["measured"]["median"] == pytest.approx(1.5)
    assert found["results_equal"] is True
    assert found["predicted"]["estimate"] >= 1
    assert found["rates"] == {"before": [100, 100], "after": [150, 150]}


def test_turns_are_compared_with_their_neighbours():
    """Steps of 1 ms, of 1.1 ms in recorded turns; those that begin early in a turn, or lie in two, do not count."""
    light_turns = importlib.import_module("light_turns")
    since = 10 + 0.03 * np.arange(8)
    on = np.array([False, True, True, False] * 2)
    times = [10.0]
    while times[-1] < since[-1] + 0.03:
        turn = np.searchsorted(since, times[-1] - light_turns.SETTLE_S / 2, side="right") - 1
        times.append(times[-1] + (0.0011 if on[max(turn, 0)] else 0.001))
    found = light_turns.compared([np.array(times[:90]), np.array(times[90:])], since, on)
    assert found["recorded_us"] == pytest.approx([1100] * 4)
    assert found["paused_us"] == pytest.approx([1000] * 4)
    assert found["recorded"] == [1, 2, 5, 6]


def test_the_raw_bytes_of_a_file_are_counted_as_the_reader_does(tmp_path):
    """And a file that no tool of the table wrote, or that holds one kernel less, differs."""
    public_files, truth_of = importlib.import_module("public_files"), importlib.import_module("public_truth").truth_of
    Database(tmp_path / "a.db", hip(3))
    for path, tool, kernels in (
        (export(tmp_path / "a.sqlite"), "Nsight Systems", 2),
        (kineto.write(tmp_path / "a.json", kineto.GPU), "PyTorch's profiler", 4),
        (tmp_path / "a.db", "rocprofv3 (rocpd)", 9),
    ):
        truth, ours = truth_of(path).as_json(), public_files.read_by_us(path)
        assert (truth["tool"], truth["kernels"]) == (tool, kernels)
        assert public_files.differences(truth, ours, {}) == []
        more = truth | {"kernels": kernels + 1}
        assert public_files.differences(more, ours, {}) == [f"kernels: {kernels} for {kernels + 1}"]
    assert truth_of(kineto.write(tmp_path / "other.json", {"a": []})).as_json() == {"tool": "none", "vendor": "none"}
