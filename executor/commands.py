"""The commands of this package, imported when they are used."""

from __future__ import annotations

from tracer.command_group import Intertoken


def register(group: Intertoken) -> None:
    """Add them to the group."""
    group.add_lazy("executor.cli:run", "Run a decode loop under each strategy, and record it.")
    group.add_lazy("executor.calibrate_command:calibrate", "Make a cost profile for `run --backend sim`.")
