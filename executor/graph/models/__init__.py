"""Model builders: they turn a shape, a batch and the needs of a strategy into the graph of one step.

All models are decoders. A step is a decode step or a prompt; a decode step may also sample on the device and prepare
the next step there.

Below are the building blocks of decoders, whose nodes and weights have the same names as in llama.cpp where it has
them; and the shapes of models: those of published models (from config.json), and small ones for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.graph import Flag, Graph, Tensor, ops
from executor.graph.models.kv_cache import KvCache, Position
from executor.graph.models.step import DecodeStep, Feed, History, HostArrays, StepTensors, StepValues, step_tensors
from executor.names import lookup
from tracer.files.bounded import toml_of

Builder = Callable[..., DecodeStep]

WEIGHTS: Final[Mapping[str, str]] = {"f32": "float32", "f16": "float16", "q8_0": "q8_0"}
"""Maps ggml's name of a weight format to the dtype of the weight tensors."""


def build(
    shape: Shape, *, weights: str | None = None, context: int | None = None, batch: int = 1, prompt: int = 1,
    cache: Callable[[int], KvCache] | None = None, sequences: Sequence[int] | None = None, attended: int | None = None,
    on_device: bool = False, history: int = 0, keep_logits: bool = False,
) -> DecodeStep:  # fmt: skip
    """Build the graph of one step.

    Args:
        weights: a name of `WEIGHTS`; None for the shape's own.
        context: maximum tokens per sequence; None for the shape's own.
        batch: number of independent sequences, each with its own state.
        prompt: tokens that the step takes per sequence; logits are computed only for the last one.
        cache: creates the KV cache of the sequences for a context; None for one stream per sequence.
        sequences: numbers of the `batch` sequences of the cache that the step takes; None for all. The numbers may
            change between steps, so that one graph serves all sequences in turn.
        attended: number of cells of each stream that attention covers; None for all.
        on_device: advance token, position, KV rows and mask by nodes of the graph, which then has no inputs.
        history: number of steps whose tokens (and logits) the device keeps when it advances itself.
        keep_logits: keep the logits in addition to the tokens.
    """
    if on_device and prompt != 1:
        raise ValueError(f"a step that advances on the device takes one token per sequence, not {prompt}")
    if shape.delta_net is not None and sequences is not None:
        raise ValueError("a model with recurrent state takes all sequences in every step")
    shape = replace(shape, weights=lookup("weight format", weights, WEIGHTS)) if weights else shape
    context = context or shape.context
    kv = cache(context) if cache else KvCache("streams", batch, context)
    graph = Graph()
    attended = attended or kv.cells
    step = step_tensors(graph, kv, batch, prompt, attended, Flag.NONE if on_device else Flag.INPUT)
    feed = Feed(kv, range(batch) if sequences is None else sequences, prompt, attended)
    if not on_device:
        logits = _decoder(Blocks(graph, shape, kv, step, step.mask))
        return DecodeStep(
            graph, logits, kv.context, feed.inputs, _starting(graph), prompt=prompt, cache=kv, attended=attended
        )

    # the cells of a stream are consecutive, as are the columns of the mask; sequences sharing a stream take turns
    turns = graph.leaf("stride", (1,), "int32") if kv.stride > 1 else None
    opened = graph.leaf("kq_mask_idxs", (batch,), "int64") if turns else step.k_rows
    logits = _decoder(Blocks(graph, shape, kv, step, _opened_mask(graph, step, opened)))
    counters = {step.positions: None, step.k_rows: turns, step.v_rows: turns, opened: turns}
    kept = advance_on_device(graph, step.tokens, counters.items(), logits, history, keep_logits)
    return DecodeStep(graph, logits, kv.context, feed.inputs, _starting(graph, feed, history), kept, cache=kv)


def _starting(graph: Graph, feed: Feed | None = None, steps: int = 0) -> StepValues:
    """Return a function that gives the state to load before the first step, with empty recurrent state.

    With a feed, this includes the state from which steps that advance on the device start.
    """
    recurrent = [state for node in graph.nodes for state in node.updates]
    states = {state.name for state in graph.state}

    def start(position: Position, tokens: np.ndarray[Any, Any]) -> HostArrays:
        at_start = not np.any(position)
        values = {state.name: np.zeros(state.shape, state.dtype) for state in recurrent} if at_start else {}
        if feed is not None:
            values |= {n: v for n, v in feed.start(position, tokens, steps).items() if n in states}
        return values

    return start


def _opened_mask(graph: Graph, step: StepTensors, opened: Tensor) -> Tensor:
    """Return the mask with the cells of the new tokens unmasked; `opened` are indices into the whole mask."""
    batch, cells = step.mask.shape
    zero = graph.leaf("zero", (batch, 1))
    each = ops.reshape(graph, step.mask, (batch * cells, 1), name="kq_mask (cells)")
    mask = ops.set_rows(graph, each, zero, opened, name="kq_mask (opened)")
    return ops.reshape(graph, mask, step.mask.shape, name="kq_mask (rows)")


def _decoder(blocks: Blocks) -> Tensor:
    graph, shape, step = blocks.graph, blocks.shape, blocks.step
    embedding = blocks.weight("token_embd.weight", (shape.vocabulary, shape.width), shape.weights)
    x = ops.get_rows(graph, embedding, step.tokens, name="inp_embd")
    for layer in range(shape.layers):
        blk = f"blk.{layer}."
        normed = blocks.norm(f"{blk}attn_norm", x)
        if shape.delta_net is None or shape.has_attention(layer):
            mixed = blocks.attention(blk, normed)
        else:
            mixed = delta_net(blocks, blk, normed, shape.delta_net)
        if layer == shape.layers - 1:
            mixed = ops.get_rows(graph, mixed, step.outputs, name="attn_out (outputs)")
            x = ops.get_rows(graph, x, step.outputs, name="residual (outputs)")
        x = ops.add(graph, mixed, x, name=f"{blk}ffn_inp")
        x = ops.add(graph, blocks.feed_forward(blk, blocks.norm(f"{blk}ffn_norm", x)), x, name=f"{blk}l_out")
    return blocks.project("output", blocks.norm("output_norm", x), shape.vocabulary, flags=Flag.OUTPUT)


def advance_on_device(
    graph: Graph, tokens: Tensor, counters: Iterable[tuple[Tensor, Tensor | None]], logits: Tensor, steps: int,
    keep_logits: bool,
) -> History:  # fmt: skip
    """Append nodes that sample greedily, keep results for the host to read later, and advance the counters.

    Args:
        graph: a graph that ends with the logits, (N, vocabulary).
        tokens: (N,) int32 state, overwritten with the sampled tokens.
        counters: integer state tensors that grow with every step, each with its increment, a tensor (1,), or None
            for 1.
        steps: number of steps to keep.
    """
    n, vocabulary = logits.shape
    row = graph.leaf("step", (1,), "int64")
    one = graph.leaf("one", (1,), "int32")
    sampled = ops.argmax(graph, logits, name="sampled")
    ops.cpy(graph, sampled, tokens, name="inp_tokens (next)")
    token_history = graph.leaf("token_history", (steps, n), "int32")
    flat = ops.reshape(graph, sampled, (1, n), name="sampled (row)")
    ops.set_rows(graph, token_history, flat, row, name="token_history (set)")
    logit_history = None
    if keep_logits:
        logit_history = graph.leaf("logit_history", (steps, n * vocabulary))
        flat = ops.reshape(graph, logits, (1, n * vocabulary), name="logits (row)")
        ops.set_rows(graph, logit_history, flat, row, name="logit_history (set)")
    for counter, by in (*counters, (row, None)):
        ops.add_inplace(graph, counter, by or one, name=f"{counter.name} (next)")
    return History(token_history, logit_history)


def sample_on_device(step: DecodeStep) -> DecodeStep:
    """Return the step with a node that samples greedily, so that the host fetches tokens instead of logits."""
    return replace(step, sampled=ops.argmax(step.graph, step.logits, name="sampled", flags=Flag.OUTPUT))


@dataclass(frozen=True)
class Blocks:
    """Appends blocks to a graph; `mask` is what attention reads."""

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


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of every feed-forward block. `Shape.ffn` is the size of one expert.

    Attributes:
        count: experts per layer.
        used: experts per token.
        renormalise: whether the weights of the used experts are scaled to sum to 1.
        shared: size of an expert used by every token, with a sigmoid gate; 0 for none.
    """

    count: int
    used: int
    renormalise: bool
    shared: int = 0


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net in place of attention, except in every `attention_every`-th layer.

    Attributes:
        key_heads: heads of q and k; each serves heads / key_heads heads of v.
        heads: heads of v, and of the recurrent state.
        kernel: taps of the causal convolution.
    """

    key_heads: int
    heads: int
    key_size: int
    value_size: int
    kernel: int = 4
    attention_every: int = 4


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder. Embedding and output matrix are separate, even if the published model shares one.

    Attributes:
        ffn: inner size of the feed-forward block, or of one expert.
        context: KV cache cells per sequence.
        weights: dtype of the matrices; norms, router and convolutions are always float32. The KV cache is float32
            with float32 weights, otherwise float16; recurrent state is float32.
        rope_mode: which values form a pair, see `ops.rope`.
        rope_dims: number of values of a head that rotate; None for all.
        qk_norm: rms_norm of q and k before rope: "head" for each head separately, "row" for all heads of a token.
        gated_attention: scale the result of attention by the sigmoid of another projection.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int = 512
    weights: str = "float16"
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rope_mode: str = "normal"
    rope_dims: int | None = None
    qk_norm: str | None = None
    gated_attention: bool = False
    experts: Experts | None = None
    delta_net: DeltaNet | None = None

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention instead of a delta net."""
        return self.delta_net is None or (layer + 1) % self.delta_net.attention_every == 0


def _shape(told: dict[str, Any]) -> Shape:
    parts = {name: kind(**told[name]) for name, kind in (("experts", Experts), ("delta_net", DeltaNet)) if name in told}
    return Shape(**told | parts)


SHAPES: Final = {name: _shape(told) for name, told in toml_of(Path(__file__).with_name("shapes.toml")).items()}
"""Maps the name of a model to its shape."""

MODELS: Final[Mapping[str, Builder]] = {name: partial(build, shape) for name, shape in SHAPES.items()}
"""Maps the name of a model to the builder of its steps, see `build`."""
