"""The headline figures: which rate is shown for recordings with and without a profiler."""

from __future__ import annotations

import pytest

from tracer.analysis.summary import Summary
from tracer.reporting.headline import rate


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        (Summary("run", traced=False, steps_per_s=1024.9, measured_steps_per_s=1083.9), "1,083.9 steps/s"),
        (Summary("run", traced=False, steps_per_s=1024.9), "1,024.9 steps/s"),
        (Summary("run", traced=True, steps_per_s=700.0, measured_steps_per_s=800.0, untraced_steps_per_s=750.0),
         "750.0 steps/s"),
        (Summary("run", traced=True, steps_per_s=700.0), "700.0 steps/s ▲"),
    ],
)  # fmt: skip
def test_the_measured_rate_leaves_out_the_pauses_between_repeats(summary: Summary, text: str) -> None:
    assert rate(summary).text == text
