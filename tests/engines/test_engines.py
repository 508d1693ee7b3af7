"""No answer about a simulated engine is wrong without a doubt. INTERTOKEN_DRAWS=2000 draws more, at random."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engines.drawn import by_hypothesis, seeded
from tests.engines.judged import WRONG, judge
from tests.engines.kinds import KINDS
from tests.engines.known_wrong import KNOWN_WRONG

FEW = 50
DRAWS = int(os.environ.get("INTERTOKEN_DRAWS", FEW))


@given(st.sampled_from([name for name in KINDS if name not in KNOWN_WRONG]), st.data())
@settings(
    max_examples=DRAWS, derandomize=DRAWS == FEW, suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # to shrink what fails takes minutes
)  # fmt: skip
def test_no_answer_is_wrong_without_a_doubt(kind: str, data: st.DataObject) -> None:
    drawn = by_hypothesis(data.draw)
    found = judge(*KINDS[kind](drawn))
    assert found.verdict != WRONG, f"{kind}: {found.wrong}\nsaid: {found.said}\n{drawn.parameters}"


@pytest.mark.parametrize("kind", KNOWN_WRONG)
def test_what_is_known_to_be_wrong_still_is(kind: str) -> None:
    seed, _ = KNOWN_WRONG[kind]
    assert judge(*KINDS[kind](seeded(kind, seed))).verdict == WRONG, f"take {kind} out of KNOWN_WRONG"


def test_a_draw_is_the_same_again() -> None:
    (one, truth), (other, same) = (KINDS["llama_eager"](seeded("", 1)) for _ in range(2))
    assert truth == same
    assert all(one[name].equals(other[name]) for name in one.tables)
