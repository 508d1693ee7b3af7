"""Steps of engines without ranges: programs with the truth known, drawn by hypothesis, and recordings stripped."""

import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer import light_engine as device
from tests.tracer.engines import Host, known, layers, warm_up
from tests.tracer.handmade import PROCESS, Script
from tests.tracer.truths import DATA, as_found, rows
from tracer import Trace, analyse, read
from tracer.analysis.steps import UNSURE, Steps
from tracer.errors import EmptyTraceError
from tracer.files.bounded import tomllib
from tracer.recorders.light import light_trace


def check_invariants(steps: Steps) -> None:
    """Steps of a thread follow each other without overlap, those of a group are of one thread."""
    found = rows(steps.table, "process", "thread", "group", "start", "end")
    assert [start for *_, start, _ in found] == sorted(start for *_, start, _ in found)
    assert all(end > start for *_, start, end in found)
    threads = {group: (process, thread) for process, thread, group, *_ in found}
    assert all(threads[group] == (process, thread) for process, thread, group, *_ in found)
    for host in set(threads.values()):
        of_host = [times for process, thread, _, *times in found if (process, thread) == host]
        assert all(before[1] <= after[0] for before, after in pairwise(of_host))
    assert 0 <= steps.confidence <= 1


def test_engines_without_ranges_have_their_true_steps() -> None:
    engines = tomllib.loads((DATA.parent / "engines.toml").read_text(encoding="utf-8"))["engine"]
    played = {name: [Host(Script()).play(told["program"], told.get("kernels", {}))] for name, told in engines.items()}
    script = Script()
    played["a thread per device"] = [Host(script, 101 + i, i, 3 * i).play(f"w 12(Dc{i}f)", {}) for i in range(3)]
    launching = Host(Script())
    waiting = Host(launching.script, thread=555, now=7)
    for _ in range(12):
        launching.play("Dc1", {})
        waiting.fetch()
        launching.now = waiting.now = max(launching.now, waiting.now) + 40
    played["one thread launches and one waits"] = [launching]
    for name, hosts in played.items():
        trace, truth = known(hosts[0].script, *hosts)
        steps = as_found(trace, phase="all").steps
        assert list(map(tuple, rows(steps.table, "start", "phase"))) == truth, name
        assert steps.source == "calls"
        assert steps.confidence < UNSURE if "is_unsure" in engines.get(name, ()) else steps.confidence > 0.6, name
        check_invariants(steps)


@given(
    splits=st.integers(1, 6), threads=st.integers(1, 3), tokens=st.integers(8, 20), fetches=st.booleans(),
    warm=st.booleans(), jitter=st.lists(st.integers(0, 19), max_size=2), cut=st.booleans(),
)  # fmt: skip
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
            host.play("Dcc", {})
            for split in range(splits):
                host.kernels([f"k{split}", *["shared"] * 6] + [f"rare_{token}"] * (token in jitter))
                host.play("sc" if split < splits - 1 else "s", {})
            if fetches and not (cut and token == tokens - 1):
                host.fetch()
    trace, truth = known(script, *hosts)
    steps = as_found(trace, phase="all").steps
    check_invariants(steps)
    if fetches:
        odd = threads if warm and 0 in jitter else 0  # an odd first token cannot be told from the warm-up before it
        assert rows(steps.table, "start")[odd:] == [start for start, _ in truth][odd:]
    assert set(steps.table["phase"]) == {"iteration"}  # there are no layers, and what waits alone are for is not told
    assert steps.confidence < UNSURE


def without_ranges(trace: Trace) -> Trace:
    return Trace({name: frame for name, frame in trace.tables.items() if name != "nvtx"}, dict(trace.metadata))


@pytest.mark.parametrize("strategy", ["aaas-branches-cuda", "ggg-branches-cuda", "sccc-sequential-cuda-ngl13"])
def test_recordings_without_their_ranges_have_the_same_steps(strategy: str) -> None:
    light = read(SAMPLES / f"llama-1.1b-{strategy}")
    steps, bare = as_found(light).steps, as_found(without_ranges(light)).steps
    if bare.confidence >= UNSURE:
        assert rows(bare.table, "start") == rows(steps.table, "start")
    assert bare.confidence >= UNSURE or "uncertain" in bare.notes[0]
    assert set(bare.table["phase"]) in ({"decode"}, {"iteration"})


def test_a_graph_a_step_of_an_engine_that_replays_to_decode_is_sure_by_node_too() -> None:
    trace = read(SAMPLES / "llama-1.1b-saaas-sequential-cuda" / "node")
    marked, bare = as_found(trace).steps, as_found(without_ranges(trace)).steps
    assert (bare.confidence >= UNSURE, bare.what) == (True, "44 decode steps")  # 4 of a warm-up before the run's own
    at = np.searchsorted(rows(marked.table, "start"), rows(bare.table, "start")[4:], side="right") - 1
    assert at.tolist() == list(range(40))


SERVED = "w3(L[L]f)L[L]ccLf 8(DcoK1f) 3(PccLf DcoK1f) 2(PccLf 200(DcoK1f))"
SERVING = {"L": {"layers": 4}, "o": {"names": ["multi_tensor_apply_kernel<Copy>"]}, "K": {"names": ["sample", "add"]}}


@pytest.mark.parametrize("shown", ["a kernel", "a process", "nothing"])
def test_an_engine_that_captures_first_serves_behind_that_and_warms_up_with_short_requests(shown: str) -> None:
    names = {"a kernel": ["get_num_kv_splits_triton", "add"]}.get(shown, ["sample", "add"])
    script = Host(Script()).play(SERVED, SERVING | {"K": {"names": names}}).script
    if shown == "a process":
        script.rows["processes"] = [{"process": PROCESS, "name": "sglang::schedul (python3)"}]
    steps = as_found(script.trace).steps
    if shown == "nothing":
        assert "training" not in steps.phases
    else:
        assert (steps.what, steps.confidence) == ("400 decode steps, 2 prefill (or mixed) steps, 15 warm-up steps", 1)
        assert rows(steps.table, "group") == [0] * 200 + [1] * 200


@pytest.mark.parametrize("one_of", [2, 8])
def test_eager_steps_of_a_light_recording_are_all_found_and_counted(one_of: int) -> None:
    """It knows when few of them end, and what few of them ran; the others seem to last until the next stamp."""
    made, chance = device.Engine(), np.random.default_rng(0)
    begun = []
    for step in range(420):
        made.now += 60_000
        begun.append(made.now)
        made.run(step + 1, [(1, 20_000, 0)] * 30, set(), ends="" if chance.integers(one_of) else "ht")
        made.fetch()
        made.wait()
    found = analyse(light_trace([made.ring()]))
    assert len(found.steps) == 420
    assert found.summary.steps_per_s == pytest.approx(419e9 / (begun[-1] - begun[0]), rel=2e-3)
    assert found.summary.rate_doubt is None


def test_a_rate_is_doubted_if_much_of_the_devices_time_is_of_no_step() -> None:
    script = Host(Script()).play("20(ccKf)", {"K": {"layers": 4}}).script
    assert analyse(script.trace).summary.rate_doubt is None
    Host(script, thread=555, now=5).play("2(Lf)", {"L": {"names": ["other"] * 10, "length": 1500}})
    for number, row in enumerate(row for row in script.rows["kernels"] if row["name"] == "other"):
        row["stream"] = 100 + number  # on one stream they could not overlap
    found = analyse(script.trace)
    assert (len(found.steps), found.steps.unexplained) == (20, pytest.approx(30 / 57))
    assert "of the device's time between the steps is of none, so some may be missing" in found.summary.rate_doubt


def test_prompts_of_a_recording_are_told_apart() -> None:
    trace = read(SAMPLES / "llama-1.1b-aaag-sequential-cuda-c4096-p2048-x2" / "node")
    found = as_found(trace)
    assert (len(found.steps), found.steps.prefills, len(found.gaps.table)) == (24, 2, 2 * 23)
    assert "2 prefill" in found.steps.notes[0]
    assert rows(as_found(trace, phase="prefill").steps.table, "phase") == ["prefill"] * 2
    bare = as_found(without_ranges(trace), phase="all").steps  # 4 tokens of a warm-up before the run's own
    assert rows(bare.table, "phase") == ["decode"] * 4 + ["prefill"] + ["decode"] * 24


def test_single_passes_of_two_processes_do_not_follow_each_other() -> None:
    script = Script()
    for rank in (0, 1):
        for number, name in enumerate(layers(8)):
            at, host = 5 * rank + 20 * number, {"device": rank, "process": 200 + rank, "thread": 300 + rank}
            script.launch((at, at + 4), (at + 6, at + 18), name=name, **host)
    found = analyse(script.trace)
    assert (found.steps.what, rows(found.steps.table, "group")) == ("2 forward passes", [0, 1])
    with pytest.raises(EmptyTraceError, match="no path: 2 step"):
        found.path  # noqa: B018


def test_the_time_to_find_steps_grows_with_their_number_alone() -> None:
    little, copies = Host(Script()).play("500(c1f)", {}).script.trace, 40
    tables = {
        name: pd.concat([frame.assign(**{
            column: frame[column] + turn * each for column, each in
            (("start", 40_000), ("end", 40_000), ("correlation", 2000))}) for turn in range(copies)], ignore_index=True)
        for name, frame in little.tables.items() if len(frame)
    }  # fmt: skip
    begin = time.process_time()
    assert len(as_found(Trace(tables)).steps) == 500 * copies
    assert time.process_time() - begin < copies * 0.12
