"""Every kind of engine."""

from tests.engines import llama, vllm
from tests.engines.drawn import seeded
from tests.engines.scene import KINDS

__all__ = ["KINDS", "llama", "seeded", "vllm"]
