"""Compiled kernels: float64's result, the same bits in every batch, tile, format and number of threads."""

import itertools
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib.metadata import distributions

import numpy as np
import pytest

from executor.backends.cpu import compiled
from executor.backends.cpu.backend import CpuBackend
from executor.backends.cpu.compiled import LEAST_QUERY, LEAST_ROW, LEAST_VALUES, default_threads, is_compiled, pin
from executor.backends.cpu.kernels import KERNELS
from executor.backends.weight_formats import Quantised, encoded, floats, quantised
from executor.graph import Flag, Graph
from executor.graph.models import MODELS
from executor.graph.models.step import first_tokens, random_weight
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_json
from tests.executor import reference
from tests.executor.shapes import TEST_SHAPES
from tests.executor.test_logits import tolerance, values_of_weights
from tracer.errors import UsageError

FORMATS = ("float32", "float16", "q8_0")
CORES = len(os.sched_getaffinity(0))


@pytest.fixture(autouse=True)
def what_can_be_is_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_VALUES", 1)
    monkeypatch.setattr(compiled, "LEAST_QUERY", 1)
    monkeypatch.setattr(compiled, "LEAST_ROW", dict.fromkeys(LEAST_ROW, 1))


def matrix(shape, format, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Quantised.of(quantised(values), shape) if format == "q8_0" else encoded(values, format)


def product(weight, x, threads=1, **options):
    out = np.full((len(x), weight.shape[0]), np.nan, np.float32)
    compiled.CompiledKernels(threads, **options).bound("mul_mat", out, (weight, x))()
    return out


def inputs(tokens, width, seed=1):
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("outputs", "width"), [(1, 32), (5, 64), (130, 96), (2051, 160)])
@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_products_are_float64s_within_the_rounding_of_float32(format, outputs, width, tokens):
    weight, x = matrix((outputs, width), format), inputs(tokens, width)
    expected = x.astype(np.float64) @ floats(weight).astype(np.float64).T
    bound = np.abs(x).astype(np.float64) @ np.abs(floats(weight)).astype(np.float64).T
    assert (np.abs(product(weight, x) - expected) <= bound * (width / 16 + 5) * 2.0**-24).all()


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_has_the_same_bits_alone_beside_others_and_on_any_number_of_threads(format):
    weight, x = matrix((203, 192), format), inputs(9, 192)
    together = product(weight, x)
    for tokens, threads in itertools.product((1, 2, 3, 5, 9), {1, CORES}):
        assert np.array_equal(product(weight, x[:tokens], threads), together[:tokens]), (tokens, threads)
    assert np.array_equal(product(weight, x[4:5]), together[4:5])
    for rows in (1, 3, 101):
        assert np.array_equal(product(weight[:rows], x), together[:, :rows])


@pytest.mark.parametrize("format", FORMATS)
def test_equal_weights_give_equal_bits_in_every_format(format):
    weight, x = matrix((37, 64), format), inputs(3, 64)
    assert np.array_equal(product(weight, x), product(floats(weight), x))


def test_subnormals_and_the_greatest_values_of_float16_count():
    weight = np.array([[2.0**-24, -65504, 6e-5, -(2.0**-20), *[0] * 28]], np.float16)
    x = np.ones((1, 32), np.float32)
    x[0, 1] = 0
    assert product(weight, x)[0, 0] == weight.astype(np.float64)[0, [0, 2, 3]].sum()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokens", [1, 6])
def test_products_with_experts_are_those_with_their_matrices(format, shared, tokens):
    weights = matrix((5, 12, 64), format)
    ids = np.random.default_rng(2).integers(5, size=(tokens, 3)).astype(np.int32)
    x = inputs(tokens * 3, 64).reshape(tokens, 3, 64)[:, : 1 if shared else 3].copy()
    out = np.empty((tokens, 3, 12), np.float32)
    compiled.CompiledKernels(CORES).bound("mul_mat_id", out, (weights, x, ids))()
    for token, slot in np.ndindex(ids.shape):
        row = x[token, 0 if shared else slot]
        assert np.array_equal(out[token, slot], product(weights[int(ids[token, slot])], row[None])[0])


@pytest.mark.parametrize("wrong", [-1, 5])
def test_an_expert_that_does_not_exist_is_refused(wrong):
    ids = np.array([[0, wrong]], np.int32)
    out = np.empty((1, 2, 12), np.float32)
    run = compiled.CompiledKernels(1).bound(
        "mul_mat_id", out, (matrix((5, 12, 64), "float32"), inputs(1, 64)[None], ids)
    )
    with pytest.raises(IndexError, match="has no expert of this number"):
        run()


def attended(q, k, v, mask, threads=1, streams=None):
    out = np.full((len(q), q[0].size), np.nan, np.float32)
    src = (q, k, v, mask) if streams is None else (q, k, v, mask, streams)
    compiled.CompiledKernels(threads).bound("flash_attn_ext", out, src, scale=0.3)()
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


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_stream_that_does_not_exist_is_refused(wrong):
    with pytest.raises(IndexError, match="has no stream of this number"):
        attended(*attention_inputs(2, 2, 5, "float32"), streams=np.array([0, wrong], np.int32))


def test_several_threads_may_ask_at_once():
    weight, x = matrix((300, 64), "float32"), inputs(2, 64)
    expected, results = product(weight, x), [None] * 4

    def ask(number):
        results[number] = product(weight, x, CORES)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert np.array_equal(result, expected)


def test_pinned_threads_have_a_core_each_and_the_caller_keeps_all():
    allowed = os.sched_getaffinity(0)
    product(matrix((64, 64), "float32"), inputs(1, 64), CORES, pinned=True)
    assert os.sched_getaffinity(0) == allowed
    started = threading.Event()
    end = threading.Event()
    others = [threading.Thread(target=lambda: (started.set(), end.wait())) for _ in range(CORES - 1)]
    for other in others:
        other.start()
    assert pin({other.native_id for other in others}) == CORES - 1
    assert sorted(core for t in others for core in os.sched_getaffinity(t.native_id)) == sorted(allowed)[1:]
    end.set()
    for other in others:
        other.join()


def test_too_many_threads_are_refused():
    with pytest.raises(UsageError, match="4096 threads are too many: choose at most"):
        product(matrix((4, 32), "float32"), inputs(1, 32), 4096)


@pytest.mark.parametrize(("text", "threads"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 16), ("", 16)])
def test_threads_of_a_limited_group(text, threads, tmp_path, monkeypatch):
    (limit := tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(compiled, "_CPU_LIMIT", limit)
    monkeypatch.setattr(compiled, "FEW_CORES", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert default_threads() == threads


def test_one_of_many_cores_is_left_to_others(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_CPU_LIMIT", tmp_path / "none")
    for cores, threads in ((1, 1), (2, 2), (4, 4), (5, 4), (16, 15)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert default_threads() == threads


def test_matrices_are_large_by_their_own_size(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_VALUES", LEAST_VALUES)
    monkeypatch.setattr(compiled, "LEAST_QUERY", LEAST_QUERY)
    assert is_compiled("flash_attn_ext", (np.empty((1, 8, 128)),))
    assert not is_compiled("flash_attn_ext", (np.empty((9, 8, 127)),))
    large, small = np.empty((1024, 512)), np.empty((1023, 512))
    assert is_compiled("mul_mat", (large,))
    assert not is_compiled("mul_mat", (small,))
    assert not is_compiled("get_rows", (large,))
    assert is_compiled("mul_mat_id", (large[None],))
    assert not is_compiled("mul_mat_id", (np.empty((2, 1023, 512)),))
    assert not is_compiled("mul_mat", (np.empty((2048, 272)),))  # rows that are not whole blocks


@pytest.mark.parametrize("format", FORMATS)
def test_random_weights_are_those_of_the_format(format):
    graph, backend = Graph(), CpuBackend()
    weight = graph.leaf("w", (700, 512), format, Flag.WEIGHT)
    array = backend.array(backend.alloc(weight.nbytes), 0, weight)
    backend.load_random(array, weight, 5)
    values = random_weight(weight, 5)
    if format == "q8_0":
        assert np.array_equal(floats(array), Quantised.of(quantised(values), weight.shape).floats())
        assert array.nbytes == weight.nbytes
    else:
        assert np.array_equal(array, values.astype(format))


@pytest.mark.parametrize(
    ("model", "weights", "gpu_layers"),
    [
        ("tiny", "f16", None),
        ("tiny", "q8_0", 0),
        ("moe-tiny", "f32", 2),
        ("moe-tiny", "q8_0", None),
        ("gdn-tiny", "f16", 0),
    ],
)
def test_logits_are_the_references_and_do_not_depend_on_threads_or_company(model, weights, gpu_layers):
    base = Configuration(
        model=model, weights=weights, gpu_layers=gpu_layers, batch=2, tokens=3, repeats=1, seed=7, threads=1
    )
    one, other, alone = execute(
        [base, replace(base, threads=CORES, pinned=True), replace(base, batch=1)], keep_logits=True
    )
    assert np.array_equal(other.logits, one.logits)
    assert np.array_equal(alone.logits, one.logits[:, :, :1])
    step = MODELS[model](batch=2, weights=weights)
    values, first = values_of_weights(step.graph, 7), first_tokens(step, 7)
    for sequence in range(2):
        fed = [first[sequence], *one.tokens[0, :-1, sequence]]
        expected = reference.decode(values, fed, TEST_SHAPES[model])
        np.testing.assert_allclose(one.logits[0, :, sequence], expected, rtol=0, atol=tolerance(model, weights))


def test_run_json_says_how_many_threads_computed_on_the_host():
    run = Configuration(tokens=1, repeats=1, warmup=0)
    chosen = [run, replace(run, threads=1), replace(run, backend="sim")]
    said = [run_json(result)["configuration"]["threads"] for result in execute(chosen)]
    assert said == [default_threads(), 1, None]


def test_a_small_model_imports_no_numba():
    code = (
        "import sys; from executor.run.configuration import Configuration; from executor.run import execute;"
        "execute([Configuration(tokens=2, repeats=1, weights='q8_0')]); sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def computed(cache, code, *arguments, without=(), **variables):
    """A Python process that computes a product with what Numba has in this folder; what it said."""
    kept = {name: value for name, value in os.environ.items() if name not in without}
    begin = (
        "import sys, os, numba, numpy as np; from executor.backends.cpu.compiled import CompiledKernels;"
        "a, out = np.zeros((4, 32), np.float32), np.zeros((4, 4), np.float32);"
        "CompiledKernels(1, 'pinned' in sys.argv).bound('mul_mat', out, (a, a))();"
    )
    return subprocess.run(
        [sys.executable, "-c", begin + code, *arguments], env={**kept, "NUMBA_CACHE_DIR": str(cache), **variables},
        check=True, capture_output=True, text=True,
    )  # fmt: skip


SPINS = {"code": "print(os.environ.get('GOMP_SPINCOUNT'))", "without": ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder in which Numba has compiled, and what the process said that did."""
    cache = tmp_path_factory.mktemp("numba")
    return cache, computed(cache, **SPINS)


def test_it_says_once_that_it_compiled_and_its_threads_do_not_wait_awake_for_long(first):
    cache, compiling = first
    second = computed(cache, **SPINS, OMP_WAIT_POLICY="passive")
    assert compiling.stderr.startswith("compiled float32 products of the host in ")
    assert second.stderr == ""
    assert (compiling.stdout, second.stdout) == ("100000\n", "None\n")  # what the user says stands


def test_tbbs_threads_are_used_where_it_is_installed(first):
    code, without = "print(numba.threading_layer())", ("NUMBA_THREADING_LAYER",)
    layers = [computed(first[0], code, *how, without=without).stdout.strip() for how in ((), ("pinned",))]
    installed = any(found.metadata["Name"] == "tbb" for found in distributions())
    assert layers == ["tbb" if installed else "omp", "omp"]
