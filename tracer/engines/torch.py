"""PyTorch by itself: torch.profiler, transformers, training.

`ProfilerStep#N` is whatever lies between two calls of `profiler.step()`: an iteration of training, a request, a pass.
What it is follows from what it computes. Source: torch/profiler/profiler.py (`step`), torch/optim/optimizer.py
(`Optimizer.step#…`), torch/csrc/autograd/engine.cpp, torch/nn/parallel/distributed.py, torch/distributed/fsdp.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import CLOSES, TRAINING, Engine, Mark, Work

TORCH: Final = Engine("PyTorch", marks=(Mark(re.compile(r"^ProfilerStep#\d+$")),), sure=0.95)

OPTIMIZER: Final = Engine(
    "PyTorch's optimizers",
    marks=(Mark(re.compile(r"^Optimizer\.step#"), lambda _: Work(TRAINING), lies=CLOSES),),
    sure=0.85,
)
"""Without `profiler.step()`: each step of an optimizer ends a step of training, if there is but one optimizer."""

OPERATOR: Final = r", (?:op_id|seq) = \d+|^[a-zA-Z_]\w*::\w|^## Call |^Torch-Compiled Region"
"""The expression for texts of operators, as `emit_nvtx` and Kineto write them, and of compiled regions."""

TRAINING_TEXT: Final = re.compile(
    r"^Optimizer\.(?:step|zero_grad)#|^autograd::engine::evaluate_function|Backward\d*(?:,|$)"
    r"|^DistributedDataParallel\.|^FullyShardedDataParallel\.|^FSDP::"
)
"""Texts that only training has: optimizers, gradients, and what spreads them over devices."""

TRAINING_KERNELS: Final = re.compile(r"(?i)backward|_bwd_|\bbwd|wgrad|dgrad|multi_tensor_apply|fused_?adam|fused_?sgd")
"""Kernels that only training launches."""
