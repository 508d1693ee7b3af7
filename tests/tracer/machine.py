"""A machine whose every cost is known: it runs a decode loop under any strategy and writes down what a tracer would."""

from __future__ import annotations

from tests.tracer.handmade import Script
from tracer import Trace

COPY, SYNC, LAUNCH = 10, 5, 20
"""What calls take the host, ns, if they need not wait."""

PAUSE_AFTER = {"copy": 4, "sync": 4, "launch": 4}
"""Each call's own host code, ns; as much as that of its neighbours, so that what-ifs know what vanishes with a call."""

COPY_LATENCY, LAUNCH_LATENCY, RETURN, ORDER = 25, 30, 6, 2
DEVICE_COPY, KERNEL, SAMPLING = 8, 300, 50


class Machine:
    """One host thread and streams; `program` runs it."""

    def __init__(self) -> None:
        self.script = Script()
        self.now = 0
        self.free: dict[int, int] = {}

    def copy(self, kind: str = "HtoD", stream: int = 7) -> None:
        """An asynchronous copy."""
        start = self._device_start(COPY_LATENCY, stream)
        self.script.copy((self.now, self.now + COPY), (start, start + DEVICE_COPY), kind, stream)
        self._done(COPY, "copy", stream, start + DEVICE_COPY)

    def launch(
        self, stream: int = 7, kernel: int = KERNEL, api: str = "cudaGraphLaunch_v10000", name: str = "k"
    ) -> None:
        """A launch of one kernel."""
        start = self._device_start(LAUNCH_LATENCY, stream)
        call = (self.now, self.now + LAUNCH)
        self.script.launch(call, (start, start + kernel), stream=stream, name=name, api=api)
        self._done(LAUNCH, "launch", stream, start + kernel)

    def sync(self, stream: int = 7) -> None:
        """Wait for a stream."""
        end = max(self.now + SYNC, self.free.get(stream, 0) + RETURN)
        self.script.sync(self.now, end, stream)
        self.now = end + PAUSE_AFTER["sync"]

    def think(self, ns: int) -> None:
        """Host code."""
        self.now += ns

    def _device_start(self, latency: int, stream: int) -> int:
        return max(self.now + latency, self.free.get(stream, -ORDER) + ORDER)

    def _done(self, cost: int, call: str, stream: int, end: int) -> None:
        self.free[stream] = end
        self.now += cost + PAUSE_AFTER[call]

    def program(self, strategy: str, tokens: int = 12, inputs: int = 5) -> Trace:
        """A decode loop."""
        for _ in range(tokens):
            start = self.now
            if strategy in ("sccc", "saaas"):
                self.sync()
            for _ in range(inputs if strategy != "ggg" else 0):
                self.copy()
                if strategy == "sccc":
                    self.sync()
            if strategy in ("saaas", "aaas"):
                self.sync()
            self.launch()
            if strategy != "ggg":
                self.copy("DtoH")
                self.sync()
                self.think(SAMPLING)
            self.script.range("token", start, self.now)
        return self.script.trace


def recorded(strategy: str, **options: int) -> Trace:
    """The loop's trace."""
    return Machine().program(strategy, **options)
