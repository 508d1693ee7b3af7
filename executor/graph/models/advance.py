"""Nodes that make a decode step sample on the device and prepare the next step there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from executor.graph import Flag, Graph, Tensor, ops
from executor.graph.models.step import DecodeStep, History


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
