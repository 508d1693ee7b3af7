"""What users get of the recordings that are there, to the digit: see tests/golden."""

import pytest

from tests.golden import kept, shared
from tests.golden.form import differences

pytestmark = pytest.mark.usefixtures("all_resamples")
FILES = kept.files()


@pytest.mark.parametrize("name", FILES)
def test_what_is_said_of_a_bundled_recording_is_golden(name):
    compare(name, kept.read(name), FILES[name]())


@pytest.mark.parametrize("name", shared.kept())
def test_what_is_said_of_a_recording_outside_the_repository_is_golden(name):
    root = shared.folder()
    if root is None:
        pytest.skip(f"{shared.VARIABLE} names no folder with recordings")
    if not (root / name).exists():
        pytest.skip(f"{shared.VARIABLE}: there is no {name}")
    compare(f"shared: {name}", shared.kept()[name], shared.told_of(root, name))


def compare(name, golden, found):
    changed = differences(golden, kept.of(found))
    assert not changed, "\n".join([f"{name} (if this is meant: python -m tests.golden --write)", *changed])


def test_there_is_no_data_without_a_recording():
    assert {f"{name}.json" for name in FILES} | {"shared.json"} == {
        path.relative_to(kept.HERE).as_posix() for path in kept.HERE.rglob("*.json")
    }
