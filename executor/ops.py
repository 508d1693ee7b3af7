"""The ops: functions that append a node to a graph and know the shape of its result.

Names and meaning are ggml's. Their NumPy kernels are in `backends/cpu_kernels.py`. N is the number of tokens
in the step (one per sequence).
"""

from __future__ import annotations

import math

from executor.graph import Flag, Graph, Tensor


def _need(holds: bool, name: str, what: str, *tensors: Tensor) -> None:
    if not holds:
        raise ValueError(f"{name}: {what}, got {', '.join(map(repr, tensors))}")


def get_rows(graph: Graph, table: Tensor, rows: Tensor, *, name: str) -> Tensor:
    """Rows of a table: (R, C), (N,) -> (N, C); rows of weights come out as float32."""
    _need(len(rows.shape) == 1, name, "get_rows wants a vector of row numbers", table, rows)
    dtype = "float32" if table.flags & Flag.WEIGHT else table.dtype
    return graph.node(name, "get_rows", (*rows.shape, *table.shape[1:]), dtype, (table, rows))


def rms_norm(graph: Graph, x: Tensor, *, eps: float, name: str) -> Tensor:
    """Divide by the root mean square over the last dimension."""
    return graph.node(name, "rms_norm", x.shape, x.dtype, (x,), eps=eps)


def mul(graph: Graph, x: Tensor, y: Tensor, *, name: str) -> Tensor:
    """x * y, y broadcast to x."""
    return graph.node(name, "mul", x.shape, x.dtype, (x, y))


def add(graph: Graph, x: Tensor, y: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """x + y, y broadcast to x."""
    return graph.node(name, "add", x.shape, x.dtype, (x, y), flags=flags)


def add_inplace(graph: Graph, x: Tensor, y: Tensor, *, name: str) -> Tensor:
    """x += y; a view of x."""
    return graph.node(name, "add", x.shape, x.dtype, (x, y), view_src=x)


def mul_mat(graph: Graph, weight: Tensor, x: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """x times the transposed weight: (O, I), (N, I) -> (N, O)."""
    _need(weight.shape[1] == x.shape[-1], name, "mul_mat wants equal last dimensions", weight, x)
    return graph.node(name, "mul_mat", (*x.shape[:-1], weight.shape[0]), x.dtype, (weight, x), flags=flags)


def reshape(graph: Graph, x: Tensor, shape: tuple[int, ...], *, name: str) -> Tensor:
    """The same memory in another shape; no kernel."""
    _need(math.prod(shape) == math.prod(x.shape), name, f"cannot reshape to {shape}", x)
    return graph.node(name, "reshape", shape, x.dtype, (x,), view_src=x)


def rope(graph: Graph, x: Tensor, positions: Tensor, *, base: float, name: str) -> Tensor:
    """Rotate neighbouring pairs of the last dimension by the position: (N, heads, D), (N,) -> same."""
    _need(x.shape[0] == positions.shape[0], name, "rope wants a position per token", x, positions)
    return graph.node(name, "rope", x.shape, x.dtype, (x, positions), base=base)


def set_rows(graph: Graph, destination: Tensor, values: Tensor, rows: Tensor, *, name: str) -> Tensor:
    """Write values (N, C) into the rows (N,) of a destination (R, C); a view of the destination."""
    _need(values.shape[1:] == destination.shape[1:], name, "set_rows wants equal rows", destination, values)
    _need(values.shape[:1] == rows.shape, name, "set_rows wants a row number per row", values, rows)
    src = (values, rows, destination)
    return graph.node(name, "set_rows", destination.shape, destination.dtype, src, view_src=destination)


def cpy(graph: Graph, x: Tensor, destination: Tensor, *, name: str) -> Tensor:
    """Copy x over a destination of its shape; a view of the destination."""
    _need(x.shape == destination.shape, name, "cpy wants equal shapes", x, destination)
    return graph.node(name, "cpy", destination.shape, destination.dtype, (x, destination), view_src=destination)


def flash_attn_ext(graph: Graph, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, name: str) -> Tensor:
    """Decode attention over a cache, several query heads per KV head.

    q (N, heads, D), k and v (N, cells, KV heads, D), mask (N, cells) added to the scores -> (N, heads * D).
    """
    (n, heads, d), (_, cells, kv_heads, _) = q.shape, k.shape
    _need(
        heads % kv_heads == 0 and k.shape == v.shape == (n, cells, kv_heads, d),
        name,
        "heads do not fit",
        q,
        k,
        v,
    )
    _need(mask.shape == (n, cells), name, "mask wants a row per token and a column per cell", k, mask)
    return graph.node(name, "flash_attn_ext", (n, heads * d), q.dtype, (q, k, v, mask), scale=scale)


def swiglu(graph: Graph, gate: Tensor, up: Tensor, *, name: str) -> Tensor:
    """silu(gate) * up."""
    _need(gate.shape == up.shape, name, "swiglu wants equal shapes", gate, up)
    return graph.node(name, "swiglu", gate.shape, gate.dtype, (gate, up))


def argmax(graph: Graph, x: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """Column of the first greatest value of each row: (N, C) -> (N,) int32."""
    return graph.node(name, "argmax", x.shape[:1], "int32", (x,), flags=flags)
