"""Llama-like dense decoder with grouped-query attention, one new token per sequence and step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor import ops
from executor.graph import Flag, Graph, Tensor
from executor.models.advance import advance_on_device
from executor.models.step import DecodeStep, HostArrays


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model.

    Attributes:
        context: cells of KV cache per sequence.
        weights: dtype of the matrices; norms are always float32. The KV cache is float32 beside float32 weights,
            otherwise float16.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int
    weights: str = "float32"
    norm_eps: float = 1e-5
    rope_base: float = 10000.0


TINY: Final = LlamaConfig(layers=4, width=256, heads=8, kv_heads=2, head_size=32, ffn=512, vocabulary=1024, context=256)
LLAMA_1_1B: Final = LlamaConfig(
    layers=16,
    width=2048,
    heads=32,
    kv_heads=8,
    head_size=64,
    ffn=8192,
    vocabulary=32000,
    context=512,
    weights="float16",
)
LLAMA_3B: Final = LlamaConfig(
    layers=28, width=3072, heads=24, kv_heads=8, head_size=128, ffn=8192, vocabulary=128256, context=512,
    weights="float16", rope_base=500000.0,
)  # fmt: skip
LLAMA_8B: Final = LlamaConfig(
    layers=32, width=4096, heads=32, kv_heads=8, head_size=128, ffn=14336, vocabulary=128256, context=512,
    weights="float16", rope_base=500000.0,
)  # fmt: skip


@dataclass(frozen=True)
class StepTensors:
    """The six small tensors that change with every step, as llama.cpp has them.

    Attributes:
        tokens: (N,) int32.
        positions: (N,) int32.
        k_rows: (N,) int64, the row of the K cache that each sequence writes.
        v_rows: the same for V.
        mask: (N, cells), 0 where a sequence may look, -inf elsewhere.
        outputs: (N,) int32, the rows for which logits are wanted.
    """

    tokens: Tensor
    positions: Tensor
    k_rows: Tensor
    v_rows: Tensor
    mask: Tensor
    outputs: Tensor


def build(
    config: LlamaConfig,
    *,
    batch: int = 1,
    on_device: bool = False,
    history: int = 0,
    keep_logits: bool = False,
) -> DecodeStep:
    """The graph of one decode step.

    Args:
        config: the model's shape.
        batch: independent sequences, each with its own KV rows.
        on_device: token, position, KV rows and mask advance by nodes of the graph; it has no inputs then.
        history: for how many steps the device keeps tokens (and logits) if it advances by itself.
        keep_logits: keep the logits too.
    """
    graph = Graph()
    step = _step_tensors(graph, config, batch, Flag.NONE if on_device else Flag.INPUT)
    mask = step.mask
    if on_device:
        zero = graph.leaf("zero", (batch, 1))
        cells = ops.reshape(graph, step.mask, (batch * config.context, 1), name="kq_mask (cells)")
        opened = ops.set_rows(graph, cells, zero, step.k_rows, name="kq_mask (opened)")
        mask = ops.reshape(graph, opened, step.mask.shape, name="kq_mask (rows)")
    logits = _decoder(graph, config, step, mask)
    kept = None
    if on_device:
        counters = (step.positions, step.k_rows, step.v_rows)
        kept = advance_on_device(graph, step.tokens, counters, logits, history, keep_logits)
    feed = _Feed(config, batch)
    return DecodeStep(graph, logits, config.context, feed.inputs, feed.start if on_device else _nothing, kept)


def _nothing(_tokens: np.ndarray[Any, Any]) -> HostArrays:
    return {}


class _Feed:
    """Values of the step tensors, in arrays that are overwritten for every step."""

    def __init__(self, config: LlamaConfig, batch: int) -> None:
        self._first_rows = np.arange(batch, dtype=np.int64) * config.context
        self._arrays: HostArrays = {
            "inp_tokens": np.zeros(batch, np.int32),
            "inp_pos": np.zeros(batch, np.int32),
            "k_idxs": np.zeros(batch, np.int64),
            "v_idxs": np.zeros(batch, np.int64),
            "kq_mask": np.full((batch, config.context), -np.inf, np.float32),
            "inp_out_ids": np.arange(batch, dtype=np.int32),
        }

    def inputs(self, position: int, tokens: np.ndarray[Any, Any]) -> HostArrays:
        arrays = self._arrays
        arrays["inp_tokens"] = tokens
        arrays["inp_pos"][:] = position
        for name in ("k_idxs", "v_idxs"):
            np.add(self._first_rows, position, out=arrays[name])
        arrays["kq_mask"][:, : position + 1] = 0
        arrays["kq_mask"][:, position + 1 :] = -np.inf
        return arrays

    def start(self, tokens: np.ndarray[Any, Any]) -> HostArrays:
        started = {name: values.copy() for name, values in self.inputs(0, tokens).items()}
        started["kq_mask"][:] = -np.inf
        return started | {"one": np.ones(1, np.int32), "step": np.zeros(1, np.int64)}


def _step_tensors(graph: Graph, config: LlamaConfig, batch: int, flags: Flag) -> StepTensors:
    return StepTensors(
        tokens=graph.leaf("inp_tokens", (batch,), "int32", flags),
        positions=graph.leaf("inp_pos", (batch,), "int32", flags),
        k_rows=graph.leaf("k_idxs", (batch,), "int64", flags),
        v_rows=graph.leaf("v_idxs", (batch,), "int64", flags),
        mask=graph.leaf("kq_mask", (batch, config.context), "float32", flags),
        outputs=graph.leaf("inp_out_ids", (batch,), "int32", flags),
    )


def _decoder(graph: Graph, config: LlamaConfig, step: StepTensors, mask: Tensor) -> Tensor:
    embedding = graph.leaf("token_embd.weight", (config.vocabulary, config.width), config.weights, Flag.WEIGHT)
    x = ops.get_rows(graph, embedding, step.tokens, name="inp_embd")
    for layer in range(config.layers):
        attention = _attention(graph, config, f"blk.{layer}.", x, step, mask)
        if layer == config.layers - 1:
            attention = ops.get_rows(graph, attention, step.outputs, name="attn_out (outputs)")
            x = ops.get_rows(graph, x, step.outputs, name="residual (outputs)")
        x = ops.add(graph, attention, x, name=f"blk.{layer}.ffn_inp")
        x = ops.add(graph, _ffn(graph, config, f"blk.{layer}.", x), x, name=f"blk.{layer}.l_out")
    x = _norm(graph, config, "output_norm", x)
    return _project(graph, config, "output", x, config.vocabulary, flags=Flag.OUTPUT)


def _norm(graph: Graph, config: LlamaConfig, name: str, x: Tensor) -> Tensor:
    weight = graph.leaf(f"{name}.weight", (config.width,), flags=Flag.WEIGHT)
    return ops.mul(graph, ops.rms_norm(graph, x, eps=config.norm_eps, name=f"{name} (rms)"), weight, name=name)


def _project(graph: Graph, config: LlamaConfig, name: str, x: Tensor, width: int, flags: Flag = Flag.NONE) -> Tensor:
    weight = graph.leaf(f"{name}.weight", (width, x.shape[-1]), config.weights, Flag.WEIGHT)
    return ops.mul_mat(graph, weight, x, name=name, flags=flags)


def _attention(graph: Graph, config: LlamaConfig, blk: str, x: Tensor, step: StepTensors, mask: Tensor) -> Tensor:
    n, d = x.shape[0], config.head_size
    normed = _norm(graph, config, f"{blk}attn_norm", x)
    q = _project(graph, config, f"{blk}attn_q", normed, config.heads * d)
    q = ops.reshape(graph, q, (n, config.heads, d), name=f"{blk}attn_q (heads)")
    q = ops.rope(graph, q, step.positions, base=config.rope_base, name=f"{blk}attn_q_rope")
    k = _project(graph, config, f"{blk}attn_k", normed, config.kv_heads * d)
    k = ops.reshape(graph, k, (n, config.kv_heads, d), name=f"{blk}attn_k (heads)")
    k = ops.rope(graph, k, step.positions, base=config.rope_base, name=f"{blk}attn_k_rope")
    k = ops.reshape(graph, k, (n, config.kv_heads * d), name=f"{blk}attn_k (row)")
    k = _cached(graph, config, f"{blk}cache_k", k, step.k_rows)
    v = _project(graph, config, f"{blk}attn_v", normed, config.kv_heads * d)
    v = _cached(graph, config, f"{blk}cache_v", v, step.v_rows)
    attended = ops.flash_attn_ext(graph, q, k, v, mask, scale=d**-0.5, name=f"{blk}attn")
    return _project(graph, config, f"{blk}attn_output", attended, config.width)


def _cached(graph: Graph, config: LlamaConfig, name: str, row: Tensor, rows: Tensor) -> Tensor:
    """Write this step's row of each sequence into its cache; the cache as (N, cells, KV heads, D)."""
    n, width = row.shape
    dtype = "float32" if config.weights == "float32" else "float16"
    cache = graph.leaf(name, (n * config.context, width), dtype)
    written = ops.set_rows(graph, cache, row, rows, name=f"{name} (set)")
    shape = (n, config.context, config.kv_heads, config.head_size)
    return ops.reshape(graph, written, shape, name=f"{name} (view)")


def _ffn(graph: Graph, config: LlamaConfig, blk: str, x: Tensor) -> Tensor:
    normed = _norm(graph, config, f"{blk}ffn_norm", x)
    gate = _project(graph, config, f"{blk}ffn_gate", normed, config.ffn)
    up = _project(graph, config, f"{blk}ffn_up", normed, config.ffn)
    return _project(graph, config, f"{blk}ffn_down", ops.swiglu(graph, gate, up, name=f"{blk}ffn_swiglu"), config.width)
