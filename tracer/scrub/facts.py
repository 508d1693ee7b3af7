"""Metadata, run.json and graph.json: keys of known words stay, with all their numbers and their texts cleaned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tracer.model.graph_json import RunGraph
from tracer.scrub.texts import Texts

_RANGES: Final = "ranges"
_VERSIONS: Final = {
    "source", "schema_version", "cuda_runtime_version", "cuda_driver_version", "os", "python", "driver", "cuda",
    "intertoken", "numpy", "cupy", "torch", "transformers", "vllm", "sglang", "created",
}  # fmt: skip


def metadata(given: Mapping[str, Any], texts: Texts, where: str = "metadata") -> dict[str, Any]:
    """Return the metadata of a trace, or an object in it, without entries whose key is unknown."""
    kept: dict[str, Any] = {}
    for key, item in given.items():
        place = "run.json" if (where, key) == ("metadata", "run") else where
        if key == _RANGES and isinstance(item, Mapping):
            kept[key] = {texts.range(text, place): _value(key, facts, texts, place) for text, facts in item.items()}
        elif texts.is_known(key):
            kept[key] = _value(key, item, texts, place)
        else:
            texts.remove(f"{where}: unknown entries")
    return kept


def _value(key: str, item: Any, texts: Texts, where: str) -> Any:
    if isinstance(item, Mapping):
        return metadata(item, texts, where)
    if isinstance(item, list):
        return [_value(key, part, texts, where) for part in item]
    if not isinstance(item, str):
        return item
    clean = texts.device if key in ("gpu", "gpus") else texts.version if key in _VERSIONS else texts.name
    return clean(item, where)


def graph(given: RunGraph, texts: Texts) -> RunGraph:
    """Return graph.json with its texts cleaned. The CPU backend's kernels, `op(node)`, still match their nodes."""

    def name(text: str) -> str:
        return texts.name(text, "graph.json")

    return replace(
        given,
        nodes=tuple(replace(n, name=name(n.name), op=name(n.op), dtype=name(n.dtype)) for n in given.nodes),
        leaves=tuple(replace(e, name=name(e.name), kind=name(e.kind), dtype=name(e.dtype)) for e in given.leaves),
        memory=tuple(replace(each, allocator=name(each.allocator)) for each in given.memory),
        allocator=name(given.allocator),
        devices=tuple(map(name, given.devices)),
    )
