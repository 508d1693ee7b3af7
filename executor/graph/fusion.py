"""Fuses chains of nodes into single nodes that the backend computes with one kernel, as ggml's backends do.

Fusion precedes the search for branches and the allocation, so that both see the actual reads and writes. The op of a
fused node is the ops of its parts joined by "+". It has the name, shape, flags and view of the last part, and its
sources are the outer sources of the parts, without duplicates, in the order of the parts.

`reads_of` gives the weights that a node reads, fused or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from executor.graph import Flag, Graph, Tensor
from executor.graph.models.step import DecodeStep, History

PARTS: Final = "parts"
"""Parameter of a fused node: the nodes that it replaces (including reshapes), in order."""


@dataclass(frozen=True)
class Pattern:
    """An op, the patterns that some of its sources must match, and the parameters that it must have.

    Reshapes between a source and its pattern are ignored.
    """

    op: str
    sources: Mapping[int, Pattern] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


_NORM: Final = Pattern("mul", {0: Pattern("rms_norm")})
_MUL_MAT: Final = Pattern("mul_mat")
_ROPE: Final = Pattern("rope", {0: _MUL_MAT}, {"mode": "normal"})  # adjacent rows of the matrix form a pair
_NORM_ROPE: Final = Pattern("rope", {0: _NORM})

PATTERNS: Final[Sequence[Pattern]] = (
    Pattern("swiglu", {0: Pattern("mul_mat", {1: _NORM}), 1: Pattern("mul_mat", {1: _NORM})}),
    Pattern("swiglu", {0: Pattern("mul_mat_id"), 1: Pattern("mul_mat_id")}),
    Pattern("set_rows", {0: _ROPE}),
    Pattern("set_rows", {0: _NORM_ROPE}),
    Pattern("set_rows", {0: _MUL_MAT}),
    Pattern("add", {0: _MUL_MAT}),
    Pattern("silu", {0: Pattern("ssm_conv")}),
    _ROPE,
    _NORM_ROPE,
    Pattern("mul_mat", {1: _NORM}),
    _NORM,
)
"""The patterns to fuse, of which the first match is used. Matrix products are fused for one token only."""


def fuse(step: DecodeStep) -> DecodeStep:
    """Return the step with every matching chain fused. Inner results of a chain must have no other reader."""
    chains = _find_chains(step.graph)
    inside = {part for chain in chains.values() for part in chain[:-1]}
    graph, new = Graph(), dict[Tensor, Tensor]()
    for leaf in step.graph.leaves:
        new[leaf] = graph.leaf(leaf.name, leaf.shape, leaf.dtype, leaf.flags)
    for node in step.graph.nodes:
        if node not in inside:
            new[node] = _rebuilt(graph, node, chains.get(node, (node,)), new)
    history = step.history
    if history is not None:
        history = History(new[history.tokens], new[history.logits] if history.logits else None)
    sampled = new[step.sampled] if step.sampled else None
    return replace(step, graph=graph, logits=new[step.logits], history=history, sampled=sampled)


def outer_sources(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return the sources outside a chain, without duplicates, in the order of the parts."""
    inner = set(parts)
    return list(dict.fromkeys(s for part in parts for s in part.src if s not in inner))


def _rebuilt(graph: Graph, node: Tensor, parts: Sequence[Tensor], new: Mapping[Tensor, Tensor]) -> Tensor:
    view = new[node.view_src] if node.view_src is not None else None
    op, sources, params = node.op, list(node.src), dict(node.params)
    if len(parts) > 1:
        op = "+".join(part.op for part in parts if part.has_kernel)
        sources, params = outer_sources(parts), {PARTS: tuple(parts)}
    src, updates = [new[s] for s in sources], [new[s] for part in parts for s in part.updates]
    return graph.node(
        node.name, op, node.shape, node.dtype, src, view_src=view, updates=updates, flags=node.flags, **params
    )


def _find_chains(graph: Graph) -> dict[Tensor, tuple[Tensor, ...]]:
    """Map the last node of each chain to its parts. Chains are disjoint; later ones, which may be longer, go first."""
    readers: dict[Tensor, list[Tensor]] = {}
    for node in graph.nodes:
        for source in node.src:
            readers.setdefault(source, []).append(node)
    position = {node: i for i, node in enumerate(graph.nodes)}
    chains: dict[Tensor, tuple[Tensor, ...]] = {}
    fused: set[Tensor] = set()
    for node in reversed(graph.nodes):
        for pattern in PATTERNS if node not in fused else ():
            parts: set[Tensor] = set()
            if not _match(pattern, node, parts.add):
                continue
            chain = tuple(sorted(parts, key=position.__getitem__))
            if not parts & fused and _is_closed(chain, readers, position, graph):
                chains[node] = chain
                fused |= parts
                break
    return chains


def _match(pattern: Pattern, node: Tensor, add: Callable[[Tensor], None]) -> bool:
    if node.op != pattern.op or (node.op in ("mul_mat", "mul_mat_id") and node.src[1].shape[0] != 1):
        return False
    if any(node.params.get(name) != value for name, value in pattern.params.items()):
        return False
    add(node)
    for i, wanted in pattern.sources.items():
        source = node.src[i]
        while source.op == "reshape":
            add(source)
            source = source.src[0]
        if not _match(wanted, source, add):
            return False
    return True


def _is_closed(
    chain: Sequence[Tensor], readers: Mapping[Tensor, Sequence[Tensor]], position: Mapping[Tensor, int], graph: Graph
) -> bool:
    """Whether inner results are neither outputs nor read outside, and no node in between uses the chain's memory."""
    parts, inner = set(chain), chain[:-1]
    if any(part.flags & Flag.OUTPUT or part.writes_view or not parts.issuperset(readers[part]) for part in inner):
        return False
    read = {source.root for source in outer_sources(chain)}
    updated = {state.root for part in inner for state in part.updates}
    between = [node for node in graph.nodes[position[chain[0]] : position[chain[-1]]] if node not in parts]
    return not any(
        read.intersection(node.written) or updated.intersection(source.root for source in node.src) for node in between
    )


@dataclass(frozen=True)
class Reads:
    """The weights that a node's products read.

    Attributes:
        nbytes: bytes of the weights that are read as a whole.
        experts: weights of all experts, and the numbers of those that are used, each read once.
        known: False if the node computes attention: the cells that it reads depend on the mask.
    """

    nbytes: int = 0
    experts: tuple[tuple[Tensor, Tensor], ...] = ()
    known: bool = True

    def now(self, arrays: Mapping[Tensor, Any]) -> int | None:
        """Return the bytes that a step reads, given the node's sources."""
        used = sum(_each(weight) * len(set(arrays[ids].ravel().tolist())) for weight, ids in self.experts)
        return self.nbytes + used if self.known else None

    @property
    def at_most(self) -> int | None:
        """Return the bytes if no two tokens use the same expert."""
        used = sum(_each(weight) * min(math.prod(ids.shape), weight.shape[0]) for weight, ids in self.experts)
        return self.nbytes + used if self.known else None


def reads_of(node: Tensor) -> Reads | None:
    """Return what the products and the attention of a node, fused or not, read; None if it has none."""
    parts = [part for part in node.params.get(PARTS, (node,)) if part.op in ("mul_mat", "mul_mat_id", "flash_attn_ext")]
    if not parts:
        return None
    weights = [part.src[0] for part in parts if part.op == "mul_mat"]
    experts = [part for part in parts if part.op == "mul_mat_id"]
    return Reads(
        sum(weight.nbytes for weight in weights),
        tuple((part.src[0], part.src[2]) for part in experts),
        all(part.op != "flash_attn_ext" for part in parts),
    )


def _each(weight: Tensor) -> int:
    """Return the bytes of one expert."""
    return weight.nbytes // weight.shape[0]
