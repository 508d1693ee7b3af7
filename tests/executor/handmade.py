"""Small graphs made by hand, and kernels that tests can hold up."""

from __future__ import annotations

import threading

import numpy as np

from executor import ops
from executor.backends.cpu import CpuBackend
from executor.backends.cpu_kernels import KERNELS
from executor.graph import Flag, Graph
from executor.models.advance import advance_on_device
from executor.models.step import DecodeStep

PATIENCE_S = 10
"""How long a held kernel waits before it fails: far longer than any test takes."""


def summing_step(inputs, *, batch=1, on_device=False, history=0, keep_logits=False, width=8):
    """A "model" whose logits are the sum of `inputs` input tensors."""
    graph = Graph()
    flags = Flag.NONE if on_device else Flag.INPUT
    terms = [graph.leaf(f"x{i}", (batch, width), flags=flags) for i in range(inputs)]
    total = terms[0]
    for i, term in enumerate([*terms[1:], terms[0]]):
        last = Flag.OUTPUT if i == inputs - 1 else Flag.NONE
        total = ops.add(graph, total, term, name=f"sum{i}", flags=last)
    kept = None
    if on_device:
        tokens = graph.leaf("tokens", (batch,), "int32")
        kept = advance_on_device(graph, tokens, (), total, history, keep_logits)

    def feed(position, tokens):
        return {f"x{i}": np.full((batch, width), i + position, np.float32) for i in range(inputs)}

    def start(position, tokens):
        return {"one": np.ones(1, np.int32), "step": np.zeros(1, np.int64)} if on_device else {}

    return DecodeStep(graph, total, 256, feed, start, kept)


def fan_out_graph(branches=3, length=2, op="copy"):
    """fork -> `branches` chains of `length` nodes -> join -> end."""
    graph = Graph()
    x = graph.leaf("x", (4,), flags=Flag.INPUT)
    fork = graph.node("fork", "copy", (4,), "float32", (x,))
    ends = []
    for b in range(branches):
        node = fork
        for i in range(length):
            node = graph.node(f"b{b}.{i}", op if i == 0 else "copy", (4,), "float32", (node,))
        ends.append(node)
    join = graph.node("join", "sum", (4,), "float32", ends)
    graph.node("end", "copy", (4,), "float32", (join,), flags=Flag.OUTPUT)
    return graph


def as_step(graph):
    return DecodeStep(graph, graph.nodes[-1], 256, lambda position, tokens: {}, lambda position, tokens: {})


class Gate:
    """A kernel that stands until the test opens it."""

    def __init__(self):
        self._opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, out, x):
        self.reached.set()
        if not self._opened.wait(PATIENCE_S):
            raise TimeoutError("nobody opened the gate")
        out[...] = x

    def open(self):
        self._opened.set()


def backend_with(**kernels):
    """A CPU backend with extra kernels, and `copy` and `sum`."""

    def copy(out, x):
        out[...] = x

    def total(out, *terms):
        out[...] = sum(terms)

    return CpuBackend({**KERNELS, "copy": copy, "sum": total, **kernels})


def place(backend, graph):
    """Every tensor of a graph in memory of its own: tensor -> array, node -> kernel."""
    arrays = {}
    for tensor in (*graph.leaves, *graph.nodes):
        root = tensor.root
        if root is tensor:
            arrays[tensor] = backend.array(backend.alloc(tensor.nbytes), 0, tensor)
        else:
            arrays[tensor] = arrays[root].reshape(tensor.shape)
    kernels = {n: backend.kernel(n, arrays[n], [arrays[s] for s in n.src]) for n in graph.nodes if n.has_kernel}
    return arrays, kernels
