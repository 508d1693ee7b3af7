"""Each strategy makes exactly the host calls that it says, counted in the recorded trace."""

from collections import Counter
from functools import partial
from itertools import product

import pytest

from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering, each_value
from tests.executor.handmade import summing_step
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps

TOKENS, REPEATS = 3, 2
KERNELS, LAYERS = 82, 4
"""Of the tiny model; `ggg` adds the nodes that advance the step."""
ADVANCING = 8
EVENTS = {"eventRecord": LAYERS * ((1 + 2) + (1 + 1)), "streamWaitEvent": LAYERS * ((2 + 2) + (1 + 1))}
"""A fork is recorded once and waited for by all branches but one; the join waits for each of these."""


def letters(strategy, inputs):
    """The notation with each call written out."""
    times = {"n": inputs, "(n-1)": inputs - 1}
    words = [word.partition("*") for word in STRATEGIES[strategy].notation.split()]
    return "".join(letter * times.get(of, 1) for letter, _, of in words)


def syncs(strategy, inputs):
    """Explicit host syncs per token with that many input copies; a blocking copy is one."""
    return sum(letters(strategy, inputs).count(letter) for letter in "sc")


def copies(strategy, inputs):
    """Input copies and the one of the logits."""
    return sum(letters(strategy, inputs).count(letter) for letter in "ac")


def spelled(strategy, inputs=6):
    """The notation as the analysis writes it."""
    return STRATEGIES[strategy].notation.replace("*n", f"×{inputs}").replace("*(n-1)", f"×{inputs - 1}")


def recognised(strategy):
    """The class that the analysis gives it: that of the copies before the launch."""
    before = STRATEGIES[strategy].notation.partition("g")[0]
    return {"s c*n ": "sccc", "s a*n s ": "saaas", "a*n s ": "aaas", "": "ggg"}.get(before, "aaag")


def budgeted(strategy, *others, backend="host", **more):
    """The strategy and other options as a row; in a token with six inputs it may do what it says, and no more."""
    counts = {"syncs": syncs(strategy, 6), "copies": copies(strategy, 6), "class_": recognised(strategy)}
    graph = {"launches": 1, "signature": spelled(strategy)}
    budget = pytest.mark.sync_budget(backend=backend, **counts, **(more or graph))
    return pytest.param(strategy, *others, id="-".join(map(str, (strategy, *others))), marks=budget)


def assert_counts(trace, strategy, inputs, **launches):
    """Every token makes exactly the expected calls, and the analysis recognises the strategy by them."""
    report = sync_report(trace, find_steps(trace))
    assert report.steps == TOKENS * REPEATS
    waits = {"streamSynchronize": syncs(strategy, inputs)}
    if strategy == "aga":
        waits = {"eventSynchronize": 1}
    if marks := letters(strategy, inputs).count("e"):
        launches["eventRecord"] = launches.get("eventRecord", 0) + marks
    expected = waits | {"memcpyAsync": copies(strategy, inputs)} | launches
    expected = {name: count for name, count in expected.items() if count}
    for _, token in report.calls.groupby("step"):
        assert Counter(token["name"].astype("str")) == expected
    assert report.syncs_per_token == syncs(strategy, inputs)
    if inputs > 1:  # with one input the copy of saaas blocks like that of sccc
        assert (report.strategy, report.share) == (recognised(strategy), 1.0)


def on_backends(*options):
    """Rows of backend and options; `test_cuda.py` counts on a GPU."""
    return covering(product(("cpu", "sim"), *options))


def run(backend="cpu", **options):
    """The trace of a run; unfused, so that every backend launches the same kernels."""
    models = {"models": options.pop("models")} if "models" in options else {}
    configuration = Configuration(backend, tokens=TOKENS, repeats=REPEATS, warmup=1, fusion=False, **options)
    return execute([configuration], **models)[0].trace


@pytest.mark.parametrize(
    ("strategy", "backend", "batch", "concurrency"),
    [budgeted(*row) for row in covering(product(STRATEGIES, ("cpu", "sim"), (1, 3), ("sequential", "branches")))],
)
def test_graph_launches(recording, backend, strategy, concurrency, batch):
    """The order of the calls is that of the notation, in every token."""
    run(backend, strategy=strategy, concurrency=concurrency, batch=batch)
    assert recording.report.signature_share == 1.0
    assert recording.report.steps == TOKENS * REPEATS - 1


@pytest.mark.parametrize(
    ("backend", "strategy", "concurrency", "launch"),
    [*on_backends(STRATEGIES, ("sequential", "branches"), ("eager",)),
     *each_value(product(("cpu", "sim"), STRATEGIES, ("subgraphs",), ("graph",)))],
)  # fmt: skip
def test_other_launches(backend, strategy, concurrency, launch):
    """A layer is Q, K, V, what follows them, gate, up, what follows these; the first norm lies before."""
    trace = run(backend, strategy=strategy, concurrency=concurrency, launch=launch)
    kernels = KERNELS + (ADVANCING if strategy == "ggg" else 0)
    calls = {"launchKernel": kernels} if launch == "eager" else {"graphLaunch": LAYERS * 7 + 1}
    assert_counts(trace, strategy, inputs=6, **calls, **(EVENTS if concurrency != "sequential" else {}))


@pytest.mark.parametrize(("backend", "inputs", "strategy"), on_backends((1, 40), STRATEGIES))
def test_any_number_of_inputs(backend, strategy, inputs):
    """40 inputs are more than the staging ring has slots."""
    trace = run(backend, strategy=strategy, model="sum", models={"sum": partial(summing_step, inputs)})
    assert_counts(trace, strategy, inputs, graphLaunch=1)
