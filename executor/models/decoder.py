"""Builds a decoder's graph for one step: a decode step, or a prompt."""

from __future__ import annotations

from typing import Any

import numpy as np

from executor import ops
from executor.graph import Flag, Graph, Tensor
from executor.models.advance import advance_on_device
from executor.models.blocks import Blocks
from executor.models.delta_net import delta_net
from executor.models.inputs import Feed, StepTensors, step_tensors
from executor.models.shape import Shape
from executor.models.step import DecodeStep, HostArrays


def build(
    shape: Shape,
    *,
    batch: int = 1,
    prompt: int = 1,
    on_device: bool = False,
    history: int = 0,
    keep_logits: bool = False,
) -> DecodeStep:
    """The graph of one step.

    Args:
        shape: the model's shape.
        batch: independent sequences, each with its own state.
        prompt: tokens of each sequence that the step takes at once; logits come for the last one only.
        on_device: token, position, KV rows and mask advance by nodes of the graph; it has no inputs then.
        history: for how many steps the device keeps tokens (and logits) if it advances by itself.
        keep_logits: keep the logits too.
    """
    if on_device and prompt != 1:
        raise ValueError(f"a step that advances on the device takes one token per sequence, not {prompt}")
    graph = Graph()
    step = step_tensors(graph, batch, prompt, shape.context, Flag.NONE if on_device else Flag.INPUT)
    mask = _opened_mask(graph, step) if on_device else step.mask
    logits = _decoder(Blocks(graph, shape, batch, step, mask))
    feed = Feed(batch, prompt, shape.context)
    recurrent = [state for node in graph.nodes for state in node.updates]

    def start(position: int, tokens: np.ndarray[Any, Any]) -> HostArrays:
        empty = {state.name: np.zeros(state.shape, state.dtype) for state in recurrent} if position == 0 else {}
        return (feed.start(position, tokens) if on_device else {}) | empty

    kept = None
    if on_device:
        counters = (step.positions, step.k_rows, step.v_rows)
        kept = advance_on_device(graph, step.tokens, counters, logits, history, keep_logits)
    return DecodeStep(graph, logits, shape.context, feed.inputs, start, kept, prompt=prompt)


def _opened_mask(graph: Graph, step: StepTensors) -> Tensor:
    """The mask, with the cell that each sequence's new token takes opened."""
    batch, context = step.mask.shape
    zero = graph.leaf("zero", (batch, 1))
    cells = ops.reshape(graph, step.mask, (batch * context, 1), name="kq_mask (cells)")
    opened = ops.set_rows(graph, cells, zero, step.k_rows, name="kq_mask (opened)")
    return ops.reshape(graph, opened, step.mask.shape, name="kq_mask (rows)")


def _decoder(blocks: Blocks) -> Tensor:
    graph, shape, step = blocks.graph, blocks.shape, blocks.step
    embedding = blocks.weight("token_embd.weight", (shape.vocabulary, shape.width), shape.weights)
    x = ops.get_rows(graph, embedding, step.tokens, name="inp_embd")
    for layer in range(shape.layers):
        blk = f"blk.{layer}."
        mixed = _mixed(blocks, layer, blocks.norm(f"{blk}attn_norm", x))
        if layer == shape.layers - 1:
            mixed = ops.get_rows(graph, mixed, step.outputs, name="attn_out (outputs)")
            x = ops.get_rows(graph, x, step.outputs, name="residual (outputs)")
        x = ops.add(graph, mixed, x, name=f"{blk}ffn_inp")
        x = ops.add(graph, blocks.feed_forward(blk, blocks.norm(f"{blk}ffn_norm", x)), x, name=f"{blk}l_out")
    return blocks.project("output", blocks.norm("output_norm", x), shape.vocabulary, flags=Flag.OUTPUT)


def _mixed(blocks: Blocks, layer: int, normed: Tensor) -> Tensor:
    """What a layer makes of its sequence's tokens up to each one."""
    delta, blk = blocks.shape.delta_net, f"blk.{layer}."
    if delta is None or blocks.shape.has_attention(layer):
        return blocks.attention(blk, normed)
    return delta_net(blocks, blk, normed, delta)
