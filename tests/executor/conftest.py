"""The light recorder over a driver without a GPU, as in its own tests."""

import pytest

from tests.tracer.conftest import built, over_stand_ins

__all__ = ["built", "recorder"]


@pytest.fixture(scope="module")
def recorder(built, tmp_path_factory):
    """For all tests of a module; the folder in which the recorder works."""
    folder = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as patch:
        over_stand_ins(patch, built.folder, built.folder / "light.so", folder)
        yield folder
