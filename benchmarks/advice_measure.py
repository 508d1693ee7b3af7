"""Applies the changes that `intertoken advise` proposes, and measures what they gain; `advice_check.py` predicts them.

The programs before and after a change run in turn without a recorder, and the one before it is recorded as `intertoken
record --passes` does. DIR/measured.json holds the rates, a digest of the results where the program prints one, and
where the recordings are. Needs a GPU.

loops: `advice_loops.py` (PyTorch), all of them in one process per pass; transformers: its loop `dynamic-cache`;
llama.cpp: `llama-bench` with LCPP_SYNC (needs a build that knows it, `--llama-bench`, and `--model FILE.gguf`);
vllm: asynchronous scheduling, full and piecewise graphs, each engine started once, with recording on and off in turn
(`light_blocks.py`); any other pair with `--pair`.

Usage: python benchmarks/advice_measure.py -o DIR [--groups NAME,...] [--repeats 5] [--passes light,graph]
           [--llama-bench PATH --model FILE] [--pair NAME EDIT RATE_REGEX BEFORE AFTER]
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from record_engines import machine

HERE: Final = Path(__file__).absolute().parent
LIMIT_S: Final = 400  # per run
READ_LATER: Final = "device sampling, results read a step later"
LOOPS: Final = {
    "needless-sync": "without syncs", "pageable-copies": "aaag", "host-sampling": "ggg", "eager": "one graph launch",
    "late-launch": "host work behind the launch", "many-copies": "input copies merged",
    "late-copies": "input copies behind the launch",
}  # fmt: skip
Change = dict[str, Any]
"""group, before, after, edit, rates and results by variant, recordings by pass, range (of the recordings, or None)."""


@dataclass(frozen=True)
class Program:
    """A command that prints its rate (steps/s), and maybe its result."""

    command: Sequence[str]
    rate: str = r"steps/s ([\d.]+)"
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, before: Sequence[str] = ()) -> str:
        """Run it, behind `before`; return what it printed.

        Raises:
            RuntimeError: it fails.
        """
        command = [*before, *self.command]
        path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, **self.environment}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise RuntimeError(f"{shlex.join(command)}: {problem}") from None
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr[-800:]}")
        return done.stdout

    def measured(self) -> tuple[float, str | None]:
        """Run it; return its rate and its result.

        Raises:
            RuntimeError: it fails, or prints no rate.
        """
        printed = self.run()
        rates = [float(found) for found in re.findall(self.rate, printed)]
        if not rates:
            raise RuntimeError(f"{shlex.join(self.command)} printed no rate: {printed[-300:]}")
        result = re.search(r"^result (.*)$", printed, re.MULTILINE)
        return statistics.median(rates), result and result.group(1)


def recorded(program: Program, folder: Path, passes: Sequence[str]) -> dict[str, str]:
    """Record a program, once per pass; return where, for those that succeed, relative to the folder above."""
    found = {}
    for level in passes:
        target = folder / level
        before = [sys.executable, "-m", "intertoken", "record", "-o", str(target), "--passes", level, "--force", "--"]
        try:
            program.run(before)
        except RuntimeError as problem:
            print(f"{folder.name} {level}: {problem}", file=sys.stderr)
        else:
            found[level] = str(target.relative_to(folder.parent))
    return found


def in_turn(programs: dict[str, Program], repeats: int) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Run programs alternately; return rates and results by their names."""
    rates: dict[str, list[float]] = {name: [] for name in programs}
    results: dict[str, list[str]] = {name: [] for name in programs}
    for repeat in range(repeats):
        for name in list(programs)[:: -1 if repeat % 2 else 1]:
            rate, result = programs[name].measured()
            rates[name].append(rate)
            results[name] += [result] if result else []
    return rates, results


def loops(options: argparse.Namespace, names: Sequence[str], edits: dict[str, str]) -> list[Change]:
    """Loops of advice_loops.py: one process measures them, and one per pass records them."""
    command = [sys.executable, str(HERE / "advice_loops.py"), ",".join(names), *shlex.split(options.loop_options)]
    printed = Program([*command, "--variants", "before,after", "--windows", str(options.repeats)]).run()
    short = Program([*command, "--windows", "1"])
    recordings = recorded(short, options.output / names[0], options.passes)
    changes = []
    for loop in names:
        rates, results = (
            {variant: re.findall(rf"^{loop} {variant} {what} (\S+)$", printed, re.MULTILINE)
             for variant in ("before", "after")}
            for what in ("steps/s", "result")
        )  # fmt: skip
        changes.append({
            "group": loop, "before": "before", "after": "after", "edit": edits[loop],
            "rates": {variant: list(map(float, each)) for variant, each in rates.items()}, "results": results,
            "recordings": recordings, "range": loop,
        })  # fmt: skip
    return changes


def llama(options: argparse.Namespace) -> list[Change]:
    """llama-bench under three strategies."""
    command = [options.llama_bench, "-m", options.model, "-p", "0", "-n", "128", "-r", "3", "-ngl", "99", "-o", "json"]
    programs = {
        name: Program(command, r'"avg_ts": ([\d.]+)', {"LCPP_SYNC": name}) for name in ("sccc", "saaas", "aaag")
    }
    rates, results = in_turn(programs, options.repeats)
    recordings = {name: recorded(programs[name], options.output / f"llama.cpp-{name}", options.passes)
                  for name in ("sccc", "saaas")}  # fmt: skip
    return [
        {"group": "llama.cpp", "before": before, "after": after, "edit": after,
         "rates": {"before": rates[before], "after": rates[after]},
         "results": {"before": results[before], "after": results[after]},
         "recordings": recordings[before], "range": None}
        for before, after in (("sccc", "saaas"), ("sccc", "aaag"), ("saaas", "aaag"))
    ]  # fmt: skip


def vllm(options: argparse.Namespace) -> list[Change]:
    """One engine per start, recorded in blocks that alternate with those without a recorder, which tell its rate."""
    variants = {
        "full": {}, "synchronous": {"async_scheduling": False}, "piecewise": {"cudagraph_mode": "PIECEWISE"},
    }  # fmt: skip
    rates, recordings = {}, {}
    for name, engine in variants.items():
        if name not in options.vllm:
            continue
        figures, trace = options.output / f"vllm-{name}.json", options.output / f"vllm-{name}"
        command = [sys.executable, str(HERE / "light_blocks.py"), "vllm", "-o", str(figures), "--trace", str(trace)]
        command += ["--no-truth", "--cases", "b1", "--pairs", str(options.repeats)]
        command += ["--engine-options", json.dumps(engine)]
        command += ["--call-sites"] if name == "full" else []  # its recording is not used, its cost is told
        try:
            Program(command).run()
        except RuntimeError as problem:  # another start may succeed
            print(f"vllm {name}: {problem}", file=sys.stderr)
            continue
        (case,) = json.loads(figures.read_text())["cases"].values()
        rates[name], recordings[name] = case["rates"]["paused"], {"light": trace.name}
    if "full" not in rates:
        raise RuntimeError(f"no rate of vLLM as it is by default, only of {sorted(rates)}")
    return [
        {"group": "vllm", "before": before, "after": "full", "edit": edit,
         "rates": {"before": rates[before], "after": rates["full"]}, "results": {"before": [], "after": []},
         "recordings": recordings[before], "range": None}
        for before, edit in (("synchronous", READ_LATER), ("piecewise", "one graph launch"))
        if before in rates
    ]  # fmt: skip


def pair(options: argparse.Namespace, name: str, edit: str, rate: str, before: str, after: str) -> list[Change]:
    """Two commands."""
    programs = {"before": Program(shlex.split(before), rate), "after": Program(shlex.split(after), rate)}
    rates, results = in_turn(programs, options.repeats)
    recordings = recorded(programs["before"], options.output / name, options.passes)
    return [{"group": name, "before": "before", "after": "after", "edit": edit, "rates": rates, "results": results,
             "recordings": recordings, "range": None}]  # fmt: skip


def groups(options: argparse.Namespace) -> dict[str, Callable[[], list[Change]]]:
    """What can be measured here."""
    found: dict[str, Callable[[], list[Change]]] = {
        "loops": lambda: loops(options, list(LOOPS), LOOPS),
        "transformers": lambda: loops(options, ["dynamic-cache"], {"dynamic-cache": "one graph launch"}),
        "vllm": lambda: vllm(options),
    }
    if options.llama_bench and options.model:
        found["llama.cpp"] = lambda: llama(options)
    return found | {each[0]: (lambda given=each: pair(options, *given)) for each in options.pair}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the recordings")
    parser.add_argument("--groups", type=lambda text: text.split(","), help="[default: all, and every --pair]")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--passes", type=lambda text: text.split(","), default=["light", "graph"])
    parser.add_argument("--loop-options", default="", help="of advice_loops.py, such as '--layers 12 --width 2048'")
    parser.add_argument("--vllm", type=lambda text: text.split(","), default=["full", "synchronous", "piecewise"])
    parser.add_argument("--llama-bench")
    parser.add_argument("--model", help="of llama-bench")
    parser.add_argument("--pair", nargs=5, action="append", default=[], metavar=("NAME", "EDIT", "RATE", "BEFORE",
                        "AFTER"), help="two commands, a regular expression of their rate, and the edit")  # fmt: skip
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / "measured.json"
    before = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {"changes": [], "failed": {}}
    changes, failed = before["changes"], before["failed"]
    for name, measure in groups(options).items():
        if options.groups and name not in options.groups:
            continue
        try:
            found = measure()
            done = {change["group"] for change in found}
            changes = [change for change in changes if change["group"] not in done] + found
        except RuntimeError as problem:
            failed[name] = str(problem)
            print(f"{name}: {problem}", file=sys.stderr)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        content = {"date": date, **_machine(), "changes": changes, "failed": failed}
        target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for change in changes:
        medians = {variant: statistics.median(rates) for variant, rates in change["rates"].items() if rates}
        print(f"{change['group']:16} {change['edit']:44} {medians} {change['recordings']}", flush=True)


def _machine() -> dict[str, Any]:
    try:
        return machine()
    except (OSError, subprocess.CalledProcessError):
        return {}


if __name__ == "__main__":
    main()
