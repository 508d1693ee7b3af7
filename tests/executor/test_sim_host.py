"""Hybrid runs in virtual time: the host's share at the profile's costs."""

import math
from functools import partial

import pytest

from executor.backends.sim.backend import SimBackend, SimHostBackend
from executor.backends.sim.device import moved_bytes
from executor.backends.sim.profiles import HostCost
from executor.graph.fusion import reads_of
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_json
from executor.scheduling.strategies import STRATEGIES
from tests.executor.profiles import handmade
from tracer.errors import UsageError
from tracer.model.schema import HOST_COMPUTE

COST = HostCost(fixed_ns=3_000, other_ns=700, bytes_per_ns={"2": 2.0, "4": 3.0})
SPLITTING = [name for name, cls in STRATEGIES.items() if cls.splits]


def opened(profile, device):
    return SimHostBackend(profile, device.threads) if device.is_host else SimBackend(profile)


def simulate(cost=COST, **options):
    configuration = Configuration("sim", **({"tokens": 6, "repeats": 1, "warmup": 0} | options))
    (result,) = execute([configuration], open_backend=partial(opened, handmade(host=cost)))
    result.trace.metadata["run"] = run_json(result)
    return result


def on_host(result):
    return [n.node for part in result.prepared.splits if part.split.device.is_host for n in part.plan.launches]


@pytest.mark.parametrize(("threads", "rate"), [(1, 1.0), (2, 2.0), (3, 2.5), (4, 3.0), (9, 3.0), (None, 3.0)])
def test_the_rate_grows_with_the_threads_as_far_as_it_is_known(threads, rate):
    assert COST.rate(threads) == rate


@pytest.mark.parametrize("threads", [1, 3])
def test_products_take_their_bytes_at_the_rate_of_the_threads(threads):
    result = simulate(gpu_layers=2, threads=threads)
    rate, ranges = COST.rate(threads), result.trace["nvtx"]
    found = ranges[ranges["domain"] == HOST_COMPUTE]
    took = {text: set(of["end"] - of["start"]) for text, of in found.groupby(found["text"].astype(str))}
    assert took == {
        f"{node.op}({node.name})": {3_000 + math.ceil((reads.nbytes if reads.known else moved_bytes(node)) / rate)}
        for node in on_host(result)
        if (reads := reads_of(node)) is not None
    }


@pytest.mark.parametrize("strategy", SPLITTING)
@pytest.mark.parametrize("options", [{"gpu_layers": 0}, {"gpu_layers": 2}, {"model": "moe-tiny", "experts": "cpu"}])
def test_a_token_waits_for_what_the_host_computes(strategy, options):
    """It is a blocking call: a token is longer by exactly what its kernels on the host are slower."""
    fast, slow = (
        simulate(HostCost(fixed, other, {"1": 1e18}), strategy=strategy, **options)
        for fixed, other in ((1, 1), (5_001, 901))
    )
    products = sum(reads_of(node) is not None for node in on_host(fast))
    others = len(on_host(fast)) - products
    more = 6 * (products * 5_000 + others * 900)
    assert products > 0
    saved = more - round((slow.seconds[0] - fast.seconds[0]) * 1e9)
    hidden = 6 * 10_000 * len(fast.prepared.splits) if strategy in ("aaag", "aaeg") else 0  # behind kernels in flight
    assert 0 <= saved <= hidden


@pytest.mark.parametrize(
    ("options", "message"),
    [({"devices": 2}, "simulates one device"), ({"model": "moe-tiny", "experts": "copy"}, "computes no values")],
)
def test_what_cannot_be_simulated_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        simulate(**options)
