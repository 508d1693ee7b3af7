"""Steps cut into splits: every placement computes what one device computes, with the calls that its strategy says."""

import random

import numpy as np
import pytest

from executor import planning as prepare_module
from executor.graph.models import SHAPES
from executor.graph.models.step import first_tokens
from executor.planning.devices import HOST, Device
from executor.run import execute
from executor.run.configuration import Configuration, fitting_strategies
from executor.scheduling.strategies import STRATEGIES
from tests.covering import covering
from tests.executor import reference
from tests.executor.shapes import MODELS_HERE, TEST_SHAPES, random_weights
from tests.executor.test_logits import tolerance
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.errors import UsageError
from tracer.model.schema import HOST_COMPUTE

SPLITTING = [name for name, cls in STRATEGIES.items() if cls.splits]
PLACEMENTS = [
    {"gpu_layers": 0}, {"gpu_layers": 2}, {"gpu_layers": 100}, {"devices": 2}, {"devices": 3, "gpu_layers": 3},
    {"experts": "cpu"}, {"experts": "copy"}, {"experts": "copy", "devices": 2}, {"experts": "copy", "gpu_layers": 2},
]  # fmt: skip


MODES = [("sequential", "graph"), ("sequential", "eager"), ("branches", "graph"), ("subgraphs", "eager")]
WAYS = [(s, mode, launch) for s in SPLITTING for mode, launch in MODES]
CASES = [
    (model, number) for model in ("tiny", "moe-tiny", "gdn-tiny") for number, placement in enumerate(PLACEMENTS)
    if "experts" not in placement or "moe" in model
]  # fmt: skip
ROWS = covering((*case, *way) for case in CASES for way in WAYS)


def configurations(model, placement, ways=WAYS, **options):
    return [
        Configuration(
            model=model, strategy=s, concurrency=mode, launch=launch, tokens=5, repeats=2, warmup=0, seed=7,
            **placement, **options,
        )
        for s, mode, launch in ways
    ]  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case in {row[:2] for row in ROWS}],
    ids=lambda case: f"{case[0]}-{PLACEMENTS[case[1]]}",
)
def test_logits_are_those_of_one_device_and_the_references(case):
    model, placement = case[0], PLACEMENTS[case[1]]
    ways = [row[2:] for row in ROWS if row[:2] == case]
    (alone,) = execute(
        [Configuration(model=model, tokens=5, repeats=2, warmup=0, seed=7, batch=2)],
        keep_logits=True,
        models=MODELS_HERE,
    )
    for result in execute(configurations(model, placement, ways, batch=2), keep_logits=True, models=MODELS_HERE):
        assert np.array_equal(result.logits, alone.logits), result.configuration.name
    step = MODELS_HERE[model](batch=2)
    first = first_tokens(step, 7)
    for sequence in range(2):
        fed = [first[sequence], *alone.tokens[0, :-1, sequence]]
        expected = reference.decode(random_weights(step.graph, 7), fed, TEST_SHAPES[model])
        np.testing.assert_allclose(alone.logits[0, :, sequence], expected, rtol=0, atol=tolerance(model))


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(p, marks=pytest.mark.gpu(p.get("devices", 1)))
        for p in [*PLACEMENTS, {"devices": 2, "gpu_layers": 2}, {"experts": "copy", "devices": 2, "gpu_layers": 2}]
        if p.get("devices", 1) < 3
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("prompt", [0, 9])
def test_on_gpus_the_logits_are_the_references(placement, prompt):
    """Under all strategies, modes and ways to launch, prompts in several micro-batches, and over many steps."""
    model = "moe-tiny" if "experts" in placement else "tiny"
    first, *others = execute(
        [
            Configuration(**{**vars_of(c), "backend": "cuda", "prompt": prompt, "micro_batch": 4, "tokens": 12})
            for staging in (True, False)
            for c in configurations(model, placement, batch=2, staging=staging)
            if c.strategy in fitting_strategies(c)
        ],
        keep_logits=True,
        models=MODELS_HERE,
    )
    for result in others:
        assert np.array_equal(result.logits, first.logits), result.configuration.name
        assert all(np.array_equal(logits, result.logits[0]) for logits in result.logits), result.configuration.name
    step = MODELS_HERE[model](batch=2)
    prompts, start = first.configuration.prompts.tokens(step.vocabulary, 7)
    for sequence in range(2):
        taken = [*prompts[sequence][:prompt]]
        weights = random_weights(step.graph, 7)
        token = reference.decode(weights, taken, TEST_SHAPES[model])[-1].argmax() if prompt else start[sequence]
        fed = [*taken, token, *first.tokens[0, :-1, sequence]]
        expected = reference.decode(weights, fed, TEST_SHAPES[model])[prompt:]
        np.testing.assert_allclose(first.logits[0, :, sequence], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "placement", [{"gpu_layers": 3}, {"devices": 2}, {"experts": "cpu"}, {"experts": "copy"}], ids=str
)
def test_prompts_are_split_like_tokens(placement):
    model = "moe-tiny"
    base = Configuration(model=model, tokens=4, repeats=1, warmup=0, prompt=6, batch=2)
    (alone,) = execute([base], keep_logits=True)
    for strategy in SPLITTING:
        (result,) = execute([Configuration(**{**vars_of(base), **placement, "strategy": strategy})], keep_logits=True)
        assert np.array_equal(result.logits, alone.logits), strategy


def vars_of(configuration):
    return {name: getattr(configuration, name) for name in configuration.__dataclass_fields__}


@pytest.mark.parametrize("strategy", [name for name, cls in STRATEGIES.items() if not cls.splits])
def test_what_cannot_be_split_is_refused(strategy):
    with pytest.raises(UsageError, match=f"strategy '{strategy}' needs the whole step on one device"):
        execute([Configuration(strategy=strategy, gpu_layers=2)])


@pytest.mark.parametrize(
    ("strategy", "expected"), [("sccc", 1 + 6 + 1), ("saaas", 2 + 1), ("aaas", 1 + 1), ("aaag", 1)]
)  # fmt: skip
def test_syncs_of_a_token_with_its_first_layers_on_the_host(strategy, expected):
    """The device's split has five inputs of the host and one of the host's split; the logits are the last sync."""
    configuration = Configuration(strategy=strategy, gpu_layers=3, tokens=8, repeats=1)
    (result,) = execute([configuration])
    report = sync_report(result.trace, find_steps(result.trace))
    assert report.syncs_per_token == expected


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


def test_what_has_no_experts_cannot_copy_them():
    with pytest.raises(UsageError, match="experts cannot be copied: the model has none"):
        execute([Configuration(experts="copy")])


@pytest.mark.parametrize("number", range(6))
def test_any_assignment_of_nodes_to_devices_computes_the_same(number, monkeypatch):
    """Also values that several splits of a device read from another one, which take turns."""
    choose = random.Random(number)
    devices = [*(Device("cpu", index) for index in range(choose.choice([1, 2, 3]))), *([HOST] * choose.randint(0, 1))]
    model, strategy = choose.choice(["tiny", "moe-tiny", "gdn-tiny"]), choose.choice(SPLITTING)
    (alone,) = execute([Configuration(model=model, tokens=6, repeats=1, warmup=0)], keep_logits=True)
    homes = {}  # of state, which stays on one device

    def scattered(graph, placement):
        if (key := id(graph)) not in homes:
            homes[key], state, assigned = graph, {}, {}
            here = choose.choice(devices)
            for node in graph.nodes:
                here = choose.choice(devices) if choose.random() < 0.3 else here
                owned = [s.root for s in (*node.src, node) if s.root.is_state]
                assigned[node] = state.setdefault(owned[0], here) if owned else here
        return assigned

    monkeypatch.setattr(prepare_module, "assign_devices", scattered)
    configuration = Configuration(model=model, strategy=strategy, tokens=6, repeats=1, warmup=0)
    (result,) = execute([configuration], keep_logits=True)
    assert np.array_equal(result.logits, alone.logits), (model, strategy, devices)


def test_weights_on_the_host_and_copies_for_the_device_are_kept_apart():
    placed = [
        Configuration(model="moe-tiny", experts=e, tokens=3, repeats=1) for e in ("copy", "cpu", "device", "copy")
    ]
    first, *others = execute(placed, keep_logits=True)
    for other in others:
        assert np.array_equal(other.logits, first.logits)
