"""The ops: functions that append a node to a graph and compute the shape of its result.

Names and semantics are ggml's. The NumPy kernels are in `backends/cpu/kernels.py`.

A step computes N = S * T tokens: T of each of S sequences, sequence by sequence (token t of sequence s is row
s * T + t). A decode step has T = 1. Results are float32 unless stated otherwise.
"""

from __future__ import annotations

import math

from executor.graph import Flag, Graph, Tensor


def _need(holds: bool, name: str, what: str, *tensors: Tensor) -> None:
    if not holds:
        raise ValueError(f"{name}: {what}, got {', '.join(map(repr, tensors))}")


def get_rows(graph: Graph, table: Tensor, rows: Tensor, *, name: str) -> Tensor:
    """Gather rows of a table: (R, C), (N,) int32 -> (N, C); rows of weights are converted to float32.

    With one table per row of row numbers: (N, R, C), (N, K) int32 -> (N, K, C).
    """
    batch = rows.shape[:-1]
    fits = len(batch) == len(table.shape) - 2 and table.shape[: len(batch)] == batch
    _need(fits, name, "get_rows needs a vector of row numbers per table", table, rows)
    dtype = "float32" if table.flags & Flag.WEIGHT else table.dtype
    return graph.node(name, "get_rows", (*rows.shape, table.shape[-1]), dtype, (table, rows))


def rms_norm(graph: Graph, x: Tensor, *, eps: float, name: str) -> Tensor:
    """x / sqrt(mean of squares + eps) over the last dimension."""
    return graph.node(name, "rms_norm", x.shape, x.dtype, (x,), eps=eps)


def mul(graph: Graph, x: Tensor, y: Tensor, *, name: str) -> Tensor:
    """x * y, y broadcast to x as in NumPy: a row (C,) for all rows, or a column (N, 1) for all columns."""
    return graph.node(name, "mul", x.shape, x.dtype, (x, y))


def div(graph: Graph, x: Tensor, y: Tensor, *, name: str) -> Tensor:
    """x / y, y broadcast to x as in `mul`."""
    return graph.node(name, "div", x.shape, x.dtype, (x, y))


def add(graph: Graph, x: Tensor, y: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """x + y, y broadcast to x."""
    return graph.node(name, "add", x.shape, x.dtype, (x, y), flags=flags)


def add_inplace(graph: Graph, x: Tensor, y: Tensor, *, name: str) -> Tensor:
    """x += y; a view of x."""
    return graph.node(name, "add", x.shape, x.dtype, (x, y), view_src=x)


def mul_mat(graph: Graph, weight: Tensor, x: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """Multiply x by the transposed weight: (O, I), (N, I) -> (N, O)."""
    _need(weight.shape[1] == x.shape[-1], name, "mul_mat needs equal last dimensions", weight, x)
    return graph.node(name, "mul_mat", (*x.shape[:-1], weight.shape[0]), x.dtype, (weight, x), flags=flags)


def reshape(graph: Graph, x: Tensor, shape: tuple[int, ...], *, name: str) -> Tensor:
    """View the same memory in a different shape, without a kernel."""
    _need(math.prod(shape) == math.prod(x.shape), name, f"cannot reshape to {shape}", x)
    return graph.node(name, "reshape", shape, x.dtype, (x,), view_src=x)


def rope(
    graph: Graph, x: Tensor, positions: Tensor, *, base: float, mode: str = "normal", dims: int | None = None, name: str
) -> Tensor:
    """Rotate pairs of values by their token's position: (N, heads, D), (N,) int32 -> (N, heads, D).

    Pair i of the first `dims` values (all if None) rotates by position * base ** (-2 i / dims); the remaining values
    are unchanged. In mode "normal" pair i is (x[2 i], x[2 i + 1]), in mode "neox" (x[i], x[i + dims / 2]).
    """
    dims = dims or x.shape[-1]
    _need(x.shape[0] == positions.shape[0], name, "rope needs a position per token", x, positions)
    _need(mode in ("normal", "neox") and dims % 2 == 0, name, "rope needs a known mode and an even size", x)
    return graph.node(name, "rope", x.shape, x.dtype, (x, positions), base=base, mode=mode, dims=dims)


def set_rows(graph: Graph, destination: Tensor, values: Tensor, rows: Tensor, *, name: str) -> Tensor:
    """Scatter values (N, C) to the rows (N,) of a destination (R, C); a view of the destination."""
    _need(values.shape[1:] == destination.shape[1:], name, "set_rows needs equal rows", destination, values)
    _need(values.shape[:1] == rows.shape, name, "set_rows needs a row number per row", values, rows)
    src = (values, rows, destination)
    return graph.node(name, "set_rows", destination.shape, destination.dtype, src, view_src=destination)


def cpy(graph: Graph, x: Tensor, destination: Tensor, *, name: str) -> Tensor:
    """Copy x to a destination of the same shape; a view of the destination."""
    _need(x.shape == destination.shape, name, "cpy needs equal shapes", x, destination)
    return graph.node(name, "cpy", destination.shape, destination.dtype, (x, destination), view_src=destination)


def flash_attn_ext(
    graph: Graph,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    streams: Tensor | None = None,
    *,
    scale: float,
    name: str,
) -> Tensor:
    """Attend from every token to one stream of the cache, with several query heads per KV head.

    q (N, heads, D), k and v (count, cells, KV heads, D), mask (N, attended) -> (N, heads * D). The mask is added to the
    scaled scores and covers all or the first cells of a stream.
    The tokens are G groups of N / G; group g sees stream streams[g], with streams (G,) int32. Without `streams` there
    are `count` groups, and group g sees stream g.
    """
    (n, heads, d), (count, cells, kv_heads, _) = q.shape, k.shape
    groups = count if streams is None else streams.shape[0]
    fits = heads % kv_heads == 0 and n % groups == 0 and k.shape == v.shape and k.shape[-1] == d
    _need(fits, name, "heads do not fit", q, k, v)
    fits = len(mask.shape) == 2 and mask.shape[0] == n and 0 < mask.shape[1] <= cells
    _need(fits, name, "mask needs a row per token and at most a column per cell", k, mask)
    src = (q, k, v, mask) if streams is None else (q, k, v, mask, streams)
    return graph.node(name, "flash_attn_ext", (n, heads * d), q.dtype, src, scale=scale)


def swiglu(graph: Graph, gate: Tensor, up: Tensor, *, name: str) -> Tensor:
    """silu(gate) * up."""
    _need(gate.shape == up.shape, name, "swiglu needs equal shapes", gate, up)
    return graph.node(name, "swiglu", gate.shape, gate.dtype, (gate, up))


def argmax(graph: Graph, x: Tensor, *, name: str, flags: Flag = Flag.NONE) -> Tensor:
    """Column of the first largest value of each row: (N, C) -> (N,) int32."""
    return graph.node(name, "argmax", x.shape[:1], "int32", (x,), flags=flags)


def silu(graph: Graph, x: Tensor, *, name: str) -> Tensor:
    """x / (1 + exp(-x))."""
    return graph.node(name, "silu", x.shape, x.dtype, (x,))


def sigmoid(graph: Graph, x: Tensor, *, name: str) -> Tensor:
    """1 / (1 + exp(-x))."""
    return graph.node(name, "sigmoid", x.shape, x.dtype, (x,))


def softplus(graph: Graph, x: Tensor, *, name: str) -> Tensor:
    """log(1 + exp(x))."""
    return graph.node(name, "softplus", x.shape, x.dtype, (x,))


def soft_max(graph: Graph, x: Tensor, *, name: str) -> Tensor:
    """exp(x), scaled to sum to 1 over the last dimension."""
    return graph.node(name, "soft_max", x.shape, x.dtype, (x,))


def sum_rows(graph: Graph, x: Tensor, *, name: str) -> Tensor:
    """Sum over the last dimension: (N, C) -> (N, 1)."""
    return graph.node(name, "sum_rows", (*x.shape[:-1], 1), x.dtype, (x,))


def l2_norm(graph: Graph, x: Tensor, *, eps: float, name: str) -> Tensor:
    """x / max(sqrt(sum of squares), eps) over the last dimension."""
    return graph.node(name, "l2_norm", x.shape, x.dtype, (x,), eps=eps)


# Mixture of experts


def top_k(graph: Graph, x: Tensor, *, k: int, name: str) -> Tensor:
    """Columns of the k largest values of each row, in descending order: (N, C) -> (N, k) int32.

    Equal values are in the order of their columns.
    """
    _need(0 < k <= x.shape[-1], name, f"top_k cannot choose {k} columns", x)
    return graph.node(name, "top_k", (*x.shape[:-1], k), "int32", (x,), k=k)


def mul_mat_id(graph: Graph, weights: Tensor, x: Tensor, ids: Tensor, *, name: str) -> Tensor:
    """Products with the matrices of chosen experts: out[n, j] = weights[ids[n, j]] @ x[n, j].

    weights (E, O, I), x (N, K, I), or (N, 1, I) if all K share the input, ids (N, K) int32 -> (N, K, O).
    """
    (n, chosen), (_, outputs, inputs) = ids.shape, weights.shape
    fits = x.shape in ((n, chosen, inputs), (n, 1, inputs))
    _need(fits, name, "mul_mat_id needs an input per token and chosen expert", weights, x, ids)
    return graph.node(name, "mul_mat_id", (n, chosen, outputs), x.dtype, (weights, x, ids))


def moe_expert_reduce(graph: Graph, x: Tensor, weights: Tensor, *, name: str) -> Tensor:
    """Weighted sum of the experts, out[n] = sum over k of weights[n, k] * x[n, k]: (N, K, C), (N, K) -> (N, C).

    ggml composes it from `mul`, views and `add`; its CUDA backend fuses those under this name.
    """
    _need(x.shape[:-1] == weights.shape, name, "moe_expert_reduce needs a weight per expert", x, weights)
    return graph.node(name, "moe_expert_reduce", (x.shape[0], x.shape[-1]), x.dtype, (x, weights))


# Linear attention


def ssm_conv(graph: Graph, x: Tensor, weight: Tensor, state: Tensor, *, name: str) -> Tensor:
    """Causal convolution of each channel over its sequence's tokens; the state keeps the last K - 1 inputs.

    x (N, C), weight (C, K) float32, state (S, K - 1, C), oldest input first -> (N, C). With z = state[s] and then the
    sequence's T rows of x concatenated: out[t, c] = sum over j of weight[c, j] * z[t + j, c], and the last
    K - 1 rows of z become the state. (In ggml: concat, ssm_conv and cpy.)
    """
    sequences, kept, channels = state.shape
    fits = x.shape[0] % sequences == 0 and x.shape[1] == channels and weight.shape == (channels, kept + 1)
    _need(fits, name, "ssm_conv needs a kernel per channel and a state per sequence", x, weight, state)
    return graph.node(name, "ssm_conv", x.shape, x.dtype, (x, weight, state), updates=(state,))


def gated_delta_net(
    graph: Graph, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, scale: float, name: str
) -> Tensor:
    """Linear attention by the gated delta rule (arXiv:2412.06464), token by token.

    q and k (N, key heads, Dk), v (N, heads, Dv), g and beta (N, heads), state (S, heads, Dk, Dv) float32
    -> (N, heads, Dv). Head h uses key head h // (heads / key heads); for each token of its sequence

        S = S * exp(g);  S = S + k outer (beta * (v - S^T k));  out = S^T q * scale

    and the last S becomes the state.
    """
    sequences, heads, key_size, value_size = state.shape
    n, key_heads, _ = q.shape
    _need(
        n % sequences == 0 and heads % key_heads == 0 and q.shape == k.shape == (n, key_heads, key_size)
        and v.shape == (n, heads, value_size) and g.shape == beta.shape == (n, heads), name,
        "gated_delta_net needs heads that fit the state", q, k, v, g, beta, state,
    )  # fmt: skip
    return graph.node(
        name, "gated_delta_net", v.shape, v.dtype, (q, k, v, g, beta, state), updates=(state,), scale=scale
    )
