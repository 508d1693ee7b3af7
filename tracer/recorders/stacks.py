"""Python stacks of API calls, captured during the call."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Final

import pandas as pd

from tracer.model.schema import MISSING, TABLES
from tracer.model.trace import Trace, conform

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


def with_chains(trace: Trace, stacks: Mapping[int, Stack]) -> Trace:
    """Add the stacks of its calls to a trace of one process, in place; equal stacks are stored once.

    Args:
        trace: a trace without call chains.
        stacks: correlation of a call -> its stack.
    """
    chains: dict[Stack, int] = {}
    chain_of = {call: chains.setdefault(stack, len(chains) + 1) for call, stack in stacks.items() if stack}
    if not chains:
        return trace
    rows = [
        (number, depth, f"{file}({line}): {function}")
        for stack, number in chains.items()
        for depth, (file, line, function) in enumerate(stack)
    ]
    table = pd.DataFrame(rows, columns=["chain", "depth", "symbol"])
    chain = trace["api"]["correlation"].map(chain_of).fillna(MISSING).astype("int64")
    trace.tables["api"] = trace["api"].assign(callchain=chain)
    trace.tables["callchains"] = conform(table, TABLES["callchains"])
    return trace
