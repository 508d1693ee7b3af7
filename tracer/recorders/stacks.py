"""Python stacks of API calls, captured during the call."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Final

Frame = tuple[str, int, str]
"""File, line, function."""

Stack = tuple[Frame, ...]
"""The innermost frame first."""

_OWN: Final = str(Path(__file__).parent)


def stack_here() -> Stack:
    """The calling thread's Python frames without the recorders' own; empty on threads not started by Python."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_OWN):
            frames.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(frames)
