"""Traces made by hand: a host thread and a device whose every nanosecond the test chooses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tracer import Trace
from tracer.model.schema import MISSING, PYTHON_FUNCTION
from tracer.model.trace import RUN

PROCESS, THREAD = 100, 101


class Script:
    """Write down calls and activities in any order, then take `trace`."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._correlation = 0

    def call(self, name: str, start: int, end: int, thread: int = THREAD, process: int = PROCESS) -> int:
        self._correlation += 1
        self.rows["api"].append(
            {"name": name, "start": start, "end": end, "thread": thread, "process": process,
             "correlation": self._correlation}
        )  # fmt: skip
        return self._correlation

    def launch(
        self, call: tuple[int, int], *kernels: tuple[int, int], stream: int = 7, name: str = "k", device: int = 0,
        api: str = "cudaLaunchKernel_v7000", process: int = PROCESS, thread: int = THREAD,
    ) -> None:  # fmt: skip
        correlation = self.call(api, *call, process=process, thread=thread)
        for start, end in kernels:
            self.kernel(start, end, correlation, stream, name, device, process)

    def kernel(
        self, start: int, end: int, correlation: int = -1, stream: int = 7, name: str = "k", device: int = 0,
        process: int = PROCESS,
    ) -> None:  # fmt: skip
        names = {"name": name, "short_name": name}
        self._on_stream("kernels", start, end, stream, correlation, device=device, process=process, **names)

    def graph(
        self, call: tuple[int, int], ran: tuple[int, int], stream: int = 7, device: int = 0, process: int = PROCESS
    ) -> None:
        correlation = self.call("cudaGraphLaunch_v10000", *call, process=process)
        self._on_stream("graph_launches", *ran, stream, correlation, graph=1, device=device, process=process)

    def run(self, call: tuple[int, int], device: tuple[int, int], stream: int = 7) -> None:
        """A run of eager launches in a light recording, of which only the first call and the ends are known."""
        correlation = self.call("cudaLaunchKernel_v7000", *call)
        self._on_stream("graph_launches", *device, stream, correlation, graph=MISSING, name=RUN)

    def copy(
        self, call: tuple[int, int], device: tuple[int, int], kind: str = "HtoD", stream: int = 7, size: int = 4,
        name: str = "cudaMemcpyAsync_v3020", thread: int = THREAD,
    ) -> None:  # fmt: skip
        self.copied(device, kind, self.call(name, *call, thread=thread), stream, size)

    def copied(self, device: tuple[int, int], kind: str, correlation: int, stream: int = 7, size: int = 4) -> None:
        self._on_stream("memcpys", *device, stream, correlation, kind=kind, bytes=size)

    def sync(
        self, start: int, end: int, stream: int = 7, name: str = "cudaStreamSynchronize_v3020", device: int = 0,
        type: str = "stream", event: int = MISSING, thread: int = THREAD,
    ) -> None:  # fmt: skip
        correlation = self.call(name, start, end, thread=thread)
        self._on_stream("syncs", start, end, stream, correlation, type=type, event=event, device=device)

    def record(self, start: int, end: int, event: int, stream: int = 7) -> None:
        correlation = self.call("cudaEventRecord_v3020", start, end)
        row = {"device": 0, "context": 1, "process": PROCESS, "stream": stream, "event": event}
        self.rows["cuda_events"].append(row | {"correlation": correlation})

    def _on_stream(self, table: str, start: int, end: int, stream: int, correlation: int, **columns: Any) -> None:
        row = {"start": start, "end": end, "stream": stream, "correlation": correlation}
        self.rows[table].append({**row, "device": 0, "context": 1, "process": PROCESS, **columns})

    def query(self, start: int, end: int, answer: int = 600, event: int = 5) -> None:
        """Ask whether an event has come; 600 is "not ready"."""
        self.sync(start, end, -1, "cudaEventQuery_v3020", type="event", event=event)
        self.rows["api"][-1]["return_value"] = answer

    def wait(self, start: int, end: int, event: int, stream: int) -> None:
        """A stream waits for an event."""
        row = {"start": start, "end": end, "stream": stream, "event": event, "type": "stream wait", "device": 0}
        correlation = self.call("cudaStreamWaitEvent_v3020", start, end)
        self.rows["syncs"].append({**row, "context": 1, "process": PROCESS, "correlation": correlation})

    def range(
        self, text: str, start: int, end: int, thread: int = THREAD, domain: str = "", payload: float = np.nan,
        process: int = PROCESS,
    ) -> None:  # fmt: skip
        self.rows["nvtx"].append(
            {"text": text, "start": start, "end": end, "thread": thread, "process": process, "kind": "push/pop",
             "domain": domain, "payload": payload}
        )  # fmt: skip

    def function(self, text: str, start: int, end: int, thread: int = THREAD) -> None:
        """A Python function."""
        self.range(text, start, end, thread, PYTHON_FUNCTION)

    def play(self, events: Iterable[list[Any]], by: int = 0) -> Script:
        """Events as in data/truths: a method, its arguments, and a table of options; so much later, ns."""

        def later(argument: Any) -> Any:
            return [each + by for each in argument] if isinstance(argument, list) else argument + by

        for method, *given in events:
            options = given.pop() if isinstance(given[-1], dict) else {}
            arguments = [argument if isinstance(argument, str) else later(argument) for argument in given]
            getattr(self, method)(*arguments, **options)
        return self

    @property
    def trace(self) -> Trace:
        asked = any("return_value" in row for row in self.rows["api"])
        for row in self.rows["api"] if asked else ():
            row.setdefault("return_value", 0)
        columns = {
            table: {key: [row[key] for row in rows] for key in rows[0]} for table, rows in self.rows.items() if rows
        }
        return Trace.from_columns(metadata={"source": "hand-made"}, **columns)


def decode_loop(letters: str, tokens: int, period: int = 1000, launch: str = "cudaGraphLaunch_v10000") -> Script:
    """`tokens` equal steps whose calls, 10 ns each and 20 ns apart, are the given letters.

    `a` copies to the device, `A` from it, `c` is a blocking copy, `s` a sync, `g` a launch of one 300 ns kernel that
    starts 5 ns behind its call, `e` and `w` record and wait for an event.
    """
    script = Script()
    for token in range(tokens):
        for position, letter in enumerate(letters):
            start = token * period + position * 20
            span = (start, start + 10)
            if letter == "g":
                script.launch(span, (start + 15, start + 315), api=launch)
            elif letter == "s":
                script.sync(*span)
            elif letter in "aA":
                script.copy(span, (start + 12, start + 14), "DtoH" if letter == "A" else "HtoD")
            elif letter == "c":
                script.copy(span, (start + 2, start + 8), name="cudaMemcpy_v3020")
            else:
                script.call({"e": "cudaEventRecord_v3020", "w": "cudaStreamWaitEvent_v3020"}[letter], *span)
    return script


class Loop(NamedTuple):
    """A loop of steps of one kernel each: its gap and the length of its kernel, ns, and where it runs."""

    gap: int
    work: int
    steps: int = 40
    process: int = PROCESS
    thread: int = THREAD
    device: int = 0
    syncs: int = 1


def loops(*every: Loop, launch: int = 10_000) -> Trace:
    """Loops that run at the same time, each on a stream of its own, with so many ns from a launch to its kernel."""
    script = Script()
    for number, loop in enumerate(every):
        place = {"process": loop.process, "thread": loop.thread}
        for step in range(loop.steps):
            start = launch + number * 1000 + step * (loop.gap + loop.work)
            script.range("token", start - launch, start - launch + 1, **place)
            script.launch(
                (start - launch, start - launch // 2), (start, start + loop.work), stream=7 + number,
                device=loop.device, api="cudaGraphLaunch_v10000", **place,
            )  # fmt: skip
            for at in range(loop.syncs):
                script.call("cudaStreamSynchronize_v3020", start + at * 500, start + at * 500 + 400, **place)
    hosts = dict.fromkeys((loop.process, loop.thread) for loop in every)
    script.rows["processes"] = [
        {"process": each, "name": f"serve-{each}"} for each in dict.fromkeys(process for process, _ in hosts)
    ]
    script.rows["threads"] = [
        {"process": process, "thread": thread, "name": f"loop-{thread}"} for process, thread in hosts
    ]
    return script.trace
