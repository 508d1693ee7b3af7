"""The host's calls in a step that is cut into splits, letter by letter, from what each split needs.

The letters are those of `tracer.model.calls`: `s` sync, `a` copy, `k` kernel launch, `g` graph launch, `e` event
record, `w` stream wait. The host itself makes no CUDA call when it computes a split or copies inside its own memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

COPY = "a"
PEER_COPY = "waew"
"""Wait until the other device has read what was there, copy, record the end; the other device waits for that."""
FETCH = "as"
"""A result comes to the host, which waits for it."""

TOKENS, ATTENTION, OUTPUTS = 1, 4, 1
"""Inputs that the host sends: the tokens; positions, K rows, V rows and mask; the rows that want logits."""
MATRICES = 3
"""Weights of the experts in a layer: gate, up, down."""
HOST_COPIES = 4
"""Of the inputs that `aaeg` keeps."""


@dataclass(frozen=True)
class Split:
    """What a split needs, and where it runs."""

    own: int = 0  # copies that its device's stream carries
    peers: int = 0  # copies of results of other accelerators, which their streams carry
    fetched: int = 0  # copies of an accelerator's results that a split on the host reads
    experts: int = 0  # copies of experts' weights, one for each matrix and run of neighbouring experts
    # Devices to which was copied since the host last waited: where nothing is staged, the copies may still read what
    # this split on the host overwrites, unless it waits for operands that come behind them.
    settled: int = 0
    on_host: bool = False
    kernels: int | None = None  # that are launched one by one; None for one graph

    @property
    def copies(self) -> list[str]:
        """In issue order."""
        return [COPY] * (self.own + self.fetched) + [PEER_COPY] * self.peers + [COPY] * self.experts

    @property
    def carriers(self) -> int:
        """Streams that carry the copies."""
        return sum(bool(copies) for copies in (self.own + self.experts, self.fetched, self.peers))


def on_host(fetched: int = 0) -> Split:
    return Split(fetched=fetched, on_host=True)


def sent(strategy: str, split: Split, staged: bool) -> str:
    """How the strategy brings a split what it needs."""
    own_stream = "" if split.on_host else "s"  # nothing is under way on the host
    copies, carriers = split.copies, split.carriers
    arrived = "s" * carriers if split.on_host else ""  # the host computes at once: its operands must be there
    return {
        "sccc": own_stream + "".join(copy + "s" for copy in copies),
        "saaas": own_stream + "".join(copies) + "s" * carriers,
        "aaas": "".join(copies) + "s" * carriers,
        "aaag": "".join(copies) + arrived,
        "aaeg": "s" * (0 if staged else split.settled) + "".join(copies) + "e" * carriers + arrived,
    }[strategy]


def launched(split: Split) -> str:
    """Its compute, and the event that lets other devices overwrite what they copied to it."""
    if split.on_host:
        return ""
    return ("g" if split.kernels is None else "k" * split.kernels) + "e" * bool(split.peers)


def submitted(strategy: str, splits: Sequence[Split], staged: bool = True) -> str:
    """The calls of a step up to its last launch."""
    chosen = [FETCH if split.experts else "" for split in splits]  # which experts to copy
    return "".join(fetch + sent(strategy, s, staged) + launched(s) for fetch, s in zip(chosen, splits, strict=True))


def token(strategy: str, splits: Sequence[Split], staged: bool = True) -> str:
    """The calls of a token step."""
    return submitted(strategy, splits, staged) + FETCH


def prompt(strategy: str, splits: Sequence[Split], micro_batches: int, staged: bool = True, devices: int = 1) -> str:
    """The calls of a prompt: micro-batch after micro-batch with no sync between, and one fetch.

    Only where nothing is staged has `aaeg` to wait for what earlier micro-batches copied, for an event on each of the
    devices: before it overwrites the oldest of the inputs that it keeps, or before a split on the host that reads
    nothing of theirs overwrites results of the micro-batch before.
    """
    calls, hosts = "", [number for number, split in enumerate(splits) if split.on_host]
    for number in range(micro_batches):
        now = list(splits)
        if hosts and not staged and not now[hosts[0]].fetched:
            now[hosts[0]] = replace(now[hosts[0]], settled=devices * min(number, 1))
        elif strategy == "aaeg" and not staged and number >= HOST_COPIES:
            calls += "s" * devices
        calls += submitted(strategy, now, staged)
    return calls + FETCH
