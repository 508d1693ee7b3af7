"""Converts device times to host times: linear between two calibrations, with a stated error.

In a calibration the host queries the device's clock repeatedly and reads its own clock before and after each query. The
device's answer was taken between the two, so every sample bounds the offset from both sides, and the bounds of all
samples are intersected (Cristian's algorithm, Distributed Computing 3, 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Sample = tuple[int, int, int]
"""Host ns before, device ns, host ns after."""


@dataclass(frozen=True)
class Offset:
    """host = device + ns at the time `device_ns`, within +-`error_ns`."""

    device_ns: int
    ns: int
    error_ns: int

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Offset:
        """Return the offset consistent with all samples of one short calibration.

        If samples contradict each other (a clock was stepped), the error is as large as the contradiction.
        """
        before, device, after = (np.array(column, dtype=np.int64) for column in zip(*samples, strict=True))
        low, high = int((before - device).max()), int((after - device).min())
        return cls(int(device[len(device) // 2]), (low + high) // 2, (abs(high - low) + 1) // 2)


@dataclass(frozen=True)
class Alignment:
    """Offsets before and after a run; in between, the clocks are assumed to drift linearly."""

    first: Offset
    last: Offset

    @property
    def error_ns(self) -> int:
        """Maximum error of a converted time, ns."""
        return max(self.first.error_ns, self.last.error_ns)

    @property
    def drift_ppm(self) -> float:
        """How much faster the host's clock runs than the device's, parts per million."""
        elapsed = self.last.device_ns - self.first.device_ns
        return (self.last.ns - self.first.ns) / elapsed * 1e6 if elapsed else 0.0

    def to_host(self, device_ns: ArrayLike) -> NDArray[np.int64]:
        """Convert device times to host times, ns."""
        times = np.asarray(device_ns, dtype=np.int64)
        since = (times - self.first.device_ns).astype(np.float64)
        return times + self.first.ns + np.rint(since * (self.drift_ppm / 1e6)).astype(np.int64)
