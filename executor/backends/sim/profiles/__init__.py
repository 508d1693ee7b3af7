"""Cost profiles: the costs of host calls, copies and kernels on a machine that the `sim` backend simulates.

A profile is a JSON file, `intertoken.profile/1`. `wddm.json`, `hip.json` and `h200-linux.json` are shipped with this
package; `benchmarks/calibrate.py` derives the last one from a recording. `sources` gives the origin of every figure:
measured, derived from a published figure, or assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.names import lookup
from tracer.errors import FormatError, UsageError
from tracer.files.bounded import object_of

SCHEMA: Final = "intertoken.profile/1"
SHIPPED: Final = ("h200-linux", "wddm", "hip")
CALLS: Final = ("copy_in", "copy_out", "launch", "graph_launch", "sync", "event_record", "event_wait")
"""The kinds of host calls; `copy_in` is a copy to the device, `sync` waits for a stream or an event."""
FETCH: Final = "fetch"
"""In `between_ns`, a sync that waited for a copy to the host: the time after it includes sampling a token."""

OTHER: Final = "other"
"""In `kernels`, every op that is not listed."""


@dataclass(frozen=True)
class CopyCost:
    """A copy in one direction takes fixed_ns + bytes / bytes_per_ns; the copies of a stream run in sequence."""

    fixed_ns: int
    bytes_per_ns: float


@dataclass(frozen=True)
class GraphCost:
    """The costs that a graph adds to its kernels.

    Attributes:
        host_node_ns: host time of a graph launch for each of its nodes.
        host_stream_ns: host time of a graph launch for each of its streams except the first.
        start_ns: device time between the end of earlier work on the stream and the graph's first kernel.
        node_ns: device time of each node in addition to its kernel.
    """

    host_node_ns: int = 0
    host_stream_ns: int = 0
    start_ns: int = 0
    node_ns: int = 0


@dataclass(frozen=True)
class KernelCost:
    """A kernel running alone takes fixed_ns + bytes * ns_per_byte, or longer if the bandwidth limits it."""

    fixed_ns: int
    ns_per_byte: float = 0.0


@dataclass(frozen=True)
class HostCost:
    """Costs of the host's compute: a product takes fixed_ns + bytes of its weights / rate(threads), anything else
    other_ns.

    Attention takes as long as a product with weights of the bytes that it moves. `bytes_per_ns` maps numbers of threads
    to the rate at which they read weights.
    """

    fixed_ns: int = 10_000
    other_ns: int = 5_000
    bytes_per_ns: Mapping[str, float] = field(default_factory=lambda: {"1": 12.0, "8": 60.0, "15": 80.0})

    def rate(self, threads: int | None = None) -> float:
        """Return the rate of this number of threads (None: the largest number listed).

        It is linear between those listed and from 0, and constant beyond.
        """
        known = {0: 0.0} | dict(sorted((int(name), rate) for name, rate in self.bytes_per_ns.items()))
        return float(np.interp(max(known) if threads is None else threads, [*known], [*known.values()]))


@dataclass(frozen=True)
class Batch:
    """Work is sent to the device in batches, as under WDDM: when `size` pieces (copies, kernels, graphs, event records)
    are pending, or the host waits for one. Sending takes `submit_ns` of the call that does so.
    """

    size: int
    submit_ns: int


@dataclass(frozen=True)
class Profile:
    """Costs of a machine; times in ns.

    Attributes:
        device: name of the device in recordings.
        calls_ns: host time inside each of `CALLS`; for a sync, with nothing to wait for.
        between_ns: host time from one call's return to the next call, see `between`.
        wake_up_ns: from the end of the work that a sync waits for to the sync's return.
        launch_latency_ns: from the return of a launch to the first kernel's start on an idle device.
        copy_in, copy_out: costs of copies to the device and to the host.
        edge_ns: device time from an event on one stream to the start of the work waiting for it on another.
        bytes_per_ns: memory bandwidth of the device, shared by concurrent kernels.
        kernels: op -> cost; `OTHER` for every op that is not listed.
        streams: number of hardware queues; additional streams share them.
        batch: batching of submitted work; None for immediate submission.
        sources: figure, or prefix of a group of figures -> its source.
    """

    name: str
    device: str
    calls_ns: Mapping[str, int]
    between_ns: Mapping[str, int]
    wake_up_ns: int
    launch_latency_ns: int
    copy_in: CopyCost
    copy_out: CopyCost
    edge_ns: int
    bytes_per_ns: float
    kernels: Mapping[str, KernelCost]
    graph: GraphCost = GraphCost()
    host: HostCost = HostCost()
    streams: int = 32
    batch: Batch | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if lacking := [call for call in CALLS if call not in self.calls_ns]:
            raise FormatError(f"calls_ns lacks {', '.join(lacking)}")
        known = {f"{a}>{b}" for a in (*CALLS, FETCH, "") for b in (*CALLS, "")}
        if unknown := [*(self.calls_ns.keys() - set(CALLS)), *(self.between_ns.keys() - known)]:
            raise FormatError(f"unknown host call {unknown[0]!r}; choose from {', '.join((*CALLS, FETCH))}")
        for group, costs, entry in (("between_ns", self.between_ns, ">"), ("kernels", self.kernels, OTHER)):
            if entry not in costs:
                raise FormatError(f"{group} lacks the entry {entry!r}, for everything not listed")
        if not self.host.bytes_per_ns or not all(n.isdecimal() and int(n) for n in self.host.bytes_per_ns):
            raise FormatError("host.bytes_per_ns needs entries for numbers of threads, at least 1")
        for name, value in self.figures.items():
            positive = name.endswith(("bytes_per_ns", "streams", "size")) or name.startswith("host.bytes_per_ns")
            if not 0 <= value < 2**63 or (value == 0 and positive):
                least = f"{'more than' if positive else 'at least'} 0"
                raise FormatError(f"{name} must be a 64-bit number of {least}, not {value}")

    @cached_property
    def figures(self) -> Mapping[str, int | float]:
        """All figures by name, such as `kernels.mul_mat.fixed_ns`."""
        return dict(_numbers(asdict(self), ""))

    def between(self, previous: str, following: str) -> int:
        """Return the host time between calls, ns: of this pair, else after `previous`, before `following` or any."""
        names = (f"{previous}>{following}", f"{previous}>", f">{following}", ">")
        return next(self.between_ns[name] for name in names if name in self.between_ns)

    def kernel(self, op: str) -> KernelCost:
        """Return the cost of an op. A fused op that is not listed costs as much as its longest listed prefix."""
        parts = op.split("+")
        names = ("+".join(parts[:n]) for n in range(len(parts), 0, -1))
        return next((self.kernels[name] for name in names if name in self.kernels), self.kernels[OTHER])


def load_profile(name: str) -> Profile:
    """Load a shipped profile by name, or one from a JSON file by path.

    Raises:
        UsageError: neither exists.
        FormatError: the file is not a profile; the message names file and field.
    """
    path = Path(name)
    if path.suffix or len(path.parts) > 1:
        if not path.is_file():
            raise UsageError(f"no profile {name}: give a JSON file or one of {', '.join(SHIPPED)}")
        return read_profile(path)
    lookup("profile", name, dict.fromkeys(SHIPPED))
    with as_file(files(__package__) / f"{name}.json") as shipped:
        return read_profile(shipped)


def read_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        FormatError: the file is not a profile; the message names file and field.
    """
    try:
        return object_of(path, SCHEMA, Profile)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _numbers(value: Mapping[str, Any], prefix: str) -> list[tuple[str, int | float]]:
    numbers = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            numbers += _numbers(inner, f"{prefix}{name}.")
        elif isinstance(inner, int | float):
            numbers.append((prefix + name, inner))
    return numbers
