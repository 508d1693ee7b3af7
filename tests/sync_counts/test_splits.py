"""Steps that are cut into splits make exactly the calls that their strategy says, token after token and in prompts."""

from dataclasses import replace
from functools import partial

import pytest

from executor.graph.models import MODELS, SHAPES, Experts, build
from executor.planning.concurrency import MAIN_STREAM
from executor.run import execute
from executor.run.configuration import Configuration, fitting_strategies
from executor.scheduling.strategies import AAAG, AAAS, AAEG, GGG, SAAAS, SCCC, STRATEGIES
from tests.covering import covering
from tests.sync_counts import calls_of_splits
from tests.sync_counts.calls_of_splits import ATTENTION, MATRICES, OUTPUTS, TOKENS, Split, on_host, prompt, token
from tests.sync_counts.test_cpu import letters
from tracer.analysis.calls import host_calls
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

REPEATS, STEPS = 1, 3
SPLITTING = [name for name, strategy in STRATEGIES.items() if strategy.splits]
LAUNCHES = ("graph", "eager", "rebuild")


def mixture(used):
    """Three layers of 8 experts; one used, or all, makes one run of neighbours in every matrix."""
    shape = SHAPES["moe-tiny"]
    return partial(build, replace(shape, experts=Experts(count=8, used=used, renormalise=True)))


MODELS_HERE = MODELS | {"moe-one": mixture(1), "moe-all": mixture(8)}
ALL_INPUTS = TOKENS + ATTENTION + OUTPUTS
RESULT = 1
"""Of the split before."""
ROUTED = 2
"""What experts on the host read: the normed state, and the numbers of those that are used."""
COPIED = [Split(TOKENS + ATTENTION), Split(experts=MATRICES), Split(OUTPUTS, experts=MATRICES), Split(experts=MATRICES)]
"""An input is sent once, with the first split of a device that reads it; the last layer picks the outputs."""
PLACEMENTS = {
    "one": ({}, [Split(ALL_INPUTS)]),
    "first layers on the host": ({"gpu_layers": 3}, [on_host(), Split(ATTENTION + OUTPUTS + RESULT)]),
    "output on the device": ({"gpu_layers": 1}, [on_host(), Split(RESULT)]),
    "two devices": ({"devices": 2}, [Split(TOKENS + ATTENTION), Split(ATTENTION + OUTPUTS, peers=RESULT)]),
    "host and two devices": (
        {"devices": 2, "gpu_layers": 4},
        [on_host(), Split(ATTENTION + RESULT), Split(ATTENTION + OUTPUTS, peers=RESULT)],
    ),
    "experts on the host": (
        {"model": "moe-tiny", "experts": "cpu"},
        [Split(TOKENS + ATTENTION), on_host(ROUTED), Split(RESULT), on_host(ROUTED), Split(OUTPUTS + RESULT),
         on_host(ROUTED), Split(RESULT)],
    ),
    "one expert copied": ({"model": "moe-one", "experts": "copy"}, COPIED),
    "all experts copied": ({"model": "moe-all", "experts": "copy"}, COPIED),
}  # fmt: skip


def gpus(name):
    """How many a placement needs."""
    return PLACEMENTS[name][0].get("devices", 1)


def configured(name, backend="cpu", **options):
    """Unfused, so that every backend launches the same kernels."""
    return Configuration(
        backend, tokens=STEPS, repeats=REPEATS, warmup=1, fusion=False, **PLACEMENTS[name][0], **options
    )  # fmt: skip


def run(configuration, **options):
    return execute([configuration], models=MODELS_HERE, **options)[0]


def splits_of(result, name):
    """What each split needs; launched eagerly, also the kernels of the graph."""
    splits, parts = PLACEMENTS[name][1], [part.split for part in result.prepared.splits]
    assert [split.on_host for split in splits] == [part.device.is_host for part in parts]
    if result.configuration.launch != "eager":
        return splits
    kernels = [sum(node.has_kernel for node in part.nodes) for part in parts]
    return [replace(split, kernels=count) for split, count in zip(splits, kernels, strict=True)]


def assert_tokens(trace, expected):
    """Every token makes exactly these calls, and the analysis counts them."""
    report = sync_report(trace, find_steps(trace))
    assert ["".join(calls["letter"]) for _, calls in report.calls.groupby("step")] == [expected] * STEPS * REPEATS
    assert report.syncs_per_token == expected.count("s")
    assert report.copies_per_token == expected.count("a")
    assert report.launches_per_token == expected.count("k") + expected.count("g")


def letters_in(trace, mark):
    """The letters of the host's calls in every range of this text."""
    nvtx, calls = trace["nvtx"], host_calls(trace)
    ranges = nvtx[nvtx["text"] == mark]
    bounds = zip(ranges["start"], ranges["end"], strict=True)
    return ["".join(calls.letter[(calls.start >= start) & (calls.start <= end)]) for start, end in bounds]


def cases(launches=("graph",), names=PLACEMENTS, backend="cpu"):
    """(placement, strategy, launch, staging), of strategies that fit: covering pairs."""
    return covering(
        (name, strategy, launch, staging)
        for name in names
        for staging in (True, False)
        for strategy in fitting_strategies(configured(name, backend, staging=staging))
        if strategy in SPLITTING
        for launch in (launches if staging else launches[:1])
    )


MICRO_BATCHES = calls_of_splits.HOST_COPIES + 2


@pytest.mark.parametrize(("name", "strategy", "launch", "staging"), cases(LAUNCHES))
def test_tokens_and_prompts_in_micro_batches(name, strategy, launch, staging):
    """Micro-batches of two tokens each, which would use one expert or two."""
    prompted = {} if name == "one expert copied" else {"prompt": 2 * MICRO_BATCHES, "micro_batch": 2}
    configuration = configured(name, strategy=strategy, launch=launch, staging=staging, **prompted)
    result = run(configuration)
    splits = splits_of(result, name)
    assert_tokens(result.trace, token(strategy, splits, staging))
    if prompted and launch == "graph":
        of_prompt = prompt(strategy, splits, MICRO_BATCHES, staging, configuration.devices)
        assert letters_in(result.trace, "prefill") == [of_prompt] * (1 + REPEATS)
    updates = sum(not split.on_host for split in splits) if launch == "rebuild" else 0  # one per graph and step
    steps = STEPS * REPEATS + 1 + (MICRO_BATCHES * (1 + REPEATS) if prompted else 0)
    assert (result.trace["api"]["name"] == "graphExecUpdate").sum() == updates * steps


def test_a_step_on_the_host_alone_makes_no_calls():
    result = run(replace(configured("first layers on the host"), gpu_layers=0))
    assert not len(host_calls(result.trace))


def sync_each(strategy, backend, copies):
    for copy in copies:
        copy.issue()
        copy.backend.synchronize(MAIN_STREAM)


def wait_for_one(strategy, backend, copies):
    """Of several streams that carry copies."""
    backend.synchronize(MAIN_STREAM)
    AAAG.send(strategy, backend, copies)
    backend.synchronize(MAIN_STREAM)


def sync_first(strategy, backend, copies):
    backend.synchronize(MAIN_STREAM)
    AAAG.send(strategy, backend, copies)


EVERYWHERE = ("one", "first layers on the host", "two devices", "experts on the host", "one expert copied")
BROKEN = [
    (SCCC, {"send": sync_each}, EVERYWHERE),  # no sync before the copies, which may overtake compute
    (SAAAS, {"send": wait_for_one}, ("two devices", "host and two devices", "experts on the host")),
    (AAAS, {"send": sync_each}, EVERYWHERE),
    (AAAS, {"send": AAAG.send}, EVERYWHERE),  # nothing waits for the copies
    (AAAG, {"send": sync_first}, (*EVERYWHERE, "output on the device")),
    (AAAG, {"waits_for_copies": True}, ("experts on the host",)),  # not before the host computes
    (AAEG, {"send": AAAG.send}, ("one", "host and two devices")),  # nothing tells when inputs may be overwritten
    (GGG, {"send": sync_first}, ("one",)),
]


@pytest.mark.parametrize(("strategy", "changed", "names"), BROKEN)
def test_a_strategy_broken_on_purpose_is_noticed(strategy, changed, names):
    """Those that race as well have to be allowed first."""
    broken = type("Broken", (strategy,), changed)
    for name in names:
        result = run(configured(name, strategy=broken.name, allow_hazards=True), strategies={broken.name: broken})
        expected = letters("ggg", 6) if strategy is GGG else token(broken.name, splits_of(result, name))
        assert expected not in letters_in(result.trace, "token"), name
