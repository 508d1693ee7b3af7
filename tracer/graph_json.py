"""graph.json of a run directory: the graph that was run, its streams and events, and what each allocator takes.

Its form, `intertoken.graph/1`, is that of `RunGraph` as JSON; nodes are named by their indices.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Final

from tracer.errors import FormatError
from tracer.typed_json import read_object, typed_object

GRAPH_FILE: Final = "graph.json"
SCHEMA: Final = "intertoken.graph/1"
_MOST_STREAMS: Final = 128


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input or a state; `kind` is "input" or "state", `nbytes` its size."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    Attributes:
        shape: in NumPy's order, the last dimension contiguous.
        nbytes: of its result.
        stream: of its kernel, or None if it has none and only names memory.
        src: indices of the nodes that it reads.
        leaves: indices of the inputs and states that it reads.
        weight_bytes: of the weights that it reads.
        region: index of the innermost region that it is a branch node of, or None.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    stream: int | None
    src: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    weight_bytes: int = 0
    region: int | None = None


@dataclass(frozen=True, slots=True)
class RegionOf:
    """Branches between a fork and a join (indices of nodes); `level` 0 lies in no other region."""

    fork: int
    join: int
    branches: int
    level: int


@dataclass(frozen=True, slots=True)
class StreamWait:
    """One stream waits for an event of another.

    Attributes:
        event: its number in the plan.
        source: the node after whose kernel the event is recorded; None at the start of the step.
        target: the node before whose kernel the stream waits; None at the end of the step.
        source_stream, target_stream: where it is recorded, and which stream waits.
    """

    event: int
    source: int | None
    source_stream: int
    target: int | None
    target_stream: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What an allocator makes of the plan: size of its arena, what tensors need at least, and its hazards."""

    allocator: str
    peak_bytes: int
    peak_live_bytes: int
    hazards: int


@dataclass(frozen=True)
class RunGraph:
    """The graph of a run.

    Attributes:
        weights, weight_bytes: how many weights there are, and their size.
        launches: indices of the nodes with kernels, in the order in which CUDA graphs are made of them.
        memory: one entry per allocator.
        allocator: the one that the run used.
        devices: the device of every stream, where there are several devices.
    """

    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    regions: tuple[RegionOf, ...]
    launches: tuple[int, ...]
    waits: tuple[StreamWait, ...]
    streams: int
    weights: int
    weight_bytes: int
    memory: tuple[Memory, ...]
    allocator: str
    devices: tuple[str, ...] = ()
    schema: str = SCHEMA

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Name -> index of the node."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def stream_name(self, stream: int) -> str:
        """A stream in words, with its number among its device's."""
        if not self.devices:
            return f"stream {stream}"
        device = self.devices[stream]
        return f"{device} stream {stream - self.devices.index(device)}"

    @cached_property
    def readers(self) -> Sequence[Sequence[int]]:
        """For every node those that read it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.src):
                found[source].append(i)
        return found


def write_graph(graph: RunGraph, path: Path) -> None:
    """Write the file; what is as by default stays out of it.

    Raises:
        OSError: it cannot be written.
    """
    usual = {f.name: f.default for f in fields(Node) if f.default is not MISSING}
    data = asdict(graph)
    data["nodes"] = [{k: v for k, v in node.items() if k not in usual or v != usual[k]} for node in data["nodes"]]
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def read_graph(path: Path) -> RunGraph:
    """Read the file.

    Raises:
        FormatError: it cannot be read, has another form, or its indices lead nowhere.
    """
    try:
        graph: RunGraph = typed_object(read_object(path, SCHEMA), RunGraph, "graph")
        _check(graph)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    return graph


def _check(graph: RunGraph) -> None:
    """Every index leads somewhere, sources come first, names are unique."""
    nodes, leaves, regions = len(graph.nodes), len(graph.leaves), len(graph.regions)
    if not nodes:
        raise FormatError("the graph has no nodes")
    if graph.devices and len(graph.devices) != graph.streams:
        raise FormatError(f"it names devices of {len(graph.devices)} streams, and has {graph.streams}")
    if not 0 < graph.streams <= _MOST_STREAMS:
        raise FormatError(f"it has {graph.streams} streams; at most {_MOST_STREAMS} can be shown")
    if len(graph.index) < nodes:
        raise FormatError("two nodes have the same name")
    for i, node in enumerate(graph.nodes):
        _within(f"source of node {i}", node.src, i)
        _within(f"leaf of node {i}", node.leaves, leaves)
        _within(f"stream of node {i}", (node.stream,), graph.streams)
        _within(f"region of node {i}", (node.region,), regions)
    for region in graph.regions:
        _within("fork or join", (region.fork, region.join), nodes)
    for wait in graph.waits:
        _within("node of a wait", (wait.source, wait.target), nodes)
        _within("stream of a wait", (wait.source_stream, wait.target_stream), graph.streams)
    if sorted(graph.launches) != [i for i, node in enumerate(graph.nodes) if node.stream is not None]:
        raise FormatError("its launches are not its nodes with a stream")


def _within(what: str, indices: Sequence[int | None], end: int) -> None:
    for index in indices:
        if index is not None and not 0 <= index < end:
            raise FormatError(f"{what} is {index}, not in 0-{end - 1}")
