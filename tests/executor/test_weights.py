"""Seeded weights: which values, and that those written on the host by several threads are the same."""

import numpy as np
import pytest

from executor.backends import open_backend
from executor.backends.cpu.backend import CpuBackend
from executor.backends.weight_formats import Quantised, floats, quantised
from executor.graph import Flag, Graph
from executor.graph.models.step import random_weight
from executor.planning.devices import HOST, Device, Origin, Split
from executor.scheduling.memory import COPIED, load_weights
from tracer.errors import ExecutionError

SHAPES = [(768, 1024), (40, 64), (3, 700, 160)]
"""Some longer than what is made at a time."""


def leaf(name, shape, dtype="float32", flags=Flag.WEIGHT):
    return Graph().leaf(name, shape, dtype, flags)


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0"])
def test_host_weights_have_the_values_of_the_model_s_format(dtype):
    whole = [leaf(f"w{i}", shape, dtype) for i, shape in enumerate(SHAPES)]
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
