"""Applies the changes that `intertoken advise` proposes, and measures what they gain; `advice_check.py` predicts them.

The same program differs by 10 % from process to process, so prediction and measurement come from one process wherever
it can run both variants. DIR/measured.json holds the rates, a digest of the results where the program prints one, and
where the recordings are; it is written whenever a change has been measured. Needs a GPU.

loops: `advice_loops.py` (PyTorch), all of them in one process per pass, which switches recording off for the turns that
are measured and on for one in between. CUPTI stays attached to the process of a traced pass meanwhile. transformers:
the same for the loop `dynamic-cache`.
llama.cpp: `llama-bench` with LCPP_SYNC (needs a build that knows it, `--llama-bench`, and `--model FILE.gguf`), light
pass: a process per strategy, which are repeated in turn, and each of which records some of its repetitions.
vllm: asynchronous scheduling, full and piecewise graphs, light pass: each engine started once, with recording on and
off in turn (`light_blocks.py`). The kernels between piecewise graphs are seen under CUPTI alone: that engine is started
twice more, for a recording of both passes. Any other pair of commands with `--pair`, in processes of their own.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest import mock

import light_blocks
from light_told import part_of
from record_engines import machine

from tracer.errors import TraceError
from tracer.formats import write
from tracer.recorders import cupti_library, cupti_run, light
from tracer.recorders.light import library
from tracer.recorders.light_ring import SETTINGS, folder

HERE: Final = Path(__file__).absolute().parent
LIMIT_S: Final = 150  # per run
READ_LATER: Final = "device sampling, results read a step later"
LOOPS: Final = {
    "needless-sync": "without syncs", "pageable-copies": "without syncs", "host-sampling": READ_LATER,
    "eager": "one graph launch",
    "late-launch": "host work after the launch", "many-copies": "input copies merged",
    "late-copies": "input copies after the launch",
}  # fmt: skip
Change = dict[str, Any]
"""group, before, after, edit, rates and results by variant, whether rates are paired, paths of recordings by pass."""
RECORDS: Final = 1 << 22  # of the ring, which all loops of a process share
BOTH: Final = "light,node"
LLAMA_PAIRS: Final = 3  # recorded and unrecorded repetitions per process


@dataclass(frozen=True)
class Program:
    """A command that prints its rate (steps/s), and maybe its result."""

    command: Sequence[str]
    rate: str = r"steps/s ([\d.]+)"
    environment: dict[str, str] = field(default_factory=dict)
    limit_s: float = LIMIT_S

    def run(self, before: Sequence[str] = ()) -> str:
        """Run it, behind `before`; return what it printed.

        Raises:
            RuntimeError: it fails.
        """
        command = [*before, *self.command]
        try:
            done = subprocess.run(command, env=self._variables(), capture_output=True, text=True, timeout=self.limit_s)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise RuntimeError(f"{shlex.join(command)}: {problem}") from None
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)}: exit code {done.returncode}: {done.stderr[-800:]}")
        return done.stdout

    def _variables(self) -> dict[str, str]:
        path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        return {**os.environ, **self.environment, "PYTHONPATH": path}

    def until_end(self) -> str:
        """Run it; return what it printed, also if it fails or does not end in time, which is said."""
        try:
            done = subprocess.run(
                self.command, env=self._variables(), capture_output=True, timeout=self.limit_s, check=False
            )
        except subprocess.TimeoutExpired as cut:
            print(f"{shlex.join(self.command)}: {cut}", file=sys.stderr)
            return (cut.stdout or b"").decode()
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-800:]
            print(f"{shlex.join(self.command)}: exit code {done.returncode}: {said}", file=sys.stderr)
        return done.stdout.decode()

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


def recorded(program: Program, folder: Path, passes: Sequence[str], *window: str) -> dict[str, list[str]]:
    """Record a program, once per entry of `passes`; return where, for those that succeed, relative to the folder
    above."""
    found = {}
    for level in passes:
        target = folder / level
        before = [sys.executable, "-m", "intertoken", "record", "-o", str(target), "--passes", level, *window]
        try:
            program.run([*before, "--force", "--"])
        except RuntimeError as problem:
            print(f"{folder.name} {level}: {problem}", file=sys.stderr)
        else:
            found[level] = [str(target.relative_to(folder.parent))]
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


def loops(options: argparse.Namespace, names: Sequence[str], edits: dict[str, str]) -> Iterator[Change]:
    """Loops of advice_loops.py: one process per pass measures and records all of them."""
    for level in options.passes:
        try:
            yield from _loops(options, names, edits, level)
        except (RuntimeError, TraceError) as problem:  # another pass may succeed
            print(f"{names[0]} {level}: {problem}", file=sys.stderr)


def _loops(options: argparse.Namespace, names: Sequence[str], edits: dict[str, str], level: str) -> Iterator[Change]:
    command = [sys.executable, options.loop_program, ",".join(names), "--windows", str(options.repeats)]
    with folder() as rings:
        if level == "light":
            given = light.environment(library(), rings)
        else:
            (rings / SETTINGS).write_text(cupti_run.settings(level, cupti_library.find()), encoding="utf-8")
            given = cupti_run.environment(library(), rings)
        environment = given | {"INTERTOKEN_LIGHT_RECORDS": str(RECORDS)}
        printed = Program([*command, *shlex.split(options.loop_options)], environment=environment).until_end()
        trace = light.read_folder(rings) if level == "light" else cupti_run.read_folder(rings)
    for loop in names:
        found = {what: _of(printed, loop, what) for what in ("before", "after")}
        if not all(found[variant]["rates"] for variant in found):
            problem = re.search(rf"^{loop} failed (.*)$", printed, re.MULTILINE)
            print(f"{loop} {level}: {problem.group(1) if problem else 'not measured in time'}", file=sys.stderr)
            continue
        spans = [json.loads(span) for span in re.findall(rf"^{loop} span (.*)$", printed, re.MULTILINE)]
        target = options.output / loop / level
        if trace is not None and spans:
            write(part_of(trace, spans), target)
        yield {
            "group": loop, "before": "before", "after": "after", "edit": edits[loop], "paired": True,
            "rates": {variant: each["rates"] for variant, each in found.items()},
            "recorded": _of(printed, loop, "recorded")["rates"],
            "results": {variant: each["results"] for variant, each in found.items()},
            "recordings": {level: [str(target.relative_to(options.output))] if target.exists() else []},
        }  # fmt: skip


def _of(printed: str, loop: str, what: str) -> dict[str, Any]:
    rates, results = (re.findall(rf"^{loop} {what} {kind} (\S+)$", printed, re.MULTILINE)
                      for kind in ("steps/s", "result"))  # fmt: skip
    return {"rates": list(map(float, rates)), "results": results}


def llama(options: argparse.Namespace) -> Iterator[Change]:
    """llama-bench under three strategies, in turn; each repeat adds to all changes."""
    names = ("sccc", "saaas", "aaag")
    rates: dict[str, list[float]] = {name: [] for name in names}
    recordings: dict[str, list[str]] = {name: [] for name in names}
    for repeat in range(options.repeats):
        for name in names[:: -1 if repeat % 2 else 1]:
            target = options.output / f"llama.cpp-{name}" / str(repeat)
            rates[name].append(llama_process(options, name, target))
            recordings[name].append(str(target.relative_to(options.output)))
        for before, after in (("sccc", "saaas"), ("sccc", "aaag"), ("saaas", "aaag")):
            yield {"group": "llama.cpp", "before": before, "after": after, "edit": after, "paired": True,
                   "rates": {"before": [*rates[before]], "after": [*rates[after]]},
                   "results": {"before": [], "after": []}, "recordings": {"light": [*recordings[before]]}}  # fmt: skip


def llama_process(options: argparse.Namespace, strategy: str, target: Path) -> float:
    """Run llama-bench, recorded in every other repetition; keep the recording, return the rate of the others."""
    asked = argparse.Namespace(bench=options.llama_bench, model=options.model, steps=128, pairs=LLAMA_PAIRS)
    with folder() as rings:
        given = light.environment(library(), rings, {**os.environ, light_blocks.ROLE: "blocks"})
        with mock.patch.dict(os.environ, given):
            try:
                found = light_blocks.repetitions(asked, strategy)
            except (OSError, ValueError) as problem:
                raise RuntimeError(f"{options.llama_bench} with {strategy}: {problem}") from problem
        trace = light.read_folder(rings)
    if trace is None:
        raise RuntimeError(f"nothing of {options.llama_bench} was recorded")
    write(part_of(trace, found["spans"]), target)
    return float(statistics.median(found["paused"]))


def vllm(options: argparse.Namespace) -> Iterator[Change]:
    """One engine per start, recorded in blocks that alternate with those without a recorder, which tell its rate."""
    variants: dict[str, dict[str, Any]] = {
        "full": {}, "synchronous": {"async_scheduling": False}, "piecewise": {"cudagraph_mode": "PIECEWISE"},
    }  # fmt: skip
    edits = {"synchronous": READ_LATER, "piecewise": "one graph launch"}
    rates: dict[str, list[float]] = {}
    recordings: dict[str, dict[str, list[str]]] = {}
    for name in options.vllm:
        figures, trace = options.output / f"vllm-{name}.json", options.output / f"vllm-{name}"
        command = [sys.executable, str(HERE / "light_blocks.py"), "vllm", "-o", str(figures), "--trace", str(trace)]
        command += ["--no-truth", "--cases", "b1", "--pairs", str(options.vllm_pairs)]
        command += ["--engine-options", json.dumps(variants[name])]
        try:
            Program(command).run()
        except RuntimeError as problem:  # another start may succeed
            print(f"vllm {name}: {problem}", file=sys.stderr)
            continue
        (case,) = json.loads(figures.read_text())["cases"].values()
        rates[name] = case["rates"]["paused"]
        recordings[name] = {"light": [trace.name]}
        if name == "piecewise":
            served = _served(options.output, name, variants[name])
            recordings[name] |= recorded(served, options.output / f"vllm-{name}-window", [BOTH], "--profiler-window")
        for before, edit in edits.items() if "full" in rates else ():
            if before in rates and name in (before, "full"):
                yield {"group": "vllm", "before": before, "after": "full", "edit": edit, "paired": False,
                       "rates": {"before": rates[before], "after": rates["full"]},
                       "results": {"before": [], "after": []}, "recordings": recordings[before]}  # fmt: skip
    if "full" not in rates or len(rates) < len(options.vllm):
        raise RuntimeError(f"of vLLM {list(options.vllm)} only {sorted(rates)} were measured")


def _served(output: Path, name: str, engine_options: dict[str, Any]) -> Program:
    """vLLM with a window of its own around 64 steps at batch 1."""
    command = [sys.executable, str(HERE / "record_engines.py"), "vllm", "-o", str(output), "--name", f"{name}-window"]
    command += ["--cases", "b1", "--window", "cuda", "--repeats", "1", "--engine-options", json.dumps(engine_options)]
    return Program(command, limit_s=2 * LIMIT_S)  # it is started once per pass


def pair(options: argparse.Namespace, name: str, edit: str, rate: str, before: str, after: str) -> Iterator[Change]:
    """Two commands."""
    programs = {"before": Program(shlex.split(before), rate), "after": Program(shlex.split(after), rate)}
    rates, results = in_turn(programs, options.repeats)
    recordings = recorded(programs["before"], options.output / name, options.passes)
    yield {"group": name, "before": "before", "after": "after", "edit": edit, "paired": False, "rates": rates,
           "results": results, "recordings": recordings}  # fmt: skip


def groups(options: argparse.Namespace) -> dict[str, Callable[[], Iterator[Change]]]:
    """What can be measured here."""
    found: dict[str, Callable[[], Iterator[Change]]] = {
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
    parser.add_argument("--loop-program", default=str(HERE / "advice_loops.py"))
    parser.add_argument("--vllm-pairs", type=int, default=12, help="of blocks per engine")
    parser.add_argument("--vllm", type=lambda text: text.split(","), default=["synchronous", "full", "piecewise"])
    parser.add_argument("--llama-bench")
    parser.add_argument("--model", help="of llama-bench")
    parser.add_argument("--pair", nargs=5, action="append", default=[], metavar=("NAME", "EDIT", "RATE", "BEFORE",
                        "AFTER"), help="two commands, a regular expression of their rate, and the edit")  # fmt: skip
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    target = options.output / "measured.json"
    before = json.loads(target.read_text(encoding="utf-8")) if target.is_file() else {"changes": [], "failed": {}}
    changes, failed = {_key(change): change for change in before["changes"]}, before["failed"]

    def save() -> None:
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        content = {"date": date, **_machine(), "changes": [*changes.values()], "failed": failed}
        new = target.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        new.replace(target)

    for name, measure in groups(options).items():
        if options.groups and name not in options.groups:
            continue
        try:
            for change in measure():
                changes[_key(change)] = change
                save()
                medians = {variant: statistics.median(rates) for variant, rates in change["rates"].items()}
                print(f"{change['group']:16} {change['edit']:44} {medians} {change['recordings']}", flush=True)
        except (RuntimeError, TraceError) as problem:
            failed[name] = str(problem)
            print(f"{name}: {problem}", file=sys.stderr)
        else:
            failed.pop(name, None)
        save()


def _key(change: Change) -> tuple[str, ...]:
    return change["group"], change["before"], change["after"], *sorted(change["recordings"])


@cache
def _machine() -> dict[str, Any]:
    try:
        return machine()
    except (OSError, subprocess.CalledProcessError):
        return {}


if __name__ == "__main__":
    main()
