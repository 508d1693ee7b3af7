"""A split on its device, ready to receive inputs and be launched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from executor.backends.interface import Array, HostArray, Kernel
from executor.graph import Tensor
from executor.graph.models.step import HostArrays
from executor.names import lookup
from executor.planning import PreparedSplit
from executor.planning.concurrency import MAIN_STREAM
from executor.scheduling.launchers import LAUNCHERS, Launcher
from executor.scheduling.memory import COPIED, Backends, CopiedWeights, ExpertCopies, Place, State, Weights, bind_memory
from executor.scheduling.strategies import Copy

_MOST_MADE = 256


class Piece:
    """A split on its device: its memory, its kernels, and the copies to it from other devices.

    Results from another accelerator have several places used in turn, so that one can be copied while that of the
    previous step is still read. Each turn has its own kernels, and an event marks when these have run.

    Attributes:
        arrays: arrays of the first turn; only results from other accelerators, here or in an earlier split, differ.
        places: places of every tensor in each turn.

    Args:
        backends: backends of all devices.
        number: number of the prepared split.
        before: the pieces of the splits before it.
        state: state of all devices, see `memory.bind_memory`.
        turns: number of places.
        smaller: the piece of the same split in a smaller step, whose graphs this one takes over, see `take_over`.
    """

    def __init__(
        self, backends: Backends, prepared: PreparedSplit, number: int, before: list[Piece], launch: str,
        weights: Weights, state: State, turns: int, smaller: Piece | None = None,
    ) -> None:  # fmt: skip
        self.split = split = prepared.split
        self.backend = backend = backends[split.device]
        self.name = f"split {number}: {split.device}"
        fetched = {leaf: o for leaf, o in split.origins.items() if leaf in split.inputs}
        peers = [
            leaf for leaf, o in fetched.items() if not (split.device.is_host or before[o.split].split.device.is_host)
        ]
        reused = [before[o.split].places[o.node] for leaf, o in split.origins.items() if leaf not in split.inputs]
        count = max([turns if peers else 1, *(len(places) for places in reused)])
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
        return [
            ExpertCopies(self.backend, home[ids].arrays[ids], ids.shape, copied) for ids, copied in by_ids.items()
        ]  # fmt: skip

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
