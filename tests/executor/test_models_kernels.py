"""The CPU kernels where the models do not lead them: ties, extremes, and results worked out by hand."""

import numpy as np
import pytest

from executor.backends.cpu.kernels import KERNELS

F32 = np.float32


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
