"""How much of the time the recorder's samples take, by its own code under a clock that the test moves."""

import ctypes
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fake_driver import HERE, compiler_or_skip
from tracer.recorders.native import FLAGS, SOURCES

MS, S = 1_000_000, 1_000_000_000
APART = 1000  # a share of 0.1 %: 1 ms each second
EACH, TAKES = 100_000, 80_000  # ns: what an engine launches, and a part with eight stamps
BURST, ENOUGH, FORGET_S = 0.5 * MS, 4 * MS, 8
START = 12 * FORGET_S * S  # half is forgotten at multiples


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """`sampling.c` beside it."""
    made = tmp_path_factory.mktemp("samples") / "samples.so"
    sources = [HERE / "sampling.c", SOURCES / "samples.c"]
    command = [compiler_or_skip(), *FLAGS, "-Werror", "-Dclock_gettime=moved_clock", f"-I{SOURCES}", "-o", made]
    subprocess.run([*command, *sources], check=True)
    library = ctypes.CDLL(str(made))
    library.begin.argtypes = [ctypes.c_int64, ctypes.c_uint64]
    library.pause_for.argtypes = [ctypes.c_int64]
    library.sample_for.argtypes = [ctypes.c_int64] * 3
    library.sample_for.restype = ctypes.c_int64
    return library


def test_the_whole_share_until_there_are_many_then_a_quarter_of_which_half_is_forgotten_every_so_often(samples):
    """So one that is left on takes little, and after a pause, in which one burst is saved, gets all of it again."""

    def each_second(seconds):
        """What samples took in each second of an engine that launches all the time, ms."""
        return [samples.sample_for(S, EACH, TAKES) / MS for _ in range(seconds)]

    samples.begin(START, APART)
    took = each_second(80)
    assert sum(took[:4]) == pytest.approx(ENOUGH / MS, abs=0.2)
    assert sum(took[4:8]) == pytest.approx(4 * 0.25, abs=0.2)
    for begin in range(40, 80, FORGET_S):
        assert sum(took[begin : begin + FORGET_S]) == pytest.approx(2.9, abs=0.3)
        assert max(took[begin + 2 : begin + FORGET_S]) < 0.5 < max(took[begin : begin + 2]) < 1.3
    samples.pause_for(40 * S)
    assert sum(each_second(3)) == pytest.approx(3 + BURST / MS, abs=0.4)
    samples.pause_for(600 * S)
    assert samples.sample_for(20 * MS, EACH, TAKES) == pytest.approx(BURST, abs=2 * TAKES)


@given(
    st.integers(1_000, MS), st.integers(100, MS), st.lists(st.tuples(st.booleans(), st.integers(1, 3 * S)), max_size=5)
)
def test_never_more_than_the_share_and_a_burst(samples, each, takes, times):
    samples.begin(START, APART)
    spent = whole = 0
    for runs, ns in times:
        whole += ns
        if runs:
            apart = max(each, ns // 10_000)
            whole += apart + takes  # by so much the last one may end late
            spent += samples.sample_for(ns, apart, takes)
        else:
            samples.pause_for(ns)
    assert spent <= whole / APART + BURST + 2 * takes
