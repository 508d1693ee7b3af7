"""Whether two recordings may be set against each other, and what a reader must know where they may."""

from __future__ import annotations

from typing import Final

from tracer.analysis.recorded import WHOLE_GRAPH, Recording

MUST_AGREE: Final = ("gpu", "backend", "model", "batch")
"""Conditions without which two runs do not do the same work on the same device."""

SHOULD_AGREE: Final = (
    "prompt", "shared_prompt", "context", "gpu_layers", "devices", "experts", "engine", "clock rate", "driver",
)  # fmt: skip
"""Conditions that change the times; often they are what is compared."""


def obstacles(base: Recording, other: Recording) -> list[str]:
    """Why the two are not comparable; nothing if they are, or if the recordings do not tell."""
    found = [_unlike(key, base, other) for key in MUST_AGREE]
    mine, theirs = (set(r.kernels["name"]) - {WHOLE_GRAPH} for r in (base, other))
    if mine and theirs and mine.isdisjoint(theirs):
        found.append(f"no kernel in common ({min(mine)}, ... against {min(theirs)}, ...)")
    return [text for text in found if text]


def cautions(base: Recording, other: Recording) -> list[str]:
    """What else differs and moves the figures: conditions, and how both were recorded."""
    found = [
        f"{other.name} and {base.name} differ in {text}" for key in SHOULD_AGREE if (text := _unlike(key, base, other))
    ]
    if (base.traced, base.graph_trace) != (other.traced, other.graph_trace):
        found.append(
            f"recorded otherwise, so that gaps and kernels differ by the tracing too: {other.name} {_level(other)}, "
            f"{base.name} {_level(base)}"
        )
    return found


def _unlike(key: str, base: Recording, other: Recording) -> str | None:
    mine, theirs = base.conditions.get(key), other.conditions.get(key)
    return f"{key} {mine} against {theirs}" if mine is not None and theirs is not None and mine != theirs else None


def _level(recording: Recording) -> str:
    """How CUDA graphs were traced, and what that did to the period."""
    if not recording.traced:
        return "without a profiler"
    level = f"at {recording.graph_trace} level" if recording.graph_trace != "none" else "without CUDA graphs"
    return f"{level} (period × {recording.distortion:.2f})" if recording.distortion is not None else level
