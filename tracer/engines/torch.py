"""PyTorch without an engine: torch.profiler, transformers, training.

`ProfilerStep#N` spans two consecutive calls of `profiler.step()`: a training iteration, a request or a forward pass.
Its phase follows from what it computes. Source: torch/profiler/profiler.py (`step`), torch/optim/optimizer.py
(`Optimizer.step#…`), torch/csrc/autograd/engine.cpp, torch/nn/parallel/distributed.py, torch/distributed/fsdp.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import CLOSES, GRAPH, TRAINING, Engine, Mark, Setting, Work

TORCH: Final = Engine(
    "PyTorch",
    marks=(Mark(re.compile(r"^ProfilerStep#\d+$")),),
    sure=0.95,
    generality=4,
    kernels=re.compile(r"\bat::native::"),
    settings=(
        Setting(
            GRAPH,
            '`torch.compile(mode="reduce-overhead")`; in transformers with `generate(cache_implementation="static")`',
            "torch 2.11, transformers 5.17",
        ),
    ),
)

OPTIMIZER: Final = Engine(
    "PyTorch's optimizers",
    marks=(Mark(re.compile(r"^Optimizer\.step#"), lambda _: Work(TRAINING), position=CLOSES),),
    sure=0.85,
    generality=5,
)
"""Without `profiler.step()`, each optimizer step ends a training step if there is only one optimizer."""

OPERATOR: Final = (
    r", (?:op_id|seq) = \d+|^[a-zA-Z_]\w*::\w|^## Call |^Torch-Compiled Region"
    r"|^\{'(?:mod|op|strRepr|traceMarker|funcStack)':"
)
"""The expression for the texts of operators, as `emit_nvtx`, Kineto and pyprof write them, and of compiled regions.
pyprof's are dictionaries of a module, an operator and its arguments, or of the place in the program."""

TRAINING_TEXT: Final = re.compile(
    r"^Optimizer\.(?:step|zero_grad)#|^autograd::engine::evaluate_function|Backward\d*(?:,|$)"
    r"|^DistributedDataParallel\.|^FullyShardedDataParallel\.|^FSDP::"
)
"""Texts that occur only in training: optimizers, gradients, and their distribution over devices."""

TRAINING_KERNELS: Final = re.compile(r"(?i)backward|_bwd_|\bbwd|wgrad|dgrad|fused_?adam|fused_?sgd")
"""Kernels that only training launches."""

OPTIMIZER_KERNELS: Final = re.compile("multi_tensor_apply")
"""Kernels with which an optimizer updates all parameters at once (`torch._foreach_…`), where something else shows a
backward pass: engines that serve copy their inputs with the same kernel (`torch._foreach_copy_`)."""
