"""Hazards between steps, copies and the host: what the checker finds is what delays really do to the numbers."""

import re
import time
from functools import partialmethod
from itertools import product

import numpy as np
import pytest

from executor.backends.cpu.backend import CpuBackend, HostBackend
from executor.backends.tape import TapeBackend
from executor.graph.models import MODELS
from executor.graph.models.kv_cache import KvCache
from executor.planning import prepare
from executor.planning.devices import HOST, Device, Placement
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.memory import ExpertCopies, load_weights
from executor.scheduling.run_hazards import find_run_hazards, refuse_hazards
from executor.scheduling.scheduler import Scheduler
from executor.scheduling.strategies import AAAG, AAEG, STRATEGIES, Strategy
from tests.covering import covering
from tracer.errors import UnsafePlanError

PLACEMENTS = {
    "one": ((0,), None), "hybrid": ((0,), 3), "two": ((0, 1), None), "both": ((0, 1), 4), "host": ((0,), 0),
    "copied": ((0,), None, "copy"), "both, copied": ((0, 1), 2, "copy"),
}  # fmt: skip
CHUNK, CHUNKS = 4, 6


def placed(name, staged):
    devices, *rest = PLACEMENTS[name]
    return Placement(tuple(Device("cpu", index, staged) for index in devices), *rest)


def prepared(model, name, staged, strategy):
    """The plan of a token step."""
    options = {"on_device": True, "history": 8} if strategy.advances_on_device else {}
    return prepare(MODELS[model](**options), placed(name, staged), "branches")


def prompts(model, name, staged, sizes=(CHUNK,)):
    """The plans of micro-batches of these sizes."""
    return [prepare(MODELS[model](prompt=size), placed(name, staged), "sequential") for size in sizes]


ALLOWED = [
    ((strategy, name), sizes, model, staged)
    for (strategy, cls), name, sizes, model, staged in product(
        STRATEGIES.items(), PLACEMENTS, [(), (CHUNK,), (2, CHUNK)], ["tiny", "moe-tiny"], (True, False)
    )
    if (cls.splits or name == "one") and (model == "moe-tiny" or "copied" not in name)
    and cls.needs <= CpuBackend(staged=staged).guarantees
]  # fmt: skip


@pytest.mark.parametrize(("case", "sizes", "model", "staged"), covering(ALLOWED), ids=str)
def test_what_the_guarantees_allow_has_no_hazard(case, sizes, model, staged):
    """With staging everything; without, what says that it does not need it. Behind prompts of one or two sizes too."""
    strategy, name = case
    prefill = prompts(model, name, staged, sizes)
    plans = [prepared(model, name, staged, STRATEGIES[strategy])]
    assert find_run_hazards(plans, STRATEGIES[strategy](), prefill=prefill) == []


@pytest.mark.parametrize("name", ["one", "hybrid", "two", "both"])
def test_why_asynchronous_input_copies_were_taken_back(name):
    """Micro-batches follow each other without a sync; the inputs of the next overwrite what copies still read."""
    aaag = STRATEGIES["aaag"]
    plan, prefill = prepared("tiny", name, False, aaag), prompts("tiny", name, False)
    first = str(find_run_hazards([plan], aaag(), prefill=prefill)[0])
    assert re.match(
        r"copy of \w+ \(cpu stream 0\) reads the host's (\w+) and keeping the inputs \(next step, host\) writes the "
        r"host's \1 .*needs an edge from copy of \1",
        first,
    )
    with pytest.raises(UnsafePlanError, match="'aaag' needs a guarantee that backend 'cpu' does not give"):
        refuse_hazards([plan], aaag(), prefill=prefill)


class NoSync(Strategy):
    """Nothing at all is waited for, not even at the end."""

    name, notation = "none", "a*n g a"

    def send(self, backend, copies):
        for copy in copies:
            copy.issue()

    def wait(self, backend):
        pass


def test_logits_that_nobody_waits_for_are_a_hazard_that_no_guarantee_names():
    plan = prepared("tiny", "one", True, NoSync)
    hazards = find_run_hazards([plan], NoSync())
    assert "copy of output (cpu stream 0) writes the host's output" in str(hazards[0])
    assert "sampling (host) reads" in str(hazards[0])
    with pytest.raises(UnsafePlanError, match=r"strategy 'none' has data races between steps \(\d+\)"):
        refuse_hazards([plan], NoSync())


def accessed(hazards):
    """The names of what the hazards are about."""
    return {access.tensor.name for hazard in hazards for access in (hazard.first, hazard.second)}


def put_graphs_on_streams(monkeypatch):
    """Every graph has a stream of its own, by the order of their first launches."""
    launch, graphs = TapeBackend.launch_graph, []

    def launch_apart(backend, graph, stream=0):
        graphs.extend([graph] if graph not in graphs else [])
        launch(backend, graph, stream=graphs.index(graph))

    monkeypatch.setattr(TapeBackend, "launch_graph", launch_apart)
    return graphs


def of_the_cache(hazards):
    """The streams of the kernels that race for the first layer's K cache."""
    ours = [hazard for hazard in hazards if hazard.first.tensor.name == "blk.0.cache_k"]
    assert all(re.search(r"^compute .* and compute ", str(hazard)) for hazard in ours)
    return {frozenset((hazard.first.where, hazard.second.where)) for hazard in ours}


@pytest.mark.parametrize(("strategy", "races"), [(NoSync, True), (STRATEGIES["aaag"], False)])
def test_tokens_on_another_stream_than_prompts_race_for_the_kv_cache(monkeypatch, strategy, races):
    """Unless the host waits for the prompts' result before it issues the first token step."""
    plan, prefill = prepared("tiny", "one", True, strategy), prompts("tiny", "one", True)
    assert not of_the_cache(find_run_hazards([plan], strategy(), prefill=prefill))
    graphs = put_graphs_on_streams(monkeypatch)
    found = of_the_cache(find_run_hazards([plan], strategy(), prefill=prefill))
    assert len(graphs) == 2
    assert found == ({frozenset(("cpu stream 0", "cpu stream 1"))} if races else set())


def test_sizes_of_a_growing_step_race_if_none_finishes_before_the_next(monkeypatch):
    cache = KvCache("streams", 1, 512)
    sizes = [
        prepare(MODELS["tiny"](cache=lambda context: cache, context=512, attended=cells), "cpu", "sequential")
        for cells in (256, 512)
    ]
    for name in ("sccc", "aaag", "aaeg", "aga"):
        assert find_run_hazards(sizes, STRATEGIES[name]()) == []
    put_graphs_on_streams(monkeypatch)
    assert not of_the_cache(find_run_hazards(sizes, NoSync()))
    monkeypatch.setattr(Scheduler, "finish", lambda scheduler: None)
    assert of_the_cache(find_run_hazards(sizes, NoSync())) == {frozenset(("cpu stream 0", "cpu stream 1"))}


def test_prompts_race_with_recurrent_state_that_nobody_waits_for(monkeypatch):
    """The state of a new sequence is loaded before its first step."""
    plan, prefill = prepared("gdn-tiny", "one", True, NoSync), prompts("gdn-tiny", "one", True)
    state = {leaf.name for node in plan.step.graph.nodes for leaf in node.updates}
    assert state
    assert not state & accessed(find_run_hazards([plan], NoSync(), prefill=prefill))
    load = partialmethod(TapeBackend.copy_to_device, stream=1)
    monkeypatch.setattr(TapeBackend, "load", load)
    assert state <= accessed(find_run_hazards([plan], NoSync(), prefill=prefill))


def fetch_without_sync(experts):
    experts._backend.copy_to_host(experts.used, experts._ids, 0)


def fetch_on_a_stream_of_its_own(experts):
    experts._backend.copy_to_host(experts.used, experts._ids, 1)
    experts._backend.synchronize(1)


@pytest.mark.parametrize(("strategy", "sizes"), [("sccc", (CHUNK,)), ("aaag", ()), ("aaeg", (CHUNK,))])
@pytest.mark.parametrize(
    ("fetch", "said"),
    [(fetch_without_sync, "copy of X (cpu stream 0) writes the host's X and choosing the experts (host) reads"),
     (fetch_on_a_stream_of_its_own, "compute (cpu stream 0) writes X and copy of X (cpu stream 1) reads X")],
)  # fmt: skip
def test_the_host_chooses_experts_behind_a_copy_and_a_sync(monkeypatch, fetch, said, strategy, sizes):
    cls = STRATEGIES[strategy]
    plan, prefill = prepared("moe-tiny", "copied", True, cls), prompts("moe-tiny", "copied", True, sizes)
    monkeypatch.setattr(ExpertCopies, "fetch", fetch)
    hazards = find_run_hazards([plan], cls(), prefill=prefill)
    said = said.replace("X", "blk.0.ffn_moe_topk")
    assert any(str(hazard).startswith(said) for hazard in hazards)
    with pytest.raises(UnsafePlanError, match=f"strategy '{strategy}' has data races between steps"):
        refuse_hazards([plan], cls(), prefill=prefill)


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


@pytest.mark.parametrize("options", [{}, {"halves": True, "gpu_layers": 2}])
def test_a_unified_cache_has_room_for_the_tape_where_it_has_for_the_run(options):
    """Few tokens of many sequences, of which one has a long prompt."""
    run = Configuration(kv="unified", batch=120, prompt=(100, *[1] * 119), tokens=1, warmup=0, repeats=1, **options)
    (result,) = execute([run])
    assert result.tokens.shape == (1, 1, 120)


# The host reads the tokens of a half too early, and holds the copies of a step's inputs for done when they are issued.
NoWait = type("NoWait", (AAAG,), {"name": "nowait", "wait_for": lambda *_: None})
Forgets = type(
    "Forgets", (AAEG,), {"name": "forgets", **dict.fromkeys(("reclaim", "settle", "wait_for"), lambda *_: None)}
)  # fmt: skip


@pytest.mark.parametrize("strategy", [NoWait, Forgets])
@pytest.mark.parametrize("placement", [{"model": "tiny", "gpu_layers": 2}, {"model": "moe-tiny", "experts": "cpu"}])
def test_a_wait_that_halves_lack_is_found_before_anything_runs(strategy, placement):
    configuration = Configuration(batch=2, halves=True, strategy=strategy.name, **placement)
    with pytest.raises(UnsafePlanError, match="data races between steps"):
        execute([configuration], strategies={strategy.name: strategy})


@pytest.mark.parametrize("strategy", ["aaag", "aaeg"])
def test_so_is_a_split_of_the_host_that_waits_for_nothing(strategy, monkeypatch):
    """Its wait is for an event, which is not recorded here."""
    monkeypatch.setattr(Scheduler, "_bring", lambda _self, _piece, copies: [copy.issue() for copy in copies])
    with pytest.raises(UnsafePlanError, match="data races between steps"):
        execute([Configuration(model="moe-tiny", batch=2, halves=True, strategy=strategy, experts="cpu")])
