"""The compute graph in ggml's terms: tensors computed by ops from source tensors, as plain data.

Shapes are in NumPy's order (the last dimension is contiguous), not in ggml's.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

NO_KERNEL: Final = frozenset({"none", "reshape"})
"""Ops that only name memory and run no kernel."""


BLOCK_FORMATS: Final[Mapping[str, tuple[int, int]]] = {"q8_0": (32, 34)}
"""Dtypes that NumPy lacks: name -> values and bytes per block. q8_0 is from ggml: 32 int8 and an f16 scale."""


class Flag(enum.Flag):
    """The role of a tensor outside the graph.

    A leaf that is neither INPUT nor WEIGHT is state: it stays on the device between steps (a KV cache).
    """

    NONE = 0
    INPUT = enum.auto()
    """The host sends it before every step."""
    OUTPUT = enum.auto()
    """The host reads it after the step, so its memory is not recycled."""
    WEIGHT = enum.auto()
    """Loaded once and only read."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor and, unless it is a leaf, the node that computes it.

    Attributes:
        name: unique in its graph, such as "blk.0.attn_q".
        op: ggml's name of the op; "none" for a leaf.
        dtype: NumPy's name of the element type, or one of `BLOCK_FORMATS`.
        view_src: the tensor whose memory it shares, or None if it owns its memory.
        updates: the sources that its kernel reads and then overwrites (a recurrent state).
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    src: tuple[Tensor, ...] = ()
    view_src: Tensor | None = None
    updates: tuple[Tensor, ...] = ()
    flags: Flag = Flag.NONE
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        values, nbytes = BLOCK_FORMATS.get(self.dtype) or (1, np.dtype(self.dtype).itemsize)
        return math.prod(self.shape) // values * nbytes

    @property
    def computed(self) -> Tensor:
        """The kernel or leaf whose memory it names: itself, unless it has no kernel."""
        tensor = self
        while not tensor.is_leaf and not tensor.has_kernel:
            tensor = tensor.src[0]
        return tensor

    @property
    def root(self) -> Tensor:
        """The tensor that owns its memory: itself, unless it is a view."""
        tensor = self
        while tensor.view_src is not None:
            tensor = tensor.view_src
        return tensor

    @property
    def is_leaf(self) -> bool:
        """Whether it is not computed by an op."""
        return self.op == "none"

    @property
    def is_state(self) -> bool:
        """Whether it is a leaf that stays on the device between steps."""
        return self.is_leaf and not self.flags & (Flag.INPUT | Flag.WEIGHT)

    @property
    def has_kernel(self) -> bool:
        """Whether computing it runs a kernel."""
        return self.op not in NO_KERNEL

    @property
    def written(self) -> tuple[Tensor, ...]:
        """The tensors whose memory its kernel writes: itself, and state that it updates in place."""
        return tuple(t.root for t in (self, *self.updates)) if self.has_kernel else ()

    @property
    def writes_view(self) -> bool:
        """Whether it writes its result to memory that another tensor owns (set_rows, cpy, in-place ops)."""
        return self.has_kernel and self.view_src is not None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.op} {self.dtype}{list(self.shape)}>"


class Graph:
    """Leaves and nodes. Nodes are ordered so that every source precedes its readers.

    Example:
        >>> graph = Graph()
        >>> x = graph.leaf("x", (4,), flags=Flag.INPUT)
        >>> y = graph.node("y", "add", (4,), "float32", (x, x))
        >>> graph.nodes, graph.inputs
        ([<y: add float32[4]>], [<x: none float32[4]>])
    """

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.nodes: list[Tensor] = []
        self._names: set[str] = set()
        self._tensors: set[Tensor] = set()

    def leaf(self, name: str, shape: tuple[int, ...], dtype: str = "float32", flags: Flag = Flag.NONE) -> Tensor:
        """Add a leaf: a weight, an input, or state. Rows of a block format must be whole blocks."""
        if shape[-1] % BLOCK_FORMATS.get(dtype, (1, 1))[0]:
            raise ValueError(f"{name}: rows of {shape[-1]} are not whole blocks of {dtype}")
        tensor = Tensor(self._new(name), "none", shape, dtype, flags=flags)
        self.leaves.append(tensor)
        self._tensors.add(tensor)
        return tensor

    def node(
        self, name: str, op: str, shape: tuple[int, ...], dtype: str, src: Sequence[Tensor],
        *, view_src: Tensor | None = None, updates: Sequence[Tensor] = (), flags: Flag = Flag.NONE, **params: Any,
    ) -> Tensor:  # fmt: skip
        """Append a node. Its sources must already be in the graph."""
        tensor = Tensor(self._new(name), op, shape, dtype, tuple(src), view_src, tuple(updates), flags, params)
        for source in tensor.src:
            if source not in self._tensors:
                raise ValueError(f"{name}: source {source.name} is not in the graph")
        self.nodes.append(tensor)
        self._tensors.add(tensor)
        return tensor

    def _new(self, name: str) -> str:
        if name in self._names:
            raise ValueError(f"two tensors are named {name}")
        self._names.add(name)
        return name

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors that the host sends before every step, in order."""
        return [leaf for leaf in self.leaves if leaf.flags & Flag.INPUT]

    @property
    def weights(self) -> list[Tensor]:
        """The tensors that are loaded once."""
        return [leaf for leaf in self.leaves if leaf.flags & Flag.WEIGHT]

    @property
    def state(self) -> list[Tensor]:
        """The tensors that stay on the device between steps."""
        return [leaf for leaf in self.leaves if leaf.is_state]


def memory_order(nodes: Sequence[Tensor]) -> list[set[int]]:
    """Return, for each node, the indices of earlier nodes that must run before it.

    In addition to the sources, these are conflicts over memory that views share: a node that writes a tensor's
    memory in place must run after the earlier readers and writers of that memory, and a reader after the last
    writer.
    """
    index = {node: i for i, node in enumerate(nodes)}
    last_write: dict[Tensor, int] = {}
    reads_since: dict[Tensor, set[int]] = {}
    order: list[set[int]] = []
    for i, node in enumerate(nodes):
        before = {index[s] for s in node.src if s in index}
        for root in {s.root for s in node.src}:
            before |= {last_write[root]} if root in last_write else set()
            reads_since.setdefault(root, set()).add(i)
        for root in node.written:
            before |= reads_since.get(root, set()) - {i}
            before |= {last_write[root]} if root in last_write else set()
            last_write[root] = i
            reads_since[root] = set()
        order.append(before)
    return order
