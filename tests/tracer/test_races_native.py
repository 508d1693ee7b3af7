"""The library of `intertoken races` in programs of a driver without a GPU: what it sees, and what it must not do."""

import os
import subprocess

import pytest

from tracer.races.logs import named

WITNESS = "witness=1"
DELAYED = "witness=1,kinds=3,delay_us=20000"  # copies to and from the device
DRAINED = "witness=1,drain_ms=200"
TIMES = 12
OFTEN = range(TIMES // 2, TIMES + 1)  # a busy machine is late now and then


@pytest.mark.parametrize(
    "kind", ["overwritten_at_once", "wrong_event", "any_way", "rows_2d", "planes_3d", "planes_apart", "batch", "large"]
)
def test_the_witness_counts_what_the_device_saw(streams, kind):
    """In a batch both halves of a source are copies."""
    ran = streams.run(kind, WITNESS)
    (wrong,) = (int(line.split()[1]) for line in ran.printed.splitlines())
    assert wrong in OFTEN
    assert ran.counts["bad"] == wrong * (2 if kind == "batch" else 1)
    assert ran.counts["checked"] == ran.counts["witnessed"] == ran.counts["calls"]
    assert bool(ran.counts["sampled"]) == (kind in ("large", "planes_apart"))


def test_the_first_copy_that_arrived_otherwise_is_described(streams):
    (log,) = streams.run("overwritten_at_once", WITNESS).logs
    site = log.sites[0]
    assert site.call == "cuMemcpyHtoDAsync_v2"
    names = named(site.stack)
    assert [names[place] for place in site.stack[:2]] == ["overwritten_at_once", "main"]
    assert (site.first_bad.number, site.first_bad.offset, site.first_bad.was) == (1, 0, 0)
    assert (site.bytes, site.most_bytes, log.is_ended, log.program) == (4096, 4096, True, "seeded")


@pytest.mark.parametrize(
    "kind", ["synced", "double_buffer_event", "polled", "two_threads", "freed_after", "same_bytes"]
)
@pytest.mark.parametrize("settings", [WITNESS, DELAYED, DRAINED])
def test_what_is_in_order_arrives_as_it_was(streams, kind, settings):
    ran = streams.run(kind, settings.replace("20000", "2000"))
    assert ran.counts["bad"] + ran.counts["bad_excused"] == 0
    assert ran.counts["checked"] == ran.counts["calls"] > 0
    assert not any(log.in_flight for log in ran.logs)


def test_a_delay_shows_what_is_only_lucky(streams):
    assert streams.run("overwritten_late", WITNESS).counts["bad"] == 0
    ran = streams.run("overwritten_late", DELAYED)
    assert ran.counts["bad"] in OFTEN
    assert ran.counters["delays"] == TIMES + 1


@pytest.mark.parametrize(
    "kind", ["kernel_fills_source", "other_stream_fills_source", "host_function_fills_source", "result_is_sent"]
)  # fmt: skip
def test_a_drained_stream_still_shows_what_is_ordered_by_the_stream(streams, kind):
    ran = streams.run(kind, DRAINED)
    assert ran.counts["drained"] == TIMES
    assert ran.counts["bad_drained"] in OFTEN
    assert ran.counts["bad_excused"] == (0 if "kernel" in kind or "stream" in kind else ran.counts["bad_drained"])
    assert streams.run("overwritten_at_once", DRAINED).counts["bad"] == 0


def test_a_stream_that_the_program_holds_back_is_not_drained(streams):
    ran = streams.run("gated", DRAINED)
    assert (ran.counts["gated"], ran.counts["bad_gated"]) == (TIMES, TIMES - 1)


def test_delays_repeat_with_their_seed(streams):
    runs = [streams.run("steps", f"witness=1,kinds=1,delay_us=100,per_mille=300,seed={seed}") for seed in (3, 3, 4)]
    delayed = [[site.counts["delayed"] for site in run.logs[0].sites] for run in runs]
    assert delayed[0] == delayed[1] != delayed[2]
    assert 0 < sum(delayed[0]) < 3 * TIMES


def test_a_delay_of_one_copy_of_a_step(streams):
    ran = streams.run("steps", "witness=1,kinds=1,delay_us=20000,ordinal=2")
    assert [site.counts["delayed"] for site in ran.logs[0].sites] == [0, TIMES, 0, 0]
    bad = [site.counts["bad"] for site in ran.logs[0].sites]
    assert bad == [0, bad[1], 0, 0]
    assert bad[1] in OFTEN
    assert ran.logs[0].steps == TIMES


def test_a_delay_of_one_site(streams):
    (plain,) = streams.run("steps").logs
    (log,) = streams.run("steps", f"kinds=1,delay_us=100,site={plain.sites[2].key}").logs
    assert [site.key for site in log.sites] == [site.key for site in plain.sites]
    assert [site.counts["delayed"] for site in log.sites] == [0, 0, TIMES, 0]


@pytest.mark.parametrize(("kind", "delayed"), [("sync", 4), ("host", 5), ("launch", 2), ("graph", 3)])
def test_each_kind_can_be_delayed(streams, kind, delayed):
    ran = streams.run("steps", f"kinds={1 << delayed},delay_us=50")
    assert ran.counters["delays_on_host"] == {"sync": TIMES + 1, "host": 3 * TIMES + 1}.get(kind, 0)
    assert ran.counters["delays"] == {"graph": TIMES}.get(kind, 0)


def test_results_are_digested_when_they_are_waited_for(streams):
    digests = [streams.run(kind).logs[0].fetches for kind in ("synced", "synced", "overwritten_at_once")]
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 1


def test_a_result_that_is_read_early(streams):
    """The bytes that come are right; what the program makes of those that were there before is not."""
    plain, late = streams.run("read_early"), streams.run("read_early", DELAYED)
    assert plain.logs[0].fetches != late.logs[0].fetches
    assert late.counts["bad"] == 0


def test_results_are_read_while_their_memory_is_there(streams):
    """Those in pageable memory at once; those in memory that is freed before a wait not at all."""
    (log,) = streams.run("results_on_the_stack", WITNESS).logs
    counts = [site.counts for site in log.sites if "HtoD" not in site.call]
    assert [(each["fetched"], each["waited"], each["unwaited"]) for each in counts] == [
        (TIMES, TIMES, 0), (TIMES, 0, TIMES), (TIMES, TIMES, 0), (1, 1, 0)
    ]  # fmt: skip


def test_memory_that_is_freed_in_flight(streams):
    (log,) = streams.run("freed_in_flight", WITNESS).logs
    assert len(log.in_flight) in OFTEN
    assert {each.call for each in log.in_flight} == {"cuMemFreeHost"}
    assert {each.copy for each in log.in_flight} == {log.sites[0].key}
    first = log.in_flight[0].stack[0]
    assert named([first])[first] == "freed_in_flight"
    assert not streams.run("registered", WITNESS).logs[0].in_flight  # unregistered after a wait


@pytest.mark.parametrize("settings", [WITNESS, DELAYED, DRAINED])
def test_another_thread_may_capture(streams, settings):
    """Nothing of ours invalidates a capture in the global mode."""
    ran = streams.run("capture_beside", settings.replace("20000", "1000"))
    assert ran.printed == "capture 0\nwrong 0\n"
    assert ran.counts["checked"] == TIMES
    assert ran.counts["bad"] == 0


def test_what_cannot_be_watched_is_counted(streams):
    counters = streams.run("graph_copies", WITNESS).counters
    assert (counters["graph_h2d_nodes"], counters["graph_h2d_copies"]) == (1, TIMES)
    assert counters["captured"] == 1
    for kind, counter in (("pageable", "pageable"), ("managed", "managed"), ("batch_during_call", "during_call")):
        ran = streams.run(kind, WITNESS)
        assert ran.counters[counter] in (TIMES, 2 * TIMES)
        assert not ran.counts
        assert ran.printed == "wrong 0\n"


def test_bytes_between_the_samples_are_not_seen(streams):
    ran = streams.run("large_between_samples", DELAYED)
    assert ran.counts["bad"] == 0
    assert ran.counts["sampled"] == TIMES


def test_a_driver_that_writes_no_values(streams):
    """Events say when a copy has come back, and delays are the host's."""
    ran = streams.run("overwritten_at_once", DELAYED.replace("20000", "100"), FAKE_NO_VALUES="1")
    assert ran.counts["checked"] == TIMES
    assert ran.counts["bad"] in OFTEN
    assert (ran.counters["delays"], ran.counters["delays_on_host"]) == (0, TIMES + 1)


def test_without_pinned_memory_nothing_is_compared(streams):
    ran = streams.run("overwritten_at_once", WITNESS, FAKE_NO_REGISTER="1")
    assert (ran.counts["unchecked"], ran.counts["witnessed"]) == (TIMES, 0)
    assert ran.counters["no_memory"] == 1


def test_copies_beyond_the_room_are_unchecked(streams):
    ran = streams.run("overwritten_at_once", f"{WITNESS},slots=1")
    assert ran.counts["checked"] + ran.counts["unchecked"] == TIMES
    assert ran.counters["slots_full"] == ran.counts["unchecked"] > 0


def test_children_have_logs_of_their_own(streams):
    child, parent = sorted(streams.run("forks", WITNESS).logs, key=lambda log: -sum(s.counts["bad"] for s in log.sites))
    assert child.parent == parent.process
    assert child.sites[0].counts["bad"] in OFTEN
    assert parent.sites[0].counts["bad"] == 0
    (only,) = streams.run("forks_late", WITNESS).logs
    assert only.sites[0].counts["bad"] in OFTEN


def test_what_a_killed_process_found_is_kept(streams):
    ran = streams.run("killed", WITNESS)
    assert (ran.code, ran.counts["checked"], ran.logs[0].is_ended) == (-9, TIMES, False)
    assert ran.counts["bad"] in OFTEN


def test_without_settings_nothing_is_done(streams, tmp_path):
    environment = streams.environment(WITNESS)
    for missing in ("INTERTOKEN_RACES", "INTERTOKEN_LIGHT"):
        given = {name: value for name, value in environment.items() if name != missing}
        command = [streams.folder / "seeded", "overwritten_at_once"]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("wrong ")
    (others := tmp_path / "others").mkdir()
    os.chmod(others, 0o755)
    assert not streams.run("synced", WITNESS, INTERTOKEN_LIGHT=str(others)).logs
    assert not [*others.iterdir()]


@pytest.mark.parametrize("way", ["dlsym", "proc", "proc2", "again", "own", "later"])
@pytest.mark.parametrize("settings", ["", WITNESS, DRAINED.replace("200", "1")])
def test_every_call_by_every_way_does_what_it_does_without_us(built, streams, way, settings):
    """Over the driver of the light recorder's tests, which says what was called."""
    environment = streams.environment(settings) | {"LD_LIBRARY_PATH": str(built.folder)}
    printed = []
    for preloaded in ("", environment["LD_PRELOAD"]):
        given = environment | {"LD_PRELOAD": preloaded}
        command = [built.folder / "every", way]
        printed.append(subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout)
    own = {"cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2"}  # with which the first work is held back
    assert len(printed[0].split()) > 100
    assert [word for word in printed[1].split() if word not in own] == [
        word for word in printed[0].split() if word not in own
    ]  # fmt: skip
