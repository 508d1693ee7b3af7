"""The page of measured tables says what the files of results say."""

import importlib.util
import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def report():
    spec = importlib.util.spec_from_file_location("report", BENCHMARKS / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    assert report.logits([{"logits_differ": 0.0}]) == "Their logits are equal bit by bit."
    assert "at most 0.003" in report.logits([{"logits_differ": 0.0}, {"logits_differ": 0.003}])
