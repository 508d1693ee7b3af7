"""Hand-made recordings: a decode loop whose every time is known."""

import pandas as pd

from tests.tracer.handmade import Script
from tracer.model.trace import Trace

PERIOD, GAP, LAUNCH = 1_000_000, 100_000, 20_000
KERNELS = 8


def decode(tokens: int = 6, gap: int = GAP, kernel: str = "void k<float>(T*)", nvtx: bool = True) -> Trace:
    """One thread, a copy stream (13) and a compute stream (14).

    Each token: copy call and its sync, launches of `KERNELS` kernels that fill 900 µs, sync. The gap before the next
    token's first kernel is `gap` exactly.
    """
    busy, script = PERIOD - gap, Script()
    for token in range(tokens):
        t = token * PERIOD
        script.copy((t + 1_000, t + 3_000), (t + 4_000, t + 6_000), stream=13, size=4096)
        script.sync(t + 3_500, t + 7_000, stream=13)
        first = t + gap
        for i in range(KERNELS):
            ran = first + i * busy // KERNELS, first + (i + 1) * busy // KERNELS
            script.launch((t + 10_000 + i * 1_000, t + 10_900 + i * 1_000), ran, stream=14, name=kernel)
        # The next token's host work starts before its compute ends.
        script.sync(t + 20_000, first + busy - 5_000, stream=14)
        if nvtx:
            script.range(f"token {token}", t, t + PERIOD - 1_000)

    def named(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        own = {"process": 7, "thread": 70, "short_name": pd.Categorical(["k"] * len(frame))}
        return frame.assign(**{key: value for key, value in own.items() if key in frame})

    trace = script.trace.map_tables(named)
    trace.metadata["source"] = "host"
    return trace
