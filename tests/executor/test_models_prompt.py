"""A prompt taken in one step leaves what the same tokens taken one by one leave."""

from contextlib import closing

import numpy as np
import pytest

from executor.backends import open_backend
from executor.graph.models import MODELS, builder_of
from executor.graph.models.step import first_tokens
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import SCCC, STRATEGIES
from tests.executor import reference
from tests.executor.handmade import scheduler_on
from tests.executor.shapes import PRODUCT_SHAPES, TEST_SHAPES, random_weights
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.errors import UsageError

BATCH, PROMPT, SEED = 3, 6, 7
TOLERANCE = 5e-5
"""Of float32 logits of size about 1: as in test_logits, and the order of a few sums differs."""


@pytest.fixture
def backend():
    with closing(open_backend("cpu")) as backend:
        yield backend


def scheduler_for(backend, name, prompt, prefill=None):
    step = builder_of(TEST_SHAPES[name])(batch=BATCH, prompt=prompt)
    return scheduler_on(backend, step, SCCC(), seed=SEED, prefill=prefill)


def fed(scheduler, tokens, chunk):
    """Last logits after feeding (BATCH, T) tokens in chunks."""
    for position in range(0, tokens.shape[1], chunk):
        scheduler.begin(tokens[:, position : position + chunk].reshape(-1), position)
        scheduler.step()
        logits = scheduler.logits
    return logits


@pytest.mark.parametrize("name", TEST_SHAPES)
def test_a_prompt_is_as_good_as_its_tokens_one_by_one(backend, name):
    tokens = np.random.default_rng(SEED).integers(TEST_SHAPES[name].vocabulary, size=(BATCH, PROMPT + 1))
    alone = scheduler_for(backend, name, 1)
    expected = fed(alone, tokens[:, :PROMPT], 1)
    alone.begin(tokens[:, PROMPT], PROMPT)
    alone.step()
    expected_next = alone.logits
    for chunk in (PROMPT, PROMPT // 2):
        prefill = scheduler_for(backend, name, chunk)
        decode = scheduler_for(backend, name, 1, prefill)
        for _ in range(2):  # the second time from used state
            np.testing.assert_allclose(fed(prefill, tokens[:, :PROMPT], chunk), expected, rtol=0, atol=TOLERANCE)
            decode.begin(tokens[:, PROMPT], PROMPT)
            decode.step()
            np.testing.assert_allclose(decode.logits, expected_next, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("backend", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", PRODUCT_SHAPES)
def test_a_run_after_a_prompt_has_the_references_logits_under_every_strategy(name, backend):
    results = execute(
        [
            Configuration(
                backend=backend, model=name, strategy=s, batch=BATCH, prompt=PROMPT, tokens=5, repeats=2, warmup=2,
                seed=SEED,
            )
            for s in STRATEGIES
        ],
        keep_logits=True,
    )  # fmt: skip
    prompt_step, shape = MODELS[name](batch=BATCH, prompt=PROMPT), TEST_SHAPES[name]
    weights, prompts = random_weights(prompt_step.graph, SEED), first_tokens(prompt_step, SEED).reshape(BATCH, PROMPT)
    for result in results:
        assert np.array_equal(result.logits, results[0].logits), result.configuration.name
        assert np.array_equal(result.logits[0], result.logits[1]), result.configuration.name
    for sequence, prompt in enumerate(prompts):
        first = reference.decode(weights, prompt, shape)[-1].argmax()
        logits = reference.decode(weights, [*prompt, first, *results[0].tokens[0, :-1, sequence]], shape)
        np.testing.assert_allclose(results[0].logits[0, :, sequence], logits[PROMPT:], rtol=0, atol=TOLERANCE)


def test_prompt_and_tokens_must_fit_the_context():
    with pytest.raises(UsageError, match=r"context of 64, too small for 65 tokens"):
        execute([Configuration(model="gdn-tiny", prompt=60, tokens=5, warmup=0)])
    with pytest.raises(UsageError, match="prompt must be at least 0, not -1"):
        execute([Configuration(prompt=-1)])


def test_a_prompt_does_not_advance_on_the_device():
    with pytest.raises(ValueError, match="takes one token per sequence, not 4"):
        MODELS["tiny"](prompt=4, on_device=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_token_steps_after_a_prompt_make_the_same_calls_as_without(strategy):
    plain, prompted = execute(
        [Configuration(strategy=strategy, prompt=prompt, tokens=3, repeats=2, warmup=0) for prompt in (0, 4)]
    )
    reports = [sync_report(run.trace, find_steps(run.trace)) for run in (plain, prompted)]
    assert [report.steps for report in reports] == [6, 6]
    calls = [list(zip(report.calls["step"], report.calls["name"].astype("str"), strict=True)) for report in reports]
    assert calls[0] == calls[1]
    assert (prompted.trace["nvtx"]["text"] == "prefill").sum() == 3  # before the warm-up and before each repeat
    assert prompted.configuration.name == f"tiny-{strategy}-sequential-p4"
