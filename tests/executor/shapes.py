"""Shapes that only tests have, odd sizes and what the product's tiny shapes leave out, and values of their weights."""

from dataclasses import replace
from functools import partial

from executor.graph.models import SHAPES, DeltaNet, Experts, Shape, build
from executor.graph.models.step import random_weight

ODD = Shape(
    layers=3, width=96, heads=6, kv_heads=3, head_size=16, ffn=160, vocabulary=333, context=47, weights="float32"
)
PRODUCT_SHAPES = ("tiny", "qwen3-tiny", "moe-tiny", "gdn-tiny")
TEST_SHAPES = {
    **{name: SHAPES[name] for name in PRODUCT_SHAPES},
    "odd": ODD,
    "odd-olmoe": replace(ODD, rope_mode="neox", qk_norm="row", experts=Experts(5, used=3, renormalise=False)),
    "odd-qwen3moe": replace(ODD, rope_mode="neox", qk_norm="head", experts=Experts(6, used=2, renormalise=True)),
    "odd-gdn": replace(
        ODD, rope_mode="neox", qk_norm="head", gated_attention=True, rope_dims=12,
        delta_net=DeltaNet(key_heads=3, heads=6, key_size=16, value_size=24, kernel=3, attention_every=2),
    ),
}  # fmt: skip

MODELS_HERE = {name: partial(build, shape) for name, shape in TEST_SHAPES.items()}


def random_weights(graph, seed):
    """The values of every weight, by name."""
    return {weight.name: random_weight(weight, seed) for weight in graph.weights}
