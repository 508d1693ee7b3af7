"""The GPU's part of the light pass: head and tail of every step by the GPU's clock, converted to host time."""

from __future__ import annotations

from collections.abc import Callable

from executor.backends.cuda_clock import GpuClock
from executor.backends.cuda_library import Library
from executor.backends.cuda_stamps import Stamps
from executor.clocks import Alignment, Offset
from tracer.recorders.host import FIRST_CALL, HostRecorder


class LightPass:
    """The stamps, the calls that launched the stamped steps, and the clock offsets before and after.

    Args:
        library: compiles the kernels.
        steps: how many steps are kept; only the last ones if there are more.
        stream: address of the stream on which the clock is queried.
    """

    def __init__(self, library: Library, steps: int, stream: int) -> None:
        self.stamps = Stamps(library, steps)
        self._gpu_clock, self._stream = GpuClock(library), stream
        self._launched: list[tuple[int, int]] = []
        self._before: Offset | None = None

    def begin(self, clock: Callable[[], int]) -> None:
        """Discard all steps and measure the clock offset. The device must be idle."""
        self.stamps.restart()
        self._launched.clear()
        self._before = self._gpu_clock.offset(self._stream, clock)

    def launched(self, call: int, graph: int) -> None:
        """Note that a call, an index into the recorder's `calls`, launched a stamped step."""
        self._launched.append((call, graph))

    def report(self, recorder: HostRecorder, device: int) -> None:
        """Report the steps since `begin` as graph launches on stream 0. The device must be idle."""
        if self._before is None:
            return
        alignment = Alignment(self._before, self._gpu_clock.offset(self._stream, recorder.clock))
        recorder.describe_device_clock(alignment.error_ns, alignment.drift_ppm)
        times = alignment.to_host(self.stamps.read()).tolist()
        kept = min(len(times), len(self._launched))
        for (head, tail), (call, graph) in zip(
            times[len(times) - kept :], self._launched[len(self._launched) - kept :], strict=True
        ):
            recorder.graph_launch(head, tail, device=device, stream=0, correlation=FIRST_CALL + call, graph=graph)
