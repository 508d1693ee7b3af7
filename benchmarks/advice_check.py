"""Checks advice: what `intertoken advise` predicts of changes, beside what they gained (`advice_measure.py`).

The gain is the median of the ratios of turns that are neighbours, or the ratio of the medians where before and after
are one process each, with its 95 % bootstrap interval, which in the latter case does not know how processes differ.
Advice is given from every pass that was recorded, with the rate without recording of the same process; of several
recordings of one program the median is taken, and all are kept. A program that prints its result must print the same
before and after the change.

Usage: python benchmarks/advice_check.py DIR... [--json FILE]        no GPU needed
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from gpu_machine import commit

ROOT: Final = Path(__file__).absolute().parents[1]
Row = dict[str, Any]


def advised(trace: Path, rate: float) -> dict[str, Any]:
    """What `intertoken advise --json` prints of a recording, or {"problem": ...}."""
    command = [sys.executable, "-m", "intertoken", "advise", str(trace), "--untraced-tokens-per-s", f"{rate:g}"]
    command += ["--json"]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        return {"problem": done.stderr.strip()[-300:]}
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def predicted(facts: dict[str, Any], edit: str) -> Row:
    """What advice says of an edit: its speed-up, whether it is listed, or why there is none."""
    for listed in ("advice", "unsure"):
        for one in facts.get(listed, ()):
            if one["edit"] == edit:
                return {"predicted": one["speedup"], "listed": listed == "advice"}
    refused = {one["edit"]: one["why"] for why in ("refused", "withheld") for one in facts.get(why, ())}
    why = facts.get("problem") or refused.get(edit) or "this recording does not allow the edit"
    return {"predicted": None, "listed": False, "why": why}


def ratio(after: Sequence[float], before: Sequence[float], *, paired: bool) -> dict[str, float]:
    """How much faster it became, with its 95 % bootstrap interval; `paired` if rates of the same place belong together,
    as neighbours in time."""
    draw = np.random.default_rng(0)
    if paired:
        ratios = np.array(after) / np.array(before)
        medians = np.median(draw.choice(ratios, (10_000, len(ratios))), axis=1)
        found = np.median(ratios)
    else:
        of_each = [np.median(draw.choice(rates, (10_000, len(rates))), axis=1) for rates in (after, before)]
        medians, found = of_each[0] / of_each[1], np.median(after) / np.median(before)
    low, high = np.quantile(medians, (0.025, 0.975))
    return {"median": float(found), "low": float(low), "high": float(high)}


def judged(row: Row) -> Row:
    """Add error, sign and whether the measured gain is inside the margin; the sign is None where none is measured."""
    found, measured = row["predicted"], row["measured"]
    if found is None:
        return row
    shown = not measured["low"] <= 1 <= measured["high"]
    row["error_percent"] = 100 * (found["estimate"] / measured["median"] - 1)
    row["sign_right"] = (found["estimate"] > 1) == (measured["median"] > 1) if shown else None
    if found["low"] is not None:  # two intervals: they agree where they overlap
        row["inside"] = found["low"] <= measured["high"] and measured["low"] <= found["high"]
    return row


def checked(folder: Path) -> Iterator[Row]:
    """The rows of what was measured in a folder."""
    for change in json.loads((folder / "measured.json").read_text(encoding="utf-8"))["changes"]:
        rates, results = change["rates"], change["results"]
        known = all(results.values())
        row = {name: change.get(name) for name in ("group", "before", "after", "edit", "paired", "rates", "recorded")}
        row |= {
            "measured": ratio(rates["after"], rates["before"], paired=change["paired"]),
            "results_equal": len({*results["before"], *results["after"]}) == 1 if known else None,
        }
        for level, paths in change["recordings"].items():
            found = [
                predicted(advised(folder / path, rate), change["edit"])
                for path, rate in zip(paths, _rates(rates["before"], len(paths)), strict=True)
            ]
            yield judged({**row, "pass": level} | _middle(found))


def _rates(before: Sequence[float], recordings: int) -> list[float]:
    """The rate of the process of each recording: its own if each process gave one rate, else the median of all."""
    return list(before) if recordings > 1 else [statistics.median(before)] * recordings


def _middle(found: list[Row]) -> Row:
    """The median prediction of several recordings, with all estimates; or why there is none."""
    known = sorted((row for row in found if row["predicted"]), key=lambda row: row["predicted"]["estimate"])
    if not known:
        return found[0] if found else {"predicted": None, "listed": False, "why": "nothing was recorded"}
    return known[(len(known) - 1) // 2] | {"estimates": [row["predicted"]["estimate"] for row in known]}


def summary(rows: list[Row]) -> Row:
    """What the rows say together."""
    errors = [abs(row["error_percent"]) for row in rows if "error_percent" in row]
    inside = [row["inside"] for row in rows if "inside" in row]
    unknown = [_name(row) for row in rows if "error_percent" in row and row["sign_right"] is None]
    wrong = [_name(row) for row in rows if row.get("sign_right") is False]
    return {
        "predictions": len(errors),
        "not_predicted": sum(row["predicted"] is None for row in rows),
        "median_error_percent": round(statistics.median(errors), 2) if errors else None,
        "largest_error_percent": round(max(errors), 2) if errors else None,
        "wrong_sign": wrong,
        "not_told_from_zero": unknown,
        "with_margin": len(inside),
        "inside_margin": sum(inside),
        "results_differ": sorted({row["group"] for row in rows if row["results_equal"] is False}),
    }  # fmt: skip


def _name(row: Row) -> str:
    return f"{row['group']} {row['before']} {row['edit']} ({row['pass']})"


def line(row: Row) -> str:
    """A row of the table."""
    found, measured = row["predicted"], row["measured"]
    said = row.get("why", "")[:70]
    if found is not None:
        margin = "no margin" if found["low"] is None else f"[{found['low']:.3f}, {found['high']:.3f}]"
        said = f"{found['estimate']:.4f} {margin:16} {row['error_percent']:+6.2f} %"
        said += "" if row["listed"] else "  not listed"
        said += "  WRONG SIGN" if row["sign_right"] is False else ""
        said += "  gain not distinguishable from zero" if row["sign_right"] is None else ""
        said += "  OUTSIDE" if row.get("inside") is False else ""
    said += "  RESULTS DIFFER" if row["results_equal"] is False else ""
    gain = f"{measured['median']:.4f} [{measured['low']:.3f}, {measured['high']:.3f}]"
    return f"{row['group']:16} {row['before']:12} {row['edit']:44} {row['pass']:6} measured {gain}  predicted {said}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of advice_measure.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for folder in options.folders:
        for row in checked(folder):
            print(line(row), flush=True)
            rows.append(row)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    if options.json:
        machines = [json.loads((folder / "measured.json").read_text(encoding="utf-8")) for folder in options.folders]
        measured = [{name: each.get(name) for name in ("date", "gpu", "driver", "commit")} for each in machines]
        content = {"benchmark": "advice_check", "measured": measured, "predicted_at": commit(), "summary": found,
                   "rows": rows}  # fmt: skip
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
