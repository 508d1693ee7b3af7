"""Steps that are cut into splits make exactly the calls that their strategy says, token after token and in prompts."""

from dataclasses import replace

import pytest

from executor.graph.models import MODELS, SHAPES, Experts, builder_of
from executor.planning.concurrency import MAIN_STREAM
from executor.run import execute
from executor.run.configuration import Configuration, fitting_strategies
from executor.scheduling.strategies import AAAG, AAAS, AAEG, SAAAS, SCCC, STRATEGIES
from tests.covering import covering, each_value
from tests.sync_counts.calls_of_splits import (
    ATTENTION,
    HOST_COPIES,
    MATRICES,
    OUTPUTS,
    TOKENS,
    on_device,
    on_host,
    prompt,
    token,
)  # fmt: skip
from tracer.analysis.calls import host_calls
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

REPEATS, STEPS = 1, 3
SPLITTING = [name for name, strategy in STRATEGIES.items() if strategy.splits]
LAUNCHES = ("graph", "eager", "rebuild")


def mixture(used):
    """Three layers of 8 experts; one used, or all, makes one run of neighbours in every matrix."""
    shape = SHAPES["moe-tiny"]
    return builder_of(replace(shape, experts=Experts(count=8, used=used, renormalise=True)))


MODELS_HERE = MODELS | {"moe-one": mixture(1), "moe-all": mixture(8)}
ALL_INPUTS = TOKENS + ATTENTION + OUTPUTS
RESULT = 1
"""Of the split before."""
ROUTED = 2
"""What experts on the host read: the normed state, and the numbers of those that are used."""
COPIED = [
    on_device(TOKENS + ATTENTION),
    on_device(experts=MATRICES),
    on_device(OUTPUTS, experts=MATRICES),
    on_device(experts=MATRICES),
]
"""An input is sent once, with the first split of a device that reads it; the last layer picks the outputs."""
PLACEMENTS = {
    "one": ({}, [on_device(ALL_INPUTS)]),
    "first layers on the host": ({"gpu_layers": 3}, [on_host(), on_device(ATTENTION + OUTPUTS + RESULT)]),
    "output on the device": ({"gpu_layers": 1}, [on_host(), on_device(RESULT)]),
    "two devices": (
        {"devices": 2}, [on_device(TOKENS + ATTENTION), on_device(ATTENTION + OUTPUTS, peers=RESULT)],
    ),
    "host and two devices": (
        {"devices": 2, "gpu_layers": 4},
        [on_host(), on_device(ATTENTION + RESULT), on_device(ATTENTION + OUTPUTS, peers=RESULT)],
    ),
    "experts on the host": (
        {"model": "moe-tiny", "experts": "cpu"},
        [
            on_device(TOKENS + ATTENTION), on_host(ROUTED),
            on_device(RESULT), on_host(ROUTED),
            on_device(OUTPUTS + RESULT), on_host(ROUTED),
            on_device(RESULT),
        ],
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
    """The configuration's result."""
    (result,) = execute([configuration], models=MODELS_HERE, **options)
    return result


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
    inside = [calls["start"].between(start, end) for start, end in zip(ranges["start"], ranges["end"], strict=True)]
    return ["".join(calls["letter"][chosen]) for chosen in inside]


def prompts_of(trace):
    """The letters of every prompt: that of the warm-up and one in every repeat."""
    return letters_in(trace, "prefill")


def tokens_of(trace):
    """The letters of every token."""
    return letters_in(trace, "token")


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


@pytest.mark.parametrize(
    ("name", "strategy", "launch", "staging"), cases(LAUNCHES, [n for n in PLACEMENTS if n != "one"])
)  # fmt: skip
def test_a_token(name, strategy, launch, staging):
    configuration = configured(name, strategy=strategy, launch=launch, staging=staging)
    result = run(configuration)
    splits = splits_of(result, name)
    assert_tokens(result.trace, token(strategy, splits, staging))
    updates = sum(not split.on_host for split in splits) if launch == "rebuild" else 0  # one per graph and step
    assert (result.trace["api"]["name"] == "graphExecUpdate").sum() == updates * (
        STEPS * REPEATS + configuration.warmup
    )


MICRO_BATCHES = HOST_COPIES + 2


@pytest.mark.parametrize(
    ("name", "strategy", "launch", "staging"),
    cases(names=[name for name in PLACEMENTS if name != "one expert copied"]),
)  # fmt: skip
def test_prompts_in_micro_batches(name, strategy, launch, staging):
    """Of two tokens each, which would use one expert or two."""
    options = {"prompt": 2 * MICRO_BATCHES, "micro_batch": 2}
    configuration = configured(name, strategy=strategy, launch=launch, staging=staging, **options)
    result = run(configuration)
    splits = splits_of(result, name)
    of_prompt = prompt(strategy, splits, MICRO_BATCHES, staging, configuration.devices)
    assert prompts_of(result.trace) == [of_prompt] * (1 + REPEATS)
    assert tokens_of(result.trace) == [token(strategy, splits, staging)] * STEPS * REPEATS


@pytest.mark.parametrize("name", ["one", "first layers on the host", "output on the device", "two devices"])
def test_micro_batches_follow_each_other_without_a_sync(name):
    """`aaag aaag ... s`: the only sync of a prompt is the one that fetches its result."""
    configuration = configured(name, strategy="aaag", prompt=2 * MICRO_BATCHES, micro_batch=2)
    for calls in prompts_of(run(configuration).trace):
        assert calls.count("g") == MICRO_BATCHES * configuration.devices
        assert calls.index("s") == len(calls) - 1


def test_a_step_on_the_host_alone_makes_no_calls():
    result = run(replace(configured("first layers on the host"), gpu_layers=0))
    assert not len(host_calls(result.trace))


class UnfetchedOperands(AAAG):
    """The host computes before its operands are there."""

    waits_for_copies = True


class SyncedSplits(AAAG):
    """A sync before each split."""

    def send(self, backend, copies):
        backend.synchronize(MAIN_STREAM)
        super().send(backend, copies)


class WaitsForOne(SAAAS):
    """Of several streams that carry copies it waits for one."""

    def send(self, backend, copies):
        backend.synchronize(MAIN_STREAM)
        for copy in copies:
            copy.issue()
        backend.synchronize(MAIN_STREAM)


class SyncPerCopy(AAAS):
    """As sccc without its first sync."""

    def send(self, backend, copies):
        for copy in copies:
            copy.issue()
            copy.backend.synchronize(MAIN_STREAM)


class NoFirstSync(SCCC):
    """Copies that may overtake compute."""

    def send(self, backend, copies):
        SyncPerCopy().send(backend, copies)


class ForgottenEvents(AAEG):
    """Nothing tells when inputs may be overwritten."""

    send = AAAG.send


SPLIT = [name for name, (options, _) in PLACEMENTS.items() if options]
BROKEN = {
    "sccc": (NoFirstSync, SPLIT),
    "saaas": (WaitsForOne, ["two devices", "host and two devices", "experts on the host"]),
    "aaas": (SyncPerCopy, [name for name in SPLIT if name != "output on the device"]),  # which has one copy
    "aaag": (SyncedSplits, SPLIT),
    "aaeg": (ForgottenEvents, SPLIT),
}


@pytest.mark.parametrize(
    ("name", "strategy", "broken"),
    dict.fromkeys(
        [
            *each_value((name, strategy, broken) for strategy, (broken, names) in BROKEN.items() for name in names),
            *(("host and two devices", strategy, broken) for strategy, (broken, _) in BROKEN.items()),
            ("experts on the host", "aaag", UnfetchedOperands),
        ]
    ),
)
def test_a_strategy_broken_on_purpose_is_noticed(name, strategy, broken):
    """Those that race as well have to be allowed first."""
    result = run(configured(name, strategy=strategy, allow_hazards=True), strategies={strategy: broken})
    assert tokens_of(result.trace) != [token(strategy, splits_of(result, name))] * STEPS * REPEATS
