"""The commands of this package, imported on use."""

from __future__ import annotations

from tracer.cli import Intertoken


def register(group: Intertoken) -> None:
    """Add this package's commands to the group."""
    group.add_lazy("executor.commands.run:run", "Run and record a decode loop under each strategy.")
