"""What waits for what, critical paths, and which syncs data flow needs; exact truths: data/truths/paths.toml."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.bases import looped
from tests.tracer.engines import Host
from tests.tracer.handmade import Script
from tests.tracer.truths import as_found, edges, rows
from tracer import Trace, analyse, read
from tracer.analysis.path.graph import Dag, Edges
from tracer.analysis.path.paths import BESIDE, BESIDE_SYNC, Causality
from tracer.analysis.tokens import find_steps
from tracer.whatif.needed import bringing_copies, needed_syncs, reading_syncs


def test_a_sync_that_waits_beside_the_path_costs_nothing() -> None:
    """It returns while the kernel runs; so does asking for the logits."""
    found = rows(analyse(looped("cC l S fs")).path.calls, "position", "on_path_us", "verdict")
    of = {position: (us, verdict) for position, us, verdict in found}
    assert (of[4], of[5][1], of[6][1]) == ((0, BESIDE_SYNC), BESIDE, "")


def test_points_of_one_time_that_wait_for_one_another() -> None:
    dag = Dag.recorded(np.array([5, 5, 5]), Edges.of(np.arange(3), np.array([1, 2, 0]), np.zeros(3, np.int64), 0))
    assert dag.backward == 1
    assert (dag.replayed()[0] == 5).all()


programs = st.lists(
    st.tuples(st.sampled_from("lk"), st.text("cCfFsSlLkK", max_size=10), st.integers(0, 400)).map(
        lambda step: f"{step[0]}{step[1]} {step[2]}"
    ), min_size=2, max_size=5,
).map(looped)  # fmt: skip


@given(programs)
@settings(max_examples=8)
def test_paths_are_whole_and_no_longer_than_their_steps(trace: Trace) -> None:
    edges(trace)  # the recording comes out
    recording = as_found(trace)
    path = recording.path
    end_of: dict[int, int] = {}
    for step, end in rows(recording.spans, "step", "end"):
        end_of[step] = max(end, end_of.get(step, end))
    of_steps: dict[int, list[tuple[int, int]]] = {}
    for step, start, end in rows(path.table, "step", "start", "end"):
        of_steps.setdefault(step, []).append((start, end))
    for step, mine in of_steps.items():
        assert all(before[1] == behind[0] for before, behind in pairwise(mine))
        assert all(start <= end for start, end in mine)
        if end_of[step] > end_of[step - 1]:
            assert (mine[0][0], mine[-1][1]) == (end_of[step - 1], end_of[step])
    whole = sum(end - start for mine in of_steps.values() for start, end in mine)
    assert path.path_us * 1e3 * len(of_steps) == pytest.approx(whole)
    assert all(slack is None or slack >= 0 for slack in rows(path.calls, "slack_us"))


@pytest.mark.parametrize("name", ["llama1b-saaas-node", "six-strategies"])
def test_recordings_replay_to_the_nanosecond(name: str) -> None:
    assert edges(read(SAMPLES / name))


TOKENS = 6


def kept_of(trace: Trace) -> set[int]:
    """The positions of the syncs that a step in the middle needs."""
    syncs = needed_syncs(Causality.of(trace), find_steps(trace))
    return set(syncs.position[(syncs.at == TOKENS // 2) & syncs.is_needed].tolist())


def followed(step: str, kept: Collection[int]) -> tuple[list[dict[int, int]], set[object], set[object]]:
    """What a host that makes the kept syncs alone knows.

    Returns:
        (for each copy and launch how much of each other stream was done for certain when it was issued; where each
        fetched result may be read first; which copies were done before their memory is written again).
    """
    given, done = {7: 0, 9: 0}, {7: 0, 9: 0}
    known, reads, guarded = [], set(), set()
    open_reads: list[tuple[int, int, int]] = []
    open_copies: list[tuple[int, int, int]] = []
    for token in range(TOKENS):
        sync = 0
        for place, letter in enumerate(step):
            name, stream = letter.lower(), 9 if letter.isupper() else 7
            if name == "s":
                sync += 1
                if sync in kept:
                    done[stream] = given[stream]
                    reads |= {(read, (token, sync)) for read in open_reads if read[2] == stream}
                    guarded |= {copy for copy in open_copies if copy[2] == stream}
                    open_reads = [read for read in open_reads if read[2] != stream]
                    open_copies = [copy for copy in open_copies if copy[2] != stream]
                continue
            known.append({other: done[other] for other in done if other != stream})
            given[stream] += 1
            if name == "f":
                open_reads.append((token, place, stream))
            elif name == "c":
                open_copies = [copy for copy in open_copies if copy[1] != place]  # written again, unguarded
                open_copies.append((token, place, stream))
    return known, reads, {copy for copy in guarded if copy[0] < TOKENS - 1}


@given(st.text("cCfFsSlL", max_size=8))
@settings(max_examples=6)
def test_without_the_others_the_host_still_knows_what_it_knew(step: str) -> None:
    step += "l"
    kept = kept_of(looped(f"{step} 20", TOKENS))
    assert followed(step, kept) == followed(step, range(1, len(step)))


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ("cslfs", {2}), ("lsl", set()), ("LSSl", {2}),
        ("FsLS", {2}),  # nothing runs on stream 7
        ("LLlS", {1}),  # what is next behind it is of stream 9
        ("lrfws", {2}),  # an event sync tells nothing of what came behind the record
        ("lsx", set()),  # another process is not ordered by a sync
    ],
)  # fmt: skip
def test_what_is_needed(step: str, kept: set[int]) -> None:
    assert kept_of(looped(f"{step} 20", TOKENS)) == kept


def test_a_copy_between_devices_brings_the_host_nothing() -> None:
    """It is staged through the host; only the sync after each token's logits is read behind."""
    trace = Host(Script()).play("12(D<c1p2f)", {}).script.trace
    steps = find_steps(trace)
    _, reading = reading_syncs(Causality.of(trace), steps)
    assert len(reading) == len(trace["syncs"])
    assert len(bringing_copies(Causality.of(trace))) == len(trace["syncs"])
