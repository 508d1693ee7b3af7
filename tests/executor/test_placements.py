"""Every placement, model and batch that the executor offers is run, recorded and summarised by `info`."""

import json
from dataclasses import replace
from itertools import product

import pytest

from executor.graph.models import MODELS, SHAPES
from executor.run.configuration import Configuration
from executor.run.directory import write_run
from executor.run.light_pass import record_light
from executor.run.passes import chosen_passes
from tests.covering import covering
from tests.executor.driven import COMMAND
from tests.tracer.fake_driver import run
from tracer.errors import UsageError

TINY = [name for name in MODELS if "tiny" in name]
LARGE = [name for name in MODELS if name not in TINY]
BATCHES = (1, 2, 8)
LAYERS = max(SHAPES[name].layers for name in TINY) + 1
PLACEMENTS = [
    *({"gpu_layers": layers} for layers in (None, 0, 1, 2, LAYERS)),
    *({"experts": place, "gpu_layers": layers} for place in ("cpu", "copy") for layers in (None, 2)),
]
ON_TWO = [{"devices": 2}, {"devices": 2, "gpu_layers": 3}]
TOKENS, REPEATS = 3, 2


def configured(backend, model, batch, *placements):
    base = Configuration(backend, model, "aaag", batch=batch, tokens=TOKENS, repeats=REPEATS, warmup=1)
    return [replace(base, **each) for each in placements if SHAPES[model].experts is not None or "experts" not in each]


def product_of(backend, model, placements):
    return [c for batch in BATCHES for c in configured(backend, model, batch, *placements)]


def pairs(*backends):
    """Those in which any two of the options meet that do."""
    every = product(backends, TINY, BATCHES, (tuple(each.items()) for each in PLACEMENTS + ON_TWO))
    rows = [row for row in every if configured(*row[:3], dict(row[3])) and (row[0] == "cpu" or not _cpu_only(row[3]))]
    return [c for *row, placement in covering(rows) for c in configured(*row, dict(placement))]


def _cpu_only(placement):
    """A simulated device has no second one and copies no experts; the driver without a GPU has one device."""
    return any(option in placement for option in (("devices", 2), ("experts", "copy")))


def summarised(result, folder):
    """What `info` says of a run. It has figures of each step, unless nothing was on a device."""
    told = json.loads(run("info", write_run(result, folder), "--json").stdout)
    devices = {part.split.device for part in result.prepared.splits}
    c = result.configuration
    assert c.is_on_host == all(device.is_host for device in devices), c.name
    if c.is_on_host:
        assert told["steps"] is None
        assert "no graph launches; the host computed all of it, " in told["problem"], c.name
    else:
        assert told["steps"] == TOKENS * REPEATS, (c.name, told["problem"])
        assert told["gap_p50_us"] is not None, (c.name, told["problem"])
    return told


def test_every_placement_of_every_model_in_every_batch(tmp_path):
    for result in record_light(pairs("cpu", "sim")):
        summarised(result, tmp_path)


def test_under_the_light_recorder(recorder, tmp_path):
    for result in record_light(pairs("cuda"), command=COMMAND):
        summarised(result, tmp_path)


def test_what_the_host_computes_alone_needs_no_gpu_and_has_no_traced_pass(tmp_path):
    on_host = Configuration("cuda", gpu_layers=0, tokens=TOKENS, repeats=REPEATS)
    (result,) = record_light([on_host])
    assert summarised(result, tmp_path)["source"] == "host"
    assert chosen_passes(on_host, ()) == ()
    assert chosen_passes(replace(on_host, gpu_layers=1), ()) == ("graph", "node")
    with pytest.raises(UsageError, match="backend 'cuda' has no node pass: all layers are on the host"):
        chosen_passes(on_host, ["node"])


@pytest.mark.gpu
class TestOnAGpu:
    """Products of eight tokens are cuBLAS's, whose workspace must not become a part of the graph."""

    @pytest.mark.parametrize("model", TINY)
    def test_every_placement_and_batch(self, tmp_path, model):
        for result in record_light(product_of("cuda", model, PLACEMENTS)):
            summarised(result, tmp_path)

    @pytest.mark.gpu(2)
    @pytest.mark.parametrize("model", TINY)
    def test_every_placement_on_two(self, tmp_path, model):
        for result in record_light(product_of("cuda", model, ON_TWO)):
            summarised(result, tmp_path)

    @pytest.mark.parametrize("model", LARGE)
    def test_every_batch_of_a_large_model(self, tmp_path, model):
        for result in record_light(product_of("cuda", model, [{}])):
            summarised(result, tmp_path)
