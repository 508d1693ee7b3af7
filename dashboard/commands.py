"""The commands of this package, imported on use."""

from __future__ import annotations

from tracer.cli import Intertoken


def register(group: Intertoken) -> None:
    """Add this package's commands to the group."""
    group.add_lazy("dashboard.cli:dashboard", "Show recordings side by side in a browser.")
    group.add_lazy("dashboard.cli:report", "Compare runs in one HTML file to send.")
    group.add_lazy("dashboard.cli:timeline", "Draw the timelines of runs as an SVG or PNG.")
