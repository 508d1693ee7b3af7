"""The light recorder over a driver without a GPU, as in its own tests."""

import tempfile

import pytest

from tests.tracer.conftest import built

__all__ = ["built", "recorder"]


@pytest.fixture(scope="module")
def recorder(built, tmp_path_factory):
    """`tests.tracer.conftest.recorder` for all tests of a module; the folder in which the recorder works."""
    folder = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(built.folder))
        patch.setenv("INTERTOKEN_LIGHT_BUDGET", "0")  # nothing is sampled at random
        patch.setattr("tracer.recorders.light.library", lambda: built.folder / "light.so")
        patch.setattr("tracer.recorders.light_ring._MEMORY", folder)
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
