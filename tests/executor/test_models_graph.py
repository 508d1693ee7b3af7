"""The graphs of the models: what is in them, before anything runs."""

import math

import numpy as np
import pytest

from executor.graph.models import MODELS, builder_of
from executor.graph.models.step import random_weight
from tests.executor.shapes import TEST_SHAPES

PUBLISHED = {
    "llama-3b": 3_212_749_824,
    "llama-8b": 8_030_261_248,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "moe-7b": 6_919_161_856,
}
"""Parameters of the published models."""
ONE_MATRIX = {"llama-3b", "qwen3-1.7b", "qwen3-4b"}
"""Models that use the embedding as output matrix; ours have both."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_shapes_have_the_published_number_of_parameters(name):
    sizes = {weight.name: math.prod(weight.shape) for weight in MODELS[name]().graph.weights}
    shared = sizes["token_embd.weight"] if name in ONE_MATRIX else 0
    assert sum(sizes.values()) - shared == PUBLISHED[name]


@pytest.mark.parametrize("name", MODELS)
def test_all_kinds_of_steps_share_weights_and_state(name):
    steps = [
        MODELS[name](batch=8, **options)
        for options in ({}, {"prompt": 3}, {"on_device": True, "history": 4, "keep_logits": True})
    ]
    decode, prompt, device = steps
    for step in (prompt, device):
        assert [(w.name, w.shape, w.dtype) for w in step.graph.weights] == [
            (w.name, w.shape, w.dtype) for w in decode.graph.weights
        ]
        assert {(s.name, s.shape, s.dtype) for s in decode.graph.state} <= {
            (s.name, s.shape, s.dtype) for s in step.graph.state
        }
        assert step.logits.shape == decode.logits.shape == (8, decode.vocabulary)
    assert (prompt.prompt, decode.prompt, device.graph.inputs) == (3, 1, [])


def test_recurrent_state_is_empty_at_the_start_and_stays_behind_a_prompt():
    step = MODELS["gdn-tiny"](batch=2)
    recurrent = {state.name for node in step.graph.nodes for state in node.updates}
    first = np.zeros(2, np.int32)
    started = step.start(0, first)
    assert set(started) == recurrent
    assert not any(values.any() for values in started.values())
    assert step.start(5, first) == {}
    assert MODELS["tiny"]().start(0, first) == {}


def test_a_delta_net_forgets():
    """exp(g) lies below 1 only where ssm_a is negative."""
    weights = [w for w in MODELS["gdn-tiny"]().graph.weights if w.name.endswith("ssm_a")]
    assert len(weights) == 3
    assert all((random_weight(weight, seed=3) < 0).all() for weight in weights)


def test_the_mask_of_a_prompt_is_causal():
    step = builder_of(TEST_SHAPES["odd"])(batch=2, prompt=3)
    values = step.feed(4, np.arange(6, dtype=np.int32))
    cells = step.context
    assert list(values["inp_pos"]) == [4, 5, 6] * 2
    assert list(values["k_idxs"]) == list(values["v_idxs"]) == [4, 5, 6, cells + 4, cells + 5, cells + 6]
    assert list(values["inp_out_ids"]) == [2, 5]
    visible = values["kq_mask"] == 0
    assert list(visible.sum(axis=1)) == [5, 6, 7] * 2
    assert all(row[:count].all() for row, count in zip(visible, visible.sum(axis=1), strict=True))
    assert np.isneginf(values["kq_mask"][~visible]).all()
