"""A comparison in one sentence: what it says in every case, and that its figures are those of the table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from tracer.analysis.comparable import Refusal
from tracer.analysis.interval import Interval
from tracer.analysis.sides import COLUMNS, no_kernels
from tracer.reporting.compare_words import sentence

NOTHING = Interval(0.0, -1.0, 1.0)


def run(name: str, gap: float, **recording: Any) -> Any:
    facts = {"traced": False, "inflated": False, "graph_trace": "graph", "distortion": 1.0} | recording
    return SimpleNamespace(name=name, gap_us={"p50": gap}, recordings=(SimpleNamespace(**facts),))


def found(base: Any, other: Any, **figures: Any) -> Any:
    change = other.gap_us["p50"] - base.gap_us["p50"]
    causes = dict.fromkeys(("sync", "copy", "launch", "host"), NOTHING) | figures.pop("causes", {})
    facts = {
        "basis": "untraced", "rate": "tokens/s", "method": "Welch's t", "verdict": "faster", "needed": None,
        "unit": "repeats",
        "speedup": Interval(1.014, 1.011, 1.017), "gap_us": Interval(change, change - 2, change + 2),
        "mean_gap_us": Interval(change, change - 2, change + 2), "busy_us": NOTHING, "counts": {}, "refusal": None,
        "kernels": no_kernels(),
    }  # fmt: skip
    return SimpleNamespace(base=base, other=other, causes_us=causes, **(facts | figures))


def shown(change: float) -> Interval:
    return Interval(change, change - 0.5, change + 0.5)


TRACED = {"traced": True, "inflated": True}
COUNTS = {"syncs": -9.0, "copies": 0.0, "launches": 0.0}
A, B = run("sccc", 77.0), run("saaas", 60.0)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        (
            found(A, B, causes={"sync": shown(-12.0)}, counts=COUNTS),
            "saaas is faster than sccc: gap from 77.0 to 60.0 µs (−22 %; untraced), because of 9 fewer syncs "
            "(sync −12.0 µs); tokens/s +1.4 % [+1.1, +1.7], untraced",
        ),
        (
            found(B, A, verdict="slower", speedup=Interval(0.986, 0.98, 0.99), causes={"sync": shown(12.0)},
                  counts={"syncs": 1.0}),
            "sccc is slower than saaas: gap from 60.0 to 77.0 µs (+28 %; untraced), because of 1 more sync "
            "(sync +12.0 µs); tokens/s −1.4 % [−2.0, −1.0], untraced",
        ),
        (
            found(A, run("same", 77.2), verdict="no difference shown", speedup=Interval(1.0, 0.99, 1.01), needed=1234,
                  unit="steps"),
            "same against sccc: no difference shown: tokens/s ±0.0 % [−1.0, +1.0], untraced; about 1,234 steps per run "
            "would show an effect of that size (80% power); gap from 77.0 to 77.2 µs (no difference shown; untraced)",
        ),
        (
            found(A, B, verdict="no interval", speedup=Interval(1.2), method="only 2 periods", gap_us=Interval(-17.0)),
            "saaas against sccc: tokens/s +20.0 %, untraced (only 2 periods, so no interval can be given); gap "
            "from 77.0 to 60.0 µs (no interval; untraced)",
        ),
        (
            found(run("a", 78.1, traced=True), run("b", 58.0, traced=True, distortion=1.2),
                  causes={"sync": shown(-5.0), "launch": shown(-15.0)}, counts=COUNTS),
            "b is faster than a: gap from 78.1 to 58.0 µs (−26 %; untraced, from the rate, tracing overhead × 1.00 "
            "and 1.20), most of it launch (−15.0 µs, in the same number of launches), with 9 fewer syncs; tokens/s "
            "+1.4 % [+1.1, +1.7], untraced",
        ),
        (
            found(run("a", 150.0, **TRACED, distortion=1.05), run("b", 30.0, **TRACED, distortion=None), basis="traced",
                  speedup=Interval(2.0, 1.1, 2.4), busy_us=shown(-900.0), gap_us=None, mean_gap_us=None, counts=COUNTS),
            "b is faster than a: GPU busy −900.0 µs per token; gaps of 150.0 and 30.0 µs, not comparable (as traced, "
            "tracing overhead × 1.05 and unknown); tokens/s +100.0 % [+10.0, +140.0], as traced, "
            "tracing overhead × 1.05 and unknown",
        ),
        (
            found(run("a", 78.1, traced=True, distortion=1.05), run("b", 22.0, traced=True, graph_trace="node",
                  distortion=1.22), gap_us=None, mean_gap_us=None, counts=COUNTS),
            "b is faster than a: gaps of 78.1 and 22.0 µs, not comparable (untraced, from the rate, tracing "
            "overhead × 1.05 against untraced, estimated, tracing overhead × 1.22); tokens/s +1.4 % "
            "[+1.1, +1.7], untraced",
        ),
        (
            found(run("a", 64.0, traced=True, graph_trace="node"), run("b", 46.2, traced=True, graph_trace="node")),
            "b is faster than a: gap from 64.0 to 46.2 µs (−17.8 µs; untraced, estimated, tracing overhead × 1.00); "
            "tokens/s +1.4 % [+1.1, +1.7], untraced",
        ),
        (
            found(run("a", 354.9, **TRACED), run("b", 310.0, **TRACED), basis="traced", verdict="no verdict",
                  speedup=None, gap_us=None, mean_gap_us=None, counts=COUNTS, refusal=Refusal("why", "do this"),
                  kernels=pd.DataFrame([{"name": "k", "verdict": "slower"}, {"name": "CUDA graph"}], columns=COLUMNS)),
            "b against a: no verdict: why; what is known: 9 fewer syncs, same number of copies, same number of "
            "launches, GPU busy ±0.0 [−1.0, +1.0] µs per token, 1 of 1 kernels with a different duration per call; "
            "for a verdict, do this",
        ),
        (
            found(A, B, verdict="no verdict", refusal=Refusal("compared by force", "do this"), busy_us=None),
            "saaas against sccc: no verdict: compared by force; what is known: tokens/s +1.4 % [+1.1, +1.7], "
            "untraced; for a verdict, do this",
        ),
        (
            found(A, B, verdict="no verdict", refusal=Refusal("other phases", "do this"), speedup=None, busy_us=None),
            "saaas against sccc: no verdict: other phases; for a verdict, do this",
        ),
        (
            found(A, run("ggg", 0.0), causes={"sync": shown(-40.0), "copy": shown(-12.0), "host": shown(-18.0)},
                  counts={"syncs": -8.0, "copies": -7.0, "launches": 0.0}),
            "ggg is faster than sccc: gap from 77.0 to 0.0 µs (−100 %; untraced), because of 8 fewer syncs (sync −40.0 "
            "µs) and 7 fewer copies (copy −12.0 µs); tokens/s +1.4 % [+1.1, +1.7], untraced",
        ),
        (
            found(A, B, causes={"host": shown(-5.0), "sync": shown(3.0)}, counts={"syncs": 2.0}),
            "saaas is faster than sccc: gap from 77.0 to 60.0 µs (−22 %; untraced), most of all host (−5.0 µs), with 2 "
            "more syncs; tokens/s +1.4 % [+1.1, +1.7], untraced",
        ),
        (
            found(run("a", 0.0), run("b", 0.4), gap_us=NOTHING, busy_us=shown(-15.9)),
            "b is faster than a: GPU busy −15.9 µs per token; gap from 0.0 to 0.4 µs (no difference shown; untraced); "
            "tokens/s +1.4 % [+1.1, +1.7], untraced",
        ),
    ],
)  # fmt: skip
def test_the_sentence(comparison: Any, words: str) -> None:
    assert sentence(comparison) == words
