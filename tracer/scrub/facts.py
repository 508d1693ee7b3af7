"""Metadata, run.json, graph.json and notes without anything that identifies a machine or its users.

Only known keys of metadata are kept: all of their numbers, and texts only for keys known to hold harmless ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tracer.model.graph_json import RunGraph
from tracer.recorders.cupti_tables import OVERHEADS
from tracer.scrub.texts import Texts

RUN: Final = "run"
_RANGES: Final = "ranges"


def _words(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


_KEYS: Final = (
    _words(  # metadata, from each source
        "source schema_version start_utc_ns run clock overhead graph_trace kinds base_time_ns distributed backend rank",
        "world_size display_time_unit cuda_runtime_version cuda_driver_version origin_ns device_error_ns count ns",
        "device_drift_ppm pauses_ns",
    )
    | _words(  # run.json: what ran, and where
        "schema configuration machine versions clocks measured simulated plan created passes pass engine model",
        "strategy concurrency allocator launch batch tokens prompt shared_prompt micro_batch kv repeats warmup",
        "reserve seed weights context fusion sampling allow_hazards devices gpu_layers experts staging profile cpu",
        "cores gpu gpus os python driver cuda intertoken numpy cupy torch transformers vllm sglang host device name",
        "resolution_ns cpu_cores",
    )
    | _words(  # run.json: the plan and the measurements
        "splits nodes kernels inputs streams events regions graphs hazards peak_bytes peak_live_bytes reuse kv_cells",
        "fragmentation weight_bytes attended_cells state_bytes graph_plans reused updated reinstantiated freed",
        "tokens_per_s steps_per_s median low high traced light graph node gap_us p50 p90 mean causes_us sync copy",
        "communication",
        "counted decode prefill mixed period_us distortion syncs_per_token copies_per_token launches_per_token problem",
    )
    | {"other process/thread", *OVERHEADS.values()}
)
_NAMED: Final = _words("model engine profile")
_GPUS: Final = _words("gpu gpus")
_TEXTS: Final = _words(
    "schema backend strategy concurrency allocator launch kv weights sampling experts cpu os pass device devices name",
    "graph_trace kinds display_time_unit simulated",
)
_MESSAGES: Final = _words("problem")
_NUMBERED: Final = _words(
    "schema_version cuda_runtime_version cuda_driver_version python driver cuda intertoken numpy cupy torch",
    "transformers vllm sglang created",
)
_NUMBER: Final = re.compile(r"\d[\w.:+-]{0,34}")  # a version or a date
_SOURCE: Final = re.compile(
    r"(?:host|light|nsys|cupti|PyTorch profiler|Chrome JSON|rocmProfileData)(?: [\d.]+)?(?:, rank \d+ of \d+)?"
)


def learn(value: Any, texts: Texts, key: str = "") -> None:
    """Learn from every text in metadata, by its key."""
    if isinstance(value, str):
        texts.learn(key, value)
    elif isinstance(value, Mapping):
        for inner, item in value.items():
            learn(item, texts, inner)
    elif isinstance(value, list):
        for item in value:
            learn(item, texts, key)


def metadata(given: Mapping[str, Any], texts: Texts, where: str = "metadata") -> dict[str, Any]:
    """Return the metadata of a trace, or an object in it, without what must be removed."""
    kept: dict[str, Any] = {}
    for key, item in given.items():
        place = "run.json" if where == "metadata" and key == RUN else f"{where}: {key}" if key in _KEYS else where
        if key == _RANGES and isinstance(item, Mapping):
            kept[key] = {
                texts.name(text, f"{where}: {key}"): metadata(facts, texts, f"{where}: {key}")
                for text, facts in item.items()
                if isinstance(facts, Mapping)
            }
        elif key not in _KEYS:
            texts.remove("unknown entry", where, _leaves(item))
        else:
            value, stays = _value(key, item, texts, place)
            kept |= {key: value} if stays else {}
    return kept


def _value(key: str, item: Any, texts: Texts, where: str) -> tuple[Any, bool]:
    """The cleaned value, and whether it is kept."""
    if isinstance(item, Mapping):
        return metadata(item, texts, where), True
    if isinstance(item, list):
        found = [_value(key, part, texts, where) for part in item]
        return [value for value, stays in found if stays], True
    if not isinstance(item, str):
        return item, True
    if key in _NAMED:
        return texts.name(item, where), True
    if key in _GPUS:
        return texts.device(item, where), True
    if key in _TEXTS:
        return texts.plain(item, where), True
    if key in _MESSAGES:
        return texts.message(item, where), True
    if (key in _NUMBERED and _NUMBER.fullmatch(item)) or (key == "source" and _SOURCE.fullmatch(item)):
        return texts.plain(item, where), True
    texts.remove("unknown text", where)
    return None, False


def _leaves(item: Any) -> int:
    inner = list(item.values()) if isinstance(item, Mapping) else item if isinstance(item, list) else None
    return 1 if inner is None else sum(map(_leaves, inner))


def graph(given: RunGraph, texts: Texts) -> RunGraph:
    """Return graph.json with the names of its nodes, inputs and states cleaned.

    The CPU backend names its kernels `op(node)`. Hashed kernel names still match the hashed names of their nodes.
    """

    def plain(text: str) -> str:
        return texts.plain(text, "graph.json")

    def name(text: str) -> str:
        return texts.name(text, "graph.json")

    nodes = tuple(
        replace(node, name=name(node.name), op=plain(node.op), dtype=plain(node.dtype)) for node in given.nodes
    )
    for old, new in zip(given.nodes, nodes, strict=True):
        texts.set_name(f"{old.op}({old.name})", f"{new.op}({new.name})")
    return replace(
        given,
        nodes=nodes,
        leaves=tuple(
            replace(leaf, name=name(leaf.name), kind=plain(leaf.kind), dtype=plain(leaf.dtype)) for leaf in given.leaves
        ),
        memory=tuple(replace(each, allocator=plain(each.allocator)) for each in given.memory),
        allocator=plain(given.allocator),
        devices=tuple(map(plain, given.devices)),
    )
