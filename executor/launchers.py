"""Ways to issue a plan: one call for a graph of it, or one call per kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Final, Protocol

from executor.backends.interface import Backend, EagerGraph, Kernel
from executor.graph import Tensor
from executor.plans import Part, Plan, Record


class Launcher(Protocol):
    """Issues a plan."""

    name: ClassVar[str]

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None: ...

    def launch(self) -> None:
        """Issue the whole plan once."""


class GraphLaunch:
    """One call for each part of the plan, with the records and waits between parts."""

    name: ClassVar[str] = "graph"

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        events = [backend.event() for _ in range(plan.events)] if plan.cut else []
        self._calls: list[Callable[[], None]] = []
        for part in plan.parts:
            if isinstance(part, Part):
                self._calls.append(partial(backend.launch_graph, backend.instantiate(part.plan, kernels), part.stream))
            else:
                call = backend.event_record if isinstance(part, Record) else backend.event_wait
                self._calls.append(partial(call, events[part.event], part.stream))
        if plan.cut:
            self._calls = [backend.head_of_step, *self._calls, backend.tail_of_step]

    def launch(self) -> None:
        """One graph launch, unless the plan is cut."""
        for call in self._calls:
            call()


class EagerLaunch:
    """One call per kernel, record and wait."""

    name: ClassVar[str] = "eager"

    def __init__(self, backend: Backend, plan: Plan, kernels: Mapping[Tensor, Kernel]) -> None:
        self._backend = backend
        self._graph = EagerGraph(plan.instructions, kernels, [backend.event() for _ in range(plan.events)])

    def launch(self) -> None:
        """All calls in issue order."""
        self._backend.head_of_step()
        Backend.launch_graph(self._backend, self._graph)
        self._backend.tail_of_step()


LAUNCHERS: Final[Mapping[str, type[Launcher]]] = {"graph": GraphLaunch, "eager": EagerLaunch}
"""Name -> way to launch a plan."""
