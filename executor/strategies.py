"""How the host synchronises around the copies and the compute of a step.

Notation: `s` explicit host sync, `c` blocking copy (a copy and the sync of its stream), `a` asynchronous
copy, `e` event record, `g` compute; n is the number of input copies. The `a` after `g` fetches the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from executor.backends.interface import Array, Backend, Event, Guarantee, HostArray
from executor.concurrency import MAIN_STREAM
from tracer.errors import UnsafePlanError, UsageError


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy to a split's device, not issued yet.

    Attributes:
        issue: issues it, asynchronously.
        backend: the one whose main stream carries it.
    """

    issue: Callable[[], None]
    backend: Backend


class Strategy(ABC):
    """Base of the strategies: the logits come by an asynchronous copy and a sync.

    Attributes:
        name: as in the command line.
        notation: the host's calls in a step.
        needs: what a backend must guarantee for this to be correct.
        advances_on_device: the graph prepares its own next step: nothing to send, nothing to fetch per step.
        sends_early: the next step's inputs that are known before its token is sampled go out with `send_early`, behind
            the compute that still reads them, while the host waits for that compute.
        needs_between: what it needs besides where a step is spread over several devices.
        waits_for_copies: the copies of `send` are done when it returns.
        host_copies: how many steps' inputs the host keeps, so that it need not wait before it overwrites the oldest.
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
        """Bring a split's inputs to its backend."""

    def reclaim(self, number: int) -> None:
        """Return when the host may overwrite its copy of the inputs of this number, of those that it has."""
        return

    def settle(self) -> None:
        """Return when no copy reads what the host computed before; called only where copies are not staged."""
        return

    def ask(self, backend: Backend, destination: HostArray, source: Array) -> None:
        """Let a step's output come to the host."""
        backend.copy_to_host(destination, source, MAIN_STREAM)

    def send_early(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """Bring those inputs of the next step that are known already; called only with `sends_early`."""
        _issue(copies)

    def wait(self, backend: Backend) -> None:
        """Return when all that was asked for is there."""
        backend.synchronize(MAIN_STREAM)


def _issue(copies: Sequence[Copy]) -> None:
    for copy in copies:
        copy.issue()


def _wait(copies: Sequence[Copy]) -> None:
    """Wait for the streams that carry them, one by one."""
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
    """Asynchronous copies between two syncs: the sources live until the second."""

    name = "saaas"
    notation = "s a*n s g a s"

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`s a*n s`."""
        backend.synchronize(MAIN_STREAM)
        _issue(copies)
        _wait(copies)


class AAAS(Strategy):
    """No sync before the copies: they must not overtake the compute that still reads the inputs."""

    name = "aaas"
    notation = "a*n s g a s"
    needs = frozenset({Guarantee.COPIES_AND_COMPUTE_IN_ORDER})
    needs_between = frozenset({Guarantee.PEER_COPIES_IN_ORDER})

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`a*n s`."""
        _issue(copies)
        _wait(copies)


class AAAG(Strategy):
    """No sync at all before compute: the caller may overwrite the sources while copies are still to come."""

    name = "aaag"
    notation = "a*n g a s"
    needs = frozenset({Guarantee.COPIES_AND_COMPUTE_IN_ORDER, Guarantee.ASYNC_SOURCES_STAGED})
    needs_between = frozenset({Guarantee.PEER_COPIES_IN_ORDER})
    waits_for_copies = False

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """`a*n`."""
        _issue(copies)


class AAEG(AAAG):
    """As aaag where nothing is staged: an event behind the copies says when the host may overwrite their sources.

    The host keeps several steps' inputs, so that it has to wait only for copies that many steps ago.
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
        """`s` of the events behind the copies from there, unless a later sync has told."""
        self._number = number
        self._await([key for key in self._open if key[0] == number])

    def settle(self) -> None:
        """`s` of all events that no later sync has told of."""
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
        """`s`: the logits need all copies before them."""
        super().wait(backend)
        self._open.clear()


class AGA(AAAG):
    """As aaag, but only the token is sent between two steps; an event says when the logits are there."""

    name = "aga"
    notation = "a g a e a*(n-1) s"
    sends_early = True
    splits = False

    def __init__(self) -> None:
        self._asked: Event = None

    def ask(self, backend: Backend, destination: HostArray, source: Array) -> None:
        """`a e`: what is sent early runs behind, and the host does not wait for that."""
        super().ask(backend, destination, source)
        self._asked = self._asked or backend.event()
        backend.event_record(self._asked, MAIN_STREAM)

    def wait(self, backend: Backend) -> None:
        """`s` of the event."""
        backend.event_synchronize(self._asked)


class GGG(Strategy):
    """Graph after graph: token, positions and mask advance on the device, the host reads late."""

    name = "ggg"
    notation = "g"
    needs = frozenset({Guarantee.LAUNCHES_IN_ORDER})
    advances_on_device = True
    splits = False

    def send(self, backend: Backend, copies: Sequence[Copy]) -> None:
        """Nothing: a step that advances on the device has no inputs."""


STRATEGIES: Final[Mapping[str, type[Strategy]]] = {s.name: s for s in (SCCC, SAAAS, AAAS, AAAG, AAEG, AGA, GGG)}
"""Name -> strategy."""


def for_prompts(strategy: Strategy) -> Strategy:
    """What takes the prompts of a run with this strategy: their steps never advance on the device."""
    return SCCC() if strategy.advances_on_device else strategy


def check_needs(
    strategy: Strategy, backend: str, guarantees: frozenset[Guarantee], *, several: bool = False, cut: bool = False
) -> None:
    """Refuse a strategy on a backend that does not guarantee what it needs.

    Args:
        several: whether the step is spread over several of its devices.
        cut: whether it is cut into splits.

    Raises:
        UnsafePlanError: names both and what is missing.
        UsageError: the strategy takes no splits.
    """
    missing = sorted(need.value for need in _needs(type(strategy), several) - guarantees)
    if missing:
        safe = ", ".join(fitting(guarantees, several=several, cut=cut))
        raise UnsafePlanError(
            f"strategy {strategy.name!r} needs a guarantee that backend {backend!r} does not give: "
            f"{'; '.join(missing)}. Safe there: {safe}"
        )
    if cut and not strategy.splits:
        safe = ", ".join(fitting(guarantees, several=several, cut=cut))
        raise UsageError(f"strategy {strategy.name!r} needs the whole step on one device. These take splits: {safe}")


def fitting(guarantees: frozenset[Guarantee], *, several: bool = False, cut: bool = False) -> list[str]:
    """The strategies that are safe there, see `check_needs`."""
    return [s.name for s in STRATEGIES.values() if _needs(s, several) <= guarantees and (s.splits or not cut)]


def _needs(strategy: type[Strategy], several: bool) -> frozenset[Guarantee]:
    return strategy.needs | (strategy.needs_between if several else frozenset())
