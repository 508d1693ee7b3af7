"""Logits with both kinds of KV cache: each sequence's are the float64 reference's for that sequence alone."""

import itertools

import numpy as np
import pytest

from executor.graph.models import MODELS
from executor.graph.models.kv_cache import KINDS
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.launchers import LAUNCHERS
from executor.scheduling.prompts import Prompts
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering, each_value
from tests.executor import reference
from tests.executor.shapes import MODELS_HERE, TEST_SHAPES, random_weights
from tests.executor.test_logits import DELTA_NET_TOLERANCE
from tests.executor.test_models_prompt import TOLERANCE
from tracer.errors import UsageError

SEED, TOKENS = 7, 4


def run(strategies=("sccc",), modes=("sequential",), launches=("graph",), **options):
    return run_rows(itertools.product(strategies, modes, launches), **options)


def run_rows(rows, **options):
    """Runs by (strategy, concurrency mode, way to launch)."""
    configurations = [
        Configuration(**{
            "strategy": s, "concurrency": m, "launch": g, "tokens": TOKENS, "repeats": 1, "warmup": 1, "seed": SEED,
            **options,
        })
        for s, m, g in rows
    ]  # fmt: skip
    return execute(configurations, keep_logits=True, models=MODELS_HERE)


def agreed(results):
    for result in results:
        assert np.array_equal(result.logits, results[0].logits), result.configuration.name
        assert np.array_equal(result.tokens, results[0].tokens), result.configuration.name
        assert all(np.array_equal(logits, result.logits[0]) for logits in result.logits), result.configuration.name
    return results[0]


def compare_with_reference(result, tolerance=TOLERANCE):
    """Every sequence alone: its prompt, the token it goes on with, and those that were sampled."""
    c, shape = result.configuration, TEST_SHAPES[result.configuration.model]
    weights = random_weights(MODELS_HERE[c.model]().graph, SEED)
    prompts, first = c.prompts.tokens(shape.vocabulary, SEED)
    assert {tuple(p) for p in prompts} == {tuple(prompts[0])} or not c.shared_prompt
    for sequence, length in enumerate(c.prompts.lengths):
        prompt, start = [*prompts[sequence][:length]], first[sequence]
        if length and not c.shared_prompt:
            start = reference.decode(weights, prompt, shape)[-1].argmax()
        fed = [*prompt, start, *result.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed, shape)[length:]
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(result.logits[0, :, sequence], expected, rtol=0, atol=tolerance)


BACKENDS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


LENGTHS = [(1, 0), (3, 0), (3, 5), (3, (0, 9, 4)), (9, (6, 0, 1)), (1, (3,))]
CASES = list(itertools.product(KINDS, LENGTHS))
ROWS = covering(itertools.product(KINDS, LENGTHS, STRATEGIES, ("sequential", "branches"), LAUNCHERS))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_are_the_references_under_every_strategy(case, backend):
    """Of all strategies, modes and ways to launch, equal and mixed prompts; `odd` has a context that is not padded."""
    kv, (batch, prompt) = case
    rows = [row[2:] for row in ROWS if row[:2] == case]
    results = run_rows(rows, backend=backend, model="odd", kv=kv, batch=batch, prompt=prompt, repeats=2)
    compare_with_reference(agreed(results))


@pytest.mark.parametrize(("model", "kv"), each_value(itertools.product(["qwen3-tiny", "moe-tiny"], KINDS)))
def test_other_models_with_mixed_prompts(model, kv):
    for fusion in (False, True):
        results = run(("aaag", "ggg"), model=model, kv=kv, batch=3, prompt=(7, 0, 2), fusion=fusion)
        compare_with_reference(agreed(results))


def test_recurrent_state_allows_prompts_of_one_length():
    for prompt in (0, 4):
        results = run(("aaag", "ggg"), model="gdn-tiny", kv="unified", batch=2, prompt=prompt)
        compare_with_reference(agreed(results), DELTA_NET_TOLERANCE)
    for options in ({"prompt": (4, 0)}, {"prompt": 4, "shared_prompt": True}):
        with pytest.raises(UsageError, match="model 'gdn-tiny' has recurrent state: prompts need equal lengths"):
            run(model="gdn-tiny", batch=2, **options)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kv", KINDS)
def test_a_shared_prompt_is_computed_once_and_then_shared_or_copied(kv, backend):
    results = run(STRATEGIES, backend=backend, model="odd", kv=kv, batch=4, prompt=9, shared_prompt=True)
    result = agreed(results)
    compare_with_reference(result)
    assert len({tuple(tokens) for tokens in result.tokens[0].T}) > 1  # each goes on by itself
    if backend == "cpu":
        copies = result.trace["memcpys"].query("kind == 'DtoD'")
        shape = TEST_SHAPES["odd"]
        rows = 9 * shape.kv_heads * shape.head_size * 4
        per_prompt = 0 if kv == "unified" else 2 * shape.layers * 3
        assert copies["bytes"].tolist() == [rows] * per_prompt * 2  # before the warm-up and before the repeat
        attended = [n for n in result.trace["kernels"]["name"].astype("str") if n == "flash_attn_ext(blk.0.attn)"]
        assert len(attended) == 2 + 1 + TOKENS  # two prompts, though there are four sequences


@pytest.mark.parametrize(
    ("kv", "shared", "placement"),
    covering(itertools.product(KINDS, (False, True), (("gpu_layers", 2), ("devices", 2), ("gpu_layers", 0)))),
)
def test_layers_on_other_devices_have_their_part_of_the_cache_there(kv, shared, placement):
    splitting = [name for name, strategy in STRATEGIES.items() if strategy.splits]
    prompt = {"prompt": 6, "shared_prompt": True} if shared else {"prompt": (5, 0, 2)}
    compare_with_reference(agreed(run(splitting, model="odd", kv=kv, batch=3, **prompt, **dict([placement]))))


@pytest.mark.parametrize("kv", KINDS)
def test_prompts_longer_than_a_micro_batch_are_taken_in_parts(kv):
    for prompt in (9, (3, 10, 4)):  # together one token of each a step, and alone up to four of one
        compare_with_reference(agreed(run(STRATEGIES, model="odd", kv=kv, batch=3, prompt=prompt, micro_batch=4)))
    assert Prompts((3, 10, 4), micro_batch=4).steps([1]) == [(0, 4), (4, 4), (8, 2)]
    assert Prompts((9, 9, 9), micro_batch=4).steps([0, 1, 2]) == [(n, 1) for n in range(9)]


@pytest.mark.parametrize("placement", [{"devices": 3}, {"devices": 2, "gpu_layers": 3}], ids=str)
def test_micro_batches_follow_each_other_through_the_devices(placement):
    """Without a sync between them, where the strategy makes none."""
    splitting = [name for name, strategy in STRATEGIES.items() if strategy.splits]
    results = run(splitting, model="odd", prompt=22, micro_batch=4, **placement)
    compare_with_reference(agreed(results))
    unstaged = [name for name in splitting if name != "aaag"]
    compare_with_reference(agreed(run(unstaged, model="odd", prompt=22, micro_batch=4, staging=False, **placement)))
    syncs = {result.configuration.strategy: syncs_of_prefill(result.trace) for result in results}
    assert syncs["sccc"] > syncs["saaas"] > syncs["aaas"] > syncs["aaeg"]
    if "gpu_layers" not in placement:
        assert syncs["aaag"] == 1  # the logits


def syncs_of_prefill(trace):
    prefill = trace["nvtx"][trace["nvtx"]["text"] == "prefill"].iloc[-1]
    calls = trace["api"][trace["api"]["start"].between(prefill["start"], prefill["end"])]
    return int(calls["name"].astype("str").str.contains("ynchronize").sum())


@pytest.mark.parametrize("kv", KINDS)
def test_the_whole_context_can_be_filled(kv):
    """Also where the last step prepares no further one; on the device as on the host."""
    context = TEST_SHAPES["odd"].context
    results = run(("sccc", "aga", "ggg"), model="odd", kv=kv, batch=2, prompt=(7, 0), tokens=context - 7)
    compare_with_reference(agreed(results))
    with pytest.raises(UsageError, match=rf"context of {context}, too small for {context + 1} tokens"):
        run(model="odd", kv=kv, batch=2, prompt=(7, 0), tokens=context - 6)


def test_attention_spans_the_cells_of_the_run_not_the_context():
    def attended(kv, prompt, batch):
        (result,) = execute(
            [
                Configuration(
                    model="odd", kv=kv, batch=batch, prompt=prompt, context=4096, tokens=1, repeats=1, warmup=0
                )
            ],
            models=MODELS_HERE,
        )
        (k,) = {n.src[1].shape[:2] for n in result.prepared.step.graph.nodes if n.op == "flash_attn_ext"}
        (mask,) = [leaf for leaf in result.prepared.step.graph.inputs if leaf.name == "kq_mask"]
        assert mask.shape == (batch, k[1])
        return k

    assert [attended("streams", p, 3) for p in (0, 300, (0, 300))] == [(3, 256), (3, 512), (3, 512)]
    assert [attended("unified", p, 3) for p in (0, 300, (0, 300))] == [(1, 256), (1, 1024), (1, 512)]


def test_what_does_not_fit_together_is_refused():
    for options, message in [
        ({"kv": "unifed"}, "unknown KV cache 'unifed'.*Did you mean 'unified'"),
        ({"prompt": (3, -1), "batch": 2}, "prompt must be at least 0"),
        ({"prompt": ()}, "prompt must be at least 0"),
        ({"shared_prompt": True}, "a shared prompt needs one length, at least 1, not 0"),
        ({"shared_prompt": True, "prompt": (2, 3), "batch": 2}, "a shared prompt needs one length"),
    ]:
        with pytest.raises(UsageError, match=message):
            run(**options)
    with pytest.raises(ValueError, match="a model with recurrent state takes all sequences"):
        MODELS["gdn-tiny"](sequences=[0])
