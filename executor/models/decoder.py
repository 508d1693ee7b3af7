"""Builds a decoder's graph for one step: a decode step, or a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from executor import ops
from executor.graph import Flag, Graph, Tensor
from executor.kv_cache import KvCache, Position
from executor.models.advance import advance_on_device
from executor.models.blocks import Blocks
from executor.models.delta_net import delta_net
from executor.models.inputs import Feed, StepTensors, step_tensors
from executor.models.shape import Shape
from executor.models.step import DecodeStep, HostArrays, StepValues


def build(
    shape: Shape,
    *,
    batch: int = 1,
    prompt: int = 1,
    cache: KvCache | None = None,
    sequences: Sequence[int] | None = None,
    attended: int | None = None,
    on_device: bool = False,
    history: int = 0,
    keep_logits: bool = False,
) -> DecodeStep:
    """The graph of one step.

    Args:
        shape: the model's shape.
        batch: independent sequences, each with its own state.
        prompt: tokens of each sequence that the step takes at once; logits come for the last one only.
        cache: where the sequences' K and V are; None for a stream of the shape's context for each.
        sequences: those of the cache's that the step takes, `batch` of them; None for all. The numbers may change from
            step to step, so that one graph serves one sequence after the other.
        attended: over how many cells of each stream attention goes; None for all.
        on_device: token, position, KV rows and mask advance by nodes of the graph; it has no inputs then.
        history: for how many steps the device keeps tokens (and logits) if it advances by itself.
        keep_logits: keep the logits too.
    """
    if on_device and prompt != 1:
        raise ValueError(f"a step that advances on the device takes one token per sequence, not {prompt}")
    if shape.delta_net is not None and sequences is not None:
        raise ValueError("a model with recurrent state takes all sequences in every step")
    cache = cache or KvCache("streams", batch, shape.context)
    graph = Graph()
    attended = attended or cache.cells
    step = step_tensors(graph, cache, batch, prompt, attended, Flag.NONE if on_device else Flag.INPUT)
    feed = Feed(cache, range(batch) if sequences is None else sequences, prompt, attended)
    if not on_device:
        logits = _decoder(Blocks(graph, shape, cache, step, step.mask))
        return DecodeStep(
            graph, logits, cache.context, feed.inputs, _starting(graph), prompt=prompt, cache=cache, attended=attended
        )

    # a stream's cells follow each other, and so do the mask's columns; sequences that share a stream take turns
    turns = graph.leaf("stride", (1,), "int32") if cache.stride > 1 else None
    opened = graph.leaf("kq_mask_idxs", (batch,), "int64") if turns else step.k_rows
    logits = _decoder(Blocks(graph, shape, cache, step, _opened_mask(graph, step, opened)))
    counters = {step.positions: None, step.k_rows: turns, step.v_rows: turns, opened: turns}
    kept = advance_on_device(graph, step.tokens, counters.items(), logits, history, keep_logits)
    return DecodeStep(graph, logits, cache.context, feed.inputs, _starting(graph, feed, history), kept, cache=cache)


def _starting(graph: Graph, feed: Feed | None = None, steps: int = 0) -> StepValues:
    """What gives the state to load before the first step: recurrent state is empty then.

    With a feed also what the following steps, which advance on the device, go on from.
    """
    recurrent = [state for node in graph.nodes for state in node.updates]
    states = {state.name for state in graph.state}

    def start(position: Position, tokens: np.ndarray[Any, Any]) -> HostArrays:
        anew = not np.any(position)
        values = {state.name: np.zeros(state.shape, state.dtype) for state in recurrent} if anew else {}
        if feed is not None:
            values |= {n: v for n, v in feed.start(position, tokens, steps).items() if n in states}
        return values

    return start


def _opened_mask(graph: Graph, step: StepTensors, opened: Tensor) -> Tensor:
    """The mask, with the cell that each sequence's new token takes opened; as indices into the whole mask."""
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
