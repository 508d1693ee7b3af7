"""Steps of the host as files for flame graph viewers: speedscope's JSON, or collapsed stacks.

speedscope: https://github.com/jlfwong/speedscope, src/lib/file-format-spec.ts, a sampled profile for each step.
Collapsed stacks: https://github.com/brendangregg/FlameGraph, `flamegraph.pl`; the outermost name is the step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tracer.analysis.call_sites import HostStep

SUFFIXES: Final = (".json", ".folded", ".txt")
_VERSION: Final = "0.6.0"  # since which a file may name the profile to show first
_PYTHON: Final = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): ")
_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"


def write_stacks(steps: Sequence[HostStep], path: Path, suffix: str) -> None:
    """Write the steps in the format of a suffix in `SUFFIXES`."""
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
        profiles.append(
            {
                "type": "sampled",
                "name": step.title,
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": step.length_ns,
                "samples": [stacks[stack] for stack in step.samples.stack],
                "weights": step.samples.ns.tolist(),
            }
        )
    return {
        "version": _VERSION,
        "$schema": _SCHEMA,
        "shared": {"frames": [_frame(name) for name in frames]},
        "profiles": profiles,
        "activeProfileIndex": 0,
        "exporter": "intertoken",
    }


def collapsed(steps: Sequence[HostStep]) -> str:
    """The steps as collapsed stacks, in ns."""
    sums = ((step.title, step.samples.sums()) for step in steps)
    return "".join(f"{title};{stack} {ns}\n" for title, found in sums for stack, ns in found.items())


def _frame(name: str) -> dict[str, Any]:
    """A function as a frame of speedscope, with its file and line if known."""
    match = _PYTHON.match(name)
    return {"name": name} | ({"file": match["file"], "line": int(match["line"])} if match else {})
