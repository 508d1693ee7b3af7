"""Every kind of engine."""

from tests.engines import damaged, llama, others, sglang, vllm
from tests.engines.drawn import seeded
from tests.engines.scene import KINDS

__all__ = ["KINDS", "damaged", "llama", "others", "seeded", "sglang", "vllm"]
