"""What pairs of runs teach about kernels on several streams."""

from __future__ import annotations

import json
import shutil
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from tests.recordings import SAMPLES
from tracer.analysis.fits import fits_of
from tracer.analysis.whatif.overlap import Overlap, StepKernels, assign
from tracer.analysis.whatif.streams import Pair, fitted, learned
from tracer.errors import UsageError
from tracer.stored.stream_pairs import find_pairs, learn_from, work_of

ONE, SEVERAL = ("llama-1.1b-aaag-sequential-cuda", "llama-1.1b-aaag-branches-cuda")
H200 = fitted("NVIDIA H200")
TRUE = Overlap(edge_ns=100, prologue_ns=240, latency_ns=1000)


def kernels_at_random(random: np.random.Generator, layers: int) -> StepKernels:
    """Layers of norm -> q, k, v -> attention -> product, some early."""
    needs: list[tuple[int, ...]] = []
    for layer in range(layers):
        i = 6 * layer
        needs += [(i - 1,) if i else (), (i,), (i,), (i,), (i + 1, i + 2, i + 3), (i + 4,)]
    count = len(needs)
    time = random.uniform(1500, 9000, count)
    gap = random.uniform(-3500, 500, count)
    moving = time * random.uniform(0.1, 0.9, count)
    processors, resident = random.uniform(0.1, 1, count), random.uniform(0.05, 0.7, count)
    return StepKernels(time, gap, moving, processors, resident, tuple(needs), fits_of("").room)


def pairs_of(overlap: Overlap, count: int = 20, noise: float = 0.0, layers: int = 4) -> list[Pair]:
    random = np.random.default_rng(1)
    pairs = []
    for _ in range(count):
        kernels = kernels_at_random(random, layers)
        streams = tuple(assign(kernels.needs, 4))
        relative = float(kernels.schedule(overlap, streams)[1].max()) * float(np.exp(random.normal(0, noise)))
        pairs.append(Pair(kernels, streams, relative))
    return pairs


@pytest.mark.parametrize("overlap", [TRUE, Overlap(80, 300, 800)])
def test_the_numbers_that_made_the_pairs_are_learned(overlap: Overlap) -> None:
    found = learned(pairs_of(overlap, 60), "NVIDIA H200")
    assert found.overlap.latency_ns == pytest.approx(overlap.latency_ns, rel=0.1)
    edges, theirs = (o.edge_ns + o.prologue_ns for o in (found.overlap, overlap))  # most kernels have both at once
    assert edges == pytest.approx(theirs, rel=0.1)
    assert found.error < 0.002
    assert found.pairs == 60


def test_one_pair_leaves_the_numbers_near_their_defaults() -> None:
    (pair,) = pairs_of(TRUE, 1)
    found = learned([pair], "NVIDIA H200")
    assert abs(pair.error(found.overlap)) < abs(pair.error(H200.overlap))
    ratios = np.array(astuple(found.overlap)) / np.array(astuple(H200.overlap))
    assert (ratios > 0.5).all()
    assert (ratios < 2).all()
    assert found.error >= H200.error
    assert "learned from 1 pair of runs" in found.note


def test_no_pair_teaches_nothing() -> None:
    assert learned([], "NVIDIA H200") == H200
    assert H200.note.startswith("as on an H200: a dependency between streams costs 0.05 µs")


def test_the_error_is_that_of_pairs_left_out() -> None:
    pairs = pairs_of(TRUE, 20, noise=0.02, layers=2)
    left_out = [pair.error(learned(pairs[:i] + pairs[i + 1 :], "NVIDIA H200").overlap) for i, pair in enumerate(pairs)]
    assert learned(pairs, "NVIDIA H200").error == pytest.approx(np.abs(left_out).max(), rel=0.2)


def copied(run: str, target: Path, **different: object) -> None:
    """A run directory, with another configuration."""
    shutil.copytree(SAMPLES / run, target)
    facts = json.loads((target / "run.json").read_text())
    facts["configuration"] |= different
    (target / "run.json").write_text(json.dumps(facts))


def test_pairs_are_runs_of_the_same_beside_each_other(tmp_path: Path) -> None:
    copied(ONE, tmp_path / "a" / "one")
    copied(SEVERAL, tmp_path / "a" / "several", repeats=2)
    copied(SEVERAL, tmp_path / "a" / "other batch", batch=2)
    copied(SEVERAL, tmp_path / "b" / "elsewhere")
    (found,) = find_pairs([tmp_path, tmp_path / "a"])
    assert (found.one.name, found.several.name) == ("one", "several")
    for lacking in ("one/node", "several/graph.json"):
        moved = tmp_path / "a" / lacking
        moved.rename(tmp_path / "away")
        assert find_pairs([tmp_path]) == []
        (tmp_path / "away").rename(moved)


def test_a_run_learns_from_others_on_its_gpu_not_from_itself(tmp_path: Path) -> None:
    copied(ONE, tmp_path / "one")
    copied(SEVERAL, tmp_path / "several")
    own = json.loads((tmp_path / "one" / "run.json").read_text())["configuration"]
    for configuration, gpu in (
        (own, "NVIDIA H200"),
        (own | {"repeats": 9}, "NVIDIA H200"),
        (own | {"batch": 2}, "V100"),
    ):
        with pytest.raises(UsageError, match="no pair of other runs on"):
            learn_from([tmp_path], configuration, gpu)
    found = learn_from([tmp_path], own | {"batch": 2}, "NVIDIA H200")
    assert found.pairs == 1
    assert found.error >= H200.error
    assert work_of(own) != work_of(own | {"batch": 2})


def test_a_damaged_pair_is_named(tmp_path: Path) -> None:
    copied(ONE, tmp_path / "one")
    copied(SEVERAL, tmp_path / "several")
    (tmp_path / "one" / "graph.json").write_text("{}")
    with pytest.raises(UsageError, match=r"--learn-from: .*graph\.json: its schema is not"):
        learn_from([tmp_path], {}, "NVIDIA H200")
