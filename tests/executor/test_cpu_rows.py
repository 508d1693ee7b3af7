"""Compiled ops on rows: NumPy's results, and the same bits alone, in company and on any number of threads."""

import os
import subprocess
import sys

import numpy as np
import pytest

from executor.backends.cpu import compiled
from executor.backends.cpu.compiled import LEAST_ROW, CompiledKernels, is_compiled
from executor.backends.cpu.kernels import KERNELS
from tracer.compiled import inlined

CORES = len(os.sched_getaffinity(0))
TOKENS = 7


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sources(op, tokens=TOKENS):
    """The sources of an op, whose widths are no multiples of a vector."""
    wide = values(tokens, 83)
    return {
        "rms_norm": (wide,), "mul": (wide, values(83, seed=1)), "add": (wide, values(tokens, 83, seed=1)),
        "swiglu": (wide * 30, values(tokens, 83, seed=1)),
        "rope": (values(tokens, 3, 14), np.arange(tokens, dtype=np.int32) * 5),
        "set_rows": (wide, np.arange(tokens, dtype=np.int32)[::-1] * 2, values(2 * tokens, 83, seed=1)),
        "soft_max": (wide * 10,), "top_k": (np.round(wide),),
        "moe_expert_reduce": (values(tokens, 4, 83), values(tokens, 4, seed=1)),
    }[op]  # fmt: skip


def options(op, mode="neox"):
    return {"rms_norm": {"eps": 1e-5}, "rope": {"base": 1e4, "mode": mode, "dims": 10}, "top_k": {"k": 5}}.get(op, {})


def blank(op, src):
    if op == "set_rows":
        return src[2].copy()
    shape = {"top_k": (len(src[0]), 5), "moe_expert_reduce": (len(src[0]), src[0].shape[-1])}.get(op, src[0].shape)
    return np.zeros(shape, np.int32 if op == "top_k" else np.float32)


def computed(op, src, threads=1, **chosen):
    out = blank(op, src)
    CompiledKernels(threads).bound(op, out, src, **(options(op) | chosen))()
    return out


@pytest.mark.parametrize("op", LEAST_ROW)
def test_it_is_what_numpy_computes(op):
    for mode in ("normal", "neox") if op == "rope" else ("",):
        chosen = options(op, mode)
        src = sources(op)
        expected = blank(op, src)
        KERNELS[op](expected, *src, **chosen)
        np.testing.assert_allclose(computed(op, src, **chosen), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("op", LEAST_ROW)
def test_a_row_has_the_same_bits_alone_in_company_and_on_any_number_of_threads(op, monkeypatch):
    src = sources(op)
    together = computed(op, src)
    monkeypatch.setattr(compiled, "_ROWS_WORTH_SHARING", 1)
    assert np.array_equal(computed(op, src, CORES), together)
    if op != "set_rows":
        first = [s[:1] if len(s) == TOKENS else s for s in src]
        assert np.array_equal(computed(op, first), together[:1])


@pytest.mark.parametrize("in_place", ["add", "soft_max"])
def test_the_result_may_replace_the_source(in_place):
    src = sources(in_place)
    expected = computed(in_place, src)
    CompiledKernels(1).bound(in_place, src[0], src)()
    assert np.array_equal(src[0], expected)


def test_a_residual_and_a_weight_are_taken_by_rows():
    x, row = values(3, 40), values(40, seed=1)
    assert np.array_equal(computed("add", (x, row)), x + row)
    assert np.array_equal(computed("mul", (x, values(3, 40, seed=2))), x * values(3, 40, seed=2))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_written_in_the_caches_format_and_the_last_of_equal_numbers_counts(dtype):
    cache, new = np.zeros((6, 50), dtype), values(3, 50)
    CompiledKernels(1).bound("set_rows", cache, (new, np.array([4, 1, 4], np.int32), cache))()
    assert np.array_equal(cache[4], new[2].astype(dtype))
    assert np.array_equal(cache[1], new[1].astype(dtype))
    assert not cache[[0, 2, 3, 5]].any()


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_row_that_does_not_exist_is_refused(wrong):
    cache = np.zeros((6, 50), np.float32)
    with pytest.raises(IndexError, match="no row of this number"):
        CompiledKernels(1).bound("set_rows", cache, (values(1, 50), np.array([wrong], np.int32), cache))()


def test_the_exponential_is_right_to_two_units_in_the_last_place():
    from executor.backends.cpu.loops import exponential

    def every(x, out):
        for i in range(len(x)):
            out[i] = exponential(x[i])

    x = np.concatenate([np.linspace(-87.2, 88.2, 100_001), [0, np.nan, -200, -np.inf, 200]]).astype(np.float32)
    found = np.empty_like(x)
    inlined(every)(x, found)
    expected = np.exp(x[:-4].astype(np.float64))
    assert (np.abs(found[:-4] - expected) <= 2 * np.spacing(expected.astype(np.float32))).all()
    assert np.isnan(found[-4])
    assert found[-3] == found[-2] == 0
    assert 2e38 < found[-1] < np.inf


def test_a_gate_of_any_size_gives_no_infinity():
    gate = np.array([[-1e30, -100, 0, 100, 1e30]], np.float32)
    out = computed("swiglu", (gate, np.ones_like(gate)))
    np.testing.assert_allclose(out, np.maximum(gate, 0), atol=1e-7)


def test_only_what_the_loops_take_is_compiled():
    assert is_compiled("rms_norm", (np.empty((1, 1024), np.float32),))
    assert not is_compiled("rms_norm", (np.empty((9, 1023), np.float32),))
    wide = np.empty((2, 1024), np.float32)
    assert is_compiled("mul", (wide, np.empty(1024, np.float32)))
    assert not is_compiled("mul", (wide, np.empty((2, 1), np.float32)))
    assert not is_compiled("set_rows", (np.empty((2, 1024), np.int32), np.empty(2, np.int32), wide))


def test_the_threads_of_a_product_are_still_there_for_the_next():
    """A team of fewer threads would end the others, and the next product start them anew."""
    code = """if True:
        import os, numpy as np
        from executor.backends.cpu.compiled import CompiledKernels
        kernels, tasks = CompiledKernels(4), lambda: set(os.listdir("/proc/self/task"))
        weight, out = np.zeros((8, 32), np.float32), np.zeros((1, 8), np.float32)
        product = kernels.bound("mul_mat", out, (weight, np.zeros((1, 32), np.float32)))
        product()
        before = tasks()
        for cells in (1, 64, 128, 4096):
            q, cache = np.zeros((1, 16, 64), np.float32), np.zeros((1, cells, 16, 64), np.float32)
            mask, result = np.zeros((1, cells), np.float32), np.zeros((1, 1024), np.float32)
            kernels.bound("flash_attn_ext", result, (q, cache, cache, mask), scale=1.0)()
            product()
        print(len(before - tasks()), len(before) > 3)
    """
    found = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"NUMBA_NUM_THREADS": "4"}, text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    assert found.stdout == "0 True\n"
