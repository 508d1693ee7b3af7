"""What the events of JAX's profiler mean, in Kineto's words. They have no categories, and all their `args` are texts.

A process `/device:GPU:0` is a device, its threads `Stream #14(Compute)` are streams; its other threads repeat their
work. What ran there, and the host's call that launched it, have the same `correlation_id`. The host's is named by what
it launches, not by its call, so that the call is told from what it launched. A name that begins with `$` is a Python
function's. Source: recordings of JAX 0.11, and XLA's `cupti_collector.cc`, as of 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tracer.model.calls import LETTERS, plain
from tracer.model.schema import PYTHON_FUNCTION

SOURCE: Final = "JAX profiler"
"""`metadata["source"]` of these recordings."""

Event = Mapping[str, Any]
_DEVICE: Final = re.compile(r"/device:GPU:(\d{1,9})")
_STREAM: Final = re.compile(r"Stream #(\d{1,9})\b.*")
_COPY: Final = re.compile(r"Memcpy([HDP])2([HDP])")
_DETAIL: Final = re.compile(r"(\w+):(\S+)")
_FUNCTION: Final = re.compile(r"\$(.+?)(?::(\d+))? (.+)")
_CALL: Final = re.compile(r"(?:cu|cuda)[A-Z]\w*")
_NUMBERED: Final = {"cuda_graph_id": "graph id", "cuda_graph_node_id": "graph node id"}
_WORDS: Final = {"device": "Device", "pinned": "Pinned", "pageable": "Pageable", "managed": "Managed"}
_REPEATED: Final = "gpu_user_annotation"


class Xla:
    """The tracks of a file of JAX's profiler, and what its events are in Kineto's words."""

    def __init__(self) -> None:
        self._device: dict[Any, int] = {}
        self._stream: dict[Any, int] = {}

    @property
    def has_devices(self) -> bool:
        """Whether the file has a device of XLA's."""
        return bool(self._device)

    def describe(self, event: Event, name: str) -> None:
        """Take the name of a process or thread."""
        pid, tid = event.get("pid"), event.get("tid")
        if event.get("name") == "process_name" and type(pid) is int and (match := _DEVICE.fullmatch(name)):
            self._device[pid] = int(match[1])
        elif event.get("name") == "thread_name" and type(tid) is int and (match := _STREAM.fullmatch(name)):
            self._stream[pid, tid] = int(match[1])

    def as_kineto(self, event: Event, args: Event) -> tuple[str, Event, Event] | None:
        """The category, the event and its `args` as Kineto would write them; None for any other range."""
        name, pid = event.get("name"), event.get("pid")
        if not self._device or not isinstance(name, str) or type(pid) is not int:
            return None
        if pid in self._device:
            stream = self._stream.get((pid, event.get("tid")))
            if stream is None or "correlation_id" not in args:
                return _REPEATED, event, {}
            where = {"device": self._device[pid], "stream": stream, "correlation": args["correlation_id"]}
            return self._on_device(event, args, where)
        if match := _FUNCTION.fullmatch(name):
            line = f"({match[2]})" if match[2] else ""
            return PYTHON_FUNCTION, {**event, "name": f"{match[1]}{line}: {match[3]}"}, {}
        if "correlation_id" in args and "device_id" in args:
            return "cuda_driver", {**event, "name": _call(name, args)}, {"correlation": args["correlation_id"]}
        return ("cuda_driver", event, {}) if _CALL.fullmatch(name) else None

    def _on_device(self, event: Event, args: Event, where: dict[str, Any]) -> tuple[str, Event, Event]:
        if "memcpy_details" in args:
            told = _details(args, "memcpy_details")
            match = _COPY.match(event["name"])
            kind = "PtoP" if match is None or "P" in match.groups() else f"{match[1]}to{match[2]}"
            ends = " -> ".join(_WORDS.get(told.get(f"kind_{end}", ""), "Unknown") for end in ("src", "dst"))
            return "gpu_memcpy", {**event, "name": f"Memcpy {kind} ({ends})"}, {**where, "bytes": told.get("size")}
        if "memset_details" in args:
            told = _details(args, "memset_details")
            kind = _WORDS.get(told.get("kind", ""), "Unknown")
            return "gpu_memset", {**event, "name": f"Memset ({kind})"}, {**where, "bytes": told.get("num_bytes")}
        told = _details(args, "kernel_details")
        shared = [told.get(f"{kind}_shared", "") for kind in ("static", "dynamic")]
        known = [int(size) for size in shared if size.isdecimal() and len(size) < 10]
        sizes: dict[str, Any] = {name: told[name].split(",") for name in ("grid", "block") if name in told}
        numbers = {ours: args[theirs] for theirs, ours in _NUMBERED.items() if theirs in args}
        used = {"registers per thread": told.get("regs"), "shared memory": sum(known) if known else None}
        return "kernel", event, {**where, **sizes, **numbers, **used}


def _details(args: Event, name: str) -> dict[str, str]:
    text = args.get(name)
    return dict(_DETAIL.findall(text)) if isinstance(text, str) else {}


def _call(name: str, args: Event) -> str:
    """The name of the call that launched something, which is named by what it launched."""
    if plain(name) in LETTERS:
        return name
    if "memcpy_details" in args:
        match = _COPY.match(name)
        kind = "" if match is None or "P" in match.groups() else f"{match[1]}to{match[2]}"
        is_async = _details(args, "memcpy_details").get("async") != "0"
        return f"cuMemcpy{kind}{'Async' * is_async}"
    return "cuMemsetD8Async" if "memset_details" in args else "cuLaunchKernel"
