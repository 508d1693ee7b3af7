"""Every combination of options computes the same logits: the float64 reference's, within the rounding of its dtypes."""

import random
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor import planning
from executor.backends import open_backend
from executor.backends.weight_formats import Quantised, quantised
from executor.graph.models import WEIGHTS, kv_cache
from executor.graph.models.kv_cache import KINDS
from executor.planning.devices import HOST, Device
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.launchers import LAUNCHERS
from executor.scheduling.strategies import SCCC, STRATEGIES
from tests.covering import covering
from tests.executor import reference
from tests.executor.handmade import scheduler_on
from tests.executor.shapes import MODELS_HERE, PRODUCT_SHAPES, TEST_SHAPES, random_weights

SEED, STEPS = 7, 5
TOLERANCE = {"float32": 5e-5, "float16": 4e-3, "q8_0": 4e-3}
"""Of logits of size about 1, by weight dtype. float32: some 80 roundings (6e-8 each), most of them averaged out. Beside
the others the KV cache, and with several tokens the activations, are float16 (5e-4 each); the weights' own rounding is
in the reference too."""
DELTA_NET_TOLERANCE = {"float32": 4e-4, "float16": 1e-2, "q8_0": 1e-2}
"""Its norm divides by results that are near 0 while the state has seen few tokens. One rounding of the weights (6e-8)
moves the reference's logits by up to 1e-4, and how a processor adds up moves ours as much."""
PARTS_TOLERANCE = 1e-3
"""Products of one sequence and of several, on the host and on a GPU, are summed up in different orders."""

AXES = {
    "model": [*TEST_SHAPES],
    "weights": [*WEIGHTS],
    "batch, prompt, shared_prompt": [(1, 0, False), (3, 0, False), (2, 5, False), (4, (6, 0, 1), False), (3, 9, True)],
    "kv": [*KINDS],
    "strategy": [*STRATEGIES],
    "concurrency, allocator": [
        ("sequential", "sequential"), ("branches", "no_alloc_free"), ("branches", "stream_aware"),
        ("subgraphs", "stream_aware"),
    ],
    "launch": [*LAUNCHERS],
    "devices, gpu_layers, experts": [
        *[(1, None, "device")] * 6, (1, 0, "device"), (1, 2, "device"), (2, None, "device"), (3, 3, "device"),
        (1, 3, "cpu"), (1, 2, "copy"), (2, None, "copy"),
    ],
    "fusion": [False, True], "staging": [True, False], "sampling": ["host", "device"], "halves": [False, True],
    "micro_batch": [4, 512],
}  # fmt: skip
GROWING = (False, True)
PARTED = ("tiny", "moe-tiny", "gdn-tiny", "odd")
"""What others have more of is within a layer, which is computed in one place."""


def configuration(row, backend):
    options = {}
    for names, value in zip(AXES, row, strict=False):
        several = names.split(", ")
        options |= zip(several, value if len(several) > 1 else [value], strict=True)
    return Configuration(backend=backend, tokens=STEPS, repeats=2, warmup=0, seed=SEED, **options)


def is_parted(c):
    return c.devices > 1 or c.gpu_layers is not None or c.experts != "device"


def is_possible(c, growing):
    """Whether it is not refused, see test_refused.py, and its rounding is known."""
    shape, strategy, several = TEST_SHAPES[c.model], STRATEGIES[c.strategy], c.devices > 1
    on_host = c.gpu_layers is not None or c.experts == "cpu"
    needs = strategy.needs | (strategy.needs_between if several else frozenset())
    return (
        (c.weights != "q8_0" or (c.model in (*PRODUCT_SHAPES, "odd") and c.experts != "copy"))
        and (shape.experts is not None or c.experts == "device")
        and (shape.delta_net is None or not (c.shared_prompt or isinstance(c.prompt, tuple) or c.halves))
        and (not is_parted(c) or (strategy.splits and c.model in PARTED))
        and (c.staging or not needs)
        and (not c.halves or (c.batch > 1 and not several and on_host))
        and not (growing and (strategy.advances_on_device or c.halves))
    )


def is_measured_on_a_gpu(c):
    """Formats, caches and parts of which it is known how they are rounded there."""
    plain = c.kv == "streams" and not isinstance(c.prompt, tuple) and not c.shared_prompt
    return (
        c.devices < 3
        and (not is_parted(c) or (c.weights == "f32" and c.model in PARTED[:2] and plain))
        and (plain or (c.weights == "f32" and c.model == "odd"))
        and (not c.prompt or c.weights == "f32")
        and (c.weights != "q8_0" or c.model in ("tiny", "odd", "moe-tiny"))
    )


def rows(backend, wanted=lambda c: True, draws=6000):
    """Of so many combinations those in which any two options that can meet do; each ends in whether the cache grows."""
    choose, found = random.Random(0), []
    for _ in range(draws):
        row = [*map(choose.choice, AXES.values()), choose.choice(GROWING)]
        if is_possible(c := configuration(row, backend), row[-1]) and wanted(c):
            found.append(tuple(row))
    return [(configuration(row, backend), row[-1]) for row in covering(found)]


CASES = [
    *rows("cpu"),
    *(pytest.param(c, growing, marks=pytest.mark.gpu(c.devices))
      for c, growing in rows("cuda", is_measured_on_a_gpu)),
]  # fmt: skip


@pytest.fixture
def little_padding(monkeypatch):
    """Attention grows after every fourth token."""
    monkeypatch.setattr(kv_cache, "PADDING", 4)


@pytest.mark.parametrize(("c", "growing"), CASES, ids=lambda value: getattr(value, "name", value))
def test_logits_are_those_of_the_reference_and_of_a_plain_run(c, growing, request):
    """Bitwise those of a run without any of the options that must not matter. Fused kernels and parts of a step round
    otherwise on a GPU, and with activations of float16; micro-batches order the cells of a unified cache."""
    if growing:
        request.getfixturevalue("little_padding")
    plain = replace(c, strategy="sccc", concurrency="sequential", allocator=None, launch="graph", staging=True,
                    sampling="host", repeats=1)  # fmt: skip
    if (c.backend, c.weights) == ("cpu", "f32"):
        plain = replace(plain, fusion=False, devices=1, gpu_layers=None, experts="device", halves=False,
                        micro_batch=c.micro_batch if c.kv == "unified" else 512)  # fmt: skip
    expected, found = execute([plain, c], keep_logits=True, models=MODELS_HERE, make_recorder=lambda: None)
    assert found.logits.shape == (2, STEPS, c.batch, TEST_SHAPES[c.model].vocabulary)
    for logits, tokens in zip(found.logits, found.tokens, strict=True):  # the second repeat starts from used state
        assert np.array_equal(logits, expected.logits[0])
        assert np.array_equal(tokens, expected.tokens[0])
        assert np.array_equal(logits.argmax(axis=-1), tokens)
    parts = PARTS_TOLERANCE if c.backend == "cuda" and is_parted(c) else 0
    assert_references(expected, max(tolerance(c.model, c.weights), parts))


def assert_references(result, bound):
    """Every sequence alone: its prompt, the token it goes on with, and those that were sampled."""
    c, shape = result.configuration, TEST_SHAPES[result.configuration.model]
    weights = values_of_weights(MODELS_HERE[c.model](weights=c.weights).graph, c.seed)
    prompts, first = c.prompts.tokens(shape.vocabulary, c.seed)
    for sequence, length in enumerate(c.prompts.lengths):
        prompt, start = [*prompts[sequence][:length]], first[sequence]
        if length and not c.shared_prompt:
            start = reference.decode(weights, prompt, shape)[-1].argmax()
        fed = [*prompt, start, *result.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed, shape)[length:]
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(result.logits[0, :, sequence], expected, rtol=0, atol=bound)


def tolerance(model, weights="f32"):
    return (TOLERANCE if TEST_SHAPES[model].delta_net is None else DELTA_NET_TOLERANCE)[WEIGHTS[weights]]


def values_of_weights(graph, seed):
    """The values that the device computes with."""
    values = random_weights(graph, seed)
    for weight in graph.weights:
        value = values[weight.name]
        if weight.dtype == "float16":
            values[weight.name] = value.astype(np.float16)
        elif weight.dtype == "q8_0":
            values[weight.name] = Quantised.of(quantised(value), value.shape).floats()
    return values


def test_sequences_are_independent():
    """A sequence's logits are bitwise the same alone and beside others."""
    for model, prompt in [*((model, 0) for model in TEST_SHAPES), ("gdn-tiny", 5)]:
        alone = Configuration(model=model, prompt=prompt, tokens=4, repeats=1, warmup=0, seed=SEED)
        together, one = execute([replace(alone, batch=3), alone], keep_logits=True, models=MODELS_HERE)
        first = together.logits[0, 0]
        assert not np.array_equal(first[0], first[1])
        assert not np.array_equal(first[1], first[2])
        assert np.array_equal(together.logits[:, :, :1], one.logits), model


@pytest.mark.parametrize(
    ("backend", "model", "kv", "prompt"),
    [
        ("cpu", "odd", "streams", (7, 0)), ("cpu", "odd", "unified", (7, 0)), ("cpu", "gdn-tiny", "streams", 0),
        pytest.param("cuda", "tiny", "streams", 0, marks=pytest.mark.gpu),
    ],
)  # fmt: skip
def test_the_whole_context_can_be_filled_by_the_host_and_by_the_device(backend, model, kv, prompt):
    """Also where the last step prepares no further one."""
    tokens = TEST_SHAPES[model].context - (prompt and max(prompt))
    base = Configuration(
        backend=backend, model=model, kv=kv, prompt=prompt, batch=2, tokens=tokens, repeats=1, warmup=0
    )
    host, *others = execute(
        [replace(base, strategy=s) for s in ("sccc", "aga", "ggg")], keep_logits=True, models=MODELS_HERE
    )
    for other in others:
        assert np.array_equal(other.logits, host.logits)


def test_halves_grow_with_the_cache(monkeypatch):
    """From 32 cells to 64, one half after the other."""
    monkeypatch.setattr(kv_cache, "PADDING", 32)
    whole = Configuration(batch=3, prompt=28, tokens=7, repeats=1, warmup=0, gpu_layers=2, reserve=30)
    expected, found = execute([whole, replace(whole, strategy="aaag", halves=True)], keep_logits=True)
    assert len(found.prepared.step.sizes) > 1
    assert np.array_equal(found.logits, expected.logits)


def test_weights_on_the_host_and_copies_for_the_device_are_kept_apart():
    placed = [
        Configuration(model="moe-tiny", experts=e, tokens=3, repeats=1) for e in ("copy", "cpu", "device", "copy")
    ]
    first, *others = execute(placed, keep_logits=True)
    for other in others:
        assert np.array_equal(other.logits, first.logits)


@pytest.mark.parametrize("number", range(4))
def test_any_assignment_of_nodes_to_devices_computes_the_same(number, monkeypatch):
    """Also values that several splits of a device read from another one, which take turns."""
    choose = random.Random(number)
    devices = [*(Device("cpu", index) for index in range(choose.choice([1, 2, 3]))), *([HOST] * choose.randint(0, 1))]
    strategy = choose.choice([name for name, cls in STRATEGIES.items() if cls.splits])
    base = Configuration(model=choose.choice(PARTED[:3]), tokens=6, repeats=1, warmup=0)
    (alone,) = execute([base], keep_logits=True)
    homes = {}  # of state, which stays on one device

    def scattered(graph, placement):
        if (key := id(graph)) not in homes:
            homes[key], state, assigned = graph, {}, {}
            here = choose.choice(devices)
            for node in graph.nodes:
                here = choose.choice(devices) if choose.random() < 0.3 else here
                owned = [s.root for s in (*node.src, node) if s.root.is_state]
                assigned[node] = state.setdefault(owned[0], here) if owned else here
        return assigned

    monkeypatch.setattr(planning, "assign_devices", scattered)
    (result,) = execute([replace(base, strategy=strategy)], keep_logits=True)
    assert np.array_equal(result.logits, alone.logits), (base.model, strategy, devices)


def test_logits_are_those_of_transformers():
    """Models that others wrote, from the same weights: see benchmarks/hf_reference.py."""
    with np.load(Path(__file__).parent / "data" / "hf_reference.npz", allow_pickle=False) as arrays:
        kept = dict(arrays)
    names = [name.removesuffix(".logits") for name in kept if name.endswith(".logits")]
    assert names == ["tiny", "qwen3-tiny", "odd-olmoe", "odd-qwen3moe", "gdn-tiny"]
    for name in names:
        expected, tokens = kept[f"{name}.logits"], kept[f"{name}.tokens"].astype(np.int32)
        assert np.abs(expected).max() > 1
        with closing(open_backend("cpu")) as backend:
            scheduler = scheduler_on(backend, MODELS_HERE[name](), SCCC(), seed=int(kept["seed"]))
            for position, token in enumerate(tokens):
                scheduler.begin(np.array([token]), position)
                scheduler.step()
                np.testing.assert_allclose(scheduler.logits[0], expected[position], rtol=0, atol=1e-4)
