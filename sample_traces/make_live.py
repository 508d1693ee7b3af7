"""Make the bundled recordings of SGLang and JAX: `python sample_traces/make_live.py DIR`.

DIR holds what `intertoken record` wrote: `sglang-b8` (two rounds of 400 tokens at batch 8) and `jax-step` (420 steps
whose tokens the host fetches). Of the latter the seconds in which XLA compiles are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import tracer
from tracer.scrub import scrub

TARGET = Path(__file__).parent
BEFORE_NS = 20_000_000  # kept before the first step


def since(trace: tracer.Trace, begin: int) -> tracer.Trace:
    """The recording from a moment on."""

    def cut(_: str, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["start"] >= begin] if "start" in frame else frame

    return trace.map_tables(cut)


def main() -> None:
    for name in ("sglang-b8", "jax-step"):
        trace = tracer.read(Path(sys.argv[1]) / name)
        steps = tracer.analyse(Path(sys.argv[1]) / name).steps.rows
        if name == "jax-step":
            trace = since(trace, int(steps.start.min()) - BEFORE_NS)

        tracer.write(scrub(trace), TARGET / name, replace=True)


if __name__ == "__main__":
    main()
