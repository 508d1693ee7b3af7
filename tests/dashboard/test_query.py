"""What a search means, and what it finds."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.palette import KINDS
from dashboard.timeline.marks import NO_WAITS
from dashboard.timeline.rows import Finder, Query, lines_of, query_of, rows_of
from tracer import Trace
from tracer.model.schema import MISSING

KERNEL, COPY, SYNC = (KINDS.index(kind) for kind in ("kernel", "copy", "sync"))


@pytest.mark.parametrize(("text", "query"), [
    ("", Query()),
    ("void k<float>(T*)", Query("void k<float>(T*)")),
    ("gemm  x", Query("gemm x")),
    (">50us", Query(longer=50_000)),
    (">1.5ms <2s >1µs k", Query("k", longer=1_500_000, shorter=2_000_000_000)),
    ("> 50us", Query("> 50us")),
    ("<8,float>", Query("<8,float>")),
    ("kind:Kernel kind:copy", Query(kinds=frozenset({KERNEL, COPY}))),
    ("kind:nothing", Query(kinds=frozenset())),
    ("kind:memset", Query(kinds=frozenset({KINDS.index("memset")}))),
    ("stream:7 stream:13 mul", Query("mul", streams=frozenset({7, 13}))),
    ("stream:x", Query("stream:x")),
])  # fmt: skip
def test_what_is_typed_means(text, query):
    assert query_of(text) == query


EVENTS = st.lists(
    st.tuples(st.sampled_from(["gemm", "rope"]), st.integers(0, 40), st.sampled_from([KERNEL, COPY, SYNC]),
              st.sampled_from([7, 13, MISSING])),
    min_size=1, max_size=40,
)  # fmt: skip


@given(EVENTS, st.sampled_from(["", "gemm"]), st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans())
def test_filters_find_what_a_plain_scan_finds(events, text, longer, shorter, of_kind, on_stream):
    names, lengths, what, streams = (list(each) for each in zip(*events, strict=True))
    start = np.arange(len(events), dtype=np.int64) * 100
    finder = Finder(start, start + lengths, np.array(what, np.int8), np.array(streams),
                    [pd.Series(names, dtype="str").astype("category")])  # fmt: skip
    words = [text, f">{longer}ns", f"<{shorter}ns", "kind:sync" * of_kind, "stream:7" * on_stream]
    hits = [
        at for at, (name, length, kind, stream) in enumerate(events)
        if text in name and longer < length < shorter and kind in ((SYNC,) if of_kind else (KERNEL, COPY, SYNC))
        and stream in ((7,) if on_stream else (7, 13, MISSING))
    ]  # fmt: skip
    find = " ".join(filter(None, words))
    assert finder.positions(find).tolist() == hits
    assert [finder.has(find, at) for at in range(len(events))] == [at in hits for at in range(len(events))]
    assert finder.before(find, 20) == sum(at < 20 for at in hits)
    assert finder.starting_before(find, 1_000) == sum(at < 10 for at in hits)


def test_a_kernel_says_what_it_was_launched_with_and_nothing_that_is_not_recorded():
    axes = {f"{of}_{axis}": [size, size, MISSING] for of, size in (("grid", 3), ("block", 32)) for axis in "xyz"}
    trace = Trace.from_columns(
        kernels={"start": [100, 300, 500], "end": [200, 400, 600], "name": ["k"] * 3, "stream": [7] * 3,
                 "correlation": [5, 6, MISSING], "static_shared": [1024, 0, MISSING], "registers": [16, 16, MISSING],
                 "dynamic_shared": [2048, 0, MISSING], **axes},
    )  # fmt: skip
    (row,) = rows_of(trace)
    shape = "grid 3 × 3 × 3 · block 32 × 32 × 32"
    assert lines_of(row, np.arange(3), 100, NO_WAITS) == [
        ["100 ns, from ±0 ns", "stream 7 · correlation 5", f"{shape} · shared memory 3 KiB · 16 registers per thread"],
        ["100 ns, from +200 ns", "stream 7 · correlation 6", f"{shape} · shared memory 0 B · 16 registers per thread"],
        ["100 ns, from +400 ns", "stream 7"],
    ]
