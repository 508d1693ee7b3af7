"""Rates without a profiler: the engine's own, from the user or from run.json, and how far they can be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from typing import Final, Literal

import numpy as np

from tracer.analysis.difference import Estimate
from tracer.model import run_json
from tracer.model.trace import Trace

Unit = Literal["tokens/s", "steps/s"]
PRECISION: Final = 0.005
"""Half the 95 % interval of a rate without repeats, relative to it."""
_MANY: Final = 6  # repeats: their median lies between the lowest and the highest in 97 % of cases


@dataclass(frozen=True)
class Untraced:
    """Tokens or steps per second without a profiler.

    Attributes:
        unit: "tokens/s" or "steps/s".
        median: of the repeats.
        repeats: the rate of each; empty if unknown.
        spread: lowest and highest, if the individual repeats are unknown.
        given: by the user, not by run.json.
        process: what identifies the process of all repeats; "" if each may be of another one.
    """

    unit: Unit
    median: float
    repeats: tuple[float, ...] = ()
    spread: tuple[float, float] | None = None
    given: bool = False
    process: str = ""

    @property
    def is_repeated(self) -> bool:
        """Whether its repeats, or their spread, are known."""
        return len(self.repeats) > 1 or self.spread is not None

    @property
    def log(self) -> Estimate:
        """The logarithm of the rate.

        Half the interval is half of the spread, as if of five repeats: the range of five normal values contains a
        difference of medians in 95 % of cases, that of three in only 78 %. Without a spread it is `PRECISION`.
        """
        if len(self.repeats) > 1:
            return Estimate.of(np.log(self.repeats)[:, None], of_medians=True)
        return Estimate.known(log(self.median), log(self.spread[1] / self.spread[0]) / 2 if self.spread else PRECISION)

    @property
    def error(self) -> float:
        """Half the 95 % interval of the logarithm of the mean rate; of many repeats at most their range."""
        if len(self.repeats) < 2:
            return float(self.log.half_width[0])
        half = float(Estimate.of(np.log(self.repeats)[:, None]).half_width[0])
        return half if len(self.repeats) < _MANY else min(half, log(max(self.repeats) / min(self.repeats)))


def of_steps_per_s(steps_per_s: Sequence[float], tokens_per_step: float | None = None) -> Untraced | None:
    """The rates that a user gave, one per repeat; None if there are none."""
    if not steps_per_s:
        return None
    rates = [rate * (tokens_per_step or 1.0) for rate in steps_per_s]
    unit: Unit = "steps/s" if tokens_per_step is None else "tokens/s"
    return Untraced(unit, float(np.median(rates)), tuple(rates), given=True)


def of_run_json(trace: Trace, within: str | None) -> Untraced | None:
    """The rate of tokens in run.json; None if it has none."""
    rate, process = run_json.tokens_per_s(trace, within), run_json.of_rates(trace)
    if rate is None or within is not None:
        return None if rate is None else Untraced("tokens/s", rate, process=process)
    repeats, spread = run_json.tokens_per_s_repeats(trace), run_json.tokens_per_s_spread(trace)
    return Untraced("tokens/s", rate, repeats, spread, process=process)
