"""Binds the ops of linear attention to the kernels in delta_net.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import Final

from executor.backends.cuda.library import BLOCK, Array, Calls, Library, Op
from executor.graph import Tensor
from tracer.errors import ExecutionError

_WARPS: Final = 8
_MOST_KEYS: Final = 256
_MOST_TAPS: Final = 8


class Arguments(ctypes.Structure):
    """`struct DeltaNet` in delta_net.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "g", "beta", "state", "out")),
        *((name, ctypes.c_int) for name in ("heads", "key_heads", "key_size", "value_size", "tokens")),
        ("scale", ctypes.c_float),
    )


def _ssm_conv(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    """Bind ssm_conv and the silu fused after it, if any."""
    x, weight, state = src
    sequences, kept, channels = state.shape
    if kept + 1 > _MOST_TAPS:
        raise ExecutionError(f"backend 'cuda' has ssm_conv for {_MOST_TAPS} taps, not for {kept + 1} ({node.name})")
    arguments = (
        c_void_p(out.ptr), c_void_p(x.ptr), c_void_p(weight.ptr), c_void_p(state.ptr),
        c_int(channels), c_int(kept + 1), c_int(x.shape[0] // sequences),
    )  # fmt: skip
    name = "ssm_conv_silu_f32" if node.op.endswith("silu") else "ssm_conv_f32"
    blocks = (-(-channels // BLOCK), sequences)
    return [library.call("delta_net.cu", name, blocks, BLOCK, arguments, kept=(out, *src))]


def _gated_delta_net(library: Library, node: Tensor, out: Array, src: Sequence[Array]) -> Calls:
    q, _k, _v, _g, _beta, state = src
    sequences, heads, key_size, value_size = state.shape
    if key_size % _WARPS or key_size > _MOST_KEYS:
        raise ExecutionError(
            f"backend 'cuda' has gated_delta_net for key sizes up to {_MOST_KEYS} in steps of {_WARPS}, "
            f"not for {key_size} ({node.name})"
        )
    tokens = q.shape[0] // sequences
    packed = Arguments(
        *(array.ptr for array in src), out.ptr, heads, q.shape[1], key_size, value_size, tokens, node.params["scale"]
    )
    blocks = (-(-value_size // 32), sequences * heads)
    return [library.call(
        "delta_net.cu", "gated_delta_net_f32", blocks, _WARPS * 32, (packed,), kept=(out, *src),
        macros={"ROWS": key_size // _WARPS},
    )]  # fmt: skip


OPS: Final[Mapping[str, Op]] = {"ssm_conv": _ssm_conv, "ssm_conv+silu": _ssm_conv, "gated_delta_net": _gated_delta_net}
"""Maps an op name to the function that binds its kernel."""
