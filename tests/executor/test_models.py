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
from tracer.errors import ExecutionError

F32 = np.float32
PUBLISHED = {
    "llama-3b": 3_212_749_824, "llama-8b": 8_030_261_248, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
    "moe-7b": 6_919_161_856,
}  # fmt: skip
"""Parameters of the published models."""
ONE_MATRIX = {"llama-3b", "qwen3-1.7b", "qwen3-4b"}
"""Models that use the embedding as output matrix; ours have both."""


def test_real_shapes_have_the_published_number_of_parameters():
    for name, published in PUBLISHED.items():
        sizes = {weight.name: math.prod(weight.shape) for weight in MODELS[name]().graph.weights}
        shared = sizes["token_embd.weight"] if name in ONE_MATRIX else 0
        assert sum(sizes.values()) - shared == published, name


def test_a_delta_net_forgets():
    """exp(g) lies below 1 only where ssm_a is negative."""
    weights = [w for w in MODELS["gdn-tiny"]().graph.weights if w.name.endswith("ssm_a")]
    assert len(weights) == 3
    assert all((random_weight(weight, seed=3) < 0).all() for weight in weights)


def run(op, shape, *sources, dtype=F32, **params):
    out = np.full(shape, 99, dtype)
    KERNELS[op](out, *sources, **params)
    return out


def test_top_k_takes_the_lower_column_of_equal_values():
    x = np.array([[1, 3, 3, 2], [5, 5, 5, 5]], F32)
    assert run("top_k", (2, 3), x, dtype=np.int32, k=3).tolist() == [[1, 2, 3], [0, 1, 2]]


@pytest.mark.parametrize(
    ("op", "expected"), [("silu", [0, 0, 200]), ("sigmoid", [0, 0.5, 1]), ("softplus", [0, np.log(2), 200])]
)
def test_activations_do_not_overflow(op, expected):
    np.testing.assert_allclose(run(op, (3,), np.array([-200, 0, 200], F32)), expected, rtol=1e-6, atol=1e-30)


def test_l2_norm_of_nothing_is_nothing():
    x = np.array([[0, 0], [3, 4]], F32)
    np.testing.assert_allclose(run("l2_norm", (2, 2), x, eps=1e-6), [[0, 0], [0.6, 0.8]], rtol=1e-6)


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
