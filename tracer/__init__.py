"""The trace model, recorders, formats and analyses."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording
    from tracer.api import analyse, compare
    from tracer.formats import read
    from tracer.model.trace import Trace
    from tracer.recorders import annotate, record
    from tracer.reporting.exports import write

__all__ = ["Recording", "Trace", "analyse", "annotate", "compare", "read", "record", "write"]

_HOMES: Final = {
    "Recording": "tracer.analysis.recording",
    "Trace": "tracer.model.trace",
    "analyse": "tracer.api",
    "annotate": "tracer.recorders",
    "compare": "tracer.api",
    "read": "tracer.formats",
    "record": "tracer.recorders",
    "write": "tracer.reporting.exports",
}
"""Name -> module, imported on first use: pytest imports this package in every session, for its plugin."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
