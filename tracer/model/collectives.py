"""Recognition of communication kernels by name: the only place for these names.

The names are those of NCCL (`src/device/generate.py`, its symmetric kernels, and those before 2.19), RCCL, MSCCL and
MSCCL++, NVSHMEM, DeepEP, MoRI; custom all-reduces of vLLM, SGLang, AITER, TensorRT-LLM and FlashInfer; PyTorch's
symmetric memory. A kernel that fuses a reduction with a normalisation counts as communication.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_COLLECTIVE: Final = re.compile(
    r"nccl(Dev|Symk?Dev)?Kernel|ncclAll|rcclGenericKernel|msccl|nvshmem|mori::.*Ep(Dispatch|Combine)|userbuffers_"
    r"|cross_device_reduce|quick_?reduce|multimem_|moeA2A|deep_ep::(intranode|internode|internode_ll)::"
    r"|(?<![A-Za-z])all_?(reduce|gather|to_?all)|All_?([Rr]educe|[Gg]ather|[Tt]o_?[Aa]ll)"
    r"|(?<![A-Za-z])reduce_?scatter|Reduce_?[Ss]catter|(one|two)_?[Ss]hot_?(all_?)?[Rr]educe"
    r"|(^|::)(barrier|put_signal|wait_signal)_kernel$"
)
_FUSED: Final = re.compile(r"triton_[a-z]+_fused_")
"""Inductor names its kernels after the fused operators, even when one of them is a collective."""

_LONGEST: Final = 4096
_NO_ARGUMENTS: Final = re.compile(r"\(anonymous namespace\)::|\(anonymous\)::")


@lru_cache(maxsize=1 << 14)
def is_collective(name: str) -> bool:
    """Whether a kernel with this full or short name is communication.

    Example:
        >>> is_collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
        True
        >>> is_collective("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, all_reduce> >(float)")
        False
    """
    plain = _plain(name)
    return _COLLECTIVE.search(plain) is not None and _FUSED.match(plain) is None


def is_exchange(name: str) -> bool:
    """Whether a kernel with this name may be between two ranks, as the sends and receives of a pipeline are.

    Example:
        >>> is_exchange("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
        True
    """
    return "SendRecv" in name


def shown_name(name: str) -> str:
    """A kernel's name for readers: a C++ function without return type, template arguments and parameters.

    Example:
        >>> shown_name("void flash::combine<128, (int)4>(Params const&)"), shown_name("graph 5")
        ('flash::combine', 'graph 5')
    """
    return _plain(name) if name.startswith("void ") else name


def _plain(name: str) -> str:
    """The function's qualified name, without return type, template arguments and parameters.

    Template arguments name types and operators other than the kernel.
    """
    kept, depth = [], 0
    for letter in _NO_ARGUMENTS.sub("", name[:_LONGEST]):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth = max(depth - 1, 0)
        elif depth == 0:
            if letter == "(":
                break
            kept.append(letter)
    return "".join(kept).strip().rpartition(" ")[2]
