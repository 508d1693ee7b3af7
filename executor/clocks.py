"""Bringing a device's clock to the host's: one line between two calibrations, with a stated error.

In a calibration the host asks the device for its time again and again and notes its own time before the question and
after the answer. Whatever happens in between, the device's answer lies there; so every sample bounds the offset from
both sides, and the samples' bounds are intersected (Cristian's algorithm, Distributed Computing 3, 1989).
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
    """host = device + ns, as it was at `device_ns`, within `error_ns` either way."""

    device_ns: int
    ns: int
    error_ns: int

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Offset:
        """The offset that all samples of one short calibration agree on.

        Samples that contradict each other (a clock was stepped) make the error as large as the contradiction.
        """
        before, device, after = (np.array(column, dtype=np.int64) for column in zip(*samples, strict=True))
        low, high = int((before - device).max()), int((after - device).min())
        return cls(int(device[len(device) // 2]), (low + high) // 2, (abs(high - low) + 1) // 2)


@dataclass(frozen=True)
class Alignment:
    """Offsets before and after a run; between them the clocks drift evenly."""

    first: Offset
    last: Offset

    @property
    def error_ns(self) -> int:
        """How far a converted time can be off, ns."""
        return max(self.first.error_ns, self.last.error_ns)

    @property
    def drift_ppm(self) -> float:
        """How much faster the host's clock runs than the device's, in millionths."""
        elapsed = self.last.device_ns - self.first.device_ns
        return (self.last.ns - self.first.ns) / elapsed * 1e6 if elapsed else 0.0

    def to_host(self, device_ns: ArrayLike) -> NDArray[np.int64]:
        """Device times as host times, ns."""
        times = np.asarray(device_ns, dtype=np.int64)
        since = (times - self.first.device_ns).astype(np.float64)
        return times + self.first.ns + np.rint(since * (self.drift_ppm / 1e6)).astype(np.int64)
