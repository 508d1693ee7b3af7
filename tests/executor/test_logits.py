"""Every combination computes the same logits: the float64 reference's, within the rounding of its dtypes."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from executor.backends.cuda_weights import dequantised, quantised
from executor.models import MODELS
from executor.models.decoder import build
from executor.models.shape import SHAPES as PRODUCT_SHAPES
from executor.models.shape import Shape
from executor.models.step import first_tokens, random_weights
from executor.run import Configuration, execute
from executor.strategies import STRATEGIES
from tests.executor import reference

STEPS = 10
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "q8_0": 4e-3}
"""Of logits of size about 1, by weight dtype. float32: some 80 roundings (6e-8 each), most of them averaged out. Beside
the others the KV cache, and with several tokens the activations, are float16 (5e-4 each); the weights' own rounding is
in the reference too."""

ODD = Shape(layers=3, width=96, heads=6, kv_heads=3, head_size=16, ffn=160, vocabulary=333, context=47)
SHAPES = {"tiny": PRODUCT_SHAPES["tiny"], "odd": ODD}


def shape_of(model, weights):
    return replace(SHAPES[model], weights=weights)


def build_any(model, *, weights="float32", **options):
    return build(shape_of(model, weights), **options)


MODELS_HERE = {name: partial(build_any, name) for name in SHAPES}
CASES = [
    *(("cpu", "tiny", "float32", batch, fusion) for batch in (1, 3) for fusion in (False, True)),
    ("cpu", "odd", "float32", 3, None),
    *(
        pytest.param(("cuda", model, weights, batch, fusion), marks=pytest.mark.gpu)
        for model, weights, batch, fusion in [
            *itertools.product(("tiny", "odd"), ("float32", "float16", "q8_0"), (1, 3), (True,)),
            ("tiny", "float16", 1, False),
            ("odd", "q8_0", 1, False),
        ]
    ),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def results(request):
    backend, model, weights, batch, fusion = request.param
    return execute(
        [
            Configuration(
                backend=backend, model=model, weights=weights, batch=batch, fusion=fusion, strategy=s, concurrency=c,
                launch=g, tokens=STEPS, repeats=2, warmup=1, seed=7,
            )
            for s, c, g in itertools.product(STRATEGIES, ("sequential", "branches"), ("graph", "eager"))
        ],
        keep_logits=True, models=MODELS_HERE,
    )  # fmt: skip


def test_all_combinations_agree_bitwise(results):
    assert len(results) == 5 * 2 * 2
    first, c = results[0], results[0].configuration
    for result in results:
        assert result.logits.shape == (2, STEPS, c.batch, SHAPES[c.model].vocabulary)
        assert np.array_equal(result.logits, first.logits), result.configuration.name
        assert np.array_equal(result.tokens, first.tokens), result.configuration.name


def values_of_weights(graph, seed):
    """The values that the device computes with."""
    values = random_weights(graph, seed)
    for weight in graph.weights:
        value = values[weight.name]
        if weight.dtype == "float16":
            values[weight.name] = value.astype(np.float16)
        elif weight.dtype == "q8_0":
            values[weight.name] = dequantised(quantised(value), value.shape)
    return values


def test_logits_are_the_float64_references(results):
    result, c = results[0], results[0].configuration
    step = MODELS_HERE[c.model](batch=c.batch, weights=c.weights)
    weights, first = values_of_weights(step.graph, c.seed), first_tokens(step, c.seed)
    for sequence in range(c.batch):
        fed = [first[sequence], *result.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed, SHAPES[c.model])
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(result.logits[0, :, sequence], expected, rtol=0, atol=TOLERANCE[c.weights])


def test_sampling_is_greedy_and_repeats_start_anew(results):
    for result in results:
        assert np.array_equal(result.logits.argmax(axis=-1), result.tokens)
        assert np.array_equal(result.logits[0], result.logits[1])


def test_fusion_changes_no_bit_on_the_cpu():
    plain, fused = execute([Configuration(tokens=4, repeats=1, fusion=f) for f in (False, True)], keep_logits=True)
    assert len(fused.prepared.plan.launches) < 0.6 * len(plain.prepared.plan.launches)
    assert np.array_equal(plain.logits, fused.logits)


def test_sequences_are_independent():
    """A sequence's logits are bitwise the same alone and beside others; sequences that start alike stay alike."""
    together, alone = (
        execute([Configuration(batch=n, tokens=4, repeats=1, seed=7)], keep_logits=True)[0] for n in (3, 1)
    )
    step = MODELS["tiny"](batch=3)
    starts = first_tokens(step, 7)
    assert len(set(starts)) == 3
    assert starts[0] == first_tokens(MODELS["tiny"](batch=1), 7)[0]
    assert np.array_equal(together.logits[:, :, 0], alone.logits[:, :, 0])


def test_another_seed_gives_other_logits():
    a, b = (execute([Configuration(tokens=1, repeats=1, seed=s)], keep_logits=True)[0] for s in (1, 2))
    assert not np.allclose(a.logits, b.logits)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_whole_context_can_be_filled_on_the_device(backend):
    host, device = execute(
        [Configuration(backend=backend, strategy=s, tokens=256, repeats=1, warmup=0, batch=2) for s in ("sccc", "ggg")],
        keep_logits=True,
    )
    assert np.array_equal(host.logits, device.logits)
