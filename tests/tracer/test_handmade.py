"""What is true of traces made by hand, to the nanosecond: data/truths."""

import pytest

from tests.tracer.truths import DATA, untrue


@pytest.mark.parametrize("file", sorted(path.name for path in DATA.iterdir()))
def test_truths_of_traces_made_by_hand(file: str) -> None:
    assert untrue(file) == []
