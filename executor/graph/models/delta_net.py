"""The gated delta net layer of Qwen3-Next and Qwen3.5: linear attention with a recurrent state (arXiv:2412.06464)."""

from __future__ import annotations

from typing import Final

from executor.graph import Tensor, ops
from executor.graph.models.blocks import Blocks
from executor.graph.models.shape import DeltaNet

L2_EPS: Final = 1e-6


def delta_net(blocks: Blocks, blk: str, x: Tensor, shape: DeltaNet) -> Tensor:
    """Append one layer's mixing of tokens; x (N, width) is normalised.

    It has six projections: q, k and v each pass through a causal convolution, beta and alpha become the rates at which
    the state learns and forgets, and z gates the result.
    """
    graph = blocks.graph
    q = _unit(blocks, f"{blk}ssm_q", x, shape.key_heads, shape)
    k = _unit(blocks, f"{blk}ssm_k", x, shape.key_heads, shape)
    v = _convolved(blocks, f"{blk}ssm_v", x, shape.heads * shape.value_size, shape)
    v = blocks.heads(f"{blk}ssm_v", v, shape.heads)
    z = blocks.heads(f"{blk}ssm_z", blocks.project(f"{blk}ssm_z", x, shape.heads * shape.value_size), shape.heads)
    beta = ops.sigmoid(graph, blocks.project(f"{blk}ssm_beta", x, shape.heads), name=f"{blk}ssm_beta_sigmoid")
    g = _log_decay(blocks, blk, x, shape)
    state = graph.leaf(f"{blk}ssm_state", (blocks.cache.sequences, shape.heads, shape.key_size, shape.value_size))
    scale = shape.key_size**-0.5
    out = ops.gated_delta_net(graph, q, k, v, g, beta, state, scale=scale, name=f"{blk}ssm_delta_net")
    out = ops.swiglu(graph, z, blocks.norm(f"{blk}ssm_norm", out), name=f"{blk}ssm_gated")
    out = ops.reshape(graph, out, (x.shape[0], shape.heads * shape.value_size), name=f"{blk}ssm_gated (row)")
    return blocks.project(f"{blk}ssm_out", out, blocks.shape.width)


def _convolved(blocks: Blocks, name: str, x: Tensor, channels: int, shape: DeltaNet) -> Tensor:
    """Append projection, causal convolution and silu; (N, channels)."""
    projected = blocks.project(name, x, channels)
    weight = blocks.weight(f"{name}_conv1d.weight", (channels, shape.kernel))
    state = blocks.graph.leaf(f"{name}_conv_state", (blocks.cache.sequences, shape.kernel - 1, channels))
    convolved = ops.ssm_conv(blocks.graph, projected, weight, state, name=f"{name}_conv")
    return ops.silu(blocks.graph, convolved, name=f"{name}_conv_silu")


def _unit(blocks: Blocks, name: str, x: Tensor, heads: int, shape: DeltaNet) -> Tensor:
    """q or k, with every head normalised to length 1; (N, heads, key size)."""
    convolved = _convolved(blocks, name, x, heads * shape.key_size, shape)
    return ops.l2_norm(blocks.graph, blocks.heads(name, convolved, heads), eps=L2_EPS, name=f"{name}_l2")


def _log_decay(blocks: Blocks, blk: str, x: Tensor, shape: DeltaNet) -> Tensor:
    """ssm_a * softplus(alpha + ssm_dt), (N, heads); ssm_a is -exp(A_log), as stored in GGUF files."""
    graph = blocks.graph
    alpha = blocks.project(f"{blk}ssm_alpha", x, shape.heads)
    alpha = ops.add(graph, alpha, blocks.weight(f"{blk}ssm_dt.bias", (shape.heads,)), name=f"{blk}ssm_alpha_biased")
    alpha = ops.softplus(graph, alpha, name=f"{blk}ssm_alpha_softplus")
    return ops.mul(graph, alpha, blocks.weight(f"{blk}ssm_a", (shape.heads,)), name=f"{blk}ssm_g")
