"""Model builders: from a shape, a batch and a strategy's wish to the graph of one decode step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from executor.models.llama import TINY, build
from executor.models.step import DecodeStep

Builder = Callable[..., DecodeStep]

MODELS: Final[Mapping[str, Builder]] = {
    "tiny": lambda **options: build(TINY, **options),
}
"""Name -> builder(batch, on_device, history, keep_logits), see `llama.build`."""

__all__ = ["MODELS", "DecodeStep"]
