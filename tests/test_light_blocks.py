"""The benchmarks that run an engine in blocks: how they compare."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def test_turns_are_compared_with_their_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 1 ms, of 1.1 ms in recorded turns; those that begin early in a turn, or lie in two, do not count."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
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
