"""Runs token steps: the passes once, then every step is sent, launched and fetched as the strategy says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from executor.allocator import ALLOCATORS, Schedule, allocate
from executor.backends.interface import Array, HostArray
from executor.concurrency import MAIN_STREAM, MODES, Region, map_streams
from executor.dependencies import find_dependencies
from executor.devices import Placement, assign_devices, only
from executor.graph import Tensor
from executor.hazards import Hazard, find_hazards
from executor.launchers import LAUNCHERS
from executor.memory import Backends, Place, State, Weights, bind
from executor.models.step import DecodeStep, HostArrays
from executor.names import lookup
from executor.placement import BufferPlan
from executor.plans import Plan, make_plan
from executor.splits import Split, split_graph
from executor.strategies import Copy, Strategy, check_needs
from tracer.errors import ExecutionError, UnsafePlanError, UsageError
from tracer.recorders import annotate


@dataclass(frozen=True)
class PreparedSplit:
    """What the passes made of a split: everything known before any memory is taken."""

    split: Split
    regions: list[Region]
    plan: Plan
    memory: BufferPlan
    hazards: list[Hazard]


@dataclass(frozen=True)
class Prepared:
    """What the passes made of a step: its splits in the order in which they run."""

    step: DecodeStep
    splits: tuple[PreparedSplit, ...]

    @property
    def hazards(self) -> list[Hazard]:
        """Those of all splits."""
        return [hazard for part in self.splits for hazard in part.hazards]

    @property
    def allocator(self) -> str:
        """The allocator of all splits."""
        return self.splits[0].memory.allocator


def prepare(
    step: DecodeStep, placement: Placement | str, concurrency: str, allocator: str | None = None,
    *, allow_hazards: bool = False,
) -> Prepared:  # fmt: skip
    """Assign devices and split; of each split find regions, map streams and plan, allocate, check.

    Args:
        step: the graph.
        placement: what goes where; a backend's name for everything on its first device.
        concurrency: name of a mode of `concurrency.MODES`.
        allocator: name of an allocator, or None for the one that the mode needs.
        allow_hazards: take a plan that has some.

    Raises:
        UsageError: an unknown name, or a placement that does not fit the model.
        UnsafePlanError: a plan has hazards.
    """
    mode = lookup("concurrency mode", concurrency, MODES)
    chosen = lookup("allocator", allocator or mode.allocator, ALLOCATORS)
    assigned = assign_devices(step.graph, only(placement) if isinstance(placement, str) else placement)
    made = []
    for split in split_graph(step.graph, assigned):
        order = find_dependencies(split.nodes)
        here = MODES["sequential"] if split.device.is_host else mode
        regions = here.regions(split.nodes, order)
        streams = map_streams(split.nodes, regions)
        plan = make_plan(split.nodes, order, streams, cut=here.cut)
        memory = allocate(Schedule(split, regions, streams, plan), chosen)
        made.append(PreparedSplit(split, regions, plan, memory, find_hazards(split, plan, memory.offsets)))
    prepared = Prepared(step, tuple(made))
    if (hazards := prepared.hazards) and not allow_hazards:
        raise UnsafePlanError(
            f"concurrency {mode.name!r} with allocator {chosen.name!r} is a race, {len(hazards)} in all: {hazards[0]}. "
            f"Allocator {mode.allocator!r} has none; --allow-hazards runs it all the same"
        )
    return prepared


class Piece:
    """A split on its device: its memory, its kernels, and what is copied to it from other devices.

    Args:
        backends: of all devices.
        number: which of the prepared splits it is.
        before: the pieces of the splits before it.
        state: of all devices, see `memory.bind`.
    """

    def __init__(
        self, backends: Backends, prepared: PreparedSplit, number: int, before: list[Piece], launch: str,
        weights: Weights, state: State,
    ) -> None:  # fmt: skip
        self.split = split = prepared.split
        self.backend = backend = backends[split.device]
        self.name = f"split {number}: {split.device}"
        elsewhere: dict[Tensor, Place] = {}
        for leaf, origin in split.origins.items():
            source = before[origin.split]
            if leaf not in split.inputs:
                elsewhere[leaf] = source.places[origin.node]
            elif split.device.is_host:
                pinned = source.backend.host_array((leaf.nbytes,), "uint8")
                elsewhere[leaf] = (pinned, 0)
        bound = bind(backend, split, prepared.memory, weights[split.device], state, elsewhere)
        self.arrays: dict[Tensor, Array] = bound[0]
        self.places: dict[Tensor, Place] = bound[1]
        kernels = {
            n: backend.kernel(n, self.arrays[n], [self.arrays[s] for s in n.src]) for n in split.nodes if n.has_kernel
        }
        self.launcher = lookup("launch kind", launch, LAUNCHERS)(backend, prepared.plan, kernels)
        self.fetched = [
            self._fetch(self.arrays[leaf], before[origin.split], origin.node)
            for leaf, origin in split.origins.items()
            if leaf in split.inputs
        ]
        self.sources = [source for source in dict.fromkeys(copy.backend for copy in self.fetched) if source != backend]

    def _fetch(self, destination: Array, source: Piece, node: Tensor) -> Copy:
        """The copy of another device's result. One between accelerators runs on the stream that made the result."""
        array, backend = source.arrays[node], self.backend
        if source.split.device.is_host:
            return Copy(partial(backend.copy_to_device, destination, array, MAIN_STREAM), backend)
        if self.split.device.is_host:
            return Copy(partial(source.backend.copy_to_host, destination, array, MAIN_STREAM), source.backend)
        return Copy(partial(source.backend.copy_to_peer, backend, destination, array, MAIN_STREAM), source.backend)

    def sent(self, values: HostArrays) -> Iterator[tuple[str, Copy]]:
        """Name and copy of every input that the host sends."""
        for leaf in self.split.inputs:
            if leaf not in self.split.origins and leaf.name in values:
                send = partial(self.backend.copy_to_device, self.arrays[leaf], values[leaf.name], MAIN_STREAM)
                yield leaf.name, Copy(send, self.backend)


class Scheduler:
    """One configuration on its devices, and the loop over token steps.

    Args:
        backends: device -> backend, of all devices that the splits name.
        prepared: what the passes made.
        strategy: how to synchronise.
        launch: name of a launcher.
        weights: as `memory.load_weights` returns them.
        prefill: the scheduler that takes the prompts of the same sequences; its state is shared.
        keep_logits: fetch the logits even where the device samples.

    Raises:
        UnsafePlanError: a backend does not guarantee what the strategy needs.
        UsageError: the strategy needs the whole step on one device.
    """

    def __init__(
        self,
        backends: Backends,
        prepared: Prepared,
        strategy: Strategy,
        launch: str,
        weights: Weights,
        *,
        prefill: Scheduler | None = None,
        keep_logits: bool = False,
    ) -> None:
        self._prepared, self._strategy, self._keep_logits = prepared, strategy, keep_logits
        devices = [part.split.device for part in prepared.splits]
        for device in devices:
            check_needs(strategy, backends[device].name, backends[device].guarantees)
        if len(devices) > 1 and not strategy.splits:
            raise UsageError(
                f"strategy {strategy.name!r} needs the whole step on one device, not {len(devices)} splits"
            )
        if strategy.advances_on_device != (prepared.step.history is not None):
            raise ExecutionError(f"strategy {strategy.name!r} and the graph disagree on who advances the step")
        self._state: State = {} if prefill is None else dict(prefill._state)
        self.pieces: list[Piece] = []
        for number, part in enumerate(prepared.splits):
            piece = Piece(backends, part, number, self.pieces, launch, weights, self._state)
            self.pieces.append(piece)
        self._last = self.pieces[-1]
        self._several = len({backends[device] for device in devices if not device.is_host}) > 1
        step = prepared.step
        self._logits_array = self._array(step.logits)
        self._logits = self._last.backend.host_array(step.logits.shape, step.logits.dtype)
        self._sampled = self._last.backend.host_array(step.sampled.shape, step.sampled.dtype) if step.sampled else None
        self._set_tokens(np.zeros(step.batch * step.prompt, np.int32))
        self._first_position = self._position = 0
        self._copies: list[list[Copy]] = []
        self._early: list[Copy] = []

    def begin(self, tokens: HostArray, position: int = 0) -> None:
        """Start all sequences from these tokens: anew, or at the position behind a prompt whose state is there."""
        self._set_tokens(tokens.astype(np.int32))
        self._first_position = self._position = position
        self._prepare_copies()
        self._send_early()
        values = self._prepared.step.start(position, tokens)
        for piece in self.pieces:
            for leaf in piece.split.state:
                if leaf.name in values:
                    piece.backend.activate()
                    piece.backend.load(piece.arrays[leaf], values[leaf.name].astype(leaf.dtype, copy=False))

    def step(self) -> None:
        """One step: send, launch and (unless the step advances on the device) fetch and sample."""
        step = self._prepared.step
        if self._position + step.prompt > step.context:
            raise UsageError(f"the context of {step.context} cells is full")
        for piece, copies in zip(self.pieces, self._copies, strict=True):
            with self._range(piece):
                self._run(piece, copies)
        self._position += step.prompt
        if not self._strategy.advances_on_device:
            self._prepare_copies()
            self._fetch()

    def _run(self, piece: Piece, copies: list[Copy]) -> None:
        if self._several:
            piece.backend.activate()
        self._strategy.send(piece.backend, copies)
        if piece.split.device.is_host and not self._strategy.waits_for_copies:
            for source in piece.sources:  # its compute is a call, not something that can be ordered behind a copy
                source.synchronize(MAIN_STREAM)
        piece.launcher.launch()

    def _range(self, piece: Piece) -> AbstractContextManager[object]:
        return annotate(piece.name) if len(self.pieces) > 1 else nullcontext()

    def _fetch(self) -> None:
        """The new tokens: the sampled ones, or the greatest of the logits."""
        step, strategy, backend = self._prepared.step, self._strategy, self._last.backend
        if step.sampled is None or self._keep_logits:
            strategy.ask(backend, self._logits, self._logits_array)
        if step.sampled is not None and self._sampled is not None:
            strategy.ask(backend, self._sampled, self._array(step.sampled))
        self._send_early()
        strategy.wait(backend)
        self._newest[:] = self._logits.argmax(axis=-1) if self._sampled is None else self._sampled

    def _prepare_copies(self) -> None:
        """The next step's inputs, made while the device still computes; only the tokens are filled in later."""
        step = self._prepared.step
        values = {} if step.history else step.feed(self._position, self._tokens)
        late = step.late if self._strategy.sends_early else frozenset(values)
        self._copies, self._early = [], []
        for piece in self.pieces:
            sent = list(piece.sent(values))
            self._copies.append([*(copy for name, copy in sent if name in late), *piece.fetched])
            self._early += [copy for name, copy in sent if name not in late]

    def _send_early(self) -> None:
        if self._early:
            self._strategy.send_early(self._last.backend, self._early)

    def _set_tokens(self, tokens: HostArray) -> None:
        """What the next step reads, sequence by sequence; sampled tokens overwrite each sequence's last."""
        self._tokens = tokens
        self._newest = tokens.reshape(self._prepared.step.batch, -1)[:, -1]

    @property
    def tokens(self) -> HostArray:
        """A copy of the tokens that the last step sampled, (S,); not where the step advances on the device."""
        return self._newest.copy()

    @property
    def logits(self) -> HostArray:
        """A copy of the last step's logits, (N, vocabulary), where the host fetches them."""
        return self._logits.copy()

    def finish(self) -> None:
        """Wait for all steps."""
        for backend in dict.fromkeys(piece.backend for piece in self.pieces):
            backend.synchronize(MAIN_STREAM)

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
        self.finish()
        return {name: values[: self._position - self._first_position] for name, values in read.items()}

    def _read(self, tensor: Tensor) -> HostArray:
        values = self._last.backend.host_array(tensor.shape, tensor.dtype)
        self._last.backend.copy_to_host(values, self._array(tensor), MAIN_STREAM)
        return values

    def _array(self, tensor: Tensor) -> Array:
        """The array of a tensor of the whole graph that the last split has."""
        return self._last.arrays[self._last.split.results[tensor]]
