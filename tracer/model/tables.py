"""The tables of a trace as typed columns: a class for each table of `schema` that an analysis reads, in its order.

Ids, sizes and times (ns) are int64, `MISSING` if unknown; names and enums are `Names`. What a column means is in
`schema.TABLES`.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Final

import numpy as np
import pandas as pd

from tracer.model.calls import is_unknown, letter
from tracer.model.collectives import is_collective
from tracer.model.columns import Columns, Correlated, Letters, Names
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import DEVICE_TABLES, TABLES


class Kernels(Correlated):
    """Kernel executions."""

    start: Ints
    end: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    name: Names
    short_name: Names
    grid_x: Ints
    grid_y: Ints
    grid_z: Ints
    block_x: Ints
    block_y: Ints
    block_z: Ints
    registers: Ints
    static_shared: Ints
    dynamic_shared: Ints
    graph_node: Ints
    graph: Ints

    @cached_property
    def collective(self) -> Bools:
        """Which of them communicate between devices; each distinct name is examined once."""
        return self.name.chosen(is_collective) | self.short_name.chosen(is_collective)


class Memcpys(Correlated):
    """Copies on the device."""

    start: Ints
    end: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    kind: Names
    bytes: Ints
    src_kind: Names
    dst_kind: Names
    src_device: Ints
    dst_device: Ints
    graph_node: Ints


class Memsets(Correlated):
    """Memsets on the device."""

    start: Ints
    end: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    value: Ints
    bytes: Ints
    mem_kind: Names
    graph_node: Ints


class GraphLaunches(Correlated):
    """Executions of whole CUDA graphs."""

    start: Ints
    end: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    graph: Ints
    graph_exec: Ints


class Api(Correlated):
    """Calls on host threads."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    correlation: Ints
    name: Names
    return_value: Ints
    layer: Names
    callchain: Ints
    count: Ints

    @cached_property
    def letter(self) -> Letters:
        """What each call does (`model.calls`), "" for others."""
        table = np.array([letter(str(name)) for name in self.name.words] or [""], dtype="U1")
        return table[self.name.codes]

    def unknown_calls(self) -> Counter[str]:
        """Unlisted names that look like launches, copies or syncs, with their counts."""
        counts = np.bincount(self.name.codes, minlength=len(self.name.words)).tolist()
        return Counter({str(n): count for n, count in zip(self.name.words, counts, strict=True) if is_unknown(str(n))})


class Syncs(Correlated):
    """What calls waited for."""

    start: Ints
    end: Ints
    type: Names
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    event: Ints


class CudaEvents(Correlated):
    """Records of events."""

    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    event: Ints
    event_sync: Ints


class Nvtx(Columns):
    """NVTX ranges and marks."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    text: Names
    kind: Names
    domain: Names
    category: Ints
    color: Ints
    range_id: Ints
    payload: Floats


class Callchains(Columns):
    """The functions on the stack of calls."""

    chain: Ints
    depth: Ints
    symbol: Names
    module: Names


class Samples(Columns):
    """Samples of threads that run on a CPU."""

    chain: Ints
    time: Ints
    process: Ints
    thread: Ints


class SampleChains(Callchains):
    """The functions on the stack of samples."""

    unresolved: Ints


class Activities(Correlated):
    """What ran on devices, of several tables, sorted by start.

    Attributes:
        name: the short name of a kernel, or its full one if it has none; `memcpy KIND`, `memset`, `graph N`.
        bytes: of copies and memsets; 0 for compute.
        table: the position of its table in `schema.DEVICE_TABLES`.
        collective: whether it communicates between devices.
    """

    start: Ints
    end: Ints
    device: Ints
    context: Ints
    stream: Ints
    correlation: Ints
    process: Ints
    name: Names
    bytes: Ints
    table: Ints
    collective: Bools

    @property
    def is_kernel(self) -> Bools:
        """Which are kernels."""
        return self.table == KERNELS

    @property
    def is_graph(self) -> Bools:
        """Which are whole CUDA graphs, or runs of eager launches."""
        return self.table == GRAPHS

    @property
    def computes(self) -> Bools:
        """Which compute as in the definition of the gap: no copies, no collectives."""
        return (self.is_kernel | self.is_graph) & ~self.collective

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame; `table` is categorical."""
        dtype = pd.CategoricalDtype(list(DEVICE_TABLES))
        return super().frame().assign(table=pd.Categorical.from_codes(self.table, dtype=dtype))


OnStream = Kernels | Memcpys | Memsets | GraphLaunches | Activities
"""Tables of work on a stream."""
KERNELS: Final = DEVICE_TABLES.index("kernels")
MEMCPYS: Final = DEVICE_TABLES.index("memcpys")
MEMSETS: Final = DEVICE_TABLES.index("memsets")
GRAPHS: Final = DEVICE_TABLES.index("graph_launches")
TYPED: Final[dict[str, type[Columns]]] = {
    "kernels": Kernels, "memcpys": Memcpys, "memsets": Memsets, "graph_launches": GraphLaunches, "api": Api,
    "syncs": Syncs, "cuda_events": CudaEvents, "nvtx": Nvtx, "callchains": Callchains, "samples": Samples,
    "sample_chains": SampleChains,
}  # fmt: skip
"""Name of a table -> its class."""


def typed(name: str, frame: pd.DataFrame) -> Columns:
    """The frame of a table as its class; arrays are shared, not copied."""
    table = TABLES[name]
    return TYPED[name](*(
        Names.of_series(frame[c.name]) if c.is_name or c.enum is not None else frame[c.name].to_numpy()
        for c in table.columns
    ))  # fmt: skip
