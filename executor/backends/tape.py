"""A device that records instead of computing: the work of a run's devices and its host, in issue order.

The recorded tape is a program for `happens_before`. A graph launch is one piece of work in it, as the plan inside is
checked separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np

from executor.backends.interface import Backend, HostArray
from executor.graph import Flag, Tensor
from executor.planning.devices import Device
from executor.planning.hazards import HOST_STREAM, EventSync, Extent, Item, Sync, Touch
from executor.planning.plans import Plan, Record, Wait


@dataclass(frozen=True)
class TapeArray:
    """The bytes of a tensor in the memory of a device."""

    buffer: str
    start: int
    tensor: Tensor

    def span(self, writes: bool) -> Extent:
        """Return its bytes."""
        return Extent(self.tensor.root, self.buffer, self.start, self.start + self.tensor.nbytes, writes)


class Tape:
    """The work of all devices of a run: one program, issued from one host thread.

    Attributes:
        steps: the items [start, end) of each token step, while the KV cache has its first size.
    """

    def __init__(self) -> None:
        self.program: list[Item] = []
        self.steps: list[tuple[int, int]] = []
        self.step = 0
        self._numbers = count()
        self._streams: dict[tuple[Device, int], int] = {}
        self._host: dict[int, tuple[Tensor, HostArray]] = {}  # keeps the memory alive, so that addresses stay unique

    def number(self) -> int:
        """Return an unused number."""
        return next(self._numbers)

    def stream(self, device: Device, number: int) -> int:
        """Return a stream's number among the streams of all devices."""
        return self._streams.setdefault((device, number), len(self._streams))

    def note(self, name: str, stream: int, spans: Sequence[Extent], where: str) -> None:
        """Record work on a stream or on the host."""
        self.program.append(Touch(name, stream, tuple(spans), where, self.step))

    def host_span(self, array: HostArray | TapeArray, name: str, writes: bool) -> Extent:
        """Return a span of host memory."""
        if isinstance(array, TapeArray):
            return array.span(writes)
        buffer, owner = self.host_buffer(array, name)
        return Extent(owner, buffer, 0, array.nbytes, writes)

    def host_buffer(self, array: HostArray, name: str) -> tuple[str, Tensor]:
        """Return a host buffer, identified by its address, and its owner."""
        start = array.__array_interface__["data"][0]
        if start not in self._host:
            self._host[start] = Tensor(f"the host's {name}", "none", array.shape, str(array.dtype)), array
        return f"host buffer {list(self._host).index(start)}", self._host[start][0]


class TapeBackend(Backend):
    """Records the work of a device on a tape; for the host, the host's work."""

    name: ClassVar[str] = "tape"

    def __init__(self, tape: Tape, device: Device) -> None:
        self._tape, self._device, self.staged = tape, device, device.staged or device.is_host

    def close(self) -> None:
        """Do nothing: there are no threads to end."""

    def alloc(self, nbytes: int) -> str:
        """Return a new buffer."""
        return f"buffer {self._tape.number()} of {self._device}"

    def array(self, buffer: Any, offset: int, tensor: Tensor) -> TapeArray:
        """Return a part of the buffer, or of host memory that a device copies to."""
        if isinstance(buffer, np.ndarray):
            return TapeArray(self._tape.host_buffer(buffer, tensor.name)[0], offset, tensor)
        return TapeArray(buffer, offset, tensor)

    def copy_to_device(self, destination: TapeArray, source: HostArray | TapeArray, stream: int) -> None:
        """Record a copy: the host reads a staged source, the device reads any other source later."""
        name = destination.tensor.name
        read = self._tape.host_span(source, name, writes=False)
        if self._device.is_host:
            self._host(f"copy of {name}", read, destination.span(writes=True))
        elif self.staged:
            self._host(f"staging of {name}", read)
            self._work(f"copy of {name}", stream, destination.span(writes=True))
        else:
            self._work(f"copy of {name}", stream, read, destination.span(writes=True))

    def copy_constant_to_device(self, destination: TapeArray, source: HostArray, stream: int) -> None:
        """Record a write only: the source never changes."""
        self._work(f"copy of {destination.tensor.name}", stream, destination.span(writes=True))

    def copy_to_host(self, destination: HostArray | TapeArray, source: TapeArray, stream: int) -> None:
        """Record a copy by the device."""
        name = source.tensor.name
        spans = (source.span(writes=False), self._tape.host_span(destination, name, writes=True))
        if self._device.is_host:
            self._host(f"copy of {name}", *spans)
        else:
            self._work(f"copy of {name}", stream, *spans)

    def copy_to_peer(self, peer: Backend, destination: TapeArray, source: TapeArray, stream: int, after: int) -> None:
        """Record a copy on this device's stream."""
        assert isinstance(peer, TapeBackend)
        done = self._tape.number()
        self.event_wait(after, stream)
        self._work(f"copy of {source.tensor.name}", stream, source.span(writes=False), destination.span(writes=True))
        self.event_record(done, stream)
        peer.event_wait(done, stream)

    def kernel(self, node: Tensor, out: TapeArray, src: Sequence[TapeArray]) -> list[Extent]:
        """Return the bytes that the kernel touches."""
        updated = [array for array in src if array.tensor in node.updates]
        written = [array.span(writes=True) for array in (out, *updated)]
        read = [array.span(writes=False) for array in src if not array.tensor.root.flags & Flag.WEIGHT]
        return [*written, *(span for span in read if replace(span, writes=True) not in written)]

    def launch(self, kernel: Sequence[Extent], stream: int) -> None:
        """Record work on a stream or on the host."""
        if self._device.is_host:
            self._host("compute", *kernel)
        else:
            self._work("a kernel", stream, *kernel)

    def synchronize(self, stream: int) -> None:
        """Record that the host waits for the stream."""
        if not self._device.is_host:
            self._tape.program.append(Sync(self._tape.stream(self._device, stream)))

    def event(self) -> int:
        """Return a new event number."""
        return self._tape.number()

    def event_record(self, event: int, stream: int) -> None:
        """Record it."""
        self._tape.program.append(Record(self._tape.stream(self._device, stream), event))

    def event_wait(self, event: int, stream: int) -> None:
        """Record it."""
        self._tape.program.append(Wait(self._tape.stream(self._device, stream), event))

    def event_synchronize(self, event: int) -> None:
        """Record that the host waits for the event."""
        self._tape.program.append(EventSync(event))

    def instantiate(self, plan: Plan, kernels: Mapping[Tensor, Sequence[Extent]]) -> list[Extent]:
        """Return all bytes that the plan touches, without duplicates."""
        return list(dict.fromkeys(span for launch in plan.launches for span in kernels[launch.node]))

    def launch_graph(self, graph: list[Extent], stream: int = 0) -> None:
        """Record one piece of work, which is ordered inside and, as a whole, within the main stream."""
        self._work("compute", stream, *graph)

    def _work(self, name: str, stream: int, *spans: Extent) -> None:
        where = f"{self._device} stream {stream}"
        self._tape.note(name, self._tape.stream(self._device, stream), spans, where)

    def _host(self, name: str, *spans: Extent) -> None:
        self._tape.note(name, HOST_STREAM, spans, "host")
