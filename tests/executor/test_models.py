"""Models: what is in their graphs before anything runs, their seeded weights, and kernels where they do not lead."""

import math

import numpy as np
import pytest

from executor.backends import open_backend
from executor.backends.cpu.backend import CpuBackend
from executor.backends.cpu.kernels import KERNELS
from executor.backends.weight_formats import Quantised, floats, quantised
from executor.graph import Flag, Graph
from executor.graph.models import MODELS
from executor.graph.models.step import random_weight
from executor.planning.devices import HOST, Device, Origin, Split
from executor.scheduling.memory import COPIED, load_weights
from tests.executor.shapes import MODELS_HERE
from tracer.errors import ExecutionError

F32 = np.float32
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


def test_real_shapes_have_the_published_number_of_parameters():
    for name, published in PUBLISHED.items():
        sizes = {weight.name: math.prod(weight.shape) for weight in MODELS[name]().graph.weights}
        shared = sizes["token_embd.weight"] if name in ONE_MATRIX else 0
        assert sum(sizes.values()) - shared == published, name


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
    step = MODELS_HERE["odd"](batch=2, prompt=3)
    values = step.feed(4, np.arange(6, dtype=np.int32))
    cells = step.context
    assert list(values["inp_pos"]) == [4, 5, 6] * 2
    assert list(values["k_idxs"]) == list(values["v_idxs"]) == [4, 5, 6, cells + 4, cells + 5, cells + 6]
    assert list(values["inp_out_ids"]) == [2, 5]
    visible = values["kq_mask"] == 0
    assert list(visible.sum(axis=1)) == [5, 6, 7] * 2
    assert all(row[:count].all() for row, count in zip(visible, visible.sum(axis=1), strict=True))
    assert np.isneginf(values["kq_mask"][~visible]).all()


def run(op, shape, *sources, dtype=F32, **params):
    out = np.full(shape, 99, dtype)
    KERNELS[op](out, *sources, **params)
    return out


def test_top_k_takes_the_lower_column_of_equal_values():
    x = np.array([[1, 3, 3, 2], [5, 5, 5, 5]], F32)
    assert run("top_k", (2, 3), x, dtype=np.int32, k=3).tolist() == [[1, 2, 3], [0, 1, 2]]


def test_rope_turns_neighbours_or_halves_and_leaves_the_rest():
    x = np.array([[[1, 2, 3, 4, 5, 6]]], F32)
    quarter = {"base": 1.0, "dims": 4}  # with base 1 every pair turns alike
    position = np.array([1], np.int32)
    c, s = np.cos(1), np.sin(1)
    normal = run("rope", x.shape, x, position, mode="normal", **quarter)
    halves = run("rope", x.shape, x, position, mode="neox", **quarter)
    np.testing.assert_allclose(normal[0, 0], [c - 2 * s, s + 2 * c, 3 * c - 4 * s, 3 * s + 4 * c, 5, 6], rtol=1e-6)
    np.testing.assert_allclose(halves[0, 0], [c - 3 * s, 2 * c - 4 * s, s + 3 * c, 2 * s + 4 * c, 5, 6], rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "expected"), [("silu", [0, 0, 200]), ("sigmoid", [0, 0.5, 1]), ("softplus", [0, np.log(2), 200])]
)
def test_activations_do_not_overflow(op, expected):
    np.testing.assert_allclose(run(op, (3,), np.array([-200, 0, 200], F32)), expected, rtol=1e-6, atol=1e-30)


def test_l2_norm_of_nothing_is_nothing():
    x = np.array([[0, 0], [3, 4]], F32)
    np.testing.assert_allclose(run("l2_norm", (2, 2), x, eps=1e-6), [[0, 0], [0.6, 0.8]], rtol=1e-6)


def test_products_with_chosen_experts():
    weights = np.arange(3, dtype=F32)[:, None, None] * np.ones((3, 1, 2), F32)  # expert e sums up and multiplies by e
    ids = np.array([[2, 1]], np.int32)
    shared = run("mul_mat_id", (1, 2, 1), weights, np.array([[[1, 2]]], F32), ids)
    assert shared.tolist() == [[[6], [3]]]
    own = run("mul_mat_id", (1, 2, 1), weights, np.array([[[1, 2], [3, 4]]], F32), ids)
    assert own.tolist() == [[[6], [7]]]
    assert run("moe_expert_reduce", (1, 1), own, np.array([[0.5, 2]], F32)).tolist() == [[17]]
    table = np.array([[[10], [11], [12]], [[20], [21], [22]]], F32)
    assert run("get_rows", (2, 1, 1), table, np.array([[2], [0]], np.int32)).tolist() == [[[12]], [[20]]]


def test_the_convolution_sees_the_past_in_order_and_keeps_the_last_inputs():
    """Two sequences of two tokens, one channel, taps (1, 10, 100) from the oldest to the newest input."""
    state = np.array([[[1], [2]], [[0], [0]]], F32)
    x = np.array([[3], [4], [5], [6]], F32)
    out = run("ssm_conv", (4, 1), x, np.array([[1, 10, 100]], F32), state)
    assert out.ravel().tolist() == [321, 432, 500, 650]
    assert state.reshape(2, 2).tolist() == [[3, 4], [5, 6]]


def test_the_delta_rule_replaces_what_a_key_held():
    """With beta 1 and no decay a key returns its last value; with decay exp(g) an untouched one fades."""
    key, other = np.array([[1, 0]], F32), np.array([[0, 1]], F32)
    k = np.stack([key, key, other])
    q = np.stack([key, key, key])
    v = np.array([[[7, 8]], [[1, 2]], [[5, 5]]], F32)
    g = np.array([[0], [0], [np.log(0.5)]], F32)
    state = np.zeros((1, 1, 2, 2), F32)
    out = run("gated_delta_net", (3, 1, 2), q, k, v, g, np.ones((3, 1), F32), state, scale=2.0)
    np.testing.assert_allclose(out[:, 0], [[14, 16], [2, 4], [1, 2]], rtol=1e-6)
    np.testing.assert_allclose(state[0, 0], [[0.5, 1], [5, 5]], rtol=1e-6)


def leaf(name, shape, dtype="float32", flags=Flag.WEIGHT):
    return Graph().leaf(name, shape, dtype, flags)


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
def test_host_weights_have_the_values_of_the_model_s_format(dtype):
    """Though several threads write them, of some more than is made at a time."""
    whole = [leaf(f"w{i}", shape, dtype) for i, shape in enumerate([(768, 1024), (40, 64), (3, 700, 160)])]
    loaded = load_weights({HOST: open_backend(HOST)}, [Split(HOST, (), (), tuple(whole))], 5)
    for weight in whole:
        values = random_weight(weight, 5)
        if dtype == "q8_0":
            expected = Quantised.of(quantised(values), weight.shape).floats()
        else:
            expected = values.astype(dtype).astype(np.float32)
        assert np.array_equal(floats(loaded[HOST][weight.name]), expected)
        assert loaded[HOST][weight.name].nbytes == weight.nbytes


class HalfBackend(CpuBackend):
    weight_dtypes = frozenset({"float16", "q8_0"})


def test_copied_experts_stay_on_the_host_in_the_device_s_dtype():
    experts = [leaf(f"blk.{i}.ffn_exps.weight", (4, 256, 320), "float16", Flag.NONE) for i in range(3)]
    device = Device("cpu")
    split = Split(device, (), (), tuple(experts), copied={each: Origin(0, each) for each in experts})
    loaded = load_weights({device: HalfBackend()}, [split], 2)
    assert set(loaded[COPIED]) == {each.name for each in experts}
    for each in experts:
        kept = loaded[COPIED][each.name]
        assert kept.dtype == np.float16
        assert np.array_equal(kept, random_weight(each, 2).astype(np.float16))


def test_copied_experts_cannot_be_quantised():
    weight = leaf("blk.0.ffn_exps.weight", (4, 32, 32), "q8_0", Flag.NONE)
    split = Split(Device("cpu"), (), (), (weight,), copied={weight: Origin(0, weight)})
    with pytest.raises(ExecutionError, match="experts in q8_0 cannot be copied"):
        load_weights({Device("cpu"): HalfBackend()}, [split], 0)
