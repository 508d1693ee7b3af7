"""Every op's CUDA kernel against the NumPy one on random values; states that a kernel updates included."""

import numpy as np
import pytest

from executor.backends import open_backend
from executor.backends.cpu.kernels import KERNELS
from executor.backends.cuda import kernels
from executor.backends.cuda.kernels import OPS, VARIANTS, Spread
from executor.backends.cuda.library import Gemm
from executor.graph import Flag, Graph, ops
from executor.graph.fusion import fuse
from executor.graph.models import MODELS

ROWS = [(1, 64), (3, 96), (8, 2048), (5, 17)]
HEADS = [(1, 4, 32), (3, 8, 128), (6, 2, 256)]


def test_there_is_a_kernel_for_every_node_of_every_model():
    """Needs no GPU: the table of kernels by op."""
    for model, build in MODELS.items():
        for options in ({}, {"batch": 32}, {"batch": 2, "prompt": 3}, {"batch": 4, "on_device": True, "history": 2}):
            step = build(**options)
            for graph in (step.graph, fuse(step).graph):
                assert {node.op for node in graph.nodes if node.has_kernel} <= set(OPS), (model, options)


def values(shape, dtype, rng, low=0, high=8):
    if dtype.startswith("int"):
        return rng.integers(low, high, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def both(op, leaves, given=None, tolerance=2e-5, **params):
    """Run an op of leaves (name -> shape, or shape, dtype and flags), whose values are random if they are not given, on
    both sides, and compare its result and the states it updates."""
    graph = Graph()
    sources = [graph.leaf(name, *(told if isinstance(told[0], tuple) else [told])) for name, told in leaves.items()]
    node = getattr(ops, op)(graph, *sources, name="node", **params)
    rng = np.random.default_rng(3)
    host = {leaf: values(leaf.shape, leaf.dtype, rng) for leaf in graph.leaves}
    host |= {leaf: array for leaf in graph.leaves for name, array in (given or {}).items() if leaf.name == name}
    expected = {leaf: array.copy() for leaf, array in host.items()}
    out = expected[node.root] if node.view_src is not None else np.empty(node.shape, node.dtype)
    KERNELS[node.op](out, *(expected[s] for s in node.src), **node.params)

    backend = open_backend("cuda")
    try:
        arrays = {leaf: backend.array(backend.alloc(leaf.nbytes), 0, leaf) for leaf in graph.leaves}
        for leaf, array in host.items():
            backend.load(arrays[leaf], array)
        result = arrays[node.root] if node.view_src is not None else backend.array(backend.alloc(node.nbytes), 0, node)
        backend.launch(backend.kernel(node, result, [arrays[s] for s in node.src]), 0)
        wanted = [(result, out), *((arrays[s.root], expected[s.root]) for s in node.updates)]
        for device, reference in wanted:
            got = backend.host_array(reference.shape, str(reference.dtype))
            backend.copy_to_host(got, device, 0)
            backend.synchronize(0)
            np.testing.assert_allclose(got, reference, rtol=tolerance, atol=tolerance)
    finally:
        backend.close()


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["silu", "sigmoid", "softplus", "soft_max", "sum_rows"])
@pytest.mark.parametrize("shape", ROWS)
def test_rows(op, shape):
    both(op, {"x": shape}, tolerance=1e-4 if op == "sum_rows" else 2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["mul", "div"])
@pytest.mark.parametrize("of_y", ["row", "column", "all"])
@pytest.mark.parametrize("shape", ROWS)
def test_broadcasts(op, of_y, shape):
    y = {"row": shape[-1:], "column": (shape[0], 1), "all": shape}[of_y]
    both(op, {"x": shape, "y": y}, {"y": np.random.default_rng(0).uniform(0.5, 2, y).astype(np.float32)})


@pytest.mark.gpu
def test_a_counter_grows_by_one():
    both("add_inplace", {"x": ((3,), "int32"), "one": ((1,), "int32")})


@pytest.mark.gpu
@pytest.mark.parametrize("shape", HEADS)
def test_norms_of_heads(shape):
    both("l2_norm", {"x": shape}, eps=1e-6)
    both("rms_norm", {"x": shape}, eps=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("mode", "dims"), [("normal", None), ("neox", None), ("neox", 8), ("normal", 16)])
@pytest.mark.parametrize("shape", HEADS)
def test_rope(mode, dims, shape):
    positions = np.arange(shape[0], dtype=np.int32) * 700
    both("rope", {"x": shape, "p": (shape[:1], "int32")}, {"p": positions}, 1e-4, base=1e4, mode=mode, dims=dims)


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "tables", "width"), [(3, 8, 1), (2, 5, 70)])
def test_get_rows_of_a_table_each(tokens, tables, width):
    rows = np.random.default_rng(0).integers(0, tables, (tokens, 4)).astype(np.int32)
    both("get_rows", {"t": (tokens, tables, width), "r": ((tokens, 4), "int32")}, {"r": rows})


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "k"), [((1, 64), 8), ((4, 8), 2), ((3, 1000), 5), ((2, 3), 3)])
def test_top_k(shape, k):
    both("top_k", {"x": shape}, k=k)
    both("top_k", {"x": shape}, {"x": np.zeros(shape, np.float32)}, k=k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("n", "chosen", "outputs", "inputs"), [(1, 8, 1024, 2048), (4, 2, 40, 64), (8, 8, 48, 1024)])
def test_mul_mat_id(dtype, shared, n, chosen, outputs, inputs):
    ids = np.stack([np.random.default_rng(i).permutation(9)[:chosen] for i in range(n)]).astype(np.int32)
    weights, x = ((9, outputs, inputs), dtype, Flag.WEIGHT), (n, 1 if shared else chosen, inputs)
    both("mul_mat_id", {"w": weights, "x": x, "ids": ((n, chosen), "int32")}, {"ids": ids}, 2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize(("outputs", "inputs"), [(40, 64), (1024, 2048), (17, 96), (128, 14336), (16, 144), (24, 40)])
def test_mul_mat_of_tokens(n, outputs, inputs):
    w = (np.random.default_rng(0).standard_normal((outputs, inputs)) / inputs**0.5).astype(np.float16)
    both("mul_mat", {"w": (w.shape, "float16", Flag.WEIGHT), "x": (n, inputs)}, {"w": w}, 3e-3 if n > 8 else 5e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "chosen", "width"), [(1, 8, 2048), (5, 2, 70)])
def test_moe_expert_reduce(n, chosen, width):
    both("moe_expert_reduce", {"x": (n, chosen, width), "w": (n, chosen)})


@pytest.mark.gpu
@pytest.mark.parametrize(("sequences", "tokens"), [(1, 1), (3, 1), (2, 5), (1, 9)])
class TestSequences:
    def test_ssm_conv(self, sequences, tokens):
        both("ssm_conv", {"x": (sequences * tokens, 300), "w": (300, 4), "s": (sequences, 3, 300)})

    @pytest.mark.parametrize(
        ("key_heads", "heads", "key", "value"), [(2, 4, 32, 32), (16, 32, 128, 128), (1, 3, 64, 40)]
    )
    def test_gated_delta_net(self, sequences, tokens, key_heads, heads, key, value):
        n, rng = sequences * tokens, np.random.default_rng(1)
        given = {name: values((n, key_heads, key), "float32", rng) / key**0.5 for name in "qk"}
        given["g"] = -rng.uniform(0, 1, (n, heads)).astype(np.float32)
        given["b"] = rng.uniform(0, 1, (n, heads)).astype(np.float32)
        leaves = {"q": given["q"].shape, "k": given["k"].shape, "v": (n, heads, value), "g": (n, heads)}
        leaves |= {"b": (n, heads), "s": (sequences, heads, key, value)}
        both("gated_delta_net", leaves, given, 1e-4, scale=key**-0.5)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_attention(self, sequences, tokens, dtype):
        n, cells = sequences * tokens, 40
        mask = np.where(np.arange(cells) <= 7 + np.arange(n)[:, None] % 5, 0, -np.inf).astype(np.float32)
        cache = ((sequences, cells, 2, 64), dtype)
        leaves = {"q": (n, 8, 64), "k": cache, "v": cache, "m": (n, cells)}
        both("flash_attn_ext", leaves, {"m": mask}, 1e-4, scale=0.125)


@pytest.mark.gpu
class TestAttentionOverManyCells:
    """Caches that several blocks share, and masks that hide most of the cells."""

    @staticmethod
    def check(n, heads, head, streams, cells, dtype, mask, groups=None, kv_heads=None):
        """`cells` are the rows of a stream; as many as the mask has columns are seen."""
        cache = ((streams, cells, kv_heads or max(heads // 4, 1), head), dtype)
        leaves = {"q": (n, heads, head), "k": cache, "v": cache, "m": mask.shape}
        leaves |= {"s": ((len(groups),), "int32")} if groups else {}
        given = {"m": np.where(mask, 0, -np.inf).astype(np.float32), "s": np.array(groups or [], np.int32)}
        both("flash_attn_ext", leaves, given, 1e-4, scale=head**-0.5)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize(("heads", "head"), [(8, 64), (4, 128), (2, 256), (8, 16)])
    @pytest.mark.parametrize(("n", "cells"), [(1, 5000), (8, 2304), (32, 3000)])
    def test_unified_every_token_sees_a_part_and_the_last_cells(self, n, cells, heads, head, dtype):
        starts = np.arange(n)[:, None] * (cells // n)
        columns = np.arange(cells)
        mask = ((columns >= starts) & (columns < starts + cells // n)) | (columns == cells - 1 - np.arange(n)[:, None])
        self.check(n, heads, head, 1, cells, dtype, mask)

    @pytest.mark.parametrize("groups", [[2], [3, 0]])
    def test_a_prompt_of_some_streams(self, groups):
        tokens = 40
        seen = 1000 + np.tile(np.arange(tokens), len(groups))
        self.check(tokens * len(groups), 8, 64, 5, 1280, "float16", np.arange(1280) < seen[:, None], groups)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("cells", [1, 300, 1000])
    def test_only_the_first_cells_of_each_stream_are_seen(self, cells, dtype):
        seen = np.arange(cells) <= np.arange(3)[:, None] * (cells // 2)
        self.check(3, 8, 64, 3, 1100, dtype, seen)
        self.check(3, 8, 64, 4, 1100, dtype, seen, groups=[3, 1, 2])
        self.check(6, 8, 64, 2, 1100, dtype, np.repeat(seen, 2, axis=0), groups=[1, 0])

    @pytest.mark.parametrize("listed", [False, True])
    @pytest.mark.parametrize("splits", [1, 3])
    @pytest.mark.parametrize("together", VARIANTS)
    @pytest.mark.parametrize(
        ("group", "head", "dtype"),
        [(8, 64, "float16"), (8, 64, "float32"), (3, 128, "float16"), (5, 256, "float32"), (12, 8, "float16")],
    )
    def test_every_kernel(self, monkeypatch, group, head, dtype, together, splits, listed):
        """Groups of heads that a block's heads divide or not; runs of cells, single ones, none in most words, all."""
        monkeypatch.setattr(kernels, "spread", lambda *_: Spread(together, splits, listed))
        columns, token = np.arange(1700), np.arange(4)[:, None]
        own = (columns % 512 // 16 == token) | (columns % 32 == 7 * token) & (columns > 1000)
        for mask in (own, columns <= 500 * token, columns == 1699 - token):
            self.check(4, 2 * group, head, 2, 1731, dtype, mask, kv_heads=2)

    @pytest.mark.parametrize("together", VARIANTS)
    def test_more_cells_than_a_block_lists_at_a_time(self, monkeypatch, together):
        monkeypatch.setattr(kernels, "spread", lambda *_: Spread(together, 1, listed=True))
        columns = np.arange(40000)
        self.check(2, 8, 64, 1, 40000, "float16", np.stack([columns % 3 > 0, columns > 39000]))


@pytest.mark.gpu
def test_products_of_several_tokens_do_not_read_the_weights_once_per_token():
    backend = open_backend("cuda")
    try:
        for dtype, n, blocks_per_token in [
            ("float16", 1, True), ("float16", 2, False), ("float16", 8, False), ("q8_0", 2, True), ("q8_0", 9, True),
        ]:  # fmt: skip
            (call,) = product(backend, dtype, n).calls
            assert call.grid[1] == (n if blocks_per_token else 1), (dtype, n)
        for dtype, n in [("float16", 9), ("float32", 2), ("float32", 9)]:
            assert isinstance(product(backend, dtype, n).calls[-1], Gemm), (dtype, n)
    finally:
        backend.close()


def product(backend, dtype, n):
    graph = Graph()
    w, x = graph.leaf("w", (64, 128), dtype, Flag.WEIGHT), graph.leaf("x", (n, 128))
    node = ops.mul_mat(graph, w, x, name="y")
    arrays = [backend.array(backend.alloc(t.nbytes), 0, t) for t in (node, w, x)]
    return backend.kernel(node, arrays[0], arrays[1:])
