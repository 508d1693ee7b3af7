"""Against models that others wrote: logits of Hugging Face transformers from the same weights, see data/."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from executor.backends import open_backend
from executor.graph.models import builder_of
from executor.scheduling.strategies import SCCC
from tests.executor.handmade import scheduler_on
from tests.executor.shapes import TEST_SHAPES

TOLERANCE = 1e-4
NAMES = ("tiny", "qwen3-tiny", "odd-olmoe", "odd-qwen3moe", "gdn-tiny")


@pytest.fixture(scope="module")
def reference():
    with np.load(Path(__file__).parent / "data" / "hf_reference.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def test_every_model_of_the_fixture_is_compared(reference):
    assert {name for name in reference if name.endswith(".logits")} == {f"{name}.logits" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(reference, name):
    expected, tokens = reference[f"{name}.logits"], reference[f"{name}.tokens"].astype(np.int32)
    assert np.abs(expected).max() > 1
    with closing(open_backend("cpu")) as backend:
        step = builder_of(TEST_SHAPES[name])()
        scheduler = scheduler_on(backend, step, SCCC(), seed=int(reference["seed"]))
        for position, token in enumerate(tokens):
            scheduler.begin(np.array([token]), position)
            scheduler.step()
            np.testing.assert_allclose(scheduler.logits[0], expected[position], rtol=0, atol=TOLERANCE)
