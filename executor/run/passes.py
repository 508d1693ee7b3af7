"""The three passes of a run: light without a profiler, then the same work under CUPTI at graph and node level.

Tokens/s, gap and causes come from the light pass. The traced passes show what it cannot see (each kernel and copy), and
the tracing overhead, called distortion in the code. They are stored in the run directory as `graph/` and `node/`.

CUPTI at graph level must be enabled before the first CUDA call of the process, and a profiler must not disturb the
light pass, so a traced pass is a process of its own, `python -m executor.run.passes LEVEL DIRECTORY`. LEVEL is graph or
node; with `none` nothing is recorded, for a profiler that traces from outside. The request on its stdin is one
JSON object: `configuration` (the fields of `Configuration`), `run` (the contents of run.json) and `kinds` (a name of
`cupti_records.SETS`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any, Final

import tracer
from executor.backends import backend_class
from executor.names import lookup
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import rates
from tracer import Trace, read
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import find_steps
from tracer.errors import ExecutionError, IntertokenError, TraceError, UsageError
from tracer.files.output import write_output
from tracer.formats import nsys_parquet
from tracer.formats.nsys_parquet import RUN_FILE
from tracer.model.run_json import PASSES
from tracer.recorders.cupti_records import SETS

LIGHT: Final = "light"
TRACED: Final = PASSES
MOST_TRACED_TOKENS: Final = 40
"""Maximum tokens of a traced pass: enough for a median, few enough for a small recording."""

Spawn = Callable[[list[str], str], "subprocess.CompletedProcess[str]"]


def spawn(arguments: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
    """Run a traced pass in a fresh interpreter."""
    command = [sys.executable, "-m", "executor.run.passes", *arguments]
    return subprocess.run(command, input=stdin, text=True, capture_output=True, check=False)


def chosen_passes(configuration: Configuration, asked: Sequence[str]) -> tuple[str, ...]:
    """Return the traced passes to record, of those requested (by default all).

    Raises:
        UsageError: an unknown name, or a pass that the backend does not have, or nothing is on the backend.
    """
    backend, on_host = configuration.backend, configuration.is_on_host
    offered = () if on_host else backend_class(backend).traced_passes
    for name in asked:
        lookup("pass", name, dict.fromkeys((LIGHT, *TRACED)))
        if name not in (LIGHT, *offered):
            why = "all layers are on the host" if on_host else "its light pass already sees every kernel"
            raise UsageError(f"backend {backend!r} has no {name} pass: {why}")
    return tuple(name for name in offered if name in asked) if asked else offered


def record_traced(
    configuration: Configuration, directory: Path, levels: Sequence[str] = TRACED, *, kinds: str = "lean",
    spawn: Spawn = spawn, progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Record the traced passes of a run whose light pass is in `directory`, and add all figures to its run.json.

    Args:
        configuration: configuration of the light pass. A traced pass is shorter, with the same KV cache cells. If
            attention covers more cells later on, it is compared with the first tokens of the light pass.
        directory: the run directory; each pass is stored in a subfolder of its name.
        kinds: what CUPTI records, a name of `cupti_records.SETS`.
        spawn: starts the process of a pass.
        progress: called after each pass.

    Returns:
        pass -> its figures, as in run.json; see `pass_figures`.

    Raises:
        ExecutionError: a pass failed; includes the last line of its error output.
    """
    run = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
    light, tokens = read(directory, whole=False), configuration.tokens
    short = replace(configuration, repeats=1, tokens=min(tokens, MOST_TRACED_TOKENS), reserve=tokens)
    figures = {LIGHT: pass_figures(light)}
    measured = run["measured"]
    if tokens > short.tokens and len(run["plan"]["attended_cells"]) > 1:
        measured = rates_of_first(light, short.tokens, configuration.batch)
    for level in levels:
        of_pass = run | {"pass": level, "measured": measured}
        order = json.dumps({"configuration": asdict(short), "run": of_pass, "kinds": kinds})
        done = spawn([level, str(directory / level)], order)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise ExecutionError(f"{configuration.name}: the {level} pass failed: {lines[-1]}")
        figures[level] = pass_figures(read(directory / level))
        progress()
    text = json.dumps(run | {"passes": figures}, indent=2) + "\n"
    write_output(directory / RUN_FILE, lambda partial: partial.write_text(text, encoding="utf-8"), replace=True)
    return figures


def rates_of_first(light: Trace, tokens: int, batch: int) -> dict[str, Any]:
    """Return the rates of the light pass up to this token of each repeat, as in run.json."""
    steps = find_steps(light).table
    numbered = steps.assign(number=steps.groupby("group").cumcount())
    start, end = (numbered[numbered["number"] == n].set_index("group")["start"] for n in (0, tokens))
    return rates((tokens / ((end - start.loc[end.index]) / 1e9)).tolist(), batch)


def pass_figures(trace: Trace) -> dict[str, Any]:
    """Return gap, causes, period and counts of one pass, or `problem` if its recording does not have them."""
    try:
        summary = Recording.of_steps(trace, find_steps(trace)).figures("steps", "syncs", "gaps")
    except TraceError as problem:
        return {"problem": str(problem)}
    return {
        "gap_us": {"p50": summary.gap_p50_us, "p90": summary.gap_p90_us, "mean": summary.gap_mean_us},
        "causes_us": summary.causes_us,
        "period_us": summary.period_us,
        "distortion": summary.distortion,
        "syncs_per_token": summary.syncs_per_token,
        "copies_per_token": summary.copies_per_token,
        "launches_per_token": summary.launches_per_token,
    }


def record_pass(level: str, directory: Path, order: dict[str, Any]) -> None:
    """Run the configuration under CUPTI at a level and write the recording."""
    configuration = Configuration(**order["configuration"])
    if level == "none":
        unrecorded_pass(configuration)
        return
    trace, _ = recorded_pass(level, configuration, SETS[order["kinds"]])
    trace.metadata["run"] = order["run"]
    nsys_parquet.write(trace, directory)


def recorded_pass(level: str, configuration: Configuration, kinds: Sequence[str]) -> tuple[Trace, list[float]]:
    """Run the configuration under CUPTI; return the recording and the seconds of each repeat."""
    with tracer.record("cupti", graph_trace="graph" if level == "graph" else "node", kinds=kinds) as recording:
        seconds = unrecorded_pass(configuration)
    return recording.trace, seconds


def unrecorded_pass(configuration: Configuration) -> list[float]:
    """Run the configuration without recording; return the seconds of each repeat."""
    (result,) = execute([configuration], make_recorder=lambda: None)
    return result.seconds


def main(arguments: list[str], stdin: IO[str]) -> int:
    """Return the exit code: 2, with one line on stderr, for errors of the input or the machine."""
    level, directory = arguments
    try:
        record_pass(level, Path(directory), json.load(stdin))
    except IntertokenError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdin))
