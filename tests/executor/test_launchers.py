"""What becomes of graphs: kept while nothing changes, updated in place where that is possible, else made anew."""

from dataclasses import replace

import numpy as np
import pytest

from executor.backends import open_backend
from executor.graph import Graph, Tensor
from executor.planning.plans import Launch, Plan, Record, Subplan, Wait
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.launchers import LAUNCHERS, OUTCOMES, GraphLaunch, key_of

BACKENDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=BACKENDS)
def backend(request):
    backend = open_backend(request.param)
    yield backend
    backend.close()


class Adder:
    """Adds b to x on a backend."""

    def __init__(self, backend, b):
        graph = Graph()
        self.x, y = graph.leaf("x", (8,)), graph.leaf("y", (8,))
        self.node = graph.node("z", "add", (8,), "float32", (self.x, y))
        self.arrays = {t: backend.array(backend.alloc(t.nbytes), 0, t) for t in (self.x, y, self.node)}
        self.backend = backend
        backend.load(self.arrays[self.x], np.arange(8, dtype=np.float32))
        backend.load(self.arrays[y], np.full(8, b, np.float32))
        self.kernels = {
            self.node: backend.kernel(self.node, self.arrays[self.node], [self.arrays[s] for s in self.node.src])
        }

    def plan(self, times=1, stream=0):
        """The addition several times; on another stream between two events."""
        launches = [Launch(stream, self.node)] * times
        if not stream:
            return Plan(tuple(launches), 1, 0)
        return Plan((Record(0, 0), Wait(stream, 0), *launches, Record(stream, 1), Wait(0, 1)), stream + 1, 2)

    @property
    def result(self):
        values = self.backend.host_array((8,), "float32")
        self.backend.copy_to_host(values, self.arrays[self.node], 0)
        self.backend.synchronize(0)
        return values


def counts(launcher):
    return {name: count for name, count in launcher.outcomes.items() if count}


def test_a_graph_is_kept_updated_or_made_anew(backend):
    one, other = Adder(backend, 1), Adder(backend, 2)
    launcher = GraphLaunch(backend, one.plan(), one.kernels)
    for _ in range(3):
        launcher.launch()
    assert counts(launcher) == {"created": 1, "reused": 2}
    assert np.array_equal(one.result, np.arange(8) + 1)

    launcher.take(one.plan(), dict(one.kernels))  # equal, though not the same
    launcher.launch()
    assert counts(launcher) == {"created": 1, "reused": 3}

    launcher.take(other.plan(), other.kernels)  # other memory
    launcher.launch()
    assert counts(launcher) == {"created": 1, "reused": 3, "updated": 1}
    assert np.array_equal(other.result, np.arange(8) + 2)

    launcher.take(one.plan(times=2, stream=1), one.kernels)  # other topology
    launcher.launch()
    assert counts(launcher) == {"created": 1, "reused": 3, "updated": 1, "freed": 1, "reinstantiated": 1}
    assert np.array_equal(one.result, np.arange(8) + 1)


@pytest.mark.parametrize("name", ["graph", "rebuild"])
def test_graphs_that_are_no_longer_needed_are_freed(backend, name):
    one = Adder(backend, 1)
    cut = Plan((*one.plan(times=1, stream=1).instructions, Launch(0, one.node)), 2, 2, cut=True)
    launcher = LAUNCHERS[name](backend, cut, one.kernels)
    launcher.launch()
    launcher.take(one.plan(), one.kernels)
    launcher.launch()
    launcher.launch()
    assert np.array_equal(one.result, np.arange(8) + 1)
    found = launcher.outcomes
    assert (found["created"], found["freed"]) == (2, 1)
    assert found["reused"] == (2 if name == "graph" else 0)


def test_equality_is_of_kernels_arguments_order_and_streams(backend):
    one, other = Adder(backend, 1), Adder(backend, 1)
    key = key_of(backend, one.plan(), one.kernels)
    again = backend.kernel(one.node, one.arrays[one.node], [one.arrays[s] for s in one.node.src])
    assert key_of(backend, one.plan(), {one.node: again}) == key
    assert key_of(backend, other.plan(), other.kernels) != key
    assert key_of(backend, one.plan(times=2), one.kernels) != key
    assert key_of(backend, one.plan(stream=1), one.kernels) != key
    changed = set()
    for op, src, params in (("mul", one.node.src, {}), *(("rms_norm", (one.x,), {"eps": eps}) for eps in (1e-5, 1e-6))):
        node = Tensor("z", op, (8,), "float32", src, params=params)
        kernel = backend.kernel(node, one.arrays[one.node], [one.arrays[s] for s in src])
        changed.add(key_of(backend, one.plan(), {one.node: kernel}))
    assert len(changed - {key}) == 3


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("mode", ["sequential", "branches", "subgraphs"])
def test_every_policy_counts(name, mode):
    base = Configuration(backend=name, concurrency=mode, strategy="aaag", tokens=4, repeats=2, warmup=1)
    kept, rebuilt, eager = execute([replace(base, launch=launch) for launch in ("graph", "rebuild", "eager")])
    steps = 1 + 2 * 4
    graphs = sum(isinstance(part, Subplan) for part in kept.prepared.splits[0].plan.parts)
    assert (graphs > 1) == (mode == "subgraphs")
    none = dict.fromkeys(OUTCOMES, 0)
    assert kept.graphs == [none | {"created": graphs, "reused": (steps - 1) * graphs}]
    assert rebuilt.graphs == [none | {"created": graphs, "updated": steps * graphs}]
    assert eager.graphs == [none]
