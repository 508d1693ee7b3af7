"""The page of measured tables says what the files of results say."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tracer.model.fits import fits_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch):
    """Scripts import each other by name, as where one of them is run."""
    monkeypatch.syspath_prepend(BENCHMARKS)


@pytest.fixture
def report():
    return script("report")


def test_the_page_is_written_from_the_results(report):
    assert report.TARGET.read_text(encoding="utf-8") == report.report(), "run `python benchmarks/report.py`"


def test_every_result_names_its_commit_and_machine():
    for path in (BENCHMARKS / "results").glob("gpu_*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["machine"]["gpu"].startswith("NVIDIA"), path.name
        assert found["machine"]["driver"], path.name
        assert len(found["commit"]) == 7, path.name
        assert found["date"].startswith("20"), path.name


def test_the_page_is_one_of_results(report):
    """A paragraph and a table for each topic, and no more words than one reads."""
    head, *sections = report.report().split("\n## ")
    for section in sections:
        title, paragraph, table = section.strip().split("\n\n")
        assert len({line.count(" | ") for line in table.splitlines()}) == 1, title
        assert len(paragraph.split()) < 130, title
    assert len(head.split()) < 100
    assert len(report.report().split()) <= 5000


def test_scripts_of_the_page_are_there(report):
    names = set(re.findall(r"`(\w+\.py)`", report.report())) - {"gap_by_rate.py"}  # kept in its commit
    assert len(names) > 20
    assert {name for name in names if not (BENCHMARKS / name).is_file()} == set()


def result(name):
    return json.loads((BENCHMARKS / "results" / f"{name}.json").read_text(encoding="utf-8"))


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
    names = script("whatif_coverage").GROUPS
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
    found = script("whatif_coverage").with_margins(rows)
    assert [row["holds"] for row in found] == [True, True, False]
    assert found[0]["predicted"]["high"] > 1.29
    assert found[2]["predicted"]["high"] < 1.13
