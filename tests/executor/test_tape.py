"""Hazards between steps, copies and the host: what the checker finds is what delays really do to the numbers."""

import re
import time
from functools import partial
from itertools import product

import numpy as np
import pytest

from executor.backends.cpu import CpuBackend
from executor.backends.host import HostBackend
from executor.configuration import Configuration
from executor.devices import HOST, Device, Placement
from executor.memory import load_weights
from executor.models import MODELS
from executor.prepare import prepare
from executor.run import execute
from executor.scheduler import Scheduler
from executor.strategies import STRATEGIES, Strategy
from executor.tape import find_run_hazards, refuse_hazards
from tracer.errors import UnsafePlanError

PLACEMENTS = {
    "one": ((0,), None), "hybrid": ((0,), 3), "two": ((0, 1), None), "both": ((0, 1), 4), "host": ((0,), 0),
}  # fmt: skip
CHUNK, CHUNKS = 4, 6


def placed(name, staged):
    devices, gpu_layers = PLACEMENTS[name]
    return Placement(tuple(Device("cpu", index, staged) for index in devices), gpu_layers)


def prepared(model, name, staged, strategy, together):
    options = {"prompt": CHUNK} if together else {}
    if strategy.advances_on_device:
        options = {"on_device": True, "history": 8}
    return prepare(MODELS[model](**options), placed(name, staged), "branches")


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("strategy", "name"), [(s, n) for s, cls in STRATEGIES.items() for n in PLACEMENTS if cls.splits or n == "one"]
)
def test_what_the_guarantees_allow_has_no_hazard(strategy, name, together):
    """With staging everything; without, what says that it does not need it."""
    cls = STRATEGIES[strategy]
    for model, staged in product(("tiny", "moe-tiny"), (True, False)):
        if cls.needs <= CpuBackend(staged=staged).guarantees:
            assert find_run_hazards(prepared(model, name, staged, cls, together), cls(), together=together) == []


@pytest.mark.parametrize("name", ["one", "hybrid", "two", "both"])
def test_why_asynchronous_input_copies_were_taken_back(name):
    """Micro-batches follow each other without a sync; the inputs of the next overwrite what copies still read."""
    aaag = STRATEGIES["aaag"]
    plan = prepared("tiny", name, False, aaag, True)
    first = str(find_run_hazards(plan, aaag(), together=True)[0])
    assert re.match(
        r"copy of \w+ \(cpu stream 0\) reads the host's (\w+) and keeping the inputs \(next step, host\) writes the "
        r"host's \1 .*needs an edge from copy of \1",
        first,
    )
    with pytest.raises(UnsafePlanError, match="'aaag' needs a guarantee that backend 'cpu' does not give"):
        refuse_hazards(plan, aaag(), together=True)


def test_a_race_that_no_guarantee_names_is_refused():
    with pytest.raises(UnsafePlanError, match=r"strategy 'none' is a race between steps, \d+ in all"):
        refuse_hazards(prepared("tiny", "one", True, NoSync, False), NoSync())


class NoSync(Strategy):
    """Nothing at all is waited for, not even at the end."""

    name, notation = "none", "a*n g a"

    def send(self, backend, copies):
        for copy in copies:
            copy.issue()

    def wait(self, backend):
        pass


def test_logits_that_nobody_waits_for_are_a_hazard():
    hazards = find_run_hazards(prepared("tiny", "one", True, NoSync, False), NoSync())
    assert "copy of output (cpu stream 0) writes the host's output" in str(hazards[0])
    assert "sampling (host) reads" in str(hazards[0])


class SlowCopies(CpuBackend):
    """Copies to the device are late."""

    def _run_copy(self, kind, *arguments):
        if kind == "HtoD":
            time.sleep(0.002)
        super()._run_copy(kind, *arguments)


def logits_of_prompt(strategy, name, staged, backend=SlowCopies):
    """Of a prompt in micro-batches, submitted without a wait between them."""
    placement = placed(name, staged)
    plan = prepare(MODELS["tiny"](prompt=CHUNK), placement, "sequential")
    splits = [part.split for part in plan.splits]
    backends = {device: backend(device.index, staged) for device in placement.devices}
    backends |= {HOST: HostBackend()}
    try:
        weights = load_weights(backends, splits, 0)
        scheduler = Scheduler(backends, plan, STRATEGIES[strategy](), "graph", weights, allow_hazards=True)
        chunks = np.arange(CHUNK * CHUNKS, dtype=np.int32).reshape(CHUNKS, CHUNK)
        scheduler.begin(chunks[0])
        for number, chunk in enumerate(chunks):
            if number:
                scheduler.follow(chunk)
            scheduler.submit()
        scheduler.fetch()
        return scheduler.logits
    finally:
        for each in backends.values():
            each.close()


@pytest.mark.parametrize("name", ["one", "hybrid", "two"])
def test_the_race_computes_nonsense_and_the_event_strategy_does_not(name):
    expected = logits_of_prompt("sccc", name, True, CpuBackend)
    assert np.abs(logits_of_prompt("aaag", name, False) - expected).max() > 0.1
    for strategy in ("sccc", "saaas", "aaas", "aaeg"):
        assert np.array_equal(logits_of_prompt(strategy, name, False), expected), strategy
    assert np.array_equal(logits_of_prompt("aaag", name, True), expected)


def test_a_backend_that_does_not_stage_refuses_what_needs_it():
    run = partial(Configuration, tokens=4, repeats=1, staging=False)
    with pytest.raises(UnsafePlanError, match=r"'aaag' needs a guarantee .*Safe there: sccc, saaas, aaas, aaeg"):
        execute([run(strategy="aaag")])
    (expected,) = execute([Configuration(tokens=4, repeats=1)], keep_logits=True)
    for result in execute([run(strategy=s) for s in ("sccc", "saaas", "aaas", "aaeg")], keep_logits=True):
        assert np.array_equal(result.logits, expected.logits)
        assert result.configuration.name.endswith("-unstaged")


def test_it_is_fast():
    plan = prepare(MODELS["llama-8b"](), "cuda", "branches")
    start = time.perf_counter()
    assert find_run_hazards(plan, STRATEGIES["aaag"]()) == []
    assert time.perf_counter() - start < 0.2
