"""The light recorder over a driver without a GPU, as in its own tests."""

from tests.tracer.conftest import built, recorder

__all__ = ["built", "recorder"]
