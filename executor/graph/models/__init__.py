"""Model builders: they turn a shape, a batch and the needs of a strategy into the graph of one step.

All models are decoders. A step is a decode step or a prompt; a decode step may also sample on the device and prepare
the next step there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from executor.graph import Flag, Graph, Tensor, ops
from executor.graph.models.blocks import Blocks, delta_net
from executor.graph.models.kv_cache import KvCache, Position
from executor.graph.models.shape import SHAPES, Shape
from executor.graph.models.step import DecodeStep, Feed, History, HostArrays, StepTensors, StepValues, step_tensors
from executor.names import lookup

Builder = Callable[..., DecodeStep]

WEIGHTS: Final[Mapping[str, str]] = {"f32": "float32", "f16": "float16", "q8_0": "q8_0"}
"""Maps ggml's name of a weight format to the dtype of the weight tensors."""


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
    """Build the graph of one step.

    Args:
        shape: shape of the model.
        batch: number of independent sequences, each with its own state.
        prompt: tokens that the step takes per sequence; logits are computed only for the last one.
        cache: the KV cache of the sequences; None for one stream per sequence with the shape's context.
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

    # the cells of a stream are consecutive, as are the columns of the mask; sequences sharing a stream take turns
    turns = graph.leaf("stride", (1,), "int32") if cache.stride > 1 else None
    opened = graph.leaf("kq_mask_idxs", (batch,), "int64") if turns else step.k_rows
    logits = _decoder(Blocks(graph, shape, cache, step, _opened_mask(graph, step, opened)))
    counters = {step.positions: None, step.k_rows: turns, step.v_rows: turns, opened: turns}
    kept = advance_on_device(graph, step.tokens, counters.items(), logits, history, keep_logits)
    return DecodeStep(graph, logits, cache.context, feed.inputs, _starting(graph, feed, history), kept, cache=cache)


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
        mixed = _mixed(blocks, layer, blocks.norm(f"{blk}attn_norm", x))
        if layer == shape.layers - 1:
            mixed = ops.get_rows(graph, mixed, step.outputs, name="attn_out (outputs)")
            x = ops.get_rows(graph, x, step.outputs, name="residual (outputs)")
        x = ops.add(graph, mixed, x, name=f"{blk}ffn_inp")
        x = ops.add(graph, blocks.feed_forward(blk, blocks.norm(f"{blk}ffn_norm", x)), x, name=f"{blk}l_out")
    return blocks.project("output", blocks.norm("output_norm", x), shape.vocabulary, flags=Flag.OUTPUT)


def _mixed(blocks: Blocks, layer: int, normed: Tensor) -> Tensor:
    """Mix tokens within each sequence, by attention or by the layer's delta net."""
    delta, blk = blocks.shape.delta_net, f"blk.{layer}."
    if delta is None or blocks.shape.has_attention(layer):
        return blocks.attention(blk, normed)
    return delta_net(blocks, blk, normed, delta)


def advance_on_device(
    graph: Graph,
    tokens: Tensor,
    counters: Iterable[tuple[Tensor, Tensor | None]],
    logits: Tensor,
    steps: int,
    keep_logits: bool,
) -> History:
    """Append nodes that sample greedily, keep results for the host to read later, and advance the counters.

    Args:
        graph: a graph that ends with the logits.
        tokens: (N,) int32 state, overwritten with the sampled tokens.
        counters: integer state tensors that grow with every step, each with its increment, a tensor (1,), or None
            for 1.
        logits: (N, vocabulary).
        steps: number of steps to keep.
        keep_logits: keep the logits in addition to the tokens.
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


def builder_of(shape: Shape) -> Builder:
    """Return the builder of a shape, see `MODELS`."""

    def builder(
        *, weights: str | None = None, context: int | None = None, cache: Callable[[int], KvCache] | None = None,
        **options: Any,
    ) -> DecodeStep:  # fmt: skip
        dtype = lookup("weight format", weights, WEIGHTS) if weights else shape.weights
        chosen = replace(shape, weights=dtype, context=context or shape.context)
        return build(chosen, cache=cache(chosen.context) if cache else None, **options)

    return builder


MODELS: Final[Mapping[str, Builder]] = {name: builder_of(shape) for name, shape in SHAPES.items()}
"""Maps a name to builder(weights, context, cache, batch, prompt, sequences, attended, on_device, history, keep_logits),
see `build`. weights is a name of `WEIGHTS`, and cache creates the KV cache for a context. weights and context
default to the model's own."""
