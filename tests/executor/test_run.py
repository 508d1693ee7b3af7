"""Runs: what is recorded, in which order, and what is refused."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from executor.backends.cpu.backend import CpuBackend
from executor.backends.cpu.kernels import KERNELS
from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.run.directory import run_json
from tests.executor.handmade import SlowBackend
from tracer.errors import ExecutionError, UnsafePlanError, UsageError
from tracer.model.run_json import SCHEMA


def test_warm_up_comes_first_and_repeats_are_interleaved():
    done = []
    both = combinations(Configuration(tokens=2, repeats=2, warmup=1), ["sccc", "ggg"], ["sequential"])
    results = execute(both, progress=lambda: done.append(None))
    assert len(done) == 2 * (1 + 2)
    origins = [r.trace.metadata["clock"]["origin_ns"] for r in results]
    spans = []
    for result, origin in zip(results, origins, strict=True):
        nvtx = result.trace["nvtx"]
        repeats = nvtx[nvtx["text"] == "repeat"]
        assert [*repeats["payload"]] == [0, 1]
        assert (nvtx["text"] == "warmup").sum() == 1
        assert nvtx.loc[nvtx["text"] == "warmup", "end"].max() < repeats["start"].min()
        spans.append([(s + origin, e + origin) for s, e in zip(repeats["start"], repeats["end"], strict=True)])
    order = sorted((start, run) for run, repeats in enumerate(spans) for start, _ in repeats)
    assert [run for _, run in order] == [0, 1, 0, 1]


@pytest.mark.parametrize("strategy", ["sccc", "ggg"])
def test_token_ranges_lie_inside_their_repeat_and_are_numbered(strategy):
    (result,) = execute([Configuration(strategy=strategy, tokens=3, repeats=2)])
    nvtx = result.trace["nvtx"]
    tokens, repeats = nvtx[nvtx["text"] == "token"], nvtx[nvtx["text"] == "repeat"]
    assert [*tokens["payload"]] == [0, 1, 2, 0, 1, 2]
    for i, (_, token) in enumerate(tokens.iterrows()):
        repeat = repeats.iloc[i // 3]
        assert repeat["start"] <= token["start"] <= token["end"] <= repeat["end"]
    assert {"repeat", "token"} <= set(nvtx["text"])


def test_with_ggg_the_host_is_ahead_of_the_device_and_reads_late():
    (result,) = execute([Configuration(strategy="ggg", tokens=20, repeats=1)])
    trace = result.trace
    tokens = trace["nvtx"][trace["nvtx"]["text"] == "token"]
    copies = trace["memcpys"][trace["memcpys"]["kind"] == "DtoH"]
    assert len(copies) == 1
    assert copies["start"].iloc[0] > tokens["end"].max()
    launches = trace["api"][trace["api"]["name"] == "graphLaunch"]
    done = trace["kernels"].groupby("correlation")["end"].max()[launches["correlation"]]
    assert (launches["end"].to_numpy()[1:] < done.to_numpy()[:-1]).any()
    assert result.tokens.shape == (1, 20, 1)


@pytest.mark.parametrize("mode", ["branches", "subgraphs"])
def test_fused_branches_start_after_their_fork_and_none_waits_for_another(mode):
    """Seen in a recording in which Q, K and V take long: each begins before any ends, Q on the main stream as well."""
    slow = ["attn_q_rope", "cache_k (set)", "cache_v (set)"]
    (result,) = execute(
        [Configuration(concurrency=mode, fusion=True, tokens=1, repeats=1, warmup=0)],
        open_backend=lambda *_: SlowBackend([f"blk.0.{name}" for name in slow]),
    )
    kernels = result.trace["kernels"].astype({"name": "str"})
    first = kernels[kernels["name"].map(lambda name: any(f"(blk.0.{part})" in name for part in slow))]
    fork = kernels[kernels["name"].str.endswith("(blk.0.attn_norm)")].iloc[0]
    join = kernels[kernels["name"].str.endswith("(blk.0.attn)")].iloc[0]
    assert sorted(first["stream"]) == [0, 1, 2]
    assert fork["end"] <= first["start"].min()
    assert first["start"].max() < first["end"].min()
    assert first["end"].max() <= join["start"]


def test_run_json_says_what_where_and_how_fast():
    (result,) = execute([Configuration(tokens=4, repeats=3, batch=2, concurrency="branches")])
    run = run_json(result)
    assert run["schema"] == SCHEMA
    assert run["configuration"]["allocator"] == "stream_aware"
    assert run["configuration"]["model"] == "tiny"
    measured = run["measured"]
    rates = measured["tokens_per_s"]["repeats"]
    assert rates == pytest.approx([2 * 4 / s for s in result.seconds])
    assert measured["tokens_per_s"]["low"] == min(rates)
    assert measured["tokens_per_s"]["median"] == pytest.approx(2 * measured["steps_per_s"]["median"])
    assert run["plan"] == {
        "splits": 1, "nodes": 102, "kernels": 82, "inputs": 6, "streams": 3, "events": 20, "regions": 8, "graphs": 1,
        "hazards": 0, "peak_bytes": 16704, "peak_live_bytes": 16704, "reuse": 9.95, "fragmentation": 0.0,
        "weight_bytes": 11019264, "kv_cells": 256, "attended_cells": [256], "state_bytes": 2 * 524288,
        "devices": ["cpu"],
        "graph_plans": [{"created": 1, "reused": 4 + 3 * 4 - 1, "updated": 0, "reinstantiated": 0, "freed": 0}],
    }  # fmt: skip
    assert set(run["machine"]) == {"cpu", "cores", "os", "python"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "ssss"}, "unknown strategy 'ssss'; choose from sccc, saaas, aaas, aaag, aaeg, aga, ggg"),
        ({"model": "tny"}, "unknown model 'tny'; choose from .*Did you mean 'tiny'"),
        ({"backend": "cup"}, "unknown backend 'cup'.*Did you mean 'cpu'"),
        ({"launch": "eagre"}, "unknown launch kind.*Did you mean 'eager'"),
        ({"concurrency": "branch"}, "Did you mean 'branches'"),
        ({"tokens": 257}, "context of 256, too small for 257"),
        ({"warmup": 300}, "context of 256, too small for 300"),
        ({"batch": 0}, "batch must be at least 1, not 0"),
        ({"repeats": 0}, "repeats must be at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(change, message):
    with pytest.raises(UsageError, match=message):
        execute([Configuration(**change)])


def test_an_unsafe_combination_is_refused_before_the_safe_ones_run():
    opened = []
    with pytest.raises(UnsafePlanError):
        execute(
            combinations(Configuration(allocator="sequential"), ["sccc"], ["sequential", "branches"]),
            open_backend=lambda device: opened.append(device.backend) or CpuBackend(device.index),
        )
    assert opened == []


def test_a_failure_on_the_device_ends_the_run_and_its_threads():
    calls = []

    def fail_late(out, x):
        calls.append(None)
        out[...] = 0
        if len(calls) > 3:
            raise MemoryError("on purpose")

    with pytest.raises(ExecutionError, match=r"kernel argmax\(sampled\) on stream 0 failed: MemoryError: on purpose"):
        execute(
            [Configuration(strategy="ggg")],
            open_backend=lambda *_: CpuBackend(kernels={**KERNELS, "argmax": fail_late}),
        )
    assert not any(t.name.startswith("cpu stream") for t in threading.enumerate())


@pytest.mark.parametrize("strategy", ["sccc", "saaas", "aaag", "aga"])
@pytest.mark.parametrize("batch", [1, 3])
def test_sampling_on_the_device_gives_the_host_s_tokens_and_fetches_only_those(strategy, batch):
    base = Configuration(strategy=strategy, batch=batch, tokens=6, repeats=1)
    host, device = execute([base, replace(base, sampling="device")])
    assert np.array_equal(host.tokens, device.tokens)
    fetched = device.trace["memcpys"].query("kind == 'DtoH'")["bytes"]
    assert (fetched == 4 * batch).all()
    assert len(fetched) == 6 + base.warmup
    assert device.configuration.name.endswith("-sampled")


def test_logits_are_kept_of_the_configurations_asked_for():
    base = Configuration(tokens=4, repeats=1)
    short, late = replace(base, tokens=2), replace(base, strategy="ggg")
    plain, kept, kept_late = execute([base, short, late], keep_logits=[short, late])
    assert plain.logits is None
    assert kept.logits.shape == (1, 2, *kept_late.logits.shape[2:])
    assert np.array_equal(kept.logits, kept_late.logits[:, :2])


def test_aga_sends_only_the_token_between_the_sync_and_the_launch():
    (result,) = execute([Configuration(strategy="aga", tokens=4, repeats=1, warmup=0)])
    calls = result.trace["api"].sort_values("start").query("name != 'memcpy'")["name"].astype("str").tolist()
    launches = [i for i, name in enumerate(calls) if name == "graphLaunch"]
    assert all(calls[i - 2 : i] == ["eventSynchronize", "memcpyAsync"] for i in launches[1:])
    step = ["graphLaunch", "memcpyAsync", "eventRecord", *["memcpyAsync"] * 5]
    assert all(calls[i : i + 8] == step for i in launches)
