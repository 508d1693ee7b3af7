"""The building blocks of decoders. Nodes and weights have the same names as in llama.cpp where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from executor.graph import Flag, Graph, Tensor, ops
from executor.graph.models.kv_cache import KvCache
from executor.graph.models.shape import DeltaNet, Experts, Shape
from executor.graph.models.step import StepTensors


@dataclass(frozen=True)
class Blocks:
    """Appends blocks to a graph.

    Attributes:
        shape: shape of the model.
        cache: the KV cache of all sequences.
        step: tensors of the step.
        mask: the mask that attention reads.
    """

    graph: Graph
    shape: Shape
    cache: KvCache
    step: StepTensors
    mask: Tensor

    def weight(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
        """Add a weight."""
        return self.graph.leaf(name, shape, dtype, Flag.WEIGHT)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """rms_norm over the last dimension, times a weight."""
        weight = self.weight(f"{name}.weight", x.shape[-1:])
        normed = ops.rms_norm(self.graph, x, eps=self.shape.norm_eps, name=f"{name} (rms)")
        return ops.mul(self.graph, normed, weight, name=name)

    def project(self, name: str, x: Tensor, width: int, *, dtype: str | None = None, flags: Flag = Flag.NONE) -> Tensor:
        """Multiply by a weight matrix."""
        weight = self.weight(f"{name}.weight", (width, x.shape[-1]), dtype or self.shape.weights)
        return ops.mul_mat(self.graph, weight, x, name=name, flags=flags)

    def heads(self, name: str, x: Tensor, heads: int) -> Tensor:
        """Reshape (N, heads * D) to (N, heads, D)."""
        shape = (x.shape[0], heads, x.shape[1] // heads)
        return ops.reshape(self.graph, x, shape, name=f"{name} (heads)")

    def attention(self, blk: str, x: Tensor) -> Tensor:
        """Append grouped-query attention over the KV cache; x is normalised."""
        graph, shape = self.graph, self.shape
        q = self._rotated(f"{blk}attn_q", x, shape.heads)
        gate = self.project(f"{blk}attn_gate", x, shape.heads * shape.head_size) if shape.gated_attention else None
        k = self._rotated(f"{blk}attn_k", x, shape.kv_heads)
        k = ops.reshape(graph, k, (k.shape[0], shape.kv_heads * shape.head_size), name=f"{blk}attn_k (row)")
        k = self._cached(f"{blk}cache_k", k, self.step.k_rows)
        v = self.project(f"{blk}attn_v", x, shape.kv_heads * shape.head_size)
        v = self._cached(f"{blk}cache_v", v, self.step.v_rows)
        scale = shape.head_size**-0.5
        attended = ops.flash_attn_ext(graph, q, k, v, self.mask, self.step.streams, scale=scale, name=f"{blk}attn")
        if gate is not None:
            gate = ops.sigmoid(graph, gate, name=f"{blk}attn_gate_sigmoid")
            attended = ops.mul(graph, attended, gate, name=f"{blk}attn_gated")
        return self.project(f"{blk}attn_output", attended, shape.width)

    def _rotated(self, name: str, x: Tensor, heads: int) -> Tensor:
        """q or k: projected, normalised if the model does so, and rotated by position; (N, heads, D)."""
        shape = self.shape
        x = self.project(name, x, heads * shape.head_size)
        x = self.norm(f"{name}_norm", x) if shape.qk_norm == "row" else x
        x = self.heads(name, x, heads)
        x = self.norm(f"{name}_norm", x) if shape.qk_norm == "head" else x
        return ops.rope(
            self.graph, x, self.step.positions,
            base=shape.rope_base, mode=shape.rope_mode, dims=shape.rope_dims, name=f"{name}_rope",
        )  # fmt: skip

    def _cached(self, name: str, values: Tensor, rows: Tensor) -> Tensor:
        """Write this step's rows to the cache; return the cache as (streams, cells, KV heads, D)."""
        shape, cache = self.shape, self.cache
        dtype = "float32" if shape.weights == "float32" else "float16"
        leaf = self.graph.leaf(name, (cache.rows, values.shape[1]), dtype)
        written = ops.set_rows(self.graph, leaf, values, rows, name=f"{name} (set)")
        view = (cache.streams, cache.cells, shape.kv_heads, shape.head_size)
        return ops.reshape(self.graph, written, view, name=f"{name} (view)")

    def feed_forward(self, blk: str, x: Tensor) -> Tensor:
        """Append SwiGLU or a mixture of experts; x is normalised."""
        if self.shape.experts is not None:
            return self._experts(blk, x, self.shape.experts)
        return self._swiglu(blk, "", x, self.shape.ffn)

    def _swiglu(self, blk: str, suffix: str, x: Tensor, size: int) -> Tensor:
        gate = self.project(f"{blk}ffn_gate{suffix}", x, size)
        up = self.project(f"{blk}ffn_up{suffix}", x, size)
        inner = ops.swiglu(self.graph, gate, up, name=f"{blk}ffn_swiglu{suffix}")
        return self.project(f"{blk}ffn_down{suffix}", inner, self.shape.width)

    def _experts(self, blk: str, x: Tensor, experts: Experts) -> Tensor:
        """Append the SwiGLU of the chosen experts, weighted by the router, and of the shared expert."""
        graph, n, width = self.graph, x.shape[0], x.shape[1]
        ids, weights = self._route(blk, x, experts)
        each = ops.reshape(graph, x, (n, 1, width), name=f"{blk}ffn_moe_in")

        def of_experts(name: str, x: Tensor, outputs: int) -> Tensor:
            weight = self.weight(f"{blk}{name}.weight", (experts.count, outputs, x.shape[-1]), self.shape.weights)
            return ops.mul_mat_id(graph, weight, x, ids, name=f"{blk}{name}")

        gate, up = of_experts("ffn_gate_exps", each, self.shape.ffn), of_experts("ffn_up_exps", each, self.shape.ffn)
        inner = ops.swiglu(graph, gate, up, name=f"{blk}ffn_moe_swiglu")
        out = ops.moe_expert_reduce(graph, of_experts("ffn_down_exps", inner, width), weights, name=f"{blk}ffn_moe_out")
        if not experts.shared:
            return out
        shared = self._swiglu(blk, "_shexp", x, experts.shared)
        gate = self.project(f"{blk}ffn_gate_inp_shexp", x, 1, dtype="float32")
        gate = ops.sigmoid(graph, gate, name=f"{blk}shared_expert_gate")
        shared = ops.mul(graph, shared, gate, name=f"{blk}ffn_shexp_gated")
        return ops.add(graph, shared, out, name=f"{blk}ffn_out")

    def _route(self, blk: str, x: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
        """Return the experts that each token uses, (N, used) int32, and their weights, (N, used)."""
        graph, n = self.graph, x.shape[0]
        logits = self.project(f"{blk}ffn_gate_inp", x, experts.count, dtype="float32")
        probs = ops.soft_max(graph, logits, name=f"{blk}ffn_moe_probs")
        ids = ops.top_k(graph, probs, k=experts.used, name=f"{blk}ffn_moe_topk")
        table = ops.reshape(graph, probs, (n, experts.count, 1), name=f"{blk}ffn_moe_probs (rows)")
        weights = ops.get_rows(graph, table, ids, name=f"{blk}ffn_moe_weights (rows)")
        weights = ops.reshape(graph, weights, (n, experts.used), name=f"{blk}ffn_moe_weights")
        if experts.renormalise:
            total = ops.sum_rows(graph, weights, name=f"{blk}ffn_moe_weights_sum")
            weights = ops.div(graph, weights, total, name=f"{blk}ffn_moe_weights_norm")
        return ids, weights


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
