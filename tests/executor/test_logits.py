"""Every combination computes the same logits: the float64 reference's, within the rounding of its dtypes."""

import itertools

import numpy as np
import pytest

from executor.backends.weight_formats import Quantised, quantised
from executor.graph.models import WEIGHTS
from executor.graph.models.step import first_tokens
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering, each_value
from tests.executor import reference
from tests.executor.shapes import MODELS_HERE, PRODUCT_SHAPES, TEST_SHAPES, random_weights

STEPS = 6
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "q8_0": 4e-3}
"""Of logits of size about 1, by weight dtype. float32: some 80 roundings (6e-8 each), most of them averaged out. Beside
the others the KV cache, and with several tokens the activations, are float16 (5e-4 each); the weights' own rounding is
in the reference too."""
DELTA_NET_TOLERANCE = 4e-4
"""float32: its norm divides by results that are near 0 while the state has seen few tokens. One rounding of the weights
(6e-8) moves the reference's logits by up to 1e-4, and how a processor adds up moves ours as much."""

CUDA_MODELS = ("tiny", "odd")
OTHER_CUDA_MODELS = [name for name in TEST_SHAPES if name not in CUDA_MODELS]
CPU_CASES = [
    *(("cpu", model, "f32", batch, fusion) for model in PRODUCT_SHAPES for batch, fusion in ((1, True), (3, False))),
    *(("cpu", model, "f32", 3, None) for model in TEST_SHAPES if model not in PRODUCT_SHAPES),
    ("cpu", "tiny", "f32", 1, False),
    ("cpu", "tiny", "f16", 3, None),
    ("cpu", "moe-tiny", "q8_0", 1, True),
]
CUDA_CASES = [
    *itertools.product(["cuda"], CUDA_MODELS, WEIGHTS, (1, 3), (True,)),
    *itertools.product(["cuda"], OTHER_CUDA_MODELS, ("f32", "f16"), (1, 3), (True,)),
    *(("cuda", name, "f32", 1, False) for name in PRODUCT_SHAPES),
    ("cuda", "moe-tiny", "q8_0", 1, True),
    ("cuda", "tiny", "f16", 1, False),
    ("cuda", "odd", "q8_0", 1, False),
]


COMBINED = [
    ("sequential", "sequential"), *itertools.product(("branches", "subgraphs"), ("no_alloc_free", "stream_aware"))
]  # fmt: skip
"""Concurrency modes with the allocators that are safe in them."""

ROWS = covering(itertools.product([*CPU_CASES, *CUDA_CASES], STRATEGIES, COMBINED, ("graph", "eager")))


@pytest.fixture(
    scope="module",
    params=[*CPU_CASES, *(pytest.param(case, marks=pytest.mark.gpu) for case in CUDA_CASES)],
    ids=lambda case: "-".join(map(str, case)),
)
def results(request):
    """Of one case: every strategy in some of the modes, or in all."""
    backend, model, weights, batch, fusion = request.param
    return execute(
        [
            Configuration(
                backend=backend, model=model, weights=weights, batch=batch, fusion=fusion, strategy=s, concurrency=c,
                allocator=a, launch=g, tokens=STEPS, repeats=2, warmup=0, seed=7,
            )
            for case, s, (c, a), g in ROWS
            if case == request.param
        ],
        keep_logits=True, models=MODELS_HERE,
    )  # fmt: skip


def test_all_combinations_agree_bitwise(results):
    assert {result.configuration.strategy for result in results} == set(STRATEGIES)
    first, c = results[0], results[0].configuration
    for result in results:
        assert result.logits.shape == (2, STEPS, c.batch, TEST_SHAPES[c.model].vocabulary)
        assert np.array_equal(result.logits, first.logits), result.configuration.name
        assert np.array_equal(result.tokens, first.tokens), result.configuration.name


def tolerance(model, weights="f32"):
    of_weights = TOLERANCE[WEIGHTS[weights]]
    return of_weights if TEST_SHAPES[model].delta_net is None else max(of_weights, DELTA_NET_TOLERANCE)


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


def test_logits_are_the_float64_references(results):
    result, c = results[0], results[0].configuration
    step = MODELS_HERE[c.model](batch=c.batch, weights=c.weights)
    weights, first = values_of_weights(step.graph, c.seed), first_tokens(step, c.seed)
    for sequence in range(c.batch):
        fed = [first[sequence], *result.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed, TEST_SHAPES[c.model])
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(result.logits[0, :, sequence], expected, rtol=0, atol=tolerance(c.model, c.weights))


def test_sampling_is_greedy_and_repeats_start_anew(results):
    for result in results:
        assert np.array_equal(result.logits.argmax(axis=-1), result.tokens)
        assert np.array_equal(result.logits[0], result.logits[1])


@pytest.mark.parametrize(("model", "given"), each_value(itertools.product(TEST_SHAPES, [(1, 0), (2, 3)])))
def test_fusion_changes_no_bit_on_the_cpu(model, given):
    batch, prompt = given
    plain, fused = execute(
        [
            Configuration(model=model, batch=batch, prompt=prompt, tokens=4, repeats=1, fusion=f)
            for f in (False, True)
        ],
        keep_logits=True, models=MODELS_HERE,
    )  # fmt: skip
    assert len(fused.prepared.splits[0].plan.launches) < (0.75 if batch == 1 else 0.9) * len(
        plain.prepared.splits[0].plan.launches
    )
    assert np.array_equal(plain.logits, fused.logits)


@pytest.mark.parametrize(("model", "prompt"), [*((model, 0) for model in TEST_SHAPES), ("gdn-tiny", 5)])
def test_sequences_are_independent(model, prompt):
    """A sequence's logits are bitwise the same alone and beside others."""
    together, alone = (
        execute(
            [Configuration(model=model, batch=n, prompt=prompt, tokens=4, repeats=1, seed=7)],
            keep_logits=True, models=MODELS_HERE,
        )[0]
        for n in (3, 1)
    )  # fmt: skip
    first = together.logits[0, 0]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[1], first[2])
    assert np.array_equal(together.logits[:, :, 0], alone.logits[:, :, 0])


@pytest.mark.parametrize(
    ("backend", "model"),
    [*(("cpu", name) for name in PRODUCT_SHAPES), pytest.param("cuda", "tiny", marks=pytest.mark.gpu)],
)
def test_the_whole_context_can_be_filled_on_the_device(backend, model):
    context = TEST_SHAPES[model].context
    host, device = execute(
        [
            Configuration(backend=backend, model=model, strategy=s, tokens=context, repeats=1, warmup=0, batch=2)
            for s in ("sccc", "ggg")
        ],
        keep_logits=True,
    )
    assert np.array_equal(host.logits, device.logits)
