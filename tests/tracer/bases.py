"""The starting point of predictions, from steps that a test chose."""

from tracer.analysis.path.paths import Causality
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.base import Base


def base_of(causality: Causality, steps: Steps, rate: float | None = None) -> Base:
    """From these steps of a recording, at a rate without a profiler if one is given."""
    rates = () if rate is None else (rate,)
    return Base.of(causality, Recording.of_steps(causality.trace, steps, rates=rates))
