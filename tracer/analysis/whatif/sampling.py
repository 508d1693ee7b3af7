"""The time in which the device chooses tokens, where the host of the recording does so from their logits."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.fits import fits_for
from tracer.analysis.step_work import activity_steps
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.changes import Changes
from tracer.model.collectives import computes
from tracer.model.schema import MISSING

_MOST_OF_TOKENS: Final = 4096
"""Bytes that a step copies to the host: the tokens of 512 sequences take at most this, the logits of one take more."""
_BYTES_OF_TOKEN: Final = 8


def choose_on_device(changes: Changes, steps: Steps) -> str:
    """Lengthen the compute of each step by the time in which the device chooses its tokens, unless it already does;
    return the assumption."""
    causality = changes.causality
    activities = causality.segments.activities
    at = activity_steps(causality.trace, steps, activities)
    brings = (activities["name"] == "memcpy DtoH").to_numpy() & (at >= 0)
    sizes = causality.trace["memcpys"]["bytes"].to_numpy()[activities["row"].to_numpy()[brings]]
    if not len(sizes) or (sizes == MISSING).all():
        return "assumes that the device already chooses the token: the recording does not tell the size of its copies"
    per_step = np.bincount(at[brings], weights=np.maximum(sizes, 0), minlength=len(steps))
    tokens = _BYTES_OF_TOKEN * np.maximum(steps.table["sequences"].to_numpy(), 1)
    if np.median(per_step) <= max(_MOST_OF_TOKENS, float(np.median(tokens))):
        return "assumes that the device chooses the token in no more time than it does now"
    took_ns = fits_for(causality.trace).sampling.choose_ns
    if not changes.chooses_tokens:
        compute = np.flatnonzero(computes(activities) & (at >= 0))
        compute = compute[np.argsort(activities["end"].to_numpy()[compute], kind="stable")]
        changes.lengthen_activities(pd.Series(compute).groupby(at[compute]).last().to_numpy(), took_ns)
        changes.chooses_tokens = True
    return (
        f"assumes that the device chooses the token in {took_ns / 1e3:g} µs, as from 32,000 logits, where the host now "
        "copies the logits"
    )
