"""Model builders: they turn a shape, a batch and the needs of a strategy into the graph of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from executor.graph.models.decoder import build
from executor.graph.models.kv_cache import KvCache
from executor.graph.models.shape import SHAPES, Shape
from executor.graph.models.step import DecodeStep
from executor.names import lookup

Builder = Callable[..., DecodeStep]

WEIGHTS: Final[Mapping[str, str]] = {"f32": "float32", "f16": "float16", "q8_0": "q8_0"}
"""Maps ggml's name of a weight format to the dtype of the weight tensors."""


def builder_of(shape: Shape) -> Builder:
    """Return the builder of a shape, see `MODELS`."""

    def builder(
        *, weights: str | None = None, context: int | None = None, cache: Callable[[int], KvCache] | None = None,
        **options: Any,
    ) -> DecodeStep:  # fmt: skip
        dtype = lookup("weight format", weights, WEIGHTS) if weights else shape.weights
        chosen = replace(shape, weights=dtype, context=context or shape.context)
        return build(chosen, cache=cache(chosen.context) if cache else None, **options)

    return builder


MODELS: Final[Mapping[str, Builder]] = {name: builder_of(shape) for name, shape in SHAPES.items()}
"""Maps a name to builder(weights, context, cache, batch, prompt, sequences, attended, on_device, history, keep_logits),
see `decoder.build`. weights is a name of `WEIGHTS`, and cache creates the KV cache for a context. weights and context
default to the model's own."""

__all__ = ["MODELS", "WEIGHTS", "DecodeStep", "builder_of"]
