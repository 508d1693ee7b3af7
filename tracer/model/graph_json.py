"""graph.json of a run directory: the executed graph, its streams and events, and the memory of each allocator.

The schema, `intertoken.graph/1`, is `RunGraph` as JSON; nodes are referred to by index.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from tracer.errors import FormatError
from tracer.files.bounded import Count, object_of

GRAPH_FILE: Final = "graph.json"
SCHEMA: Final = "intertoken.graph/1"


@dataclass(frozen=True, slots=True)
class Leaf:
    """An input or a state; `kind` is "input" or "state", `nbytes` the size."""

    name: str
    kind: str
    shape: tuple[Count, ...]
    dtype: str
    nbytes: Count


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    Attributes:
        shape: in NumPy's order, the last dimension contiguous.
        nbytes: size of its result.
        stream: stream of its kernel, or None if it has no kernel and only names memory.
        src: indices of the nodes that it reads.
        leaves: indices of the inputs and states that it reads.
        weight_bytes: size of the weights that it reads.
        region: index of the innermost region with the node in a branch, or None.
    """

    name: str
    op: str
    shape: tuple[Count, ...]
    dtype: str
    nbytes: Count
    stream: Count | None
    src: tuple[Count, ...] = ()
    leaves: tuple[Count, ...] = ()
    weight_bytes: Count = 0
    region: Count | None = None


@dataclass(frozen=True, slots=True)
class RegionOf:
    """Branches between a fork and a join (indices of nodes); a region at `level` 0 is in no other region."""

    fork: Count
    join: Count
    branches: Count
    level: Count


@dataclass(frozen=True, slots=True)
class StreamWait:
    """One stream waits for an event of another.

    Attributes:
        event: its number in the plan.
        source: the event is recorded after the kernel of this node; None at the start of the step.
        target: the stream waits before the kernel of this node; None at the end of the step.
        source_stream, target_stream: the stream that records the event, and the stream that waits.
    """

    event: Count
    source: Count | None
    source_stream: Count
    target: Count | None
    target_stream: Count


@dataclass(frozen=True, slots=True)
class Memory:
    """The result of an allocator for the plan: size of its arena, peak size of live tensors, number of hazards."""

    allocator: str
    peak_bytes: Count
    peak_live_bytes: Count
    hazards: Count


@dataclass(frozen=True)
class RunGraph:
    """The graph of a run.

    Attributes:
        weights, weight_bytes: number of weights, and their total size.
        launches: indices of the nodes with kernels, in the order of their capture into CUDA graphs.
        memory: one entry per allocator.
        allocator: the one that the run used.
        devices: the device of every stream, if there are several devices.
    """

    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]
    leaves: tuple[Leaf, ...]
    regions: tuple[RegionOf, ...]
    launches: tuple[Count, ...]
    waits: tuple[StreamWait, ...]
    streams: Annotated[int, Meta(ge=1, le=128)]
    weights: Count
    weight_bytes: Count
    memory: tuple[Memory, ...]
    allocator: str
    devices: tuple[str, ...] = ()
    schema: str = SCHEMA

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Node name -> index."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def stream_name(self, stream: int) -> str:
        """The display name of a stream, numbered within its device."""
        if not self.devices:
            return f"stream {stream}"
        device = self.devices[stream]
        return f"{device} stream {stream - self.devices.index(device)}"

    @cached_property
    def readers(self) -> Sequence[Sequence[int]]:
        """For every node, the nodes that read it."""
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.src):
                readers[source].append(i)
        return readers


def write_graph(graph: RunGraph, path: Path) -> None:
    """Write the file, without node fields that have their default value.

    Raises:
        OSError: the file cannot be written.
    """
    usual = {f.name: f.default for f in fields(Node) if f.default is not MISSING}
    data = asdict(graph)
    data["nodes"] = [{k: v for k, v in node.items() if k not in usual or v != usual[k]} for node in data["nodes"]]
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


def read_graph(path: Path) -> RunGraph:
    """Read the file.

    Raises:
        FormatError: the file cannot be read, has a different schema, or has indices out of range.
    """
    try:
        graph = object_of(path, SCHEMA, RunGraph)
        _check(graph)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    return graph


def _check(graph: RunGraph) -> None:
    """Check that indices are in range, sources come first, and names are unique."""
    nodes, leaves, regions = len(graph.nodes), len(graph.leaves), len(graph.regions)
    if graph.devices and len(graph.devices) != graph.streams:
        raise FormatError(f"{graph.streams} streams, but devices for {len(graph.devices)}")
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
        raise FormatError("the launches are not exactly the nodes with a stream")


def _within(what: str, indices: Sequence[int | None], end: int) -> None:
    for index in indices:
        if index is not None and index >= end:
            raise FormatError(f"{what} is {index}, not in 0-{end - 1}")
