"""Cost and gain of overlapping kernels on several streams, learned from runs on one stream and on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tracer.analysis.fits import Overlap, fits_of
from tracer.analysis.whatif.overlap import StepKernels

Floats = NDArray[np.float64]

_PAIR_DOUBT: Final = 0.01  # of the logarithm of a pair's relative time: what the form of the model misses
_PRIOR_DOUBT: Final = float(np.log(2))  # of the logarithm of a number, around its default
_ENOUGH: Final = 19  # the largest of n errors holds the next one in n of n + 1 cases: 95 % ask for 19


@dataclass(frozen=True)
class Pair:
    """A run on one stream, and the same run on several.

    Attributes:
        kernels: those of a step, as recorded on one stream.
        streams: number of the stream of each kernel in the other run.
        relative: compute time of a step on several streams / on one, both without a profiler.
    """

    kernels: StepKernels
    streams: tuple[int, ...]
    relative: float

    def error(self, overlap: Overlap) -> float:
        """Logarithm of the predicted / measured relative time."""
        return float(np.log(self.kernels.schedule(overlap, self.streams)[1].max() / self.relative))


@dataclass(frozen=True)
class Learned:
    """An overlap and its error.

    Attributes:
        overlap: the learned values.
        error: the largest error of a step's relative time over pairs that were left out, at least that of the default
            if there are fewer than 19 pairs: another case exceeds the largest error of n pairs in 1 of n + 1 cases, so
            with fewer pairs it would cover less than 95 %.
        pairs: number of pairs; 0 for the default.
        source: where the values come from, in words.
    """

    overlap: Overlap
    error: float
    pairs: int
    source: str

    @property
    def note(self) -> str:
        """In a sentence."""
        edge, prologue, latency = (f"{ns / 1e3:.3g} µs" for ns in asdict(self.overlap).values())
        return (
            f"{self.source}: a dependency between streams costs {edge}, a kernel that cannot start early loses up to "
            f"{prologue}, and other kernels hide up to {latency} of a kernel's time; a step's compute may be off by "
            f"{self.error:.1%}"
        )


def fitted(gpu: str) -> Learned:
    """The default for a GPU."""
    fits = fits_of(gpu)
    known = fits.overlap
    return Learned(Overlap(known.edge_ns, known.prologue_ns, known.latency_ns), known.error, 0, f"as on {fits.called}")


def learned(pairs: Sequence[Pair], gpu: str) -> Learned:
    """Fit the three numbers of an overlap to pairs.

    Least squares over the logarithms of the relative times, in the logarithms of the numbers. One pair cannot separate
    three numbers, so every number is also drawn towards its default, as if the default were known within a factor of 2
    and a pair within 1 % (ridge regression; the maximum of the posterior for Gaussian errors). The error for a pair
    that is left out is e / (1 - h), h being the diagonal of the hat matrix of the fit at its solution (Allen 1974;
    exact for a linear model).

    Args:
        pairs: without any, the result is the default.
        gpu: the GPU's name, which chooses the default.
    """
    without = fitted(gpu)
    if not pairs:
        return without
    default = np.array(list(asdict(without.overlap).values()))

    def residuals(log: Floats) -> Floats:
        overlap = Overlap(*(default * np.exp(log)))
        return np.append([pair.error(overlap) / _PAIR_DOUBT for pair in pairs], log / _PRIOR_DOUBT)

    fit = least_squares(residuals, np.zeros(len(default)), diff_step=0.05, x_scale=1.0, max_nfev=12)
    hat = np.diagonal(fit.jac @ np.linalg.pinv(fit.jac))[: len(pairs)]
    left_out = float(np.abs(fit.fun[: len(pairs)] / (1 - hat)).max()) * _PAIR_DOUBT
    error = left_out if len(pairs) >= _ENOUGH else max(left_out, without.error)
    source = f"learned from {len(pairs)} pair{'s'[: len(pairs) != 1]} of runs"
    return Learned(Overlap(*map(float, default * np.exp(fit.x))), error, len(pairs), source)
