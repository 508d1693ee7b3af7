"""Steps of which the host computes a part: what it reads and copies, and what it computes beside the device."""

import numpy as np
import pytest

from executor.backends.sim.backend import SimBackend, SimHostBackend
from executor.backends.sim.profiles import HostCost
from executor.graph.models import SHAPES
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.executor.handmade import cost_profile
from tracer.model.intervals import covered
from tracer.model.schema import HOST_COMPUTE

SPLITTING = [name for name, cls in STRATEGIES.items() if cls.splits]


def of_host(result):
    """Text, bytes and the range around of everything that the host computed as a device."""
    ranges = result.trace["nvtx"]
    of_host = ranges[ranges["domain"] == HOST_COMPUTE]
    splits = ranges[ranges["text"].str.fullmatch(r"split \d+: host")]
    inside = [
        splits["text"][(splits["start"] <= r.start) & (splits["end"] >= r.end)].astype(str).to_list()
        for r in of_host.itertuples()
    ]
    return list(zip(of_host["text"].astype(str), of_host["payload"], inside, strict=True))


@pytest.mark.parametrize(("weights", "bytes_of_32"), [("f32", 128), ("q8_0", 34)])
def test_products_on_the_host_are_activities_with_the_bytes_that_they_read(weights, bytes_of_32):
    """tiny: 4 layers of width 256, 4 heads of KV of 32, inner size 512; three are on the host."""
    configuration = Configuration(weights=weights, gpu_layers=2, tokens=3, repeats=1, warmup=0)
    (result,) = execute([configuration])
    found = of_host(result)
    shape = SHAPES["tiny"]
    q, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    values = shape.width * np.array([q, kv, kv, q, shape.ffn, shape.ffn, shape.ffn])
    layer = ["attn_q", "attn_k", "attn_v", "attn", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    on_host = shape.layers - 1
    texts = [text for text, _, _ in found]
    of_attention = [f"flash_attn_ext(blk.{n}.attn)" for n in range(on_host)]
    assert sorted(texts) == sorted(
        3 * [f"mul_mat(blk.{n}.{name})" for n in range(on_host) for name in layer if name != "attn"] + 3 * of_attention
    )
    assert np.isnan([nbytes for text, nbytes, _ in found if text in of_attention]).all()
    assert sum(nbytes for text, nbytes, _ in found if text not in of_attention) == (
        3 * on_host * values.sum() // 32 * bytes_of_32
    )
    assert all(inside == ["split 0: host"] for _, _, inside in found)


def test_fused_products_on_the_host_tell_the_bytes_that_they_read():
    """As on a GPU, where nodes are fused for all devices alike."""
    plain, fused = (
        of_host(execute([Configuration(gpu_layers=2, tokens=3, repeats=1, warmup=0, fusion=f)])[0]) for f in (0, 1)
    )
    assert any("+mul_mat+" in text for text, _, _ in fused)
    assert len(fused) < len(plain)
    whole, of_fused = (sum(nbytes for _, nbytes, _ in found if nbytes == nbytes) for found in (plain, fused))
    assert of_fused == whole > 0


def test_experts_on_the_host_tell_the_bytes_of_those_that_were_used():
    """moe-tiny: matrices of 64 x 128 values; each of 2 sequences uses 2 of 8 experts, perhaps the same."""
    configuration = Configuration(model="moe-tiny", experts="cpu", batch=2, tokens=8, repeats=1, warmup=0)
    (result,) = execute([configuration])
    used = {nbytes / (64 * 128 * 4) for text, nbytes, _ in of_host(result) if text.startswith("mul_mat_id")}
    assert used <= {2, 3, 4}
    assert len(used) > 1


@pytest.mark.parametrize("strategy", SPLITTING)
def test_only_the_rows_of_used_experts_are_copied(strategy):
    """moe-tiny: 3 layers, 2 of 8 experts per token, each of 3 matrices of 64 x 128 values."""
    configuration = Configuration(model="moe-tiny", experts="copy", strategy=strategy, tokens=6, repeats=1, warmup=0)
    (result,) = execute([configuration])
    copies = result.trace["memcpys"]
    of_weights = copies[(copies["kind"] == "HtoD") & (copies["bytes"] >= 64 * 128 * 4)]
    assert of_weights["bytes"].sum() == 6 * 3 * 2 * 3 * 64 * 128 * 4
    assert set(of_weights["bytes"]) <= {64 * 128 * 4, 2 * 64 * 128 * 4}  # neighbours go together
    ids = copies[(copies["kind"] == "DtoH") & (copies["bytes"] == 2 * 4)]
    assert len(ids) == 6 * 3
    assert [part.split.device.backend for part in result.prepared.splits] == ["cpu"] * 4
    assert sum(len(part.split.copied) for part in result.prepared.splits) == 3 * 3


def simulated(**options):
    profile = cost_profile(host=HostCost(20_000, 100, {"1": 1e18}))

    def opened(device):
        return SimHostBackend(profile) if device.is_host else SimBackend(profile)

    configuration = Configuration("sim", **({"tokens": 6, "repeats": 1, "warmup": 0, "batch": 2} | options))
    (result,) = execute([configuration], open_backend=opened)
    return result


def together(result):
    """How long kernels run while the host computes, ns."""
    ranges, kernels = result.trace["nvtx"], result.trace["kernels"]
    ranges = ranges[ranges["domain"] == HOST_COMPUTE]
    return covered(ranges["start"], ranges["end"], kernels["start"], kernels["end"]).sum()


@pytest.mark.parametrize("strategy", SPLITTING)
def test_layers_on_the_host_are_computed_beside_layers_on_the_device(strategy):
    """Under every strategy: nothing that the host computes first reads what the device computes."""
    assert together(simulated(gpu_layers=2, strategy=strategy)) == 0
    assert together(simulated(gpu_layers=2, strategy=strategy, halves=True)) > 0


@pytest.mark.parametrize("strategy", ["aaag", "aaeg"])
def test_experts_on_the_host_are_computed_beside_attention_on_the_device(strategy):
    """With sccc, saaas and aaas the host waits for each copy, and so for all that is in the queue before it."""
    options = {"model": "moe-tiny", "experts": "cpu", "strategy": strategy}
    plain, halves = simulated(**options), simulated(**options, halves=True)
    assert together(plain) == 0
    ranges = halves.trace["nvtx"]
    ranges = ranges[ranges["domain"] == HOST_COMPUTE]
    assert together(halves) > 0.8 * (ranges["end"] - ranges["start"]).sum()
    one_by_one = 2 * simulated(**options | {"batch": 1}).seconds[0]
    assert halves.seconds[0] < one_by_one - 0.8 * together(halves) / 1e9


@pytest.mark.parametrize("strategy", SPLITTING)
def test_so_are_those_of_the_next_micro_batch_of_a_prompt(strategy):
    """Without halves: nothing is fetched between micro-batches. A prompt of one micro-batch has nothing to overlap."""
    options = {"gpu_layers": 2, "batch": 1, "prompt": 64, "tokens": 1, "strategy": strategy}
    assert together(simulated(**options)) == 0
    assert together(simulated(**options, micro_batch=16)) > 0
