"""Runs token steps: the passes once, then every step is sent, launched and fetched as the strategy says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Protocol

import numpy as np

from executor.allocator import ALLOCATORS, Schedule, allocate
from executor.backends.interface import Array, Backend, Buffer, EagerGraph, HostArray, Kernel
from executor.concurrency import MAIN_STREAM, MODES, Region, map_streams
from executor.dependencies import find_dependencies
from executor.graph import Tensor
from executor.hazards import Hazard, find_hazards
from executor.kv_cache import Position
from executor.models.step import DecodeStep, HostArrays
from executor.names import lookup
from executor.placement import BufferPlan
from executor.plans import Part, Plan, Record, make_plan
from executor.splits import Split, assign_backends, split_graph
from executor.strategies import Copy, Strategy, check_needs
from tracer.errors import ExecutionError, UnsafePlanError, UsageError


@dataclass(frozen=True)
class Prepared:
    """What the passes made of a step: everything known before any memory is taken."""

    step: DecodeStep
    split: Split
    regions: list[Region]
    plan: Plan
    memory: BufferPlan
    hazards: list[Hazard]


def prepare(
    step: DecodeStep, backend: str, concurrency: str, allocator: str | None = None, *, allow_hazards: bool = False
) -> Prepared:
    """Assign backends, split, find regions, map streams and plan, allocate, check.

    Args:
        step: the graph.
        backend: name of the backend for all nodes.
        concurrency: name of a mode of `concurrency.MODES`.
        allocator: name of an allocator, or None for the one that the mode needs.
        allow_hazards: take a plan that has some.

    Raises:
        UsageError: an unknown name.
        UnsafePlanError: the plan has hazards.
    """
    mode = lookup("concurrency mode", concurrency, MODES)
    chosen = lookup("allocator", allocator or mode.allocator, ALLOCATORS)
    (split,) = split_graph(step.graph, assign_backends(step.graph, backend))
    order = find_dependencies(split.nodes)
    regions = mode.regions(split.nodes, order)
    streams = map_streams(split.nodes, regions)
    plan = make_plan(split.nodes, order, streams, cut=mode.cut)
    memory = allocate(Schedule(split, regions, streams, plan), chosen)
    hazards = find_hazards(split, plan, memory.offsets)
    if hazards and not allow_hazards:
        raise UnsafePlanError(
            f"concurrency {mode.name!r} with allocator {chosen.name!r} is a race, {len(hazards)} in all: {hazards[0]}. "
            f"Allocator {mode.allocator!r} has none; --allow-hazards runs it all the same"
        )
    return Prepared(step, split, regions, plan, memory, hazards)


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


class Scheduler:
    """One configuration on a backend: its memory, its kernels, and the loop over token steps.

    Args:
        backend: where everything runs.
        prepared: what the passes made.
        strategy: how to synchronise.
        launch: name of a launcher.
        weights: the weights' arrays on the device, by name, as `load_weights` returns them.
        prefill: the scheduler that takes the prompts of the same sequences; its state is shared.
        keep_logits: fetch the logits even where the device samples.

    Raises:
        UnsafePlanError: the backend does not guarantee what the strategy needs.
    """

    def __init__(
        self,
        backend: Backend,
        prepared: Prepared,
        strategy: Strategy,
        launch: str,
        weights: Mapping[str, Array],
        *,
        prefill: Scheduler | None = None,
        keep_logits: bool = False,
    ) -> None:
        check_needs(strategy, backend.name, backend.guarantees)
        self._backend, self._prepared, self._strategy = backend, prepared, strategy
        self._keep_logits = keep_logits
        if strategy.advances_on_device != (prepared.step.history is not None):
            raise ExecutionError(f"strategy {strategy.name!r} and the graph disagree on who advances the step")
        self._state: dict[str, Buffer] = {} if prefill is None else dict(prefill._state)
        self._arrays = _bind(backend, prepared, weights, self._state)
        kernels = {
            n: backend.kernel(n, self._arrays[n], [self._arrays[s] for s in n.src])
            for n in prepared.split.nodes
            if n.has_kernel
        }
        self._launcher = lookup("launch kind", launch, LAUNCHERS)(backend, prepared.plan, kernels)
        step = prepared.step
        self._logits = backend.host_array(step.logits.shape, step.logits.dtype)
        self._sampled = backend.host_array(step.sampled.shape, step.sampled.dtype) if step.sampled else None
        self._set_tokens(np.zeros(step.batch * step.prompt, np.int32))
        self._position: Position = 0
        self._steps = 0
        self._copies: list[Copy] = []
        self._early: list[Copy] = []

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences from these tokens: anew, or at the position behind a prompt whose state is there.

        Sequences with prompts of different lengths have a position each, (S,).
        """
        self._set_tokens(tokens.astype(np.int32))
        self._position, self._steps = position, 0
        self._prepare_copies()
        self._send_early()
        for name, values in self._prepared.step.start(position, tokens).items():
            self._backend.load(self._arrays[self._leaf(name)], values)

    def step(self, last: bool = False) -> None:
        """One step: send, launch and (unless the step advances on the device) fetch and sample.

        Args:
            last: nothing follows this step before the next `begin`, so the inputs of no further one are prepared.
        """
        step = self._prepared.step
        if not self._fits:
            raise UsageError(f"the context of {step.context} cells is full")
        self._strategy.send(self._backend, self._copies)
        self._launcher.launch()
        self._position, self._steps = self._position + step.prompt, self._steps + 1
        if not self._strategy.advances_on_device:
            if last:
                self._copies, self._early = [], []
            else:
                self._prepare_copies()
            self._fetch()

    def _fetch(self) -> None:
        """The new tokens: the sampled ones, or the greatest of the logits."""
        step, strategy, backend = self._prepared.step, self._strategy, self._backend
        if step.sampled is None or self._keep_logits:
            strategy.ask(backend, self._logits, self._arrays[step.logits])
        if step.sampled is not None and self._sampled is not None:
            strategy.ask(backend, self._sampled, self._arrays[step.sampled])
        self._send_early()
        strategy.wait(backend)
        self._newest[:] = self._logits.argmax(axis=-1) if self._sampled is None else self._sampled

    def _prepare_copies(self) -> None:
        """The next step's inputs, made while the device still computes; only the tokens are filled in later."""
        step = self._prepared.step
        values = step.feed(self._position, self._tokens) if self._fits and not step.history else {}
        inputs = self._prepared.split.inputs if values else ()
        late = step.late if self._strategy.sends_early else frozenset(values)
        self._copies = [(self._arrays[i], values[i.name]) for i in inputs if i.name in late]
        self._early = [(self._arrays[i], values[i.name]) for i in inputs if i.name not in late]

    @property
    def _fits(self) -> bool:
        """Whether there are cells for one more step."""
        return int(np.max(self._position)) + self._prepared.step.prompt <= self._prepared.step.context

    def _send_early(self) -> None:
        if self._early:
            self._strategy.send_early(self._backend, self._early)

    def _set_tokens(self, tokens: HostArray) -> None:
        """What the next step reads, sequence by sequence; sampled tokens overwrite each sequence's last."""
        self._tokens = tokens
        self._newest = tokens.reshape(self._prepared.step.batch, -1)[:, -1]

    @property
    def tokens(self) -> HostArray:
        """A copy of the tokens that the last step sampled, (S,); not where the step advances on the device."""
        return self._newest.copy()

    @property
    def state(self) -> Mapping[str, Buffer]:
        """The memory of the state tensors, by name."""
        return self._state

    @property
    def logits(self) -> HostArray:
        """A copy of the last step's logits, (N, vocabulary), where the host fetches them."""
        return self._logits.copy()

    def finish(self) -> None:
        """Wait for all steps."""
        self._backend.synchronize(MAIN_STREAM)

    def read_history(self) -> HostArrays:
        """Tokens (steps, N) and, if kept, logits (steps, N, vocabulary) of the steps since `begin`.

        Raises:
            ExecutionError: the step does not advance on the device.
        """
        step = self._prepared.step
        if step.history is None:
            raise ExecutionError("only a step that advances on the device keeps a history")
        read = {"tokens": self._read(step.history.tokens)}
        if step.history.logits is not None:
            read["logits"] = self._read(step.history.logits).reshape(-1, step.batch, step.vocabulary)
        self._backend.synchronize(MAIN_STREAM)
        return {name: values[: self._steps] for name, values in read.items()}

    def _read(self, tensor: Tensor) -> HostArray:
        values = self._backend.host_array(tensor.shape, tensor.dtype)
        self._backend.copy_to_host(values, self._arrays[tensor], MAIN_STREAM)
        return values

    def _leaf(self, name: str) -> Tensor:
        return next(leaf for leaf in self._prepared.step.graph.state if leaf.name == name)


def load_weights(backend: Backend, step: DecodeStep, seed: int) -> dict[str, Array]:
    """Put seeded random weights on the device, each in a buffer of its own.

    Raises:
        ExecutionError: the backend has no kernels for their dtype, or too little memory.
    """
    arrays = {}
    for weight in step.graph.weights:
        if weight.dtype not in backend.weight_dtypes:
            known = ", ".join(sorted(backend.weight_dtypes))
            raise ExecutionError(
                f"backend {backend.name!r} has no kernels for {weight.dtype} weights, only for {known}"
            )
        arrays[weight.name] = backend.array(backend.alloc(weight.nbytes), 0, weight)
        backend.load_random(arrays[weight.name], weight, seed)
    return arrays


def _bind(
    backend: Backend, prepared: Prepared, weights: Mapping[str, Array], state: dict[str, Buffer]
) -> dict[Tensor, Array]:
    """Every tensor's array: weights as given, state in own buffers (new ones join `state`), the rest in the arena."""
    graph, memory = prepared.step.graph, prepared.memory
    arrays: dict[Tensor, Array] = {weight: weights[weight.name] for weight in graph.weights}
    state |= {leaf.name: backend.alloc(leaf.nbytes) for leaf in graph.state if leaf.name not in state}
    buffers = {leaf: (state[leaf.name], 0) for leaf in graph.state}
    arena = backend.alloc(memory.peak_bytes)
    buffers |= {tensor: (arena, offset) for tensor, offset in memory.offsets.items()}
    for tensor in (*graph.leaves, *graph.nodes):
        if tensor not in arrays and tensor.root in buffers:
            arrays[tensor] = backend.array(*buffers[tensor.root], tensor)
    return arrays
