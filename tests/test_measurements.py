"""The page of measured tables says what the files of results say."""

import importlib.util
import json
from pathlib import Path

import pytest

from tracer.analysis.fits import fits_of

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


def test_differences_of_logits_are_not_hidden(report):
    assert report.logits([{"logits_differ": 0.0}]) == "Their logits are bitwise equal."
    assert "at most 0.003" in report.logits([{"logits_differ": 0.0}, {"logits_differ": 0.003}])


def test_margins_are_those_of_the_measured_cases():
    """The constants are no smaller than what all cases ask for, and the table counts every row once."""
    found = json.loads((BENCHMARKS / "results" / "whatif_prediction.json").read_text())
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


def cell(strategy, speedup, saved, host, policy="eager"):
    """A row of gpu_hybrid; its base has a speed-up of 1 by definition."""
    interval = dict(zip(("low", "median", "high"), speedup, strict=True))
    given = {"placement": "50", "splits": 2, "strategy": strategy, "policy": policy, "logits_differ": 0.0,
             "tokens_per_s": {"median": 100.0}, "over_sccc": interval, "over_eager": interval}  # fmt: skip
    spans = {"saved_us_over_sccc": saved, "host_saved_us_over_sccc": host}
    spans = {name: dict(zip(("low", "median", "high"), span, strict=True)) for name, span in spans.items()}
    times = {"both": 0, "host": 9000, "gpu": 500, "sync": 200, "copy": 100, "launch": 50, "other": 150}
    return given | spans | {"us": {state: {"median": us} for state, us in times.items()}}


def test_a_speedup_that_holds_one_is_explained_and_others_are_not():
    hybrid = script("report_hybrid")
    base, lost, small, gain = (
        cell("sccc", (1, 1, 1), (0, 0, 0), (0, 0, 0)),
        cell("saaas", (0.98, 1.0, 1.02), (-5, 2, 9), (-80, 3, 90)),
        cell("aaas", (0.98, 1.0, 1.02), (30, 40, 50), (-80, 3, 300)),
        cell("aaag", (1.02, 1.03, 1.04), (200, 300, 400), (-8, 3, 9)),
    )
    told, lines = hybrid.hidden("a token", [base, lost, small, gain])
    assert "in µs of a token" in told
    rows = lines.splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["`saaas`", "`aaas`"]
    assert "the saving cannot be distinguished from zero" in rows[0]
    assert "0.40% is saved; the host's own time differs by up to 3.0%" in rows[1]
    assert list(hybrid.hidden("a token", [base, gain])) == []
    assert hybrid.where(gain["us"]) == "90.0%, 5.0%, 5.0%"


def test_claims_count_cells_by_their_intervals():
    hybrid = script("report_hybrid")
    of = {"saaas": ((1.01, 1.02, 1.03), (0.9, 1.5, 2.0)), "aaag": ((0.9, 0.95, 0.99),)}
    rows = [cell(name, each, (1, 2, 3), (0, 0, 0)) for name, speedups in of.items() for each in speedups]
    _, lines = hybrid.upstream({"rows": rows})
    saaas, aaag = lines.splitlines()[2:]
    assert "gains in some | 1, 0 of 2 | 1.020 [1.010, 1.030]" in saaas
    assert "no gain shown | 0, 1 of 1" in aaag


def test_every_fault_of_the_mutation_script_can_still_be_made():
    """Each changes a text that stands once in one module, so that code that moved on is noticed."""
    for suite in script("covering_mutants").SUITES.values():
        for mutant in suite.mutants:
            text = mutant.path(BENCHMARKS.parent / suite.package).read_text(encoding="utf-8")
            assert text.count(mutant.before) == 1, mutant
