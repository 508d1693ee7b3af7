"""Runs token steps: sends, launches and fetches every step according to the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from executor.backends.interface import Array, Guarantee, HostArray
from executor.graph import Tensor
from executor.graph.models.kv_cache import Position
from executor.graph.models.step import DecodeStep, HostArrays
from executor.planning import Prepared
from executor.planning.concurrency import MAIN_STREAM
from executor.scheduling.memory import Backends, State, Weights
from executor.scheduling.piece import Piece
from executor.scheduling.strategies import Copy, Strategy, check_needs
from tracer.errors import ExecutionError, UsageError
from tracer.recorders import annotate


class Scheduler:
    """One configuration on its devices, and its loop over token steps.

    Args:
        backends: device -> backend, for all devices of the splits.
        prepared: the results of the passes.
        strategy: the synchronisation strategy.
        launch: name of a launcher.
        weights: as returned by `memory.load_weights`.
        turns: number of places for results copied between accelerators.
        prefill: the scheduler for the prompts of the same sequences, which shares its state.
        smaller: the scheduler of the same steps over fewer cells, which shares state and graphs, see `take_over`.
        keep_logits: fetch the logits even where the device samples.
        allow_hazards: whether backends may lack what the strategy needs.
        alternates: its steps alternate with those of another scheduler on the same devices, see `several`.

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
        turns: int = 4,
        prefill: Scheduler | None = None,
        smaller: Scheduler | None = None,
        keep_logits: bool = False,
        allow_hazards: bool = False,
        alternates: bool = False,
    ) -> None:
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
            piece = Piece(backends, part, number, self.pieces, launch, weights, self._state, turns, of_smaller)
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
