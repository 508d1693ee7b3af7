"""Writes recordings, with the counts of their steps in formats that show counters; and steps of the host as files for
flame graph viewers: speedscope's JSON, or collapsed stacks.

speedscope: https://github.com/jlfwong/speedscope, src/lib/file-format-spec.ts, a sampled profile for each step.
Collapsed stacks: https://github.com/brendangregg/FlameGraph, `flamegraph.pl`; the outermost name is the step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from tracer import formats
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.model.trace import Trace

if TYPE_CHECKING:
    from tracer.analysis.call_sites import HostStep

STACKS: Final = (".json", ".folded", ".txt")
_VERSION: Final = "0.6.0"  # since which a file may name the profile to show first
_PYTHON: Final = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): ")
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def write(
    trace: Trace, path: str | Path, *, replace: bool = False, is_part: Callable[[Path], bool] | None = None
) -> list[str]:
    """Write a trace in the format that the path's suffix names (a directory without one), as `formats.write` does;
    returns notes on what the file lacks or states differently."""
    return formats.write(trace, path, replace=replace, is_part=is_part, counters=step_counts)


def step_counts(trace: Trace) -> pd.DataFrame:
    """The start of each step, and its syncs, copies and launches. Raises EmptyTraceError if the trace has no steps."""
    return sync_report(trace, find_steps(trace)).counts


def write_stacks(steps: Sequence[HostStep], path: Path, suffix: str) -> None:
    """Write the steps in the format of a suffix in `STACKS`."""
    text = json.dumps(speedscope(steps)) if suffix == ".json" else collapsed(steps)
    path.write_text(text, encoding="utf-8")


def speedscope(steps: Sequence[HostStep]) -> dict[str, Any]:
    """The steps in speedscope's format: their stacks in chronological order."""
    frames: dict[str, int] = {}
    profiles = []
    for step in steps:
        stacks = {
            stack: [frames.setdefault(name, len(frames)) for name in stack.split(";")]
            for stack in dict.fromkeys(step.samples.stack)
        }
        profiles.append({
            "type": "sampled", "name": step.title, "unit": "nanoseconds", "startValue": 0, "endValue": step.length_ns,
            "samples": [stacks[stack] for stack in step.samples.stack], "weights": step.samples.ns.tolist(),
        })  # fmt: skip
    places = [(name, _PYTHON.match(name)) for name in frames]
    shown = [{"name": name} | ({"file": at["file"], "line": int(at["line"])} if at else {}) for name, at in places]
    return {
        "version": _VERSION, "$schema": _SCHEMA, "shared": {"frames": shown}, "profiles": profiles,
        "activeProfileIndex": 0, "exporter": "intertoken",
    }  # fmt: skip


def collapsed(steps: Sequence[HostStep]) -> str:
    """The steps as collapsed stacks, in ns."""
    sums = ((step.title, step.samples.sums()) for step in steps)
    return "".join(f"{title};{stack} {ns}\n" for title, stacks in sums for stack, ns in stacks.items())
