"""The shapes of models: those of published models (from config.json), and small ones for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of every feed-forward block. `Shape.ffn` is the size of one expert.

    Attributes:
        count: experts per layer.
        used: experts per token.
        renormalise: whether the weights of the used experts are scaled to sum to 1.
        shared: size of an expert used by every token, with a sigmoid gate; 0 for none.
    """

    count: int
    used: int
    renormalise: bool
    shared: int = 0


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net in place of attention, except in every `attention_every`-th layer.

    Attributes:
        key_heads: heads of q and k; each serves heads / key_heads heads of v.
        heads: heads of v, and of the recurrent state.
        key_size: size of a head of q and k.
        value_size: size of a head of v.
        kernel: taps of the causal convolution.
    """

    key_heads: int
    heads: int
    key_size: int
    value_size: int
    kernel: int = 4
    attention_every: int = 4


@dataclass(frozen=True)
class Shape:
    """The shape of a decoder. Embedding and output matrix are separate, even if the published model shares one.

    Attributes:
        ffn: inner size of the feed-forward block, or of one expert.
        context: KV cache cells per sequence.
        weights: dtype of the matrices; norms, router and convolutions are always float32. The KV cache is float32
            with float32 weights, otherwise float16; recurrent state is float32.
        rope_mode: which values form a pair, see `ops.rope`.
        rope_dims: number of values of a head that rotate; None for all.
        qk_norm: rms_norm of q and k before rope: "head" for each head separately, "row" for all heads of a token.
        gated_attention: scale the result of attention by the sigmoid of another projection.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    context: int = 512
    weights: str = "float16"
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rope_mode: str = "normal"
    rope_dims: int | None = None
    qk_norm: str | None = None
    gated_attention: bool = False
    experts: Experts | None = None
    delta_net: DeltaNet | None = None

    def has_attention(self, layer: int) -> bool:
        """Whether a layer has attention instead of a delta net."""
        return self.delta_net is None or (layer + 1) % self.delta_net.attention_every == 0


SHAPES: Final[Mapping[str, Shape]] = {
    "tiny": Shape(
        layers=4, width=256, heads=8, kv_heads=2, head_size=32, ffn=512, vocabulary=1024, context=256,
        weights="float32",
    ),
    "qwen3-tiny": Shape(
        layers=3, width=128, heads=6, kv_heads=2, head_size=32, ffn=256, vocabulary=512, context=64,
        weights="float32", norm_eps=1e-6, rope_base=1e6, rope_mode="neox", qk_norm="head",
    ),
    "moe-tiny": Shape(
        layers=3, width=128, heads=4, kv_heads=2, head_size=32, ffn=64, vocabulary=512, context=64,
        weights="float32", norm_eps=1e-6, rope_base=1e6, rope_mode="neox", qk_norm="head",
        experts=Experts(count=8, used=2, renormalise=True, shared=96),
    ),
    "gdn-tiny": Shape(
        layers=4, width=128, heads=4, kv_heads=2, head_size=32, ffn=192, vocabulary=512, context=64,
        weights="float32", norm_eps=1e-6, rope_base=1e7, rope_mode="neox", rope_dims=8, qk_norm="head",
        gated_attention=True, delta_net=DeltaNet(key_heads=2, heads=4, key_size=32, value_size=32),
    ),
    # TinyLlama's width and vocabulary with Llama-3.2-1B's layers
    "llama-1.1b": Shape(layers=16, width=2048, heads=32, kv_heads=8, head_size=64, ffn=8192, vocabulary=32000),
    # meta-llama/Llama-3.2-3B
    "llama-3b": Shape(
        layers=28, width=3072, heads=24, kv_heads=8, head_size=128, ffn=8192, vocabulary=128256, rope_base=500000.0
    ),
    # meta-llama/Llama-3.1-8B
    "llama-8b": Shape(
        layers=32, width=4096, heads=32, kv_heads=8, head_size=128, ffn=14336, vocabulary=128256, rope_base=500000.0
    ),
    # Qwen/Qwen3-1.7B
    "qwen3-1.7b": Shape(
        layers=28, width=2048, heads=16, kv_heads=8, head_size=128, ffn=6144, vocabulary=151936,
        norm_eps=1e-6, rope_base=1e6, rope_mode="neox", qk_norm="head",
    ),
    # Qwen/Qwen3-4B
    "qwen3-4b": Shape(
        layers=36, width=2560, heads=32, kv_heads=8, head_size=128, ffn=9728, vocabulary=151936,
        norm_eps=1e-6, rope_base=1e6, rope_mode="neox", qk_norm="head",
    ),
    # allenai/OLMoE-1B-7B-0924
    "moe-7b": Shape(
        layers=16, width=2048, heads=16, kv_heads=16, head_size=128, ffn=1024, vocabulary=50304,
        rope_mode="neox", qk_norm="row", experts=Experts(count=64, used=8, renormalise=False),
    ),
    # Qwen/Qwen3.5-2B, the language model
    "gdn-2b": Shape(
        layers=24, width=2048, heads=8, kv_heads=2, head_size=256, ffn=6144, vocabulary=248320,
        norm_eps=1e-6, rope_base=1e7, rope_mode="neox", rope_dims=64, qk_norm="head", gated_attention=True,
        delta_net=DeltaNet(key_heads=16, heads=16, key_size=128, value_size=128),
    ),
    # Qwen/Qwen3.5-4B, the language model
    "gdn-4b": Shape(
        layers=32, width=2560, heads=16, kv_heads=4, head_size=256, ffn=9216, vocabulary=248320,
        norm_eps=1e-6, rope_base=1e7, rope_mode="neox", rope_dims=64, qk_norm="head", gated_attention=True,
        delta_net=DeltaNet(key_heads=16, heads=32, key_size=128, value_size=128),
    ),
}  # fmt: skip
"""Maps the name of a model to its shape."""
