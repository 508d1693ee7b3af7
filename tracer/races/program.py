"""A program as an `Order` takes it: what its host threads issue to streams, when they wait, and what is accessed.

Rules of CUDA: the work of a stream runs in its order and after all that its thread waited for before issuing it. An
event stands for the work before its latest record; one that was never recorded is waited for by nobody. Work of the
legacy default stream runs after that of all other streams, and before what they get later, except for streams made
non-blocking. Memory that the driver gives in the order of a stream (`cudaMallocAsync`) is given after those who had it
freed it, whatever their streams were; nothing else orders its users.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from tracer.races.order import GIVEN, WAIT, Accesses, Edges, Order


@dataclass(eq=False)
class Program:
    """Operations in issue order; each method adds one and returns its number.

    Streams, threads, events and buffers may be named by anything that is hashable.

    Attributes:
        legacy: the legacy default stream, if the program has one.
        unblocking: the streams that do not wait for it.
    """

    legacy: Hashable = None
    unblocking: Collection[Hashable] = ()
    _lanes: dict[tuple[str, Hashable], int] = field(default_factory=dict)
    _threads: set[int] = field(default_factory=set)
    _lane: list[int] = field(default_factory=list)
    _edges: list[tuple[int, int, int]] = field(default_factory=list)
    _accesses: list[tuple[int, int, int, int, bool, bool, bool]] = field(default_factory=list)
    _buffers: dict[Hashable, int] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)
    _issued: dict[tuple[int, int], int] = field(default_factory=dict)
    _recorded: dict[Hashable, int] = field(default_factory=dict)
    _streams: dict[Hashable, int] = field(default_factory=dict)
    _freed: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._lane)

    def host(self, thread: Hashable = 0) -> int:
        """The host itself reads or writes, or allocates."""
        operation = self._added(("thread", thread))
        self._threads.add(self._lane[operation])
        return operation

    def work(self, stream: Hashable, thread: Hashable | None = 0) -> int:
        """A kernel, a copy, a memset, a host function or a graph as a whole on a stream.

        Args:
            thread: that issues it; None if it runs after nothing but the earlier work of the stream.
        """
        lane = self._streams.setdefault(stream, self._number(("stream", stream)))
        operation = self._added(("stream", stream))
        if thread is not None:
            of_thread = self._number(("thread", thread))
            host = self._last.get(of_thread)
            if host is not None and self._issued.get((of_thread, lane)) != host:
                self._issued[of_thread, lane] = host
                self.edge(host, operation)
        if self.legacy is not None and stream not in self.unblocking:
            others = [*self._streams] if stream == self.legacy else [self.legacy]
            for other in others:
                if other != stream and other in self._streams and other not in self.unblocking:
                    self._after_last(self._streams[other], operation, GIVEN)
        return operation

    def record(self, event: Hashable, stream: Hashable, thread: Hashable = 0) -> int:
        """An event is recorded on a stream."""
        self._recorded[event] = operation = self.work(stream, thread)
        return operation

    def wait(self, event: Hashable, stream: Hashable, thread: Hashable = 0) -> int:
        """A stream waits for the latest record of an event."""
        operation = self.work(stream, thread)
        if event in self._recorded:
            self.edge(self._recorded[event], operation, WAIT)
        return operation

    def sync(self, stream: Hashable | None = None, thread: Hashable = 0) -> int:
        """A thread waits for a stream, or for all of them."""
        operation = self.host(thread)
        for lane in self._streams.values() if stream is None else [self._streams.get(stream, -1)]:
            self._after_last(lane, operation, WAIT)
        return operation

    def sync_event(self, event: Hashable, thread: Hashable = 0) -> int:
        """A thread waits for the latest record of an event."""
        operation = self.host(thread)
        if event in self._recorded:
            self.edge(self._recorded[event], operation, WAIT)
        return operation

    def blocking(self, stream: Hashable, thread: Hashable = 0) -> int:
        """A copy that returns when it is done: two operations, of which the first, the copy, is returned."""
        operation = self.work(stream, thread)
        self.edge(operation, self.host(thread), WAIT)
        return operation

    def graph(self, stream: Hashable, before: Sequence[Collection[int]], thread: Hashable = 0) -> list[int]:
        """A graph is launched: the operations of its nodes, which stand between its start and its end on the stream.

        Args:
            before: for each node, the nodes that it runs after, which have lower numbers.
        """
        start = self.work(stream, thread)
        ends: dict[int, int] = {}  # of each branch, its last node
        branch_of: list[int] = []
        nodes: list[int] = []
        for number, needs in enumerate(before):
            own = next((branch_of[node] for node in needs if ends[branch_of[node]] == node), len(ends))
            operation = self._added(("branch", (stream, own)))
            if own == len(ends):
                self.edge(start, operation)
            for node in needs:
                if branch_of[node] != own:
                    self.edge(nodes[node], operation)
            ends[own] = number
            branch_of.append(own)
            nodes.append(operation)
        end = self.work(stream, None)
        for last in ends.values():
            self.edge(nodes[last], end)
        return nodes

    def allocate(
        self, stream: Hashable, buffer: Hashable, start: int, end: int, thread: Hashable = 0
    ) -> int:  # fmt: skip
        """The driver gives bytes to a stream."""
        operation = self.work(stream, thread)
        freed = self._freed.get(self._buffer(buffer), [])
        for free, low, high in freed:
            if low < end and start < high:
                self.edge(free, operation)
        freed[:] = [each for each in freed if each[1] < start or each[2] > end]
        self.access(operation, buffer, start, end, writes=True)
        return operation

    def free(self, stream: Hashable, buffer: Hashable, start: int, end: int, thread: Hashable = 0) -> int:
        """A stream gives bytes back to the driver."""
        operation = self.work(stream, thread)
        self._freed.setdefault(self._buffer(buffer), []).append((operation, start, end))
        self.access(operation, buffer, start, end, writes=True)
        return operation

    def access(
        self, operation: int, buffer: Hashable, start: int, end: int, *, writes: bool, by_host: bool | None = None,
        guessed: bool = False,
    ) -> None:  # fmt: skip
        """An operation reads or writes bytes [start, end), or may do so. By default the host does so in its threads."""
        by_host = self._lane[operation] in self._threads if by_host is None else by_host
        self._accesses.append((operation, self._buffer(buffer), start, end, writes, by_host, guessed))

    def points_to(self, operation: int, buffer: Hashable, address: int, blocks: Sequence[tuple[int, int]]) -> None:
        """A parameter of a kernel is this number: if it points into a block, the kernel may write the rest of that.

        Args:
            blocks: the allocated blocks [start, end) of the buffer, in order.
        """
        place = bisect_right(blocks, address, key=itemgetter(0)) - 1
        if place >= 0 and address < blocks[place][1]:
            self.access(operation, buffer, address, blocks[place][1], writes=True, guessed=True)

    def edge(self, source: int, target: int, kind: int = GIVEN) -> None:
        """An operation runs after an earlier one for a reason that no method states, such as a lock."""
        self._edges.append((source, target, kind))

    @property
    def order(self) -> Order:
        """The order of its operations."""
        return Order(np.array(self._lane, np.int64), Edges(*np.array(self._edges, np.int64).reshape(-1, 3).T))

    @property
    def accesses(self) -> Accesses:
        """All accesses, as they were added."""
        columns = np.array(self._accesses, np.int64).reshape(-1, 7).T
        return Accesses(*columns[:4], *columns[4:].astype(bool))

    def _number(self, lane: tuple[str, Hashable]) -> int:
        return self._lanes.setdefault(lane, len(self._lanes))

    def _buffer(self, buffer: Hashable) -> int:
        return self._buffers.setdefault(buffer, len(self._buffers))

    def _added(self, lane: tuple[str, Hashable]) -> int:
        operation, number = len(self._lane), self._number(lane)
        self._lane.append(number)
        self._last[number] = operation
        return operation

    def _after_last(self, lane: int, operation: int, kind: int) -> None:
        if (last := self._last.get(lane)) is not None:
            self.edge(last, operation, kind)
