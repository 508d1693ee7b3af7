"""Runs token steps: sends, launches and fetches every step according to the strategy.

`Piece` is a split on its device, ready to receive inputs and be launched.

`GrowingScheduler` and `Halves` are several schedulers as one: for the sizes of a growing KV cache, or for two halves of
the sequences. Attention grows with the filled part of the cache, like llama.cpp's n_kv, with one step per size. In
halves, while the host computes its part for one half, the devices compute theirs for the other: layers on both, or
experts on the host and attention on the devices. Each half has its own memory and graphs; they share weights and state,
of which each touches only what belongs to its sequences. Both read all weights, so this pays off if the time of a part
grows with the number of sequences: with many of them, or if each uses different experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from executor.backends.interface import Array, Guarantee, HostArray, Kernel
from executor.graph import Tensor
from executor.graph.models.kv_cache import KvCache, Position
from executor.graph.models.step import DecodeStep, HostArrays
from executor.names import lookup
from executor.planning import Prepared, PreparedSplit
from executor.planning.concurrency import MAIN_STREAM
from executor.scheduling.launchers import LAUNCHERS, Launcher
from executor.scheduling.memory import COPIED, Backends, CopiedWeights, ExpertCopies, Place, State, Weights, bind_memory
from executor.scheduling.strategies import Copy, Strategy, check_needs
from tracer.errors import ExecutionError, UsageError
from tracer.recorders import annotate


class Scheduler:
    """One configuration on its devices, and its loop over token steps.

    Args:
        launch: name of a launcher.
        weights: as returned by `memory.load_weights`.
        prefill: the scheduler for the prompts of the same sequences, which shares its state.
        smaller: the scheduler of the same steps over fewer cells, which shares state and graphs, see `take_over`.
        keep_logits: fetch the logits even where the device samples.
        allow_hazards: whether backends may lack what the strategy needs.
        alternates: its steps alternate with those of another scheduler on the same devices, see `Halves`.

    Raises:
        UnsafePlanError: a backend does not guarantee what the strategy needs.
        UsageError: the strategy needs the whole step on one device.
    """

    def __init__(
        self, backends: Backends, prepared: Prepared, strategy: Strategy, launch: str, weights: Weights, *,
        prefill: Scheduler | None = None, smaller: Scheduler | None = None, keep_logits: bool = False,
        allow_hazards: bool = False, alternates: bool = False,
    ) -> None:  # fmt: skip
        self._prepared, self._strategy, self._keep_logits = prepared, strategy, keep_logits
        devices = [part.split.device for part in prepared.splits]
        self._several = len({device for device in devices if not device.is_host}) > 1
        for device in devices:
            backend, cut = backends[device], len(devices) > 1
            guarantees = frozenset(Guarantee) if allow_hazards else backend.guarantees
            check_needs(strategy, backend.name, guarantees, several=self._several, cut=cut)
        if strategy.advances_on_device != (prepared.step.history is not None):
            raise ExecutionError(f"strategy {strategy.name!r} and the graph differ: only one advances on the device")
        shared = smaller or prefill
        self._state: State = {} if shared is None else dict(shared._state)
        self.pieces: list[Piece] = []
        for number, part in enumerate(prepared.splits):
            of_smaller = smaller.pieces[number] if smaller else None
            piece = Piece(backends, part, number, self.pieces, launch, weights, self._state, of_smaller)
            self.pieces.append(piece)
        self._last = self.pieces[-1]
        step = prepared.step
        self._logits_array = self._array(step.logits)
        self._logits = self._last.backend.host_array(step.logits.shape, step.logits.dtype)
        self._sampled = self._last.backend.host_array(step.sampled.shape, step.sampled.dtype) if step.sampled else None
        self._set_tokens(np.zeros(step.batch * step.prompt, np.int32))
        self.position: Position = 0
        """Number of tokens that the sequences hold."""
        self._begun = 0
        self._values: HostArrays = {}
        self._copies: list[list[Copy]] = []
        self._early: list[Copy] = []
        self._steps = 0
        self._staged = all(piece.backend.staged for piece in self.pieces)
        self._simple = len(self.pieces) == 1 and len(self._last.launchers) == 1 and not self._last.experts
        self._launch = self._last.launchers[0].launch
        self._alternates, self._asked = alternates, self._last.backend.event() if alternates else None
        self._brings_early = alternates and not strategy.waits_for_copies
        self._arrived = {
            piece: {source: source.event() for source in piece.sources}
            for piece in self.pieces
            if self._brings_early and piece.split.device.is_host
        }
        self._fetched: list[list[Copy]] = []
        self.room = 0
        """How many more steps fit."""
        self._kept = self._keep_inputs()

    def _keep_inputs(self) -> list[HostArrays]:
        """Allocate the strategy's host copies of the inputs, for backends that read host memory later."""
        if self._staged or self._strategy.sends_early:
            return []
        inputs = self._prepared.step.graph.inputs
        make = self._last.backend.host_array  # memory suited to fast copies
        count = self._strategy.host_copies
        return [{leaf.name: make(leaf.shape, leaf.dtype) for leaf in inputs} for _ in range(count)]

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences from these tokens, at the start or at the position after a computed prompt.

        Sequences with prompts of different lengths have one position each, (S,).
        """
        self._set_tokens(tokens.astype(np.int32))
        self.position, self._begun = position, self._steps
        step = self._prepared.step
        self.room = step.room(position)
        self._last.backend.activate()
        self._prepare_copies()
        self._send_early()
        values = self._prepared.step.start(position, tokens)
        for piece in self.pieces:
            for leaf in piece.split.state:
                if leaf.name in values:
                    piece.backend.activate()
                    piece.backend.load(piece.arrays[leaf], values[leaf.name].astype(leaf.dtype, copy=False))

    def step(self) -> None:
        """Run one step: send, launch and (unless the step advances on the device) fetch and sample."""
        self.submit()
        if not self._strategy.advances_on_device:
            self.take()

    def take(self) -> None:
        """Prepare the next step while the device computes; fetch and sample."""
        self._prepare_copies()
        self.fetch()

    def follow(self, tokens: HostArray) -> None:
        """Give the next step these tokens, which follow those already submitted."""
        self._set_tokens(tokens.astype(np.int32))
        self._prepare_copies()
        self._send_early()

    def submit(self) -> None:
        """Send and launch a step, with only the waits of the strategy."""
        self._open()
        if self._simple:
            self._strategy.send(self._last.backend, self._copies[0])
            self._launch()
        else:
            for piece, copies in zip(self.pieces, self._copies, strict=True):
                with self._range(piece):
                    self._run(piece, copies)
        self._close()

    def stages(self) -> Iterator[None]:
        """Submit a step up to each split of the host that reads the result of a device; then request the outputs.

        Between two stages the host may do other work, also on the same streams.
        """
        self._open()
        for number, (piece, copies) in enumerate(zip(self.pieces, self._copies, strict=True)):
            with self._range(piece):
                self._run(piece, copies)
            following = self.pieces[number + 1] if piece is not self._last else None
            if following is not None and following.sources and following.split.device.is_host:
                self._bring(following, self._fetched[number + 1])
                yield
        self._ask()
        self._last.backend.event_record(self._asked, MAIN_STREAM)
        self._close()

    def _bring(self, piece: Piece, copies: list[Copy]) -> None:
        """Issue the copies to a split of the host before other schedulers submit work to the streams."""
        if self._brings_early:
            for copy in copies:
                copy.issue()
            for source, event in self._arrived[piece].items():
                source.event_record(event, MAIN_STREAM)

    def _open(self) -> None:
        """Begin a step."""
        if not self.room:
            raise UsageError(f"the context of {self._prepared.step.context} cells is full")
        if self._kept:
            self._keep()

    def _close(self) -> None:
        """End a step."""
        self.position = self.position + self._prepared.step.prompt
        self.room -= 1
        self._steps += 1

    def _keep(self) -> None:
        """Copy the inputs to the next of the host's copies."""
        number = self._steps % len(self._kept)
        if len(self._kept) > 1:
            self._strategy.reclaim(number)
        for name, values in self._values.items():
            self._kept[number][name][...] = values

    def _run(self, piece: Piece, copies: list[Copy]) -> None:
        if self._several:
            piece.backend.activate()
        if piece.experts:
            copies = [*copies, *(copy for experts in piece.experts for copy in experts.copies())]
        waits = piece.split.device.is_host and not self._strategy.waits_for_copies
        if waits and not self._staged and not piece.sources:  # otherwise their sync covers this
            self._strategy.settle()
        self._strategy.send(piece.backend, copies)
        if waits:
            for source in piece.sources:  # its compute is a blocking call and cannot be ordered after a copy
                if self._brings_early:
                    source.event_synchronize(self._arrived[piece][source])
                else:
                    source.synchronize(MAIN_STREAM)
        piece.launch(self._steps)

    def _range(self, piece: Piece) -> AbstractContextManager[object]:
        return annotate(piece.name) if len(self.pieces) > 1 else nullcontext()

    def fetch(self) -> None:
        """Fetch the new tokens: the sampled tokens, or the largest of the logits."""
        if self._alternates:
            self._strategy.wait_for(self._last.backend, self._asked)
        else:
            self._ask()
            self._send_early()
            self._strategy.wait(self._last.backend)
        self._newest[:] = self._logits.argmax(axis=-1) if self._sampled is None else self._sampled

    def _ask(self) -> None:
        """Request the outputs of the step."""
        step, strategy, backend = self._prepared.step, self._strategy, self._last.backend
        if step.sampled is None or self._keep_logits:
            strategy.ask(backend, self._logits, self._logits_array)
        if step.sampled is not None and self._sampled is not None:
            strategy.ask(backend, self._sampled, self._array(step.sampled))

    def _prepare_copies(self) -> None:
        """Prepare the next step's inputs while the device computes; only the tokens are filled in later."""
        step = self._prepared.step
        values = self._values = step.feed(self.position, self._tokens) if self.room and not step.history else {}
        late = step.late if self._strategy.sends_early else frozenset(values)
        sources = self._kept[self._steps % len(self._kept)] if self._kept and values else values
        self._copies, self._early, self._fetched = [], [], []
        for piece in self.pieces:
            sent, fetched = list(piece.sent(sources)), piece.fetched[self._steps % len(piece.fetched)]
            self._fetched.append(fetched)
            if self._brings_early and piece.split.device.is_host:
                fetched = []
            self._copies.append([*(copy for name, copy in sent if name in late), *fetched])
            self._early += [copy for name, copy in sent if name not in late]

    def _send_early(self) -> None:
        if self._early:
            self._strategy.send_early(self._last.backend, self._early)
            self._early = []

    def _set_tokens(self, tokens: HostArray) -> None:
        """Set the tokens of the next step, by sequence; a sampled token overwrites the last of its sequence."""
        self._tokens = tokens
        self._newest = tokens.reshape(self._prepared.step.batch, -1)[:, -1]

    @property
    def step_taken(self) -> DecodeStep:
        """The step being run."""
        return self._prepared.step

    @property
    def tokens(self) -> HostArray:
        """A copy of the tokens sampled by the last step, (S,); invalid if the step advances on the device."""
        return self._newest.copy()

    @property
    def logits(self) -> HostArray:
        """A copy of the last step's logits, (N, vocabulary), if the host fetches them."""
        return self._logits.copy()

    def take_over(self) -> None:
        """Change the shared graphs to its own."""
        for piece in self.pieces:
            piece.take_over()

    def finish(self) -> None:
        """Wait for all steps."""
        for backend in dict.fromkeys(piece.backend for piece in self.pieces):
            backend.synchronize(MAIN_STREAM)

    def read_history(self) -> HostArrays:
        """Read tokens (steps, N) and, if kept, logits (steps, N, vocabulary) of the steps since `begin`.

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
        return {name: values[: self._steps - self._begun] for name, values in read.items()}

    def _read(self, tensor: Tensor) -> HostArray:
        values = self._last.backend.host_array(tensor.shape, tensor.dtype)
        self._last.backend.copy_to_host(values, self._array(tensor), MAIN_STREAM)
        return values

    def _array(self, tensor: Tensor) -> Array:
        """Return the array, in the last split, of a tensor of the whole graph."""
        return self._last.arrays[self._last.split.results[tensor]]


_MOST_MADE = 256
_TURNS = 4
"""Places for results copied between accelerators."""


class Piece:
    """A split on its device: its memory, its kernels, and the copies to it from other devices.

    Results from another accelerator have several places used in turn, so that one can be copied while that of the
    previous step is still read. Each turn has its own kernels, and an event marks when these have run.

    Attributes:
        arrays: arrays of the first turn; only results from other accelerators, here or in an earlier split, differ.
        places: places of every tensor in each turn.

    Args:
        before: the pieces of the splits before it.
        state: state of all devices, see `memory.bind_memory`.
        smaller: the piece of the same split in a smaller step, whose graphs this one takes over, see `take_over`.
    """

    def __init__(
        self, backends: Backends, prepared: PreparedSplit, number: int, before: list[Piece], launch: str,
        weights: Weights, state: State, smaller: Piece | None = None,
    ) -> None:  # fmt: skip
        self.split = split = prepared.split
        self.backend = backend = backends[split.device]
        self.name = f"split {number}: {split.device}"
        fetched = {leaf: o for leaf, o in split.origins.items() if leaf in split.inputs}
        peers = [
            leaf for leaf, o in fetched.items() if not (split.device.is_host or before[o.split].split.device.is_host)
        ]
        reused = [before[o.split].places[o.node] for leaf, o in split.origins.items() if leaf not in split.inputs]
        count = max([_TURNS if peers else 1, *(len(places) for places in reused)])
        self.read = [backend.event() for _ in range(count)] if peers else []
        self.fetched: list[list[Copy]] = []
        self.launchers: list[Launcher] = [] if smaller is None else smaller.launchers
        self._plan, self._kernels = prepared.plan, list[dict[Tensor, Kernel]]()
        arena = backend.alloc(prepared.memory.peak_bytes)
        elsewhere = dict(self._elsewhere(before, state))
        self.places: dict[Tensor, list[Place]] = {}
        for turn in range(count):
            of_turn = {leaf: places[turn % len(places)] for leaf, places in elsewhere.items()}
            if turn:
                of_turn |= {leaf: (backend.alloc(leaf.nbytes), 0) for leaf in peers}
            arrays, places = bind_memory(backend, split, prepared.memory, weights[split.device], state, arena, of_turn)
            if turn == 0:
                self.arrays: dict[Tensor, Array] = arrays
            for tensor, place in places.items():
                self.places.setdefault(tensor, []).append(place)
            kernels = {n: backend.kernel(n, arrays[n], [arrays[s] for s in n.src]) for n in split.nodes if n.has_kernel}
            self._kernels.append(kernels)
            if smaller is None:
                way = lookup("launch kind", "eager" if split.device.is_host else launch, LAUNCHERS)
                self.launchers.append(way(backend, prepared.plan, kernels))
            self.fetched.append(
                [self._fetch(arrays[leaf], before[o.split], o.node, turn) for leaf, o in fetched.items()]
            )
        self._sent = [leaf for leaf in split.inputs if leaf not in split.origins]
        self._made: dict[tuple[Tensor, int], tuple[HostArray, Copy]] = {}
        self.experts = self._expert_copies(before, weights)
        self.sources = [source for source in dict.fromkeys(c.backend for c in self.fetched[0]) if source != backend]

    def _elsewhere(self, before: list[Piece], state: State) -> Iterator[tuple[Tensor, list[Place]]]:
        """Yield the leaves outside the arena, in each turn: results of earlier splits, and host memory for copies.

        Copied weights are included. Those of all splits of a device share memory, as the splits run in sequence.
        """
        for number, weight in enumerate(self.split.copied):
            key = (self.split.device, f"copied weight {number} of {weight.nbytes} bytes")
            if key not in state:
                state[key] = self.backend.alloc(weight.nbytes)
            yield weight, [(state[key], 0)]
        for leaf, origin in self.split.origins.items():
            source = before[origin.split]
            if leaf not in self.split.inputs:
                yield leaf, source.places[origin.node]
            elif self.split.device.is_host:
                yield leaf, [(source.backend.host_array((leaf.nbytes,), "uint8"), 0)]

    def _expert_copies(self, before: list[Piece], weights: Weights) -> list[ExpertCopies]:
        by_ids: dict[Tensor, list[CopiedWeights]] = {}
        home: dict[Tensor, Piece] = {}
        for weight, origin in self.split.copied.items():
            by_ids.setdefault(origin.node, []).append(
                CopiedWeights(weight, self.places[weight][0], weights[COPIED][weight.name])
            )
            home[origin.node] = before[origin.split]
        return [ExpertCopies(self.backend, home[ids].arrays[ids], ids.shape, copied) for ids, copied in by_ids.items()]

    def _fetch(self, destination: Array, source: Piece, node: Tensor, turn: int) -> Copy:
        """Return the copy of another device's result. Between accelerators it runs on the stream of the result."""
        array, backend = source.arrays[node], self.backend
        if source.split.device.is_host:
            return Copy(partial(backend.copy_to_device, destination, array, MAIN_STREAM), backend)
        if self.split.device.is_host:
            return Copy(partial(source.backend.copy_to_host, destination, array, MAIN_STREAM), source.backend)
        copy = partial(source.backend.copy_to_peer, backend, destination, array, MAIN_STREAM, self.read[turn])
        return Copy(copy, source.backend)

    def take_over(self) -> None:
        """Change the shared graphs to this piece."""
        self.backend.activate()
        for launcher, kernels in zip(self.launchers, self._kernels, strict=True):
            launcher.take(self._plan, kernels)

    def launch(self, turn: int) -> None:
        """Issue the split's kernels."""
        turn %= len(self.launchers)
        self.launchers[turn].launch()
        if self.read:
            self.backend.event_record(self.read[turn], MAIN_STREAM)

    @property
    def outcomes(self) -> Counter[str]:
        """Outcomes of its graphs, see `launchers.OUTCOMES`."""
        return sum((launcher.outcomes for launcher in self.launchers), Counter())

    def sent(self, values: HostArrays) -> Iterator[tuple[str, Copy]]:
        """Yield name and copy of every input that the host sends; most use the same memory at every step."""
        for leaf in self._sent:
            source = values.get(leaf.name)
            if source is None:
                continue
            if len(self._made) > _MOST_MADE:  # the tokens of a long prompt use new memory at every step
                self._made.clear()
            known = self._made.get((leaf, id(source)))
            if known is None or known[0] is not source:
                send = partial(self.backend.copy_to_device, self.arrays[leaf], source, MAIN_STREAM)
                known = self._made[leaf, id(source)] = source, Copy(send, self.backend)
            yield leaf.name, known[1]


class GrowingScheduler:
    """Continues with the scheduler of the next size when the cells of one are full.

    All sizes are planned before the first step. They share one graph, which is updated in place on a change of size, or
    instantiated again where that is not possible. All devices are idle then, because inputs and results move.

    Args:
        schedulers: schedulers of the same steps, fewest cells first, each created from the previous one.
    """

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers, self.now = schedulers, schedulers[0]

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences, see `Scheduler.begin`. The cache drops all tokens from the position on."""
        cache = self.now.step_taken.cache
        if cache is not None:
            cache.truncate(position)
        self.start(tokens, position)

    def start(self, tokens: HostArray, position: Position) -> None:
        """Start its sequences; the sequences of all schedulers of the cache must have the lengths given by their
        positions."""
        fitting = self._fitting(position)
        if fitting is not self.now:
            self._become(fitting)
        self.now.begin(tokens, position)

    def step(self) -> None:
        """Run one step, of the size that it needs."""
        self.grow()
        self.now.step()

    def grow(self) -> None:
        """Become the scheduler of the size that the next step needs."""
        if not self.now.room and (larger := self._fitting(self.now.position)) is not self.now:
            tokens, position = self.now.tokens, self.now.position
            self._become(larger)
            self.now.begin(tokens, position)

    def _fitting(self, position: Position) -> Scheduler:
        """Return the first scheduler with enough room, else the last one."""
        having = (s for s in self._schedulers if s.step_taken.room(position))
        return next(having, self._schedulers[-1])

    def _become(self, other: Scheduler) -> None:
        with annotate(f"n_kv {other.step_taken.attended}"):
            self.now.finish()
            other.take_over()
            self.now = other


def halves_of(batch: int) -> tuple[range, range]:
    """Return the numbers of the sequences in each half."""
    return range((batch + 1) // 2), range((batch + 1) // 2, batch)


def alternate(schedulers: Sequence[Scheduler]) -> None:
    """Run a step of each scheduler, alternating after every stage."""
    running = [scheduler.stages() for scheduler in schedulers]
    while running:
        running = [stages for stages in running if next(stages, "done") != "done"]
    for scheduler in schedulers:
        scheduler.take()


class Halves:
    """The schedulers of both halves as one, with the interface of `GrowingScheduler` and of its current one (`now`)."""

    def __init__(self, cache: KvCache | None, schedulers: Sequence[GrowingScheduler]) -> None:
        self._cache, self._schedulers = cache, schedulers

    @property
    def now(self) -> Halves:
        """Itself."""
        return self

    def begin(self, tokens: HostArray, position: Position = 0) -> None:
        """Start all sequences, see `Scheduler.begin`."""
        if self._cache is not None:
            self._cache.truncate(position)
        positions = np.broadcast_to(position, len(tokens))
        for half, scheduler in zip(halves_of(len(tokens)), self._schedulers, strict=True):
            scheduler.start(tokens[half], positions[half].copy())

    def step(self) -> None:
        """Run one step of all sequences."""
        for scheduler in self._schedulers:
            scheduler.grow()
        alternate([scheduler.now for scheduler in self._schedulers])

    @property
    def tokens(self) -> HostArray:
        """The tokens sampled by the last step, (S,)."""
        return np.concatenate([scheduler.now.tokens for scheduler in self._schedulers])

    @property
    def logits(self) -> HostArray:
        """The logits of the last step, (S, vocabulary)."""
        return np.concatenate([scheduler.now.logits for scheduler in self._schedulers])

    @property
    def pieces(self) -> list[Piece]:
        """The splits of both halves."""
        return [piece for scheduler in self._schedulers for piece in scheduler.now.pieces]

    def finish(self) -> None:
        """Wait for all steps."""
        for scheduler in self._schedulers:
            scheduler.now.finish()
