"""The recorder's own readings of the device's clock, over a device that answers them: its clock runs apart from the
host's, by a known difference and drift."""

import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import compiler_or_skip, sanitizing, unless_sanitized
from tracer.recorders.light import light_trace
from tracer.recorders.light_work import stamped_work

AHEAD_NS, DRIFT = 5_000_000_000, 30_000  # of the fake device's clock, and billionths
TRIES = 5  # on a machine that is busy otherwise, a burst may find no processor


def checked(ring, drift=DRIFT):
    """The alignments of a ring, whose stated errors contain the truth."""
    clocks = [clock for clock in stamped_work(ring).alignments if clock is not None]
    for clock in clocks:
        host = clock.to_host(clock.at)
        truth = host + AHEAD_NS + host // 1000 * drift // 1_000_000
        assert np.abs(truth - clock.at).max() <= clock.error_ns
    for each in ring.brackets:
        middle = (each["before"] + each["after"]) // 2
        off = middle + AHEAD_NS + middle // 1000 * drift // 1_000_000 - each["time"].astype(np.int64)
        assert (np.abs(off) <= (each["after"] - each["before"]) // 2 + 100).all()
    return clocks


def ran(built, *scene, fewest=1, code=0, **extra):
    """The ring of a scene, tried again until each of its contexts with stamps has that many brackets."""
    for _ in range(TRIES):
        log = built.run("scenes", *scene, code=code, FAKE_DRIFT=str(DRIFT), **extra)
        ring = built.read()[0]
        assert "STRICT" not in log
        assert "GONE" not in log
        assert ring.counters["brackets_refused"] == 0
        clocks = checked(ring)
        if all(len(each) >= fewest for each in ring.brackets):
            break
    assert all(len(each) >= fewest for each in ring.brackets)
    return ring, clocks


@pytest.mark.parametrize("waits", ["each", "rarely", "late", "polls", "never"])
def test_the_clock_is_known_however_a_program_waits(built, waits):
    ring, (clock,) = ran(built, "clocked", waits, "450", fewest=4)
    assert clock.brackets == len(ring.brackets[0]) == ring.counters["brackets"]
    assert clock.contradictions == 0
    width = np.sort(ring.brackets[0]["after"] - ring.brackets[0]["before"])
    assert clock.error_ns < 5_000 or width[-2] > 5_000
    trace = light_trace([ring])
    assert trace.metadata["clock"]["device_brackets"] == clock.brackets
    assert trace.metadata["clock"]["device_error_ns"] == clock.error_ns


def test_a_program_that_is_killed_keeps_its_brackets(built):
    _, (clock,) = ran(built, "clocked", "never", "450", "killed", fewest=3, code=-9)
    assert clock.error_ns is not None


def test_a_child_reads_the_clock_for_itself(built):
    """The parent's thread does not exist in it; and it ends while its clock is being read."""
    for _ in range(TRIES):
        ran(built, "clocked", "each", "250", "forks")
        parent, child = built.read()
        if len(child.brackets[0]):
            break
    assert len(child.brackets[0]) >= 1
    assert child.brackets[0]["before"].min() > parent.brackets[0]["before"].min()
    checked(child)


def test_a_program_that_calls_exec_reads_the_clock_anew(built):
    ran(built, "clocked", "each", "250", "execs", fewest=2)
    first, second = built.read()
    checked(second)
    assert len(second.brackets[0]) >= 1
    assert second.brackets[0]["before"].min() > first.brackets[0]["after"].max()


def test_two_devices_have_two_clocks_until_one_context_is_gone(built):
    """The fake devices' clocks are the same, of which the recorder knows nothing."""
    ring, clocks = ran(built, "two_clocks", fewest=3)
    assert [clock.brackets for clock in clocks] == [len(each) for each in ring.brackets]
    first, second = (each["after"].max() for each in ring.brackets)
    assert first > second + 50_000_000


@pytest.mark.parametrize(("scene", "contexts"), [("many_contexts", 32), ("threads", 1), ("captured_between", 1)])
def test_contexts_have_clocks_of_their_own(built, scene, contexts):
    """Also those that are destroyed, whose clock is read once more before."""
    ring, _ = ran(built, scene, fewest=1)
    assert len(ring.brackets) == contexts
    if scene == "many_contexts":
        assert np.mean([len(each) for each in ring.brackets]) > 1


def test_a_device_that_is_full_is_waited_for_by_the_recorders_thread_alone(built):
    """The kernel starts 2 ms after its launch."""
    ring, _ = ran(built, "clocked", "each", "450", fewest=1, FAKE_FULL_US="2000")
    assert ring.counters["brackets_late"] >= 1
    assert ring.brackets[0]["before"].min() > ring.records["begin"].min() + 90_000_000
    ring, (clock,) = ran(built, "clocked", "each", "250", fewest=0, FAKE_FULL_US="20000")
    assert (len(ring.brackets[0]), clock.brackets) == (0, 0)
    assert any(
        "was never read, so its times are bounds\nit had no room, or refused" in note
        for note in light_trace([ring]).notes
    )


def test_on_one_hardware_queue_it_is_read_at_both_ends_alone(built):
    ring, _ = ran(built, "clocked", "each", "450", fewest=2, CUDA_DEVICE_MAX_CONNECTIONS="1")
    assert len(ring.brackets[0]) == 2
    assert ring.brackets[0]["before"][-1] > ring.records["end"].max() - 50_000_000
    assert any("1 contexts share a hardware queue" in note for note in light_trace([ring]).notes)


def test_where_launches_wait_for_their_kernels_it_is_not_read(built):
    built.run("scenes", "clocked", "each", "150", CUDA_LAUNCH_BLOCKING="1", FAKE_DRIFT=str(DRIFT))
    ring = built.ring()
    assert not len(ring.brackets[0])
    assert ring.counters["brackets_refused"] == 1
    checked(ring)


NO_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    size_t bytes = 0;
    if (how) pthread_attr_getstacksize(how, &bytes);
    return bytes == 1 << 18 ? EAGAIN : real(thread, how, run, with);
}
"""


@unless_sanitized("the runtime has a pthread_create of its own")
def test_where_no_thread_can_be_made_the_programs_own_read_it(built, tmp_path):
    (tmp_path / "none.c").write_text(NO_THREAD)
    flags = ["-shared", "-fPIC", "-w", *sanitizing()]
    subprocess.run([compiler_or_skip(), *flags, "-o", tmp_path / "none.so", tmp_path / "none.c", "-ldl"], check=True)
    ring, _ = ran(built, "clocked", "each", "450", fewest=2, LD_PRELOAD=str(tmp_path / "none.so"))
    assert ring.counters["brackets_threadless"] == 1


def tasks(process):
    return [(each / "comm").read_text().strip() for each in Path(f"/proc/{process.pid}/task").iterdir()]


def test_an_idle_program_has_no_thread_of_ours(built):
    built.clear()
    environment = built.environment(FAKE_DRIFT=str(DRIFT))
    command = [built.folder / "scenes", "clocked", "each", "300", "stays"]
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1) as program:
        assert program.stdout.readline() == b"over\n"
        until = time.monotonic() + 20
        while "intertoken" in tasks(program) and time.monotonic() < until:
            time.sleep(0.02)
        assert "intertoken" not in tasks(program)
        before = built.ring().counters["brackets"]
        program.communicate(b"\n\n")
    assert program.returncode == 0
    assert sum(built.ring().counters[name] for name in ("brackets", "brackets_late")) > before
    checked(built.ring())
