"""Model builders: from a shape, a batch and a strategy's wish to the graph of one decode step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from executor.models.llama import LLAMA_1_1B, LLAMA_3B, LLAMA_8B, TINY, LlamaConfig, build
from executor.models.step import DecodeStep
from executor.names import lookup

Builder = Callable[..., DecodeStep]

WEIGHTS: Final[Mapping[str, str]] = {"f32": "float32", "f16": "float16", "q8_0": "q8_0"}
"""ggml's name of a weight format -> dtype of the weight tensors."""


def _llama(config: LlamaConfig) -> Builder:
    def builder(*, weights: str | None = None, context: int | None = None, **options: Any) -> DecodeStep:
        dtype = lookup("weight format", weights, WEIGHTS) if weights else config.weights
        return build(replace(config, weights=dtype, context=context or config.context), **options)

    return builder


MODELS: Final[Mapping[str, Builder]] = {
    "tiny": _llama(TINY),
    "llama-1.1b": _llama(LLAMA_1_1B),
    "llama-3b": _llama(LLAMA_3B),
    "llama-8b": _llama(LLAMA_8B),
}
"""Name -> builder(weights, context, batch, on_device, history, keep_logits), see `llama.build`; weights is a name of
`WEIGHTS`, and weights and context have the model's own as default."""

__all__ = ["MODELS", "WEIGHTS", "DecodeStep"]
