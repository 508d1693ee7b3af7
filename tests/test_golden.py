"""The answers of the commands, to the digit: see tests/golden."""

import pytest

from tests.golden import kept
from tests.golden.form import differences

pytestmark = pytest.mark.usefixtures("all_resamples")
FILES = kept.files()


@pytest.mark.parametrize("name", FILES)
def test_answers_are_the_golden_ones(name):
    changed = differences(kept.read(name), kept.of(FILES[name]()))
    assert not changed, "\n".join([f"{name} (if this is meant: python -m tests.golden --write {name})", *changed])
