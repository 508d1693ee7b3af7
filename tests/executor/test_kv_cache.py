"""The KV cache: as plain data, against lists of tokens, and in runs whose attention goes over more and more cells."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.graph.models import kv_cache
from executor.graph.models.kv_cache import KINDS, KvCache, plan_cache
from executor.graph.models.step import Feed
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import plan_facts
from executor.scheduling.prompts import Prompts
from tests.executor.shapes import MODELS_HERE, ODD
from tracer.errors import ExecutionError, UsageError

SEQUENCES, CELLS = 3, 12


def test_the_device_goes_on_by_itself_only_where_the_free_cells_follow_each_other():
    tokens = np.zeros(2, np.int32)
    for kind, stride in (("unified", 2), ("streams", 1)):
        cache = KvCache(kind, 2, 16)
        cache.place([0, 1], [0, 0], 3)
        started = Feed(cache, [0, 1], 1).start(3, tokens, steps=4)
        assert started["stride"].tolist() == [stride]
        first = started["kq_mask_idxs"]
        assert first.tolist() == ([6, 16 + 7] if kind == "unified" else [3, 16 + 3])
        assert (first % 16 + 3 * stride).tolist() == [cache.seen(s)[-1] for s in range(2)]  # the last step's
    cache = KvCache("unified", 2, 16)
    cache.place([0, 1], [0, 0], 3)
    cache.remove(0)
    with pytest.raises(ExecutionError, match="next free cells are not evenly spaced"):
        Feed(cache, [0, 1], 1).start(np.array([0, 3]), tokens, steps=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_cache_is_an_error(kind):
    cache = KvCache(kind, 1, 4)
    cache.place([0], [0], 4)
    with pytest.raises(UsageError, match=f"the {kind} KV cache of 4 cells is full: choose a larger context"):
        cache.place([0], [4], 1)
    with pytest.raises(UsageError, match=r"unknown KV cache 'stream'.*Did you mean 'streams'"):
        KvCache("stream", 1, 4)


@pytest.mark.parametrize(
    ("kind", "prompts", "tokens", "shared", "cells", "context"),
    [("streams", [0], 36, False, 256, 256), ("streams", [0, 500, 2048], 40, False, 2304, 2304),
     ("streams", [4000, 0], 96, False, 4096, 4096),
     ("unified", [0, 500, 2048], 40, False, 2816, 2048 + (2816 - 2548) // 3),
     ("unified", [2048] * 32, 40, False, 66816, 2088), ("unified", [2048] * 32, 40, True, 3328, 2088),
     ("unified", [4000, 4000], 96, False, 8192, 4096)],
)  # fmt: skip
def test_a_planned_cache_has_the_padded_cells_of_the_run(kind, prompts, tokens, shared, cells, context):
    cache = plan_cache(kind, prompts, tokens, 4096, shared=shared)
    assert (cache.cells, cache.context) == (cells, context)
    assert cache.rows == cells * (len(prompts) if kind == "streams" else 1)
    cache.place([0], [0], prompts[0])
    for sequence, length in enumerate(prompts[1:], start=1):
        cache.copy(0, sequence) if shared else cache.place([sequence], [0], length)
    for step in range(tokens):  # what it was planned for fits
        cache.place(range(len(prompts)), [length + step for length in prompts], 1)


SEQUENCE = st.integers(0, SEQUENCES - 1)
OPERATIONS = st.lists(
    st.tuples(st.just("place"), SEQUENCE, st.integers(1, 3), st.integers(0, 4))
    | st.tuples(st.just("remove"), SEQUENCE, st.integers(0, 5)) | st.tuples(st.just("copy"), SEQUENCE, SEQUENCE)
    | st.tuples(st.just("clear")), max_size=25,
)  # fmt: skip


class Device:
    """A K tensor that remembers which token was written to which row, and the sequences as lists of tokens."""

    def __init__(self, kind):
        self.cache = KvCache(kind, SEQUENCES, CELLS if kind == "streams" else SEQUENCES * CELLS)
        self.rows = np.full(self.cache.rows, -1)
        self.taken = [0]
        self.feeds = {n: Feed(self.cache, self.taken, n) for n in (1, 2, 3)}
        self.expected = [[] for _ in range(SEQUENCES)]

    def place(self, sequence, count, back, *, tokens):
        """A step of `count` tokens, `back` tokens before the end."""
        held = self.expected[sequence]
        position = max(len(held) - back, 0)
        if position + count > CELLS:
            return
        self.expected[sequence] = [*held[:position], *tokens]
        self.taken[:] = [sequence]
        values = self.feeds[count].inputs(position, np.zeros(count, np.int32))
        self.rows[values["k_idxs"]] = tokens
        stream = self.rows.reshape(self.cache.streams, -1)[values["inp_streams"][0] if self.cache.streams > 1 else 0]
        for t, row in enumerate(values["kq_mask"]):
            seen = stream[row == 0]
            assert sorted(seen) == sorted(self.expected[sequence][: position + t + 1])
            assert np.isneginf(row[row != 0]).all()

    def remove(self, sequence, first):
        self.cache.remove(sequence, first)
        self.expected[sequence] = self.expected[sequence][:first]

    def copy(self, source, target):
        copied = self.cache.copy(source, target)
        self.expected[target] = [*self.expected[source]]
        if copied is not None:
            self.rows[copied.target : copied.target + copied.count] = self.rows[
                copied.source : copied.source + copied.count
            ]

    def clear(self):
        self.cache.truncate(0)
        self.expected = [[] for _ in range(SEQUENCES)]

    def sequences(self):
        """What the cells of each sequence hold, in order."""
        cells = self.rows.reshape(self.cache.streams, -1)
        return [cells[self.cache.stream(s), self.cache.seen(s)].tolist() for s in range(SEQUENCES)]


@given(OPERATIONS)
def test_both_kinds_hold_and_show_exactly_each_sequences_own_tokens(operations):
    devices, token = [Device(kind) for kind in KINDS], 0
    for name, *arguments in operations:
        more = {}
        if name == "place":
            more["tokens"] = range(token, token := token + arguments[1])
        for device in devices:
            getattr(device, name)(*arguments, **more)
            assert device.sequences() == device.expected
            users = np.zeros_like(device.cache.users)
            for sequence in range(SEQUENCES):
                users[device.cache.stream(sequence), device.cache.seen(sequence)] += 1
            assert np.array_equal(users, device.cache.users)
    assert devices[0].expected == devices[1].expected


def run(**options):
    configuration = Configuration(**{"model": "odd", "repeats": 1, "warmup": 0, **options})
    return execute([configuration], models=MODELS_HERE)[0]


@pytest.mark.parametrize("kv", KINDS)
def test_a_shared_prompt_is_computed_once_and_then_shared_or_copied(kv):
    result = run(kv=kv, batch=4, prompt=9, shared_prompt=True, tokens=4)
    assert len({tuple(tokens) for tokens in result.tokens[0].T}) > 1  # each goes on by itself
    rows = 9 * ODD.kv_heads * ODD.head_size * 4
    copies = result.trace["memcpys"].query("kind == 'DtoD'")["bytes"].tolist()
    assert copies == [rows] * (0 if kv == "unified" else 2 * ODD.layers * 3) * 2  # at the warm-up and at the repeat
    names = result.trace["kernels"]["name"].astype("str").tolist()
    assert names.count("flash_attn_ext(blk.0.attn)") == 2 + 4  # two prompts, though there are four sequences


def test_micro_batches_take_tokens_of_all_sequences_or_several_of_one():
    assert Prompts((3, 10, 4), micro_batch=4).steps([1]) == [(0, 4), (4, 4), (8, 2)]
    assert Prompts((9, 9, 9), micro_batch=4).steps([0, 1, 2]) == [(n, 1) for n in range(9)]


def test_attention_spans_the_cells_of_the_run_not_the_context():
    for kv, prompt, cells in (("streams", 0, (3, 256)), ("streams", (0, 300), (3, 512)),
                              ("unified", 0, (1, 256)), ("unified", (0, 300), (1, 512))):  # fmt: skip
        step = run(kv=kv, batch=3, prompt=prompt, context=4096, tokens=1).prepared.step
        assert {n.src[1].shape[:2] for n in step.graph.nodes if n.op == "flash_attn_ext"} == {cells}
        assert [leaf.shape for leaf in step.graph.inputs if leaf.name == "kq_mask"] == [(3, cells[1])]


def test_a_graph_is_updated_when_the_size_changes_and_only_then(monkeypatch):
    """19 tokens over 8, 16 and 24 cells, once more from the start, and 9 tokens of warm-up before."""
    monkeypatch.setattr(kv_cache, "PADDING", 8)
    grown = Configuration(model="odd", tokens=19, repeats=2, warmup=9)
    kept, rebuilt = execute([grown, replace(grown, launch="rebuild")], models=MODELS_HERE)
    launches = 9 + 2 * 19
    changes = 1 + 3 + 3  # grown in the warm-up; back and grown twice; the same
    expected = {"reinstantiated": 0, "freed": 0, "created": 1}
    assert kept.graphs == [expected | {"updated": changes, "reused": launches - changes - 1}]
    assert rebuilt.graphs == [expected | {"updated": launches + changes, "reused": 0}]
    assert plan_facts(kept.prepared)["attended_cells"] == [8, 16, 24]


def test_the_step_that_grows_says_so_and_waits_for_the_devices(monkeypatch):
    monkeypatch.setattr(kv_cache, "PADDING", 8)
    trace = run(strategy="aaag", tokens=19).trace
    ranges, calls = trace["nvtx"], trace["api"]
    grown = ranges[ranges["text"].astype(str).str.startswith("n_kv")]
    assert grown["text"].tolist() == ["n_kv 16", "n_kv 24"]
    for start, end in zip(grown["start"], grown["end"], strict=True):
        names = calls[(calls["start"] >= start) & (calls["end"] <= end)]["name"].tolist()
        assert [name.removeprefix("cuda") for name in names] == ["streamSynchronize", "graphExecUpdate"]
    steps = ranges[ranges["text"] == "token"].sort_values("start").reset_index()
    inside = [int(np.searchsorted(steps["start"], start)) - 1 for start in grown["start"]]
    assert inside == [8, 16], "the first tokens that need a ninth and a seventeenth cell"
