"""Checks advice: applies the change that `intertoken advise` predicts, and compares predicted and measured gain.

Each program is recorded as `intertoken record --passes` does, and advised from every pass, with the rate of its runs
without a recorder. Programs of a group run alternately without a recorder, `--repeats` times each; the gain is the
ratio of their medians with its 95 % bootstrap interval. A program that prints `result TEXT` must print the same before
and after the change.

loops: seven loops of `advice_loops.py` (PyTorch, transformers); llama.cpp: `llama-bench` with LCPP_SYNC (needs a build
that knows it, `--llama-bench`, and `--model FILE.gguf`); vllm: asynchronous scheduling, full and piecewise graphs
(`record_engines.py`); any other pair with `--pair`.

Usage: python benchmarks/advice_check.py -o DIR [--groups NAME,...] [--repeats 5] [--passes light,graph] [--json FILE]
           [--llama-bench PATH --model FILE] [--pair NAME EDIT RATE_REGEX BEFORE AFTER]            needs a GPU
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

HERE: Final = Path(__file__).absolute().parent
LIMIT_S: Final = 400  # per run
READ_LATER: Final = "device sampling, results read a step later"
LOOP_EDITS: Final = {
    "needless-sync": "without syncs", "pageable-copies": "aaag", "host-sampling": "ggg", "eager": "one graph launch",
    "dynamic-cache": "one graph launch", "late-launch": "host work behind the launch",
    "many-copies": "input copies merged",
}  # fmt: skip
Row = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A command that prints its rate (steps/s; of several the first is a warm-up), and maybe its result."""

    command: Sequence[str]
    rate: str
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, before: Sequence[str] = ()) -> tuple[float, str | None]:
        """Run it, behind `before`; return steps/s and the printed result.

        Raises:
            RuntimeError: it fails, or prints no rate.
        """
        command = [*before, *self.command]
        path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, **self.environment}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise RuntimeError(f"{shlex.join(command)}: {problem}") from None
        rates = [float(found) for found in re.findall(self.rate, done.stdout)]
        if done.returncode or not rates:
            raise RuntimeError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr[-800:]}")
        result = re.search(r"^result (.*)$", done.stdout, re.MULTILINE)
        return statistics.median(rates[1:] or rates), result and result.group(1)


@dataclass(frozen=True)
class Group:
    """Programs that run alternately, and what is advised: (program before, edit, program after)."""

    name: str
    programs: dict[str, Program]
    changes: tuple[tuple[str, str, str], ...]


def groups(options: argparse.Namespace) -> Iterator[Group]:
    """The groups that can run here."""
    python = sys.executable
    for loop, edit in LOOP_EDITS.items():
        command = [python, str(HERE / "advice_loops.py"), loop, *shlex.split(options.loop_options)]
        programs = {"before": command, "after": [*command, "--changed"]}
        made = {name: Program(each, r"steps/s ([\d.]+)") for name, each in programs.items()}
        yield Group(loop, made, (("before", edit, "after"),))
    if options.llama_bench and options.model:
        command = [options.llama_bench, "-m", options.model, "-p", "0", "-n", "256", "-r", "5", "-ngl", "99"]
        rate = r'"avg_ts": ([\d.]+)'
        strategies = {name: Program([*command, "-o", "json"], rate, {"LCPP_SYNC": name})
                      for name in ("sccc", "saaas", "aaag")}  # fmt: skip
        changes = (("sccc", "saaas", "saaas"), ("sccc", "aaag", "aaag"), ("saaas", "aaag", "aaag"))
        yield Group("llama.cpp", strategies, changes)
    yield vllm(options.output)
    for name, edit, rate, before, after in options.pair:
        made = {"before": Program(shlex.split(before), rate), "after": Program(shlex.split(after), rate)}
        yield Group(name, made, (("before", edit, "after"),))


def vllm(output: Path) -> Group:
    """One process, so that a profiler within it sees the work; asynchronous scheduling and the kind of graphs vary."""

    def program(asynchronous: bool, graphs: str) -> Program:
        engine = {"async_scheduling": asynchronous, "cudagraph_mode": graphs}
        command = [sys.executable, str(HERE / "record_engines.py"), "vllm", "-o", str(output / "vllm"), "--name",
                   "run", "--cases", "b1", "--repeats", "5", "--steps", "256", "--engine-options",
                   json.dumps(engine)]  # fmt: skip
        environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        return Program(command, r"decode steps/s ([\d.]+)", environment)

    programs = {
        "full": program(True, "FULL_AND_PIECEWISE"),
        "synchronous": program(False, "FULL_AND_PIECEWISE"),
        "piecewise": program(True, "PIECEWISE"),
    }
    return Group(
        "vllm",
        programs,
        (
            ("synchronous", READ_LATER, "full"),
            ("piecewise", "one graph launch", "full"),
        ),
    )


def advised(program: Program, folder: Path, passes: str, rate: float) -> dict[str, dict[str, Any]]:
    """Record a program; return for each pass what `intertoken advise --json` prints, or {"problem": ...}."""
    intertoken = [sys.executable, "-m", "intertoken"]
    found: dict[str, dict[str, Any]] = {}
    try:
        program.run([*intertoken, "record", "-o", str(folder), "--passes", passes, "--force", "--"])
    except RuntimeError as problem:
        print(f"  {problem}", file=sys.stderr)
    for level in passes.split(","):
        trace = folder if level == passes.split(",")[0] else folder / level
        command = [*intertoken, "advise", str(trace), "--untraced-tokens-per-s", f"{rate:g}", "--json"]
        path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        found[level] = json.loads(done.stdout) if done.returncode == 0 else {"problem": done.stderr.strip()[-300:]}
    return found


def predicted(facts: dict[str, Any], edit: str) -> Row:
    """What advice says of an edit: its speed-up, whether it is listed, or why there is none."""
    for listed in ("advice", "unsure"):
        for one in facts.get(listed, ()):
            if one["edit"] == edit:
                return {"predicted": one["speedup"], "listed": listed == "advice"}
    refused = {one["edit"]: one["why"] for one in facts.get("refused", ())}
    why = facts.get("problem") or refused.get(edit) or "this recording does not allow the edit"
    return {"predicted": None, "listed": False, "why": why}


def ratio(after: Sequence[float], before: Sequence[float]) -> dict[str, float]:
    """Ratio of the medians, with its 95 % bootstrap interval."""
    draw = np.random.default_rng(0)
    medians = [np.median(draw.choice(rates, (10_000, len(rates))), axis=1) for rates in (after, before)]
    low, high = np.quantile(medians[0] / medians[1], (0.025, 0.975))
    return {"median": float(np.median(after) / np.median(before)), "low": float(low), "high": float(high)}


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


def checked(group: Group, options: argparse.Namespace) -> list[Row]:
    """Measure the programs of a group alternately, record those that advice is for, and compare."""
    rates: dict[str, list[float]] = {name: [] for name in group.programs}
    results: dict[str, set[str | None]] = {name: set() for name in group.programs}
    for repeat in range(options.repeats):
        for name in list(group.programs)[:: -1 if repeat % 2 else 1]:
            rate, result = group.programs[name].run()
            rates[name].append(rate)
            results[name].add(result)
    rows = []
    for before in dict.fromkeys(before for before, _, _ in group.changes):
        folder = options.output / f"{group.name}-{before}"
        facts = advised(group.programs[before], folder, options.passes, statistics.median(rates[before]))
        for _, edit, after in (change for change in group.changes if change[0] == before):
            equal = None if None in results[before] | results[after] else results[before] == results[after]
            for level, advice in facts.items():
                row = {"group": group.name, "before": before, "after": after, "edit": edit, "pass": level,
                       "measured": ratio(rates[after], rates[before]), "results_equal": equal,
                       "rates": {"before": rates[before], "after": rates[after]}}  # fmt: skip
                rows.append(judged(row | predicted(advice, edit)))
    return rows


def summary(rows: list[Row]) -> Row:
    """What the rows say together."""
    errors = [abs(row["error_percent"]) for row in rows if "error_percent" in row]
    inside = [row["inside"] for row in rows if "inside" in row]
    wrong = [f"{row['group']} {row['edit']} ({row['pass']})" for row in rows if row.get("sign_right") is False]
    return {
        "predictions": len(errors),
        "not_predicted": sum(row["predicted"] is None for row in rows),
        "median_error_percent": round(statistics.median(errors), 2) if errors else None,
        "largest_error_percent": round(max(errors), 2) if errors else None,
        "wrong_sign": wrong,
        "with_margin": len(inside),
        "inside_margin": sum(inside),
        "results_differ": sorted({row["group"] for row in rows if row["results_equal"] is False}),
    }  # fmt: skip


def line(row: Row) -> str:
    """A row of the table."""
    found, measured = row["predicted"], row["measured"]
    said = row.get("why", "")[:70]
    if found is not None:
        margin = "no margin" if found["low"] is None else f"[{found['low']:.3f}, {found['high']:.3f}]"
        said = f"{found['estimate']:.4f} {margin:16} {row['error_percent']:+6.2f} %"
        said += "" if row["listed"] else "  not listed"
        said += "  WRONG SIGN" if row["sign_right"] is False else ""
        said += "  OUTSIDE" if row.get("inside") is False else ""
    said += "  RESULTS DIFFER" if row["results_equal"] is False else ""
    gain = f"{measured['median']:.4f} [{measured['low']:.3f}, {measured['high']:.3f}]"
    return f"{row['group']:16} {row['before']:12} {row['edit']:44} {row['pass']:6} measured {gain}  predicted {said}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--groups", type=lambda text: text.split(","), help="[default: all, and every --pair]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", default="light,graph")
    parser.add_argument("--loop-options", default="", help="of advice_loops.py, such as '--layers 12 --width 2048'")
    parser.add_argument("--llama-bench")
    parser.add_argument("--model", help="of llama-bench")
    parser.add_argument("--pair", nargs=5, action="append", default=[], metavar=("NAME", "EDIT", "RATE", "BEFORE",
                        "AFTER"), help="two commands, a regular expression of their rate, and the edit")  # fmt: skip
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for group in groups(options):
        if options.groups and group.name not in options.groups:
            continue
        try:
            rows += checked(group, options)
        except RuntimeError as problem:
            failed[group.name] = str(problem)
            print(f"{group.name}: {problem}", file=sys.stderr)
            continue
        for row in rows:
            if row["group"] == group.name:
                print(line(row), flush=True)
    found = summary(rows) | {"failed": failed}
    print(json.dumps(found, indent=1))
    if options.json:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        content = {"benchmark": "advice_check", "date": date, "summary": found, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
