"""Ways to issue a plan, and the handling of its graphs: kept, updated in place, or instantiated again.

Engines rebuild a split for every step and compare it with that of the previous step, node by node. Here a split is
bound to its memory once, and so its key is computed once. Keys are equal if the same kernels are issued with the same
arguments in the same order to the same streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import ClassVar, Final, Protocol

from executor.backends.interface import Backend, EagerGraph, Event, GraphExec, Kernel
from executor.graph import Tensor
from executor.planning.plans import Launch, Plan, Record, Subplan, Wait

OUTCOMES: Final = ("created", "reused", "updated", "reinstantiated", "freed")
"""Possible outcomes for a graph when it is launched."""


class Launcher(Protocol):
    """Issues a plan."""

    name: ClassVar[str]

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None: ...

    def take(self, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        """Issue this plan from now on."""

    def launch(self) -> None:
        """Issue the whole plan once."""

    @property
    def outcomes(self) -> Counter[str]:
        """How often each of `OUTCOMES` occurred."""


class GraphPlan:
    """A graph that changes with its plan."""

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        self._backend, self._key = backend, key_of(backend, plan, kernels)
        self.graph: GraphExec = backend.instantiate(plan, kernels)
        self.outcomes = Counter(created=1)

    def become(self, plan: Plan, kernels: Mapping[Tensor, Kernel], *, rebuild: bool = False) -> None:
        """Change the graph to this plan; with `rebuild`, build it even if it would be the same."""
        if not rebuild:
            key = key_of(self._backend, plan, kernels)
            if key == self._key:
                return
            self._key = key
        if self._backend.update_graph(self.graph, plan, kernels):
            self.outcomes["updated"] += 1
            return
        self._backend.free_graph(self.graph)
        self.graph = self._backend.instantiate(plan, kernels)
        self.outcomes += Counter(freed=1, reinstantiated=1)


def key_of(backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> Hashable:
    """Return a key equal for plans that may replace each other."""
    return tuple(
        (i.stream, backend.kernel_key(kernels[i.node]))
        if isinstance(i, Launch)
        else (i.stream, type(i).__name__, i.event)
        for i in plan.instructions
    )


class GraphLaunch:
    """One call per part of the plan, with the records and waits between them; graphs change with the plan."""

    name: ClassVar[str] = "graph"

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        self._backend, self._launches, self._launched = backend, 0, 0  # launches since `take`; graphs launched before
        self._gone = Counter[str]()  # outcomes of freed graphs
        self._events: list[Event] = []
        self._graphs: list[GraphPlan] = []
        self.take(plan, kernels)

    def take(self, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        """Issue this plan from now on."""
        backend, parts = self._backend, plan.parts
        self._plan, self._kernels = plan, kernels
        self._launched, self._launches = self._launched + self._launches * len(self._graphs), 0
        while plan.cut and len(self._events) < plan.events:
            self._events.append(backend.event())
        wanted = [part for part in parts if isinstance(part, Subplan)]
        for graph, part in zip(self._graphs, wanted, strict=False):
            graph.become(part.plan, kernels)
        for graph in self._graphs[len(wanted) :]:
            backend.free_graph(graph.graph)
            self._gone += graph.outcomes + Counter(freed=1)
        self._graphs = self._graphs[: len(wanted)]
        self._graphs += [GraphPlan(backend, part.plan, kernels) for part in wanted[len(self._graphs) :]]
        self._prepare(parts)

    def _prepare(self, parts: list[Subplan | Record | Wait]) -> None:
        """Prepare the calls of a launch."""
        backend, graphs = self._backend, iter(self._graphs)
        self._calls: list[Callable[[], None]] = []
        for part in parts:
            if isinstance(part, Subplan):
                self._calls.append(partial(backend.launch_graph, next(graphs).graph, part.stream))
            else:
                call = backend.event_record if isinstance(part, Record) else backend.event_wait
                self._calls.append(partial(call, self._events[part.event], part.stream))

    def launch(self) -> None:
        """Launch the plan: one graph launch, unless the plan is cut."""
        self._launches += 1
        for call in self._calls:
            call()

    @property
    def outcomes(self) -> Counter[str]:
        """How often each outcome occurred. Every launch except the first after a change reuses the graph."""
        total = sum((graph.outcomes for graph in self._graphs), self._gone.copy())
        changes = total["created"] + total["updated"] + total["reinstantiated"]
        total["reused"] = max(self._launched + self._launches * len(self._graphs) - changes, 0)
        return total


class RebuildLaunch(GraphLaunch):
    """Like `GraphLaunch`, but every graph is rebuilt before each launch and updated with the result."""

    name: ClassVar[str] = "rebuild"

    def launch(self) -> None:
        """Build, update, launch."""
        parts = self._plan.parts
        for graph, part in zip(self._graphs, (p for p in parts if isinstance(p, Subplan)), strict=True):
            graph.become(part.plan, self._kernels, rebuild=True)
        self._prepare(parts)
        super().launch()


class EagerLaunch:
    """One call per kernel, record and wait."""

    name: ClassVar[str] = "eager"

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        self._backend = backend
        self._events: list[Event] = []
        self.outcomes = Counter[str]()  # there are no graphs
        self.take(plan, kernels)

    def take(self, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        """Issue this plan from now on."""
        while len(self._events) < plan.events:
            self._events.append(self._backend.event())
        self._graph = EagerGraph(plan.instructions, kernels, self._events)

    def launch(self) -> None:
        """Issue all calls in order."""
        Backend.launch_graph(self._backend, self._graph)


LAUNCHERS: Final[Mapping[str, type[Launcher]]] = {"graph": GraphLaunch, "eager": EagerLaunch, "rebuild": RebuildLaunch}
"""Maps a name to its launcher."""
