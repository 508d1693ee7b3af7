"""Counts the what-ifs inside their model margin, with whole programs left out one at a time.

The margin of each case comes only from the cases of other programs (`tracer.model.fits.Margin`).
Used by `whatif_prediction.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, hypot, log
from statistics import median
from typing import Any, Final

from tracer.model.fits import fits_of

Row = dict[str, Any]

LIGHT: Final = "light pass, fewer host calls"
GRAPH: Final = "whole graphs under a profiler, with the rate, fewer host calls"
NODE: Final = "every kernel under a profiler, with the rate, fewer host calls"
EAGER: Final = "single launches under a profiler, with the rate, one graph"
GROUPS: Final = {
    "ladder": LIGHT, "sample ladder": LIGHT, "changed, light": LIGHT,
    "llama.cpp graph": GRAPH, "changed, graph": GRAPH,
    "llama.cpp node": NODE, "sample traced": NODE, "CuPy loop": NODE,
    "eager": EAGER,
}  # fmt: skip
"""Maps the kind of a row to the kind of recording and what-if, each of which has its own margin."""

WITHOUT_RATE: Final = "under a profiler, without the rate"


def program(row: Row) -> str:
    """Return the program of a row: all batches, modes and tracing levels of a model are one program."""
    if row["kind"].startswith("sample"):
        return "llama-1.1b"
    if row["kind"].startswith("llama.cpp"):
        return "llama.cpp"
    return str(row["kind"] if row["kind"] == "CuPy loop" else row["run"].split()[0])


GPU: Final = "NVIDIA H200"
_LEVEL: Final = 0.95


def with_margins(rows: list[Row]) -> list[Row]:
    """Add low and high of each prediction, and whether it holds the measurement; None means withheld."""
    rows = [row | {"program": program(row), "group": GROUPS[row["kind"]]} for row in rows]
    return [row | _held(row, [r for r in rows if _teaches(r, row)]) for row in rows]


def _teaches(other: Row, row: Row) -> bool:
    return bool(other["group"] == row["group"] and other["program"] != row["program"] and other.get("checked", True))


def _pair(row: Row) -> tuple[float, float]:
    return row["predicted"]["estimate"], row["measured"]["median"]


def share_of(cases: Sequence[tuple[float, float]], floor: float) -> float:
    """The share that covers these cases (predicted, measured speed-up); the largest one if there are few cases."""
    found = sorted(abs(log(measured / predicted)) / (floor + abs(log(predicted))) for predicted, measured in cases)
    return found[min(ceil((len(found) + 1) * _LEVEL), len(found)) - 1]


def _held(row: Row, others: list[Row]) -> Row:
    estimate, measured = _pair(row)
    if not row.get("checked", True):
        return {"predicted": {"estimate": estimate}, "holds": None}
    floor = fits_of(GPU).margins.floor
    half = share_of([_pair(other) for other in others], floor) * (floor + abs(log(estimate)))
    below, above = (hypot(half, part) for part in row.get("of_steps", (0.0, 0.0)))
    low, high = estimate * exp(-below), estimate * exp(above)
    found = {"estimate": estimate, "low": round(low, 4), "high": round(high, 4)}
    return {"predicted": found, "holds": low <= measured <= high}


def coverage(rows: list[Row]) -> list[Row]:
    """Return one line per kind of recording, with the share and largest error of all its cases."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        of_group = [row for row in rows if row["group"] == group]
        with_margin = [row for row in of_group if row["holds"] is not None]
        widths = [(row["predicted"]["high"] - row["predicted"]["low"]) * 100 for row in with_margin]
        lines.append({
            "recordings": group, "programs": len({row["program"] for row in of_group}), "cases": len(of_group),
            "inside": sum(row["holds"] for row in with_margin), "outside": sum(not row["holds"] for row in with_margin),
            "withheld": len(of_group) - len(with_margin), "median_width_percent": round(median(widths), 1),
            "share": round(share_of([_pair(row) for row in with_margin], fits_of(GPU).margins.floor), 3),
            "largest_error": round(max(abs(log(m / p)) for p, m in map(_pair, with_margin)), 4),
        })  # fmt: skip
    traced = [row for row in rows if "profiler" in row["group"]]
    programs = len({row["program"] for row in traced})
    none = {"inside": 0, "outside": 0, "withheld": len(traced), "median_width_percent": None}
    return [*lines, {"recordings": WITHOUT_RATE, "programs": programs, "cases": len(traced), **none}]
