"""Steps of engines without NVTX: made by hand with the truth known, drawn by hypothesis, and recordings stripped."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import tracer
from tests.recordings import LADDER, SAMPLES
from tests.tracer.engines import PROMPT_KERNEL_NS, Host, Known, known, layers, warm_up
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.step_engines import ENGINES
from tracer import Trace
from tracer.analysis.gaps import gap_report
from tracer.analysis.path.paths import path_report
from tracer.analysis.steps import UNSURE, Steps
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError, UsageError


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_without_nvtx_have_their_true_steps(engine: Callable[[], Known]) -> None:
    truth = engine()
    steps = find_steps(truth.trace, phase="all")
    assert list(zip(steps.table["start"].tolist(), steps.table["phase"].tolist(), strict=True)) == truth.steps
    assert steps.source == "calls"
    assert steps.confidence > 0.6
    check_invariants(truth.trace, steps)


def check_invariants(trace: Trace, steps: Steps) -> None:
    """Steps of one group follow each other without overlap, and every call lies in at most one step of its thread."""
    for _, group in steps.table.groupby("group"):
        assert all(end <= start for end, start in pairwise_bounds(group["end"], group["start"]))
        assert group[["process", "thread"]].drop_duplicates().shape[0] == 1
    for _, thread in steps.table.groupby(["process", "thread"]):
        assert all(end <= start for end, start in pairwise_bounds(thread["end"], thread["start"]))
    assert (steps.table["end"] > steps.table["start"]).all()
    assert steps.table["start"].is_monotonic_increasing
    assert 0 <= steps.confidence <= 1


def pairwise_bounds(ends: "np.typing.ArrayLike", starts: "np.typing.ArrayLike") -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in zip(np.asarray(ends)[:-1], np.asarray(starts)[1:], strict=True)]


@given(
    splits=st.integers(1, 6),
    threads=st.integers(1, 3),
    tokens=st.integers(8, 20),
    fetches=st.booleans(),
    warm=st.booleans(),
    jitter=st.lists(st.integers(0, 19), max_size=2),
    cut=st.booleans(),
)
@example(splits=2, threads=1, tokens=8, fetches=False, warm=True, jitter=[2, 5], cut=False)
@example(splits=2, threads=1, tokens=8, fetches=True, warm=True, jitter=[1], cut=False)
@settings(max_examples=6)
def test_any_number_of_splits_threads_and_devices(
    splits: int, threads: int, tokens: int, fetches: bool, warm: bool, jitter: list[int], cut: bool
) -> None:
    rare = sorted({token for token in jitter if token < tokens})
    several = len(rare) == 2 and {rare[1] - rare[0], rare[0] + 1} == {tokens / 3}
    assume(not several)  # three equal turns of several tokens are a cycle as well
    script = Script()
    hosts = [Host(script, thread=101 + i, device=i, now=i) for i in range(threads)]
    for host in hosts:
        if warm:
            warm_up(host)
        for token in range(tokens):
            host.step()
            host.copy()
            host.copy()
            for split in range(splits):
                host.kernels([f"k{split}", *["shared"] * 6] + [f"rare_{token}"] * (token in jitter))
                host.sync()
                if split < splits - 1:
                    host.copy()
            if fetches and not (cut and token == tokens - 1):
                host.fetch()
    truth = known(script, *hosts)
    steps = find_steps(truth.trace, phase="all")
    check_invariants(truth.trace, steps)
    if fetches:
        odd = threads if warm and 0 in jitter else 0  # an odd first token cannot be told from the warm-up before it
        assert steps.table["start"].tolist()[odd:] == [start for start, _ in truth.steps][odd:]
    assert set(steps.table["phase"]) == {"iteration"}  # there are no layers, and what waits alone are for is not told
    assert steps.confidence < UNSURE


def without_nvtx(trace: Trace) -> Trace:
    return Trace({name: frame for name, frame in trace.tables.items() if name != "nvtx"}, dict(trace.metadata))


@pytest.mark.parametrize("name", LADDER)
def test_recordings_without_their_ranges_have_the_same_steps(name: str) -> None:
    light = tracer.read(SAMPLES / name)
    steps, bare = find_steps(light), find_steps(without_nvtx(light))
    if bare.confidence >= UNSURE:
        assert bare.table["start"].tolist() == steps.table["start"].tolist()
    assert bare.confidence >= UNSURE or "uncertain" in bare.notes[0]
    assert set(bare.table["phase"]) in ({"decode"}, {"iteration"})


def test_a_graph_a_step_of_an_engine_that_replays_to_decode_is_sure_by_node_too() -> None:
    trace = tracer.read(SAMPLES / "llama-1.1b-saaas-sequential-cuda" / "node")
    marked, bare = find_steps(trace), find_steps(without_nvtx(trace))
    assert bare.confidence >= UNSURE
    assert bare.what == "44 decode steps"  # 4 of them of a warm-up before the run's own
    at = np.searchsorted(marked.table["start"], bare.table["start"][4:], side="right") - 1
    assert at.tolist() == list(range(40))


@pytest.mark.parametrize("strategy", ["aaag", "sccc"])
def test_prompts_of_recordings_are_told_apart(strategy: str) -> None:
    trace = tracer.read(SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda-c4096-p2048-x2" / "node")
    steps = find_steps(trace)
    assert (len(steps), steps.prefills) == (24, 2)
    assert "2 prefill" in steps.notes[0]
    assert find_steps(trace, phase="prefill").table["phase"].tolist() == ["prefill"] * 2
    assert len(gap_report(trace, steps).table) == 2 * 23
    everything = find_steps(without_nvtx(trace), phase="all").table  # 4 tokens of a warm-up before the run's own
    assert everything["phase"].tolist() == ["decode"] * 4 + ["prefill"] + ["decode"] * 24


def test_waits_that_fetch_nothing_are_no_results() -> None:
    host = Host(Script())
    for _ in range(9):
        host.step()
        host.kernels(layers(2))
        host.sync()
    steps = find_steps(host.script.trace)
    assert steps.table["start"].tolist() == host.starts
    assert steps.what == "9 iterations"
    assert steps.confidence < UNSURE
    assert "uncertain" in steps.notes[0]


def test_what_runs_among_the_steps_but_is_none_makes_them_uncertain() -> None:
    host = Host(Script())
    for i in range(9):
        host.step()
        host.graph(1)
        host.fetch()
        if i % 3 == 2:
            host.script.launch((host.now, host.now + 1), (host.now + 2, host.now + 30_000), process=7)
    steps = find_steps(host.script.trace)
    assert len(steps) == 9
    assert steps.confidence < UNSURE


def test_batches_in_turn_may_be_steps_each() -> None:
    """A request joins every third step, so that three graphs take turns, each with inputs and a result: 60 steps, or 20
    of three parts. Parts of one pass have no inputs of their own."""
    for own_inputs in (True, False):
        host = Host(Script())
        for step in range(60):
            for _ in range(3 if step % 3 == 0 else own_inputs):
                host.copy()
            host.kernels(["flash_attn_ext_vec", "mul_mat_vec_q", "mul_mat_vec_q"])
            host.graph(1 + step % 3)
            host.fetch()
        steps = find_steps(host.script.trace)
        assert (len(steps), steps.confidence < UNSURE) == (20, own_inputs)
        assert ("3 each, or each a step of its own" in " ".join(steps.notes)) == own_inputs


def test_waits_inside_a_single_pass_may_be_parts_of_it() -> None:
    """The gate of each layer of a mixture of experts waits; the head follows the last."""
    host = Host(Script())
    for _ in range(10):
        host.kernels(["norm", "qkv", "attention", "gate"])
        host.fetch()
        host.kernels(["up", "act", "down"])
        host.fetch()
    host.kernels(["norm", "head"])
    steps = find_steps(host.script.trace)
    assert (steps.what, steps.confidence) == ("21 iterations", 0.8)
    assert "which do not show a complete pass through a model each, and may be parts of one" in steps.notes[0]


def test_a_pattern_may_name_a_kernel_or_a_call() -> None:
    host = Host(Script())
    for _ in range(5):
        host.step()
        host.kernels(["embed", "mul_mat", "head"])
        host.fetch()
    trace = host.script.trace
    for pattern in ("^embed$", "emb"):
        assert find_steps(trace, pattern=pattern).table["start"].tolist() == host.starts
    by_sync = find_steps(trace, pattern="StreamSynchronize")
    assert by_sync.table["start"].tolist() == [start + 80 for start in host.starts]
    check_invariants(trace, by_sync)
    with pytest.raises(EmptyTraceError, match="no NVTX range, API call or kernel matches 'absent'"):
        find_steps(trace, pattern="absent")
    with pytest.raises(UsageError, match="not a valid regular expression"):
        find_steps(trace, pattern="(")


def test_a_step_around_or_inside_a_prefill_is_one() -> None:
    script = decode_loop("sasgAs", 4)
    for i in range(4):
        script.range("forward", i * 1000, i * 1000 + 400)
    script.range("prefill", 10, 300)
    script.range("prefill", 990, 1500)
    assert find_steps(script.trace, phase="all").table["phase"].tolist() == ["prefill"] * 2 + ["decode"] * 2


def test_wide_and_long_steps_without_a_text_are_prefills() -> None:
    host = Host(Script())
    for i in range(6):
        begin = host.now
        host.kernels(layers(2), PROMPT_KERNEL_NS if i % 3 == 0 else 50, blocks=512 if i % 3 == 0 else 8)
        host.fetch()
        host.script.range("forward", begin, host.now - 5)
    steps = find_steps(host.script.trace, phase="all")
    assert steps.table["phase"].tolist() == ["prefill", "decode", "decode"] * 2


def test_two_hundred_thousand_calls() -> None:
    host, copies = Host(Script()), 50
    for _ in range(1000):
        host.copy()
        host.graph(1)
        host.fetch()
    little = host.script.trace
    tables = {
        name: frame.loc[frame.index.repeat(copies)].reset_index(drop=True)
        for name, frame in little.tables.items()
        if len(frame)
    }
    for frame in tables.values():
        turn = np.arange(len(frame)) % copies
        for column, each in (("start", 80_000), ("end", 80_000), ("correlation", 4000)):
            frame[column] += turn * each
    trace = Trace(tables)
    begin = time.process_time()
    steps = find_steps(trace)
    assert time.process_time() - begin < copies * 0.12
    assert len(trace["api"]) == 4_000 * copies
    assert len(steps) == 1_000 * copies


def test_single_passes_of_two_processes_do_not_follow_each_other() -> None:
    script = Script()
    for rank in (0, 1):
        host = {"device": rank, "process": 200 + rank, "thread": 300 + rank}
        for number, name in enumerate(layers(8)):
            at = 5 * rank + 20 * number
            script.launch((at, at + 4), (at + 6, at + 18), name=name, **host)
    trace = script.trace
    steps = find_steps(trace)
    assert (steps.what, steps.table["group"].tolist()) == ("2 forward passes", [0, 1])
    with pytest.raises(EmptyTraceError, match="no path: 2 step"):
        path_report(trace, steps)
