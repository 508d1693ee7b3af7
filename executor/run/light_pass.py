"""The light pass: runs and records configurations without a profiler.

What reports its work (`Configuration.reports`) runs in this process. The calls of other backends are recorded by the
light recorder, whose library is preloaded when a process starts. So their light pass is a process of its own,
`python -m executor.run.light_pass FOLDER PIPE PARENT`: the folder contains the request and receives the results, and
the pipe gets a line after each warm-up and each repeat, and finally the error, if there is one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any, Final

import numpy as np

from executor.run import Planned, Result, execute, plan_configuration
from executor.run.configuration import Configuration
from tracer.errors import ExecutionError, IntertokenError
from tracer.model.trace import Trace
from tracer.recorders import light as recorder
from tracer.recorders import light_ring
from tracer.recorders.foreground import end_with, how_it_ended, module_command
from tracer.recorders.window import TimeRange, within

_ORDER: Final = "order.json"
_DONE: Final = "done"


def record_light(
    configurations: Sequence[Configuration], *, keep_logits: Container[Configuration] = (),
    progress: Callable[[], None] = lambda: None, command: Sequence[str] = module_command("executor.run.light_pass"),
) -> list[Result]:  # fmt: skip
    """Run and record configurations of one backend.

    Args:
        keep_logits: the configurations whose logits are returned for every step.
        progress: called after each warm-up and each repeat.
        command: starts the process of a pass under the light recorder.

    Raises:
        UsageError, UnsafePlanError, ExecutionError: see `execute`.
        RecordError: the light recorder cannot record here.
    """
    if all(configuration.reports for configuration in configurations):
        return execute(configurations, keep_logits=keep_logits, progress=progress)
    planned = [plan_configuration(configuration) for configuration in configurations]
    with tempfile.TemporaryDirectory(prefix="intertoken-") as made:
        folder = Path(made)
        order = [asdict(c) | {"keep_logits": c in keep_logits} for c in configurations]
        (folder / _ORDER).write_text(json.dumps(order), encoding="utf-8")
        with light_ring.folder() as rings:
            outcome, error = _recorded(command, folder, rings, progress)
        if outcome.code == -signal.SIGINT:
            raise KeyboardInterrupt
        if outcome.code:
            raise ExecutionError(error or f"the light pass {how_it_ended(outcome.code)}")
        if outcome.trace is None:
            raise ExecutionError(f"the light pass recorded nothing: {outcome.why}")
        return [
            _result(configuration, plan, folder / str(number), outcome.trace)
            for number, (configuration, plan) in enumerate(zip(configurations, planned, strict=True))
        ]


def _result(configuration: Configuration, plan: Planned, written: Path, light: Trace) -> Result:
    """Return the result of a configuration.

    Args:
        written: path of what `run_ordered` wrote, without suffix.
        light: the recording of all configurations.
    """
    facts = json.loads(written.with_suffix(".json").read_text(encoding="utf-8"))
    with np.load(written.with_suffix(".npz")) as arrays:
        tokens, logits = arrays["tokens"], arrays.get("logits")
    spans = [(start, end) for start, end in facts["spans"]]
    origin = light.metadata["clock"]["origin_ns"]  # in the host's clock, CLOCK_MONOTONIC, as are the spans
    own = Trace(dict(light.tables), dict(light.metadata), list(light.notes))
    trace = within(own, [TimeRange(start - origin, end - origin) for start, end in spans])
    return Result(configuration, plan, facts["seconds"], tokens, logits, trace, facts["graphs"], spans)


def _recorded(
    command: Sequence[str], folder: Path, rings: Path, progress: Callable[[], None]
) -> tuple[recorder.Outcome, str]:
    """Run the process of a pass under the light recorder; return its outcome and the error that it reported."""
    read_end, write_end = os.pipe()
    errors: list[str] = []

    def listen() -> None:
        with os.fdopen(read_end, encoding="utf-8") as lines:
            for line in lines:
                if line == f"{_DONE}\n":
                    progress()
                else:
                    errors.append(line.strip())

    listening = Thread(target=listen)
    listening.start()
    try:
        whole = [*command, str(folder), str(write_end), str(os.getpid())]
        outcome = recorder.record(whole, rings, pass_fds=[write_end])
    finally:
        os.close(write_end)
        listening.join()
    return outcome, " ".join(errors)


def run_ordered(folder: Path, progress: Callable[[], None]) -> None:
    """Run the configurations requested in the folder and write the results there: numbers as `N.json`, arrays as
    `N.npz`."""
    order = json.loads((folder / _ORDER).read_text(encoding="utf-8"))
    kept = [each.pop("keep_logits") for each in order]
    configurations = [Configuration(**each) for each in order]
    keep_logits = [c for c, keep in zip(configurations, kept, strict=True) if keep]
    results = execute(configurations, keep_logits=keep_logits, progress=progress, make_recorder=lambda: None)
    for number, result in enumerate(results):
        arrays: dict[str, Any] = {"tokens": result.tokens}
        if result.logits is not None:
            arrays["logits"] = result.logits
        np.savez(folder / f"{number}.npz", **arrays)
        facts = {"seconds": result.seconds, "spans": result.spans, "graphs": result.graphs}
        (folder / f"{number}.json").write_text(json.dumps(facts), encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 2, with one line to the pipe, for errors of the input or the machine."""
    folder, pipe, parent = arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with(int(parent))
    with os.fdopen(int(pipe), "w", encoding="utf-8", buffering=1) as told:
        try:
            run_ordered(Path(folder), lambda: print(_DONE, file=told))
        except IntertokenError as problem:
            print(problem, file=told)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
