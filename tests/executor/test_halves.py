"""Token steps in two halves: the same logits, host and device at work at once, proved free of races or refused."""

import numpy as np
import pytest

from executor.backends.sim.backend import SimBackend, SimHostBackend
from executor.backends.sim.profiles import HostCost
from executor.graph.models.step import first_tokens
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.scheduler import Scheduler, halves_of
from executor.scheduling.strategies import AAAG, AAEG, STRATEGIES
from tests.covering import covering
from tests.executor import reference
from tests.executor.profiles import handmade
from tests.executor.shapes import MODELS_HERE, TEST_SHAPES, random_weights
from tests.executor.test_logits import tolerance
from tracer.errors import UnsafePlanError, UsageError
from tracer.model.intervals import covered
from tracer.model.schema import HOST_COMPUTE

SPLITTING = [name for name, cls in STRATEGIES.items() if cls.splits]
PLACEMENTS = [
    ("tiny", {"gpu_layers": 0}), ("tiny", {"gpu_layers": 2, "fusion": True}),
    ("moe-tiny", {"gpu_layers": 2}), ("moe-tiny", {"experts": "cpu", "gpu_layers": 3}),
]  # fmt: skip
ROWS = covering(
    (place, strategy, mode, launch, batch, kv, prompt, staging, sampling)
    for place in range(len(PLACEMENTS))
    for strategy in SPLITTING
    for mode in ("sequential", "branches")
    for launch in ("graph", "eager", "rebuild")
    for batch in (2, 3)
    for kv in ("streams", "unified")
    for prompt in (0, 3, (3, 5))
    for staging in (True, False)
    for sampling in ("host", "device")
    if staging or strategy != "aaag"
)


@pytest.mark.parametrize("batch", [2, 3, 4, 7])
def test_every_sequence_is_in_one_half(batch):
    first, second = halves_of(batch)
    assert [*first, *second] == list(range(batch))
    assert 0 <= len(first) - len(second) <= 1


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row)))
def test_halves_compute_what_the_whole_computes(row):
    place, strategy, mode, launch, batch, kv, prompt, staging, sampling = row
    model, placement = PLACEMENTS[place]
    shared = {"model": model, "tokens": 5, "repeats": 2, "warmup": 1, "seed": 7, "batch": batch, "kv": kv,
              "prompt": prompt, "sampling": sampling, "micro_batch": 4}  # fmt: skip
    alone = Configuration(**shared, **placement)
    halves = Configuration(
        **shared, **placement, strategy=strategy, concurrency=mode, launch=launch, staging=staging, halves=True
    )
    whole, found = execute([alone, halves], keep_logits=True, models=MODELS_HERE)
    assert np.array_equal(found.tokens, whole.tokens)
    assert np.array_equal(found.logits, whole.logits)
    if not prompt:
        step = MODELS_HERE[model](batch=batch)
        for sequence, first in enumerate(first_tokens(step, 7)):
            fed = [first, *found.tokens[0, :-1, sequence]]
            expected = reference.decode(random_weights(step.graph, 7), fed, TEST_SHAPES[model])
            np.testing.assert_allclose(found.logits[0, :, sequence], expected, rtol=0, atol=tolerance(model))


@pytest.mark.gpu
@pytest.mark.parametrize("place", range(len(PLACEMENTS)))
def test_on_a_gpu_halves_compute_what_the_whole_computes(place):
    """Its products of one sequence and of several round differently."""
    model, placement = PLACEMENTS[place]
    shared = {"backend": "cuda", "model": model, "tokens": 12, "repeats": 3, "warmup": 1, "seed": 7, "batch": 4,
              "prompt": 5, **placement}  # fmt: skip
    whole, *found = execute(
        [
            Configuration(**shared),
            *(
                Configuration(**shared, strategy=strategy, launch=launch, staging=staging, halves=True)
                for strategy in SPLITTING
                for launch in ("graph", "eager")
                for staging in (True, False)
                if staging or strategy != "aaag"
            ),
        ],
        keep_logits=True,
        models=MODELS_HERE,
    )
    for each in found:
        assert all(np.array_equal(logits, found[0].logits[0]) for logits in each.logits), each.configuration.name
    np.testing.assert_allclose(found[0].logits, whole.logits, rtol=0, atol=1e-3)


def test_halves_grow_with_the_cache():
    base = {"model": "tiny", "batch": 3, "prompt": 250, "tokens": 12, "repeats": 1, "warmup": 0, "gpu_layers": 2,
            "context": 600, "reserve": 300}  # fmt: skip
    whole, found = execute(
        [Configuration(**base), Configuration(**base, strategy="aaag", halves=True)],
        keep_logits=True,
    )  # fmt: skip
    assert np.array_equal(found.logits, whole.logits)


def simulated(**options):
    profile = handmade(host=HostCost(20_000, 100, {"1": 1e18}))

    def opened(device):
        return SimHostBackend(profile) if device.is_host else SimBackend(profile)

    configuration = Configuration("sim", **({"tokens": 6, "repeats": 1, "warmup": 0, "batch": 2} | options))
    (result,) = execute([configuration], open_backend=opened)
    return result


def together(result):
    """How long kernels run while the host computes, ns."""
    ranges, kernels = result.trace["nvtx"], result.trace["kernels"]
    ranges = ranges[ranges["domain"] == HOST_COMPUTE]
    return covered(ranges["start"], ranges["end"], kernels["start"], kernels["end"]).sum()


@pytest.mark.parametrize("strategy", SPLITTING)
def test_layers_on_the_host_are_computed_beside_layers_on_the_device(strategy):
    """Under every strategy: nothing that the host computes first reads what the device computes."""
    assert together(simulated(gpu_layers=2, strategy=strategy)) == 0
    assert together(simulated(gpu_layers=2, strategy=strategy, halves=True)) > 0


@pytest.mark.parametrize("strategy", ["aaag", "aaeg"])
def test_experts_on_the_host_are_computed_beside_attention_on_the_device(strategy):
    """With sccc, saaas and aaas the host waits for each copy, and so for all that is in the queue before it."""
    options = {"model": "moe-tiny", "experts": "cpu", "strategy": strategy}
    plain, halves = simulated(**options), simulated(**options, halves=True)
    assert together(plain) == 0
    ranges = halves.trace["nvtx"]
    ranges = ranges[ranges["domain"] == HOST_COMPUTE]
    assert together(halves) > 0.8 * (ranges["end"] - ranges["start"]).sum()
    one_by_one = 2 * simulated(**options | {"batch": 1}).seconds[0]
    assert halves.seconds[0] < one_by_one - 0.8 * together(halves) / 1e9


@pytest.mark.parametrize("strategy", SPLITTING)
def test_so_are_those_of_the_next_micro_batch_of_a_prompt(strategy):
    """Without halves: nothing is fetched between micro-batches. A prompt of one micro-batch has nothing to overlap."""
    options = {"gpu_layers": 2, "batch": 1, "prompt": 64, "tokens": 1, "strategy": strategy}
    assert together(simulated(**options)) == 0
    assert together(simulated(**options, micro_batch=16)) > 0


class NoWait(AAAG):
    """Does not wait for the tokens of a half, which the host then reads too early."""

    name = "nowait"

    def wait_for(self, backend, event):
        """Do nothing."""


class Forgets(AAEG):
    """Holds the copies of a step's inputs for done when they are issued."""

    name = "forgets"

    def reclaim(self, number):
        """Do nothing."""

    def settle(self):
        """Do nothing."""

    def wait_for(self, backend, event):
        """Do nothing."""


@pytest.mark.parametrize("strategy", [NoWait, Forgets])
@pytest.mark.parametrize(("model", "placement"), [("tiny", {"gpu_layers": 2}), ("moe-tiny", {"experts": "cpu"})])
def test_a_missing_wait_is_found_before_anything_runs(strategy, model, placement):
    configuration = Configuration(model=model, batch=2, halves=True, strategy=strategy.name, **placement)
    with pytest.raises(UnsafePlanError, match="data races between steps"):
        execute([configuration], strategies={strategy.name: strategy})


@pytest.mark.parametrize("strategy", ["aaag", "aaeg"])
def test_so_is_a_split_of_the_host_that_waits_for_nothing(strategy, monkeypatch):
    """Its wait is for an event, which is not recorded here."""
    monkeypatch.setattr(Scheduler, "_bring", lambda _self, _piece, copies: [copy.issue() for copy in copies])
    configuration = Configuration(model="moe-tiny", batch=2, halves=True, strategy=strategy, experts="cpu")
    with pytest.raises(UnsafePlanError, match="data races between steps"):
        execute([configuration])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_layers": 2}, "batch of at least 2"),
        ({"batch": 2}, "layers or experts that compute on the host"),
        ({"batch": 2, "model": "moe-tiny", "experts": "copy"}, "layers or experts that compute on the host"),
        ({"batch": 2, "devices": 2, "gpu_layers": 2}, "one device"),
        ({"batch": 2, "model": "gdn-tiny", "gpu_layers": 2}, "recurrent state"),
        ({"batch": 2, "gpu_layers": 2, "strategy": "ggg"}, "advances on the device"),
    ],
)
def test_what_cannot_be_halved_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        execute([Configuration(halves=True, **options)])
