"""Which syncs data flow needs: on random programs of a machine whose streams and host are followed step by step."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.machine import Machine
from tests.tracer.step_engines import layers_on_two_devices
from tracer import Trace, read
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.needed import READS, bringing_copies, needed_syncs, reading_syncs

TOKENS = 6

Operation = tuple[str, int]
"""copy, fetch, launch or sync, and its stream."""

operations = st.lists(
    st.tuples(st.sampled_from(["copy", "fetch", "sync", "launch"]), st.sampled_from([7, 9])), max_size=8
)


def played(step: list[Operation]) -> Trace:
    machine = Machine()
    for _ in range(TOKENS):
        start = machine.now
        for name, stream in step:
            if name == "sync":
                machine.sync(stream)
            elif name == "launch":
                machine.launch(stream)
            else:
                machine.copy("HtoD" if name == "copy" else "DtoH", stream)
        machine.think(20)
        machine.script.range("token", start, machine.now)
    return machine.script.trace


def kept_of(trace: Trace) -> set[int]:
    """The positions of the syncs that a step in the middle needs."""
    syncs = needed_syncs(Causality.of(trace), find_steps(trace))
    return set(syncs.loc[(syncs["at"] == TOKENS // 2) & (syncs["reason"] != ""), "position"])


def followed(step: list[Operation], kept: Collection[int]) -> tuple[list[dict[int, int]], set[object], set[object]]:
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
        for place, (name, stream) in enumerate(step):
            if name == "sync":
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
            if name == "fetch":
                open_reads.append((token, place, stream))
            elif name == "copy":
                open_copies = [copy for copy in open_copies if copy[1] != place]  # written again, unguarded
                open_copies.append((token, place, stream))
    return known, reads, {copy for copy in guarded if copy[0] < TOKENS - 1}


@given(operations)
@settings(max_examples=6)
def test_without_the_others_the_host_still_knows_what_it_knew(step: list[Operation]) -> None:
    step = [*step, ("launch", 7)]
    kept = kept_of(played(step))
    assert followed(step, kept) == followed(step, range(1, len(step)))


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        ([("copy", 7), ("sync", 7), ("launch", 7), ("fetch", 7), ("sync", 7)], {2}),
        ([("fetch", 9), ("sync", 7), ("launch", 9), ("sync", 9)], {2}),  # nothing runs on stream 7
        ([("launch", 9), ("launch", 9), ("launch", 7), ("sync", 9)], {1}),  # what is next behind it is of stream 9
        ([("launch", 9), ("sync", 9), ("sync", 9), ("launch", 7)], {2}),
        ([("launch", 7), ("sync", 7), ("launch", 7)], set()),
    ],
)
def test_what_is_needed(step: list[Operation], kept: set[int]) -> None:
    assert kept_of(played(step)) == kept


def test_an_event_sync_tells_nothing_of_what_came_behind_the_record() -> None:
    machine = Machine()
    for _ in range(TOKENS):
        start = machine.now
        machine.launch()
        on = {"device": 0, "context": 1, "process": 100, "event": 1, "stream": 7}
        record = machine.script.call("cudaEventRecord_v3020", machine.now, machine.now + 2)
        machine.script.rows["cuda_events"].append({**on, "correlation": record})
        machine.think(4)
        machine.copy("DtoH")
        sync = machine.script.call("cudaEventSynchronize_v3020", machine.now, machine.now + 5)
        span = {"start": machine.now, "end": machine.now + 5}
        machine.script.rows["syncs"].append({**on, **span, "correlation": sync, "type": "event"})
        machine.think(10)
        machine.sync()
        machine.script.range("token", start, machine.now)
    assert kept_of(machine.script.trace) == {2}


def test_another_process_is_not_ordered_by_a_sync() -> None:
    machine = Machine()
    for _ in range(TOKENS):
        start = machine.now
        machine.launch()
        machine.sync()
        call = (machine.now + 1, machine.now + 2)
        machine.script.launch(call, (machine.now + 10, machine.now + 20), process=200, thread=201)
        machine.script.range("token", start, machine.now)
    assert kept_of(machine.script.trace) == set()


def test_light_passes_on_two_devices_need_the_sync_of_the_last() -> None:
    """They have no copies of the device: the one back is on the stream of the launch before it."""
    for strategy, last in (("sccc", 14), ("aaag", 1)):
        trace = read(SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda-c4096-p2048-x2")
        syncs = needed_syncs(Causality.of(trace), find_steps(trace))
        readers = syncs.loc[syncs["reason"] == READS, "position"]
        assert set(readers) == {last}
        assert len(readers) == syncs["at"].nunique()


def test_a_copy_between_devices_brings_the_host_nothing() -> None:
    """It is staged through the host; only the sync after each token's logits is read behind."""
    trace = layers_on_two_devices().trace
    steps = find_steps(trace)
    _, reading = reading_syncs(Causality.of(trace), steps)
    assert len(reading) == len(trace["syncs"])
    assert len(bringing_copies(Causality.of(trace))) == len(trace["syncs"])
