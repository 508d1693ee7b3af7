"""TensorRT-LLM: its PyTorch backend and its C++ runtime; and TensorRT, by which other programs run a model.

The PyTorch executor marks a step with `[Executor] _forward_step N: C ctx reqs, G gen reqs` (the oldest versions omit N,
newer ones may insert the prompts' tokens), the C++ batch manager with `TrtGptModelInflightBatching::forwardAsync`,
which does not give the phase. Both marks close before sampling.
Source: tensorrt_llm/_torch/pyexecutor/py_executor.py (`_forward_step`),
cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp.

TensorRT itself marks each pass through an engine with `ExecutionContext::execute`, or `enqueue` if the caller gives the
stream, and the layers inside. Source: the names in public reports of nsys.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import FORWARD, Engine, Mark, Work, batch

_REQUESTS: Final = r"_forward_step\b\s*\d*\s*: (\d{1,9}) ctx reqs, (?:\d+ ctx tokens, )?(\d{1,9}) gen reqs"


def _forward(match: re.Match[str]) -> Work:
    prompts, decodes = int(match[1]), int(match[2])
    work = batch(prompts, decodes, decodes)
    return Work(work.phase, work.sequences)  # each sequence may have drafts, which the text does not mention


TENSORRT_LLM: Final = Engine(
    "TensorRT-LLM",
    marks=(Mark(re.compile(_REQUESTS), _forward), Mark(re.compile(r"(?:^|TrtGptModel\w*::)forwardAsync$"))),
    whole_graphs_decode=True,
    generality=1,
    kernels=re.compile(r"\btensorrt_llm::"),
    processes=re.compile(r"^trtllm\b"),
    libraries=re.compile(r"\btensorrt_llm/|libtensorrt_llm|libnvinfer_plugin_tensorrt_llm"),
)

_CONTEXT: Final = re.compile(r"^(?:TensorRT:)?ExecutionContext::(?:execute|enqueue)(?:V[23])?\b")

TENSORRT: Final = Engine(
    "TensorRT",
    marks=(Mark(_CONTEXT, lambda _: Work(FORWARD)),),
    sure=0.9,
    generality=7,
)
"""Tried last: a program may run several engines in one step, and mark that itself."""
