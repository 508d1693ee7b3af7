"""What each wait of a token step orders; and two races of upstream, with its allocator and without its wait."""

import json
from dataclasses import replace
from itertools import product

import pytest
from click.testing import CliRunner

import tracer
from executor.backends.tape import Tape
from executor.commands.run import run as run_command
from executor.graph.models import MODELS
from executor.planning import prepare
from executor.planning.devices import Device, Placement
from executor.planning.hazards import Sync, happens_before, unordered
from executor.run import plan_configuration
from executor.run.configuration import Configuration
from executor.scheduling.run_hazards import find_run_hazards, record_tape, run_races
from executor.scheduling.run_waits import step_waits
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering


def planned(strategy, *, staged, prompts=False, devices=1):
    placement = Placement(tuple(Device("cpu", index, staged) for index in range(devices)))
    prefill = [prepare(MODELS["tiny"](prompt=4), placement, "sequential")] if prompts else []
    return [prepare(MODELS["tiny"](), placement, "branches")], strategy(), prefill


def waits(strategy, **options):
    sizes, strategy, prefill = planned(STRATEGIES[strategy], **options)
    return step_waits(record_tape(sizes, strategy, prefill=prefill))


FETCH = ("copy of output (cpu stream 0) writes the host's output", "sampling (host) reads the host's output")


@pytest.mark.parametrize(("strategy", "orders"), [("sccc", 8), ("saaas", 3), ("aaas", 2), ("aaag", 1), ("aga", 1)])
def test_of_a_decode_step_only_the_wait_for_the_logits_is_needed(strategy, orders):
    for staged in (True, False) if strategy in ("sccc", "saaas", "aaas") else (True,):
        told = waits(strategy, staged=staged)
        assert [wait.position for wait in told] == [*range(1, orders + 1)]
        assert [wait.order for wait in told] == ["redundant"] * (orders - 1) + ["needed"]
        assert told[-1].between == FETCH
        assert told[-1].instead == ""


def test_a_redundant_wait_says_what_it_orders_and_what_orders_it_too():
    idle, copied, _ = waits("saaas", staged=False)
    assert idle.between == (FETCH[0], "sampling (next step, host) reads the host's output")
    assert idle.instead == "sync 3 of the previous step"
    source, overwritten = copied.between
    assert source == "copy of inp_out_ids (cpu stream 0) reads the host's inp_out_ids"
    assert overwritten == "keeping the inputs (next step, host) writes the host's inp_out_ids"
    assert copied.instead == "sync 3"
    staged = waits("saaas", staged=True)[1]  # nobody waits to overwrite a source that has been staged
    assert (staged.between, staged.instead) == ((), "")
    assert waits("saaas", staged=True, devices=2)[4].instead == "a stream that waits for an event"


def test_waits_of_steps_that_differ_are_unknown():
    tape = Tape()
    tape.program, tape.steps = [Sync(0)], [(0, 0), (0, 0), (0, 1), (1, 1)]
    assert step_waits(tape) == []
    assert step_waits(Tape()) == []


ALLOWED = [(name, staged, prompts) for name, cls in STRATEGIES.items() for staged in (True, False)
           for prompts in (True, False) if not cls.advances_on_device and (staged or not cls.needs)]  # fmt: skip


@pytest.mark.parametrize(("name", "staged", "prompts"), covering(ALLOWED), ids=str)
def test_a_wait_is_needed_if_the_run_has_hazards_without_it(name, staged, prompts):
    """Each wait of a step is dropped from the tape of all steps, one position at a time."""
    sizes, strategy, prefill = planned(STRATEGIES[name], staged=staged, prompts=prompts)
    tape = record_tape(sizes, strategy, prefill=prefill)
    for wait in step_waits(tape):
        races = False
        for start, end in tape.steps[1:-1]:
            own = [i for i in range(start, end) if "Sync" in type(tape.program[i]).__name__]
            fewer = [item for i, item in enumerate(tape.program) if i != own[wait.position - 1]]
            races |= bool(unordered(happens_before(fewer), {}))
        assert races == (wait.order == "needed"), wait


STAGED = ["sccc", "saaas", "aaas", "aaeg"]


@pytest.mark.parametrize("devices", [1, 2])
def test_without_staging_the_refused_strategies_race_and_the_others_do_not(devices):
    """aaag only between the micro-batches of a prompt: in decoding, the wait for the logits protects its sources."""
    for strategy, prompts in product([*STAGED, "aaag", *["aga"][: devices == 1]], (False, True)):
        sizes, made, prefill = planned(STRATEGIES[strategy], staged=False, prompts=prompts, devices=devices)
        reasons, _ = run_races(sizes, made, prefill=prefill)
        races = [reason for reason in reasons if "has data races" in reason]
        assert bool(reasons) == (strategy not in STAGED)
        assert bool(races) == (strategy == "aga" or (strategy == "aaag" and prompts)), strategy
        assert find_run_hazards(*planned(STRATEGIES[strategy], staged=True, devices=devices)[:2]) == []


# Upstream's races


class WithoutItsSync(STRATEGIES["saaas"]):
    """saaas as llama.cpp had it after PR 17795: the copies of the inputs are not waited for before the compute."""

    name, notation = "s-aaa", "s a*n g a s"

    def send(self, backend, copies):
        for copy in copies:
            copy.issue()


def test_17795_the_host_overwrites_a_source_that_a_copy_still_reads():
    """In decoding the wait for the logits protects it; between the micro-batches of a prompt nothing does."""
    sizes, strategy, prefill = planned(WithoutItsSync, staged=False, prompts=True)
    found = find_run_hazards(sizes, strategy, prefill=prefill)
    assert found
    assert str(found[0]).startswith(
        "copy of inp_tokens (cpu stream 0) reads the host's inp_tokens and keeping the inputs (next step, host) "
        "writes the host's inp_tokens"
    )
    decoding, strategy, _ = planned(WithoutItsSync, staged=False)
    assert find_run_hazards(decoding, strategy) == []
    whole, strategy, prefill = planned(STRATEGIES["saaas"], staged=False, prompts=True)
    assert find_run_hazards(whole, strategy, prefill=prefill) == []


@pytest.mark.parametrize("allocator", ["sequential", "interleaved"])
def test_16991_a_buffer_is_reused_by_a_branch_while_another_one_still_uses_it(allocator):
    racing = prepare(MODELS["tiny"](batch=4), "cpu", "branches", allocator, allow_hazards=True)
    (part,) = racing.splits
    offsets = part.memory.offsets
    reused = [
        hazard for hazard in racing.hazards
        if hazard.first.tensor is not hazard.second.tensor and hazard.first.stream != hazard.second.stream
    ]  # fmt: skip
    assert reused
    for hazard in reused:
        first, second = (offsets[access.tensor.root] for access in (hazard.first, hazard.second))
        assert max(first, second) <= hazard.start < hazard.end
        assert hazard.buffer == "the arena"
        assert f"needs an edge from {hazard.first.place} to {hazard.second.place}" in str(hazard)
    assert prepare(MODELS["tiny"](batch=4), "cpu", "branches", "stream_aware").hazards == []


# --unsafe


UNSAFE = [
    ({"strategy": "aaag", "staging": False}, ["strategy 'aaag' needs a guarantee that backend 'cpu' does not give"]),
    ({"strategy": "aaag", "staging": False, "prompt": 8, "micro_batch": 4},
     ["strategy 'aaag' needs a guarantee", "strategy 'aaag' has data races between steps"]),
    ({"concurrency": "branches", "allocator": "sequential", "batch": 4}, ["'branches' with allocator 'sequential'"]),
    ({"concurrency": "subgraphs", "allocator": "interleaved", "batch": 4},
     ["'subgraphs' with allocator 'interleaved'", "strategy 'sccc' has data races between steps"]),
    ({"backend": "sim", "strategy": "aaag", "staging": False},
     ["strategy 'aaag' needs a guarantee that backend 'sim'"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "reasons"), UNSAFE, ids=str)
def test_what_is_refused_is_known_if_it_is_forced_and_the_safe_one_is_clean(options, reasons):
    forced = plan_configuration(Configuration(allow_hazards=True, **options)).races
    assert len(forced) == len(reasons)
    assert all(reason in told for reason, told in zip(reasons, forced, strict=True))
    safe = {"strategy": "sccc"} if "strategy" in options else {"allocator": "stream_aware"}
    assert plan_configuration(Configuration(allow_hazards=True, **options | safe)).races == ()


def test_a_forced_run_warns_and_notes_it_in_the_recording(tmp_path):
    options = ["--sync", "aaag", "--no-staging", "--unsafe", "--tokens", "4", "--repeats", "1", "--warmup", "0"]
    result = CliRunner().invoke(run_command, [*options, "-o", str(tmp_path / "runs"), "--json"])
    assert result.exit_code == 0
    (warning,) = result.stderr.splitlines()
    assert warning.startswith("warning: tiny-aaag-sequential-hazards-unstaged: strategy 'aaag' needs a guarantee")
    (told,) = json.loads(result.stdout)["runs"]
    recording = tracer.read(told["path"])
    (reason,) = recording.metadata["run"]["unsafe"]
    assert warning.endswith(reason)
    assert f"ran although it is unsafe (--unsafe): {reason}" in recording.notes
    assert [wait["order"] for wait in recording.metadata["run"]["waits"]] == ["needed"]
    again = replace(recording, notes=[])
    tracer.write(again, tmp_path / "again.json.gz")
    assert any("unsafe" in note for note in tracer.read(tmp_path / "again.json.gz").notes)
