"""The supported engines, one small file each. To add an engine, add its file and list it here.

Other distributions add theirs through the entry-point group `intertoken.engines`.
"""

from functools import cache
from typing import Final

from tracer.engines.engine import Engine
from tracer.engines.llama_cpp import LLAMA_CPP
from tracer.engines.ours import OURS, USUAL
from tracer.engines.sglang import SGLANG
from tracer.engines.tensorrt_llm import TENSORRT_LLM
from tracer.engines.torch import OPTIMIZER, TORCH
from tracer.engines.vllm import VLLM
from tracer.engines.xdit import XDIT
from tracer.extensions import ENGINES as ADDED
from tracer.extensions import extensions

ENGINES: Final[tuple[Engine, ...]] = (SGLANG, VLLM, TENSORRT_LLM, XDIT, LLAMA_CPP, *OURS, TORCH, OPTIMIZER, *USUAL)
"""In the order in which their marks are searched for: the most specific first."""


@cache
def engines() -> tuple[Engine, ...]:
    """All known engines, those that other distributions add first: users install these to have them found."""
    return (*(engine for _, engine in extensions(ADDED, Engine)), *ENGINES)
