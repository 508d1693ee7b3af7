"""Small graphs made by hand, and kernels that tests can hold up."""

from __future__ import annotations

import threading
import time
from functools import partial

import numpy as np

from executor.backends.cpu.backend import CpuBackend, CpuKernel
from executor.backends.cpu.kernels import KERNELS
from executor.backends.sim.profiles import CALLS, CopyCost, GraphCost, KernelCost, Profile
from executor.graph import Flag, Graph, ops
from executor.graph.models import advance_on_device
from executor.graph.models.step import DecodeStep
from executor.planning import prepare
from executor.planning.concurrency import find_dependencies, find_regions, map_streams
from executor.planning.devices import Device, assign_devices, only, split_graph
from executor.planning.plans import make_plan
from executor.scheduling.memory import load_weights
from executor.scheduling.scheduler import Scheduler

PATIENCE_S = 10
"""How long a held kernel waits before it fails: far longer than any test takes."""


def summing_step(inputs, *, batch=1, on_device=False, history=0, keep_logits=False, width=8, cache=None):
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

    return DecodeStep(graph, total, 256, feed, start, kept, late=frozenset({"x0"}))


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


def split_of(graph):
    (split,) = split_graph(graph, assign_devices(graph, only("cpu")))
    return split


def regions_of(nodes):
    """All regions, those of one small kernel per branch as well; so the first branch stays on the main stream."""
    return find_regions(nodes, find_dependencies(nodes), worth=lambda kernels: True)


def plan_of(nodes, regions=(), cut=False):
    return make_plan(nodes, find_dependencies(nodes), map_streams(nodes, regions), cut=cut)


def graph_of(edges, size=4, op="copy"):
    """A graph from {node: [sources]}, where "x" is the input; what nobody reads is an output."""
    graph = Graph()
    tensors = {"x": graph.leaf("x", (size,), flags=Flag.INPUT)}
    read = {source for sources in edges.values() for source in sources}
    for name, sources in edges.items():
        flags = Flag.NONE if name in read else Flag.OUTPUT
        src = [tensors[source] for source in sources]
        tensors[name] = graph.node(name, op if len(src) == 1 else "sum", (size,), "float32", src, flags=flags)
    return graph


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


class SlowBackend(CpuBackend):
    """The kernels of some nodes take their time."""

    def __init__(self, slow, seconds=0.2):
        super().__init__()
        self._slow, self._seconds = slow, seconds

    def kernel(self, node, out, src):
        kernel = super().kernel(node, out, src)
        return CpuKernel(kernel.label, partial(self._late, kernel.run)) if node.name in self._slow else kernel

    def _late(self, run):
        time.sleep(self._seconds)
        run()


def backend_with(**kernels):
    """A CPU backend with extra kernels, and `copy` and `sum`."""

    def copy(out, x):
        out[...] = x

    def total(out, *terms):
        out[...] = sum(terms)

    return CpuBackend(kernels={**KERNELS, "copy": copy, "sum": total, **kernels})


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


def scheduler_on(backend, step, strategy, *, seed=0, mode="sequential", **options):
    """A scheduler of everything on one backend, with weights of its own."""
    prepared = prepare(step, backend.name, mode)
    backends = {Device(backend.name): backend}
    weights = load_weights(backends, [part.split for part in prepared.splits], seed)
    return Scheduler(backends, prepared, strategy, "graph", weights, **options)


def cost_profile(**changes):
    """Every call takes 1 us, every pause 100 ns, a copy 2 us (3 us back), a kernel 10 us, a ns of it for any bytes."""
    figures = {
        "name": "handmade", "device": "test device", "calls_ns": dict.fromkeys(CALLS, 1000), "between_ns": {">": 100},
        "wake_up_ns": 500, "launch_latency_ns": 2000, "copy_in": CopyCost(1999, 1e18),
        "copy_out": CopyCost(2999, 1e18), "edge_ns": 0, "bytes_per_ns": 1e18, "kernels": {"other": KernelCost(9_999)},
        "graph": GraphCost(),
    }  # fmt: skip
    return Profile(**(figures | changes))
