"""The benchmarks that check advice: what they make of predictions and rates, and one whole round over fake programs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from tests.tracer.fake_driver import Build

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def loaded(name):
    """A benchmark as a module, which finds the others beside it."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


advice_check, advice_measure = loaded("advice_check"), loaded("advice_measure")


def row(estimate, low, high, measured):
    return advice_check.judged(
        {"group": "g", "before": "b", "edit": "e", "pass": "light", "results_equal": True, "listed": low is not None,
         "predicted": {"estimate": estimate, "low": low, "high": high},
         "measured": dict(zip(("median", "low", "high"), measured, strict=True))}
    )  # fmt: skip


def test_a_prediction_is_judged_by_sign_error_and_margin():
    good, wrong, nothing = (
        row(1.05, 1.02, 1.08, (1.04, 1.03, 1.05)), row(1.05, 1.04, 1.06, (0.97, 0.96, 0.98)),
        row(1.05, None, None, (1.0, 0.98, 1.02)),
    )  # fmt: skip
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
    found = advice_check.ratio([110.0, 110.0, 110.0], [100.0, 100.0, 100.0], paired=False)
    assert found == {"median": pytest.approx(1.1), "low": pytest.approx(1.1), "high": pytest.approx(1.1)}
    drifting = advice_check.ratio([110.0, 220.0, 55.0], [100.0, 200.0, 50.0], paired=True)
    assert drifting == found


def test_of_several_recordings_the_median_prediction_counts():
    found = [advice_check.predicted({"unsure": [{"edit": "a", "speedup": {"estimate": each}}]}, "a")
             for each in (1.3, 1.1, 1.2)]  # fmt: skip
    middle = advice_check._middle([*found, advice_check.predicted({}, "a")])
    assert (middle["predicted"]["estimate"], middle["estimates"]) == (1.2, [1.1, 1.2, 1.3])
    assert advice_check._middle([])["why"] == "nothing was recorded"


def test_what_advice_says_of_an_edit():
    speedup = {"estimate": 1.1, "low": None, "high": None}
    facts = {"advice": [], "unsure": [{"edit": "a", "speedup": speedup}], "refused": [{"edit": "b", "why": "needed"}]}
    assert advice_check.predicted(facts, "a") == {"predicted": speedup, "listed": False}
    assert advice_check.predicted(facts, "b")["why"] == "needed"
    assert "does not allow" in advice_check.predicted(facts, "c")["why"]


def test_programs_are_run_recorded_and_compared(tmp_path, monkeypatch):
    Build.compile(tmp_path)
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
