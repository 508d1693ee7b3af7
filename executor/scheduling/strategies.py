"""Strategies of the host for synchronising the copies and the compute of a step.

Notation: `s` explicit host sync, `c` blocking copy (a copy and the sync of its stream), `a` asynchronous
copy, `e` event record, `g` compute; n is the number of input copies. The `a` after `g` fetches the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from executor.backends.interface import Array, Backend, Event, Guarantee, HostArray
from executor.planning.concurrency import MAIN_STREAM
from tracer.errors import UnsafePlanError, UsageError


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy to a split's device that has not been issued, and the backend whose main stream runs it."""

    issue: Callable[[], None]
    backend: Backend


class Strategy(ABC):
    """Base class of the strategies. It fetches the logits with an asynchronous copy and a sync.

    Attributes:
        notation: the host's calls in a step.
        needs: guarantees of the backend required for correctness.
        advances_on_device: the graph prepares the next step itself, so that nothing is sent or fetched per step.
        sends_early: inputs of the next step that are known before its token is sampled are sent with `send_early`,
            after the compute that still reads them, while the host waits for that compute.
        needs_between: additional guarantees required if a step uses several devices.
        waits_for_copies: the copies of `send` are done when it returns.
        host_copies: number of steps whose inputs the host keeps, to avoid waiting before it overwrites the oldest.
        splits: a step may be cut into splits.
    """

    name: ClassVar[str]
    notation: ClassVar[str]
    needs: ClassVar[frozenset[Guarantee]] = frozenset()
    advances_on_device: ClassVar[bool] = False
    sends_early: ClassVar[bool] = False
    needs_between: ClassVar[frozenset[Guarantee]] = frozenset()
    waits_for_copies: ClassVar[bool] = True
    host_copies: ClassVar[int] = 1
    splits: ClassVar[bool] = True

    @abstractmethod
    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """Send a split's inputs to its backend."""

    def reclaim(self, number: int) -> None:
        """Wait until the host may overwrite the copy of the inputs that has this number."""
        return

    def settle(self) -> None:
        """Wait until no copy reads earlier results of the host; called only if copies are not staged."""
        return

    def ask(self, backend: Backend, destination: HostArray, source: Array) -> None:
        """Request the copy of a step's output to the host."""
        backend.copy_to_host(destination, source, MAIN_STREAM)

    def send_early(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """Send the inputs of the next step that are already known; called only with `sends_early`."""
        _issue(copies)

    def wait(self, backend: Backend) -> None:
        """Wait for all requested outputs."""
        backend.synchronize(MAIN_STREAM)

    def wait_for(self, backend: Backend, event: Event) -> None:
        """Wait for all requested outputs by the event after them, because other work of the stream may follow."""
        backend.event_synchronize(event)


def _issue(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.issue()


def _wait(copies: Sequence[Copy]) -> None:
    """Wait for the streams of the copies, one by one."""
    for backend in dict.fromkeys(copy.backend for copy in copies):
        backend.synchronize(MAIN_STREAM)


class SCCC(Strategy):
    """Sync, then blocking copies: safe on every backend."""

    name = "sccc"
    notation = "s c*n g a s"

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`s c*n`."""
        backend.synchronize(MAIN_STREAM)
        for copy in copies:
            copy.issue()
            copy.backend.synchronize(MAIN_STREAM)


class SAAAS(Strategy):
    """Asynchronous copies between two syncs: the sources stay valid until the second."""

    name = "saaas"
    notation = "s a*n s g a s"

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`s a*n s`."""
        backend.synchronize(MAIN_STREAM)
        _issue(copies)
        _wait(copies)


class AAAS(Strategy):
    """No sync before the copies, which must not overtake the compute that still reads the inputs."""

    name = "aaas"
    notation = "a*n s g a s"
    needs = frozenset({Guarantee.COPIES_AND_COMPUTE_IN_ORDER})
    needs_between = frozenset({Guarantee.PEER_COPIES_IN_ORDER})

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`a*n s`."""
        _issue(copies)
        _wait(copies)


class AAAG(Strategy):
    """No sync before compute: the caller may overwrite the sources while copies are pending."""

    name = "aaag"
    notation = "a*n g a s"
    needs = frozenset({Guarantee.COPIES_AND_COMPUTE_IN_ORDER, Guarantee.ASYNC_SOURCES_STAGED})
    needs_between = frozenset({Guarantee.PEER_COPIES_IN_ORDER})
    waits_for_copies = False

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`a*n`."""
        _issue(copies)


class AAEG(AAAG):
    """Like aaag without staging: an event after the copies marks when the host may overwrite their sources.

    The host keeps the inputs of several steps, so that it only waits for copies issued that many steps ago.
    """

    name = "aaeg"
    notation = "a*n e g a s"
    needs = frozenset({Guarantee.COPIES_AND_COMPUTE_IN_ORDER})
    host_copies = 4

    def __init__(self) -> None:
        self._number = 0
        self._free: dict[tuple[int, Backend], Event] = {}
        self._open: set[tuple[int, Backend]] = set()

    def reclaim(self, number: int) -> None:
        """`s` of the events after the copies from there, unless a later sync covers them."""
        self._number = number
        self._await([key for key in self._open if key[0] == number])

    def settle(self) -> None:
        """`s` of all events not covered by a later sync."""
        self._await(list(self._open))

    def _await(self, keys: Sequence[tuple[int, Backend]]) -> None:
        for number, backend in keys:
            backend.event_synchronize(self._free[number, backend])
            self._open.remove((number, backend))

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`a*n e`."""
        _issue(copies)
        for carrier in dict.fromkeys(copy.backend for copy in copies):
            key = (self._number, carrier)
            if key not in self._free:
                self._free[key] = carrier.event()
            carrier.event_record(self._free[key], MAIN_STREAM)
            self._open.add(key)

    def wait(self, backend: Backend) -> None:
        """`s`: it also covers all copies before the logits."""
        super().wait(backend)
        self._open.clear()

    def wait_for(self, backend: Backend, event: Event) -> None:
        """`s` of the event: it covers them, too."""
        super().wait_for(backend, event)
        self._open.clear()


class AGA(AAAG):
    """Like aaag, but only the token is sent between two steps; an event marks when the logits have arrived."""

    name = "aga"
    notation = "a g a e a*(n-1) s"
    sends_early = True
    splits = False

    def __init__(self) -> None:
        self._asked: Event = None

    def ask(self, backend: Backend, destination: HostArray, source: Array) -> None:
        """`a e`: inputs sent early follow the event, so the host does not wait for them."""
        super().ask(backend, destination, source)
        self._asked = self._asked or backend.event()
        backend.event_record(self._asked, MAIN_STREAM)

    def wait(self, backend: Backend) -> None:
        """`s` of the event."""
        backend.event_synchronize(self._asked)


class GGG(Strategy):
    """Graph after graph: token, positions and mask advance on the device, and the host reads results later."""

    name = "ggg"
    notation = "g"
    needs = frozenset({Guarantee.LAUNCHES_IN_ORDER})
    advances_on_device = True
    splits = False

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """Do nothing: a step that advances on the device has no inputs."""


STRATEGIES: Final[Mapping[str, type[Strategy]]] = {s.name: s for s in (SCCC, SAAAS, AAAS, AAAG, AAEG, AGA, GGG)}
"""Maps a name to its strategy."""


def for_prompts(strategy: Strategy) -> Strategy:
    """Return the strategy for the prompts of a run, whose steps never advance on the device."""
    return SCCC() if strategy.advances_on_device else strategy


def check_needs(
    strategy: Strategy, backend: str, guarantees: frozenset[Guarantee], *, several: bool = False, cut: bool = False
) -> None:
    """Reject a strategy on a backend that does not give the guarantees it needs.

    Args:
        several: whether the step uses several devices of the backend.
        cut: whether the step is cut into splits.

    Raises:
        UnsafePlanError: names both and the missing guarantees.
        UsageError: the strategy does not support splits.
    """
    safe = ", ".join(fitting(guarantees, several=several, cut=cut))
    if reason := lacks(strategy, backend, guarantees, several=several):
        raise UnsafePlanError(f"{reason}. Choose one of {safe}")
    if cut and not strategy.splits:
        raise UsageError(f"strategy {strategy.name!r} needs the whole step on one device. Choose one of {safe}")


def lacks(strategy: Strategy, backend: str, guarantees: frozenset[Guarantee], *, several: bool = False) -> str:
    """Return which guarantees that a strategy needs are not among these, as a sentence; "" if all are."""
    missing = sorted(need.value for need in _needs(type(strategy), several) - guarantees)
    told = f"strategy {strategy.name!r} needs a guarantee that backend {backend!r} does not give: {'; '.join(missing)}"
    return told if missing else ""


def fitting(guarantees: frozenset[Guarantee], *, several: bool = False, cut: bool = False) -> list[str]:
    """Return the strategies that are safe with these guarantees, see `check_needs`."""
    return [s.name for s in STRATEGIES.values() if _needs(s, several) <= guarantees and (s.splits or not cut)]


def _needs(strategy: type[Strategy], several: bool) -> frozenset[Guarantee]:
    return strategy.needs | (strategy.needs_between if several else frozenset())
