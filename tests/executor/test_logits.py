"""Every combination computes the same logits, and they are the float64 reference's within float32's rounding."""

import itertools

import numpy as np
import pytest

from executor.models import MODELS
from executor.models.step import first_tokens, random_weights
from executor.run import Configuration, execute
from executor.strategies import STRATEGIES
from tests.executor import reference

STEPS = 10
TOLERANCE = 1e-5
"""Of logits of size about 1: some 80 float32 roundings (6e-8 each), most of them averaged out."""


def all_combinations(batch):
    return [
        Configuration(strategy=s, concurrency=c, launch=g, batch=batch, tokens=STEPS, repeats=2, warmup=1, seed=7)
        for s, c, g in itertools.product(STRATEGIES, ("sequential", "branches"), ("graph", "eager"))
    ]


@pytest.fixture(scope="module", params=[1, 3])
def results(request):
    return execute(all_combinations(request.param), keep_logits=True)


def test_all_combinations_agree_bitwise(results):
    assert len(results) == 5 * 2 * 2
    first = results[0]
    for result in results:
        assert result.logits.shape == (2, STEPS, first.configuration.batch, 1024)
        assert np.array_equal(result.logits, first.logits), result.configuration.name
        assert np.array_equal(result.tokens, first.tokens), result.configuration.name


def test_logits_are_the_float64_references(results):
    result, c = results[0], results[0].configuration
    step = MODELS[c.model](batch=c.batch)
    weights, first = random_weights(step.graph, c.seed), first_tokens(step, c.seed)
    for sequence in range(c.batch):
        fed = [first[sequence], *result.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed)
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(result.logits[0, :, sequence], expected, rtol=0, atol=TOLERANCE)


def test_sampling_is_greedy_and_repeats_start_anew(results):
    for result in results:
        assert np.array_equal(result.logits.argmax(axis=-1), result.tokens)
        assert np.array_equal(result.logits[0], result.logits[1])


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


def test_the_whole_context_can_be_filled_on_the_device():
    host, device = execute(
        [Configuration(strategy=s, tokens=256, repeats=1, warmup=0, batch=2) for s in ("sccc", "ggg")],
        keep_logits=True,
    )
    assert np.array_equal(host.logits, device.logits)
