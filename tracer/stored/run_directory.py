"""A run directory: its parts (the recording, its traced passes and its graph), and what its passes share.

That is the rate of the light pass, and the kernels of the node pass. The analyses for it are imported when used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.errors import TraceError
from tracer.files.output import is_leftover, write_output
from tracer.formats import nsys_parquet
from tracer.formats.nsys_parquet import RUN_FILE, read_run
from tracer.model.run_json import NODE, PASSES, SCHEMA
from tracer.model.trace import LIGHT, Trace
from tracer.stored import cache

if TYPE_CHECKING:
    from tracer.analysis.node_kernels import PlacedKernels
    from tracer.analysis.steps import Steps


def is_part_of_run(path: Path) -> bool:
    """Whether replacing a run removes this entry of its directory."""
    from tracer.model.graph_json import GRAPH_FILE

    if path.name in PASSES and path.is_dir():
        return all(nsys_parquet.is_part(part) or is_leftover(part) for part in path.iterdir())
    return nsys_parquet.is_part(path) or (path.name == GRAPH_FILE and path.is_file())


def run_of(light: Trace) -> dict[str, Any]:
    """The run.json of a light pass: the rate of its decode steps from their median period, if it has any."""
    from tracer.analysis.recording import Recording

    measured: dict[str, Any] = {"pass": "light", "traced": False}
    try:
        recording = Recording(light)
        steps = recording.steps
        if steps.decode_alone:
            rate = 1e6 / recording.gaps.period_us
            measured["steps_per_s"] = {"median": rate}
            if steps.tokens_per_step is not None:
                measured["tokens_per_s"] = {"median": rate * steps.tokens_per_step}
    except TraceError:
        """Without steps there is no rate; code that needs one reports it."""
    return {"schema": SCHEMA, "measured": measured}


def hand_on(directory: Path, level: str) -> None:
    """Write the measurements of a run directory's light pass into the run.json of the pass in its folder `level`."""
    run = read_run(directory / RUN_FILE)
    text = json.dumps({**run, "measured": {**run["measured"], "pass": level}}, indent=2) + "\n"
    write_output(directory / level / RUN_FILE, lambda partial: partial.write_text(text, encoding="utf-8"), replace=True)


def node_kernels(path: Path, trace: Trace, steps: Steps | None) -> PlacedKernels | None:
    """The node pass of a run directory, placed in its light recording; None if there is none, or nothing matches.

    Args:
        path: the run directory, or any recording.
        trace: the recording there.
        steps: its steps, if it has any.
    """
    if steps is None or trace.metadata.get("source") != LIGHT or not (path / NODE).is_dir():
        return None
    from tracer.analysis.node_kernels import place_kernels

    try:
        return place_kernels(trace, steps, cache.read(path / NODE))
    except TraceError:
        """Opening the node pass itself reports what is wrong with it."""
        return None
