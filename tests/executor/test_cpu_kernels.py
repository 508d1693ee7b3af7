"""Compiled kernels: float64's result, the same bits in every batch, tile, format and number of threads."""

import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import distributions

import numpy as np
import pytest

from executor.backends.cpu import compiled
from executor.backends.cpu.compiled import LEAST_ROW, CompiledKernels, default_threads, is_compiled, pin
from executor.backends.cpu.kernels import KERNELS
from executor.backends.weight_formats import Quantised, encoded, floats, quantised
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_json
from tests.executor.shapes import MODELS_HERE
from tests.executor.test_logits import assert_references, tolerance
from tests.programs import ran
from tracer.errors import UsageError

FORMATS = ("float32", "float16", "q8_0")
CORES = len(os.sched_getaffinity(0))
TOKENS = 7
LEAST = {name: getattr(compiled, name) for name in ("LEAST_VALUES", "LEAST_QUERY", "LEAST_ROW")}


@pytest.fixture(autouse=True)
def what_can_be_is_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_VALUES", 1)
    monkeypatch.setattr(compiled, "LEAST_QUERY", 1)
    monkeypatch.setattr(compiled, "LEAST_ROW", dict.fromkeys(LEAST_ROW, 1))


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def matrix(shape, format):
    return Quantised.of(quantised(values(*shape)), shape) if format == "q8_0" else encoded(values(*shape), format)


def product(weight, x, threads=1, **options):
    out = np.full((len(x), weight.shape[0]), np.nan, np.float32)
    CompiledKernels(threads, **options).bound("mul_mat", out, (weight, x))()
    return out


@pytest.mark.parametrize("format", FORMATS)
def test_products_are_float64s_within_the_rounding_of_float32(format):
    for (outputs, width), tokens in itertools.product([(1, 32), (5, 64), (130, 96), (2051, 160)], (1, 2, 3, 7)):
        weight, x = matrix((outputs, width), format), values(tokens, width, seed=1)
        expected = x.astype(np.float64) @ floats(weight).astype(np.float64).T
        bound = np.abs(x).astype(np.float64) @ np.abs(floats(weight)).astype(np.float64).T
        assert (np.abs(product(weight, x) - expected) <= bound * (width / 16 + 5) * 2.0**-24).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_has_the_same_bits_alone_beside_others_in_any_format_and_on_any_number_of_threads(format):
    weight, x = matrix((203, 192), format), values(9, 192, seed=1)
    together = product(weight, x)
    for tokens, threads in itertools.product((1, 2, 3, 5, 9), {1, CORES}):
        assert np.array_equal(product(weight, x[:tokens], threads), together[:tokens]), (tokens, threads)
    assert np.array_equal(product(weight, x[4:5]), together[4:5])
    for rows in (1, 3, 101):
        assert np.array_equal(product(weight[:rows], x), together[:, :rows])
    assert np.array_equal(product(floats(weight), x), together)


def test_subnormals_and_the_greatest_values_of_float16_count():
    weight = np.array([[2.0**-24, -65504, 6e-5, -(2.0**-20), *[0] * 28]], np.float16)
    x = np.ones((1, 32), np.float32)
    x[0, 1] = 0
    assert product(weight, x)[0, 0] == weight.astype(np.float64)[0, [0, 2, 3]].sum()


@pytest.mark.parametrize(
    ("format", "shared", "tokens"), [("float32", True, 6), ("float16", False, 1), ("q8_0", True, 1), ("q8_0", False, 6)]
)
def test_products_with_experts_are_those_with_their_matrices(format, shared, tokens):
    weights = matrix((5, 12, 64), format)
    ids = np.random.default_rng(2).integers(5, size=(tokens, 3)).astype(np.int32)
    x = values(tokens, 3, 64, seed=1)[:, : 1 if shared else 3].copy()
    out = np.empty((tokens, 3, 12), np.float32)
    CompiledKernels(CORES).bound("mul_mat_id", out, (weights, x, ids))()
    for token, slot in np.ndindex(ids.shape):
        row = x[token, 0 if shared else slot]
        assert np.array_equal(out[token, slot], product(weights[int(ids[token, slot])], row[None])[0])


def attended(q, k, v, mask, threads=1, streams=None):
    out = np.full((len(q), q[0].size), np.nan, np.float32)
    src = (q, k, v, mask) if streams is None else (q, k, v, mask, streams)
    CompiledKernels(threads).bound("flash_attn_ext", out, src, scale=0.3)()
    return out


def attention_inputs(tokens, groups, cells, dtype, heads=6, kv_heads=3, size=40):
    rng = np.random.default_rng(5)
    q = rng.standard_normal((tokens, heads, size)).astype(np.float32)
    k, v = (rng.standard_normal((groups, cells, kv_heads, size)).astype(dtype) for _ in range(2))
    mask = np.where(rng.random((tokens, cells)) < 0.4, -np.inf, rng.standard_normal((tokens, cells)))
    mask[:, 0] = 0
    return q, k, v, mask.astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("tokens", "groups", "cells"), [(1, 1, 1), (3, 3, 17), (8, 2, 64)])
def test_attention_is_numpys_and_float64s(dtype, tokens, groups, cells):
    q, k, v, mask = attention_inputs(tokens, groups, cells, dtype)
    streams = np.arange(groups, dtype=np.int32)[::-1].copy()
    for chosen in (None, streams):
        exact = np.empty((tokens, q[0].size))
        wide = [values.astype(np.float64) for values in (q, k, v, mask)]
        ours, numpys = attended(q, k, v, mask, streams=chosen), np.empty(exact.shape, np.float32)
        for out, sources in ((numpys, (q, k, v, mask)), (exact, wide)):
            KERNELS["flash_attn_ext"](out, *sources, chosen, scale=0.3)
        np.testing.assert_allclose(ours, exact, rtol=0, atol=3e-6)
        np.testing.assert_allclose(ours, numpys, rtol=0, atol=3e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_attention_of_a_token_has_the_same_bits_alone_on_any_threads_and_over_more_closed_cells(dtype):
    q, k, v, mask = attention_inputs(7, 1, 3000, dtype)
    together = attended(q, k, v, mask)
    assert np.array_equal(attended(q, k, v, mask, CORES), together)
    for token in range(7):
        assert np.array_equal(attended(q[token:][:1], k, v, mask[token:][:1]), together[token : token + 1])
    mask[:, 1700:] = -np.inf
    assert np.array_equal(attended(q, k, v, mask), attended(q, k, v, mask[:, :1700].copy()))


@pytest.mark.parametrize("wrong", [-1, 6])
def test_an_expert_a_stream_or_a_row_that_does_not_exist_is_refused(wrong):
    numbers, cache = np.array([0, wrong], np.int32), values(6, 50)
    out = np.empty((1, 2, 12), np.float32)
    of_experts = (matrix((6, 12, 64), "float32"), values(1, 1, 64), numbers[None])
    with pytest.raises(IndexError, match="has no expert of this number"):
        CompiledKernels(1).bound("mul_mat_id", out, of_experts)()
    with pytest.raises(IndexError, match="has no stream of this number"):
        attended(*attention_inputs(2, 2, 5, "float32"), streams=numbers)
    with pytest.raises(IndexError, match="no row of this number"):
        CompiledKernels(1).bound("set_rows", cache, (values(2, 50), numbers, cache))()


def test_several_threads_may_ask_at_once():
    weight, x = matrix((300, 64), "float32"), values(2, 64, seed=1)
    expected = product(weight, x)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: product(weight, x, CORES), range(4)):
            assert np.array_equal(result, expected)


def test_pinned_threads_have_a_core_each_and_the_caller_keeps_all():
    allowed = os.sched_getaffinity(0)
    product(matrix((64, 64), "float32"), values(1, 64), CORES, pinned=True)
    assert os.sched_getaffinity(0) == allowed
    end = threading.Event()
    others = [threading.Thread(target=end.wait) for _ in range(CORES - 1)]
    for other in others:
        other.start()
    assert pin({other.native_id for other in others}) == CORES - 1
    assert sorted(core for t in others for core in os.sched_getaffinity(t.native_id)) == sorted(allowed)[1:]
    end.set()
    for other in others:
        other.join()


def test_threads_are_the_cores_of_a_limited_group_but_for_one_of_many(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="4096 threads are too many: choose at most"):
        product(matrix((4, 32), "float32"), values(1, 32), 4096)
    monkeypatch.setattr(compiled, "_CPU_LIMIT", limit := tmp_path / "cpu.max")
    for cores, threads in ((1, 1), (2, 2), (4, 4), (5, 4), (16, 15)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert default_threads() == threads
    for text, threads in (("200000 100000", 2), ("50000 100000", 1), ("max 100000", 15), ("", 15)):
        limit.write_text(text)
        assert default_threads() == threads


def test_only_what_is_large_and_what_the_loops_take_is_compiled(monkeypatch):
    """By the size of a matrix, a query or a row, whatever the batch."""
    for name, least in LEAST.items():
        monkeypatch.setattr(compiled, name, least)
    large, wide = np.empty((1024, 512)), np.zeros((2, 1024), np.float32)
    for op, src in (
        ("flash_attn_ext", [np.empty((1, 8, 128))]), ("mul_mat", [large]), ("mul_mat_id", [large[None]]),
        ("rms_norm", [wide]), ("mul", [wide, wide[0]]),
    ):  # fmt: skip
        assert is_compiled(op, src), op
    for op, src in (
        ("flash_attn_ext", [np.empty((9, 8, 127))]), ("mul_mat", [large[1:]]), ("get_rows", [large]),
        ("mul_mat_id", [np.empty((2, 1023, 512))]), ("mul_mat", [np.empty((2048, 272))]),  # no whole blocks
        ("rms_norm", [np.empty((9, 1023), np.float32)]), ("mul", [wide, wide[:, :1]]),
        ("set_rows", [wide.astype(np.int32), np.empty(2, np.int32), wide]),
    ):  # fmt: skip
        assert not is_compiled(op, src), op


@pytest.mark.parametrize(
    ("model", "weights", "gpu_layers"),
    [("tiny", "q8_0", 0), ("moe-tiny", "f32", 2), ("moe-tiny", "q8_0", None), ("gdn-tiny", "f16", 0)],
)
def test_logits_are_the_references_and_do_not_depend_on_threads_or_company(model, weights, gpu_layers):
    base = Configuration(
        model=model, weights=weights, gpu_layers=gpu_layers, batch=2, tokens=3, repeats=1, seed=7, threads=1
    )
    chosen = [base, replace(base, threads=CORES, pinned=True), replace(base, batch=1)]
    one, other, alone = execute(chosen, keep_logits=True, models=MODELS_HERE)
    assert np.array_equal(other.logits, one.logits)
    assert np.array_equal(alone.logits, one.logits[:, :, :1])
    assert_references(one, tolerance(model, weights))


def test_run_json_says_how_many_threads_computed_on_the_host():
    run = Configuration(tokens=1, repeats=1, warmup=0)
    chosen = [run, replace(run, threads=1), replace(run, backend="sim")]
    said = [run_json(result)["configuration"]["threads"] for result in execute(chosen)]
    assert said == [default_threads(), 1, None]


@pytest.mark.parametrize(("pinned", "spins"), [(False, "100000"), (True, "None")])
def test_a_process_imports_numba_late_and_keeps_its_threads(pinned, spins):
    """A small model needs no Numba. A team of fewer threads would end the others, and the next product start them anew.
    TBB's are used where it is installed and none is pinned; they wait awake for no longer than the user says."""
    left = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "NUMBA_THREADING_LAYER")
    kept = {name: value for name, value in os.environ.items() if name not in left} | {"NUMBA_NUM_THREADS": "4"}
    kept |= {"OMP_WAIT_POLICY": "passive"} if pinned else {}
    done = ran("threads of the host", *["pinned"] * pinned, env=kept, check=True)
    layer = "tbb" if not pinned and any(found.metadata["Name"] == "tbb" for found in distributions()) else "omp"
    assert done.stdout == f"False\n0 True {layer} {spins}\n"


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
def test_an_op_on_rows_is_what_numpy_computes(op):
    """Also in place, and of a residual that is a row, and a weight that is none."""
    for mode in ("normal", "neox") if op == "rope" else ("",):
        chosen = options(op, mode)
        src = sources(op)
        expected = blank(op, src)
        KERNELS[op](expected, *src, **chosen)
        np.testing.assert_allclose(computed(op, src, **chosen), expected, rtol=2e-6, atol=1e-7)
    if op in ("add", "soft_max"):
        CompiledKernels(1).bound(op, src[0], src)()
        np.testing.assert_allclose(src[0], expected, rtol=2e-6, atol=1e-7)
    x, row, other = values(3, 40), values(40, seed=1), values(3, 40, seed=2)
    assert op != "add" or np.array_equal(computed("add", (x, row)), x + row)
    assert op != "mul" or np.array_equal(computed("mul", (x, other)), x * other)


@pytest.mark.parametrize("op", LEAST_ROW)
def test_a_row_has_the_same_bits_alone_in_company_and_on_any_number_of_threads(op, monkeypatch):
    src = sources(op)
    together = computed(op, src)
    monkeypatch.setattr(compiled, "_ROWS_WORTH_SHARING", 1)
    assert np.array_equal(computed(op, src, CORES), together)
    if op != "set_rows":
        first = [s[:1] if len(s) == TOKENS else s for s in src]
        assert np.array_equal(computed(op, first), together[:1])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_are_written_in_the_caches_format_and_the_last_of_equal_numbers_counts(dtype):
    cache, new = np.zeros((6, 50), dtype), values(3, 50)
    CompiledKernels(1).bound("set_rows", cache, (new, np.array([4, 1, 4], np.int32), cache))()
    assert np.array_equal(cache[4], new[2].astype(dtype))
    assert np.array_equal(cache[1], new[1].astype(dtype))
    assert not cache[[0, 2, 3, 5]].any()


def test_a_gate_of_any_size_gives_no_infinity():
    gate = np.array([[-1e30, -100, 0, 100, 1e30]], np.float32)
    out = computed("swiglu", (gate, np.ones_like(gate)))
    np.testing.assert_allclose(out, np.maximum(gate, 0), atol=1e-7)
