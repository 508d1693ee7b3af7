"""The parts of a run directory: the recording, its traced passes and its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracer.files.output import is_leftover
from tracer.formats import nsys_parquet

NODE: Final = "node"
PASSES: Final = ("graph", NODE)
"""Traced passes of a run, in folders with these names."""


def is_part_of_run(path: Path) -> bool:
    """Whether replacing a run removes this entry of its directory."""
    from tracer.model.graph_json import GRAPH_FILE

    if path.name in PASSES and path.is_dir():
        return all(nsys_parquet.is_part(part) or is_leftover(part) for part in path.iterdir())
    return nsys_parquet.is_part(path) or (path.name == GRAPH_FILE and path.is_file())
