"""Cost profiles: what host calls, copies and kernels cost on a machine that the `sim` backend stands in for.

A profile is a JSON file, `intertoken.profile/1`. `wddm.json`, `hip.json` and `h200-linux.json` are shipped beside this
file; `intertoken calibrate` makes one from a recording. `sources` says of every figure where it is from: measured,
derived from a published figure, or assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

from executor.names import lookup
from tracer.errors import FormatError, UsageError
from tracer.output import write_output
from tracer.typed_json import read_object, typed_object

SCHEMA: Final = "intertoken.profile/1"
SHIPPED: Final = ("h200-linux", "wddm", "hip")
CALLS: Final = ("copy_in", "copy_out", "launch", "graph_launch", "sync", "event_record", "event_wait")
"""What a host call is to a profile; `copy_in` goes to the device, `sync` is of a stream or an event."""
FETCH: Final = "fetch"
"""In `between_ns`, a sync that a copy to the host was waited for with: what follows it samples a token."""

OTHER: Final = "other"
"""In `kernels`, every op that is not named."""


@dataclass(frozen=True)
class CopyCost:
    """A copy in one direction takes the device fixed_ns + bytes / bytes_per_ns, the copies of a stream in turn."""

    fixed_ns: int
    bytes_per_ns: float


@dataclass(frozen=True)
class GraphCost:
    """What a graph adds to its kernels.

    Attributes:
        host_node_ns: host time of a graph launch for each of its nodes.
        host_stream_ns: host time of a graph launch for each of its streams but the first.
        start_ns: device time between the end of earlier work on the stream and the graph's first kernel.
        node_ns: device time of each node beside its kernel's.
    """

    host_node_ns: int = 0
    host_stream_ns: int = 0
    start_ns: int = 0
    node_ns: int = 0


@dataclass(frozen=True)
class KernelCost:
    """A kernel that has the device for itself takes fixed_ns + bytes * ns_per_byte, or longer by the bandwidth."""

    fixed_ns: int
    ns_per_byte: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Work reaches the device in batches, as under WDDM: when `size` pieces wait, or the host waits for one.

    Attributes:
        size: pieces (copies, kernels, graphs, event records) after which a batch is sent.
        submit_ns: host time to send one, inside the call that does so.
    """

    size: int
    submit_ns: int


@dataclass(frozen=True)
class Profile:
    """Costs of a machine; times in ns.

    Attributes:
        name: such as "wddm".
        device: what the recording calls the device.
        calls_ns: host time inside each of `CALLS`; of a sync, when there is nothing to wait for.
        between_ns: host time from one call's return to the next call, see `between`.
        wake_up_ns: from the end of the work that a sync waits for to the sync's return.
        launch_latency_ns: from the return of a launch to the first kernel's start on an idle device.
        copy_in, copy_out: copies to the device and to the host.
        graph: what graphs add.
        edge_ns: device time from an event on one stream to the start of what waits for it on another.
        bytes_per_ns: memory bandwidth of the device, shared by the kernels that run at the same time.
        kernels: op -> cost; `OTHER` for every op that is not named.
        streams: queues of the device; more streams than that share them.
        batch: how work reaches the device; None for at once.
        sources: figure, or the beginning of a group's -> where it is from.
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
    streams: int = 32
    batch: Batch | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if lacking := [call for call in CALLS if call not in self.calls_ns]:
            raise FormatError(f"calls_ns lacks {', '.join(lacking)}")
        known = {f"{a}>{b}" for a in (*CALLS, FETCH, "") for b in (*CALLS, "")}
        if unknown := [*(self.calls_ns.keys() - set(CALLS)), *(self.between_ns.keys() - known)]:
            raise FormatError(f"unknown host call {unknown[0]!r}; known are {', '.join((*CALLS, FETCH))}")
        for group, costs, entry in (("between_ns", self.between_ns, ">"), ("kernels", self.kernels, OTHER)):
            if entry not in costs:
                raise FormatError(f"{group} lacks the entry {entry!r}, for all that is not named")
        for name, value in self.figures.items():
            if value < 0 or (value == 0 and name.endswith(("bytes_per_ns", "streams", "size"))):
                raise FormatError(f"{name} must be {'at least' if value < 0 else 'more than'} 0, not {value}")

    @cached_property
    def figures(self) -> Mapping[str, int | float]:
        """Every number by its name, such as `kernels.mul_mat.fixed_ns`."""
        return dict(_numbers(asdict(self), ""))

    def source(self, figure: str) -> str | None:
        """Where a figure is from, or None if the profile does not say."""
        named = (name for name in self.sources if figure == name or figure.startswith(f"{name}."))
        return self.sources.get(max(named, key=len, default=""))

    def between(self, previous: str, following: str) -> int:
        """Host time from one call to the next, ns: of this pair, else after that call, before this one, or any."""
        names = (f"{previous}>{following}", f"{previous}>", f">{following}", ">")
        return next(self.between_ns[name] for name in names if name in self.between_ns)

    def kernel(self, op: str) -> KernelCost:
        """The cost of an op; a fused one that is not named costs what the longest of its beginnings costs."""
        parts = op.split("+")
        names = ("+".join(parts[:n]) for n in range(len(parts), 0, -1))
        return next((self.kernels[name] for name in names if name in self.kernels), self.kernels[OTHER])


def load_profile(name: str) -> Profile:
    """A shipped profile by its name, or one from a JSON file by its path.

    Raises:
        UsageError: there is neither.
        FormatError: the file is no profile; the message names file and field.
    """
    path = Path(name)
    if path.suffix or len(path.parts) > 1:
        if not path.is_file():
            raise UsageError(f"there is no profile {name}; shipped are {', '.join(SHIPPED)}")
        return read_profile(path)
    lookup("profile", name, dict.fromkeys(SHIPPED))
    with as_file(files(__package__) / f"{name}.json") as shipped:
        return read_profile(shipped)


def read_profile(path: Path) -> Profile:
    """Read and check a file.

    Raises:
        FormatError: names file and field.
    """
    try:
        profile: Profile = typed_object(read_object(path, SCHEMA), Profile, "profile")
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    return profile


def write_profile(profile: Profile, path: Path) -> None:
    """Write the file, or put it in the place of one.

    Raises:
        UsageError: it cannot be written.
    """
    text = json.dumps({"schema": SCHEMA} | asdict(profile), indent=2) + "\n"
    write_output(path, lambda partial: partial.write_text(text, encoding="utf-8"), replace=True)


def _numbers(value: Mapping[str, Any], prefix: str) -> list[tuple[str, int | float]]:
    found = []
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            found += _numbers(inner, f"{prefix}{name}.")
        elif isinstance(inner, int | float):
            found.append((prefix + name, inner))
    return found
