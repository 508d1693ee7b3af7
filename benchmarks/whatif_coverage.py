"""How many what-ifs lie inside their model margin, whole programs left out one at a time.

The margin of each case comes from the cases of the other programs alone (`tracer.analysis.whatif.margin`); those of
several streams may be as far off as the farthest of the others. Used by `whatif_prediction.py`.
"""

from __future__ import annotations

from math import exp, hypot, log
from statistics import median
from typing import Any, Final

from tracer.analysis.whatif.margin import FLOOR, share_of

Row = dict[str, Any]

STREAMS: Final = "light pass, several streams"
GROUPS: Final = {
    "ladder": "light pass, fewer host calls",
    "sample ladder": "light pass, fewer host calls",
    "branches": STREAMS,
    "sample branches": STREAMS,
    "both": STREAMS,
    "eager": "single launches under a profiler, with the rate, one graph",
    "llama.cpp": "graphs under a profiler, with the rate, fewer host calls",
    "sample traced": "graphs under a profiler, with the rate, fewer host calls",
    "CuPy loop": "graphs under a profiler, with the rate, fewer host calls",
}
"""Kind of a row -> kind of recording and what-if, which has a margin of its own."""

WITHOUT_RATE: Final = "under a profiler, without the rate"


def program(row: Row) -> str:
    """Batches, modes and levels of tracing of a model are one program."""
    if row["kind"].startswith("sample"):
        return "llama-1.1b"
    return str(row["kind"] if row["kind"] in ("llama.cpp", "CuPy loop") else row["run"].split()[0])


def with_margins(rows: list[Row]) -> list[Row]:
    """The rows with low and high of their prediction, and whether it holds what was measured; None is withheld."""
    rows = [row | {"program": program(row), "group": GROUPS[row["kind"]]} for row in rows]
    return [row | _held(row, [r for r in rows if _teaches(r, row)]) for row in rows]


def _teaches(other: Row, row: Row) -> bool:
    return bool(other["group"] == row["group"] and other["program"] != row["program"] and other.get("checked", True))


def _pair(row: Row) -> tuple[float, float]:
    return row["predicted"]["estimate"], row["measured"]["median"]


def _held(row: Row, others: list[Row]) -> Row:
    estimate, measured = _pair(row)
    if not row.get("checked", True):
        return {"predicted": {"estimate": estimate}, "holds": None}
    if row["group"] == STREAMS:
        half = max(abs(log(m / p)) for p, m in map(_pair, others))
    else:
        half = share_of([_pair(other) for other in others]) * (FLOOR + abs(log(estimate)))
    below, above = (hypot(half, part) for part in row.get("of_steps", (0.0, 0.0)))
    low, high = estimate * exp(-below), estimate * exp(above)
    found = {"estimate": estimate, "low": round(low, 4), "high": round(high, 4)}
    return {"predicted": found, "holds": low <= measured <= high}


def coverage(rows: list[Row]) -> list[Row]:
    """One line per kind of recording, and the share of all cases that a margin of today's constants is from."""
    lines = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        said = [row for row in mine if row["holds"] is not None]
        widths = [(row["predicted"]["high"] - row["predicted"]["low"]) * 100 for row in said]
        lines.append({
            "recordings": group, "programs": len({row["program"] for row in mine}), "cases": len(mine),
            "inside": sum(row["holds"] for row in said), "outside": sum(not row["holds"] for row in said),
            "withheld": len(mine) - len(said), "median_width_percent": round(median(widths), 1),
            "share": round(share_of([_pair(row) for row in said]), 3),
            "largest_error": round(max(abs(log(m / p)) for p, m in map(_pair, said)), 4),
        })  # fmt: skip
    traced = [row for row in rows if "profiler" in row["group"]]
    programs = len({row["program"] for row in traced})
    none = {"inside": 0, "outside": 0, "withheld": len(traced), "median_width_percent": None}
    return [*lines, {"recordings": WITHOUT_RATE, "programs": programs, "cases": len(traced), **none}]
