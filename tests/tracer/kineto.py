"""Traces as PyTorch's profiler writes them, made by hand: times in µs that the test chooses."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from tests.tracer.nsys_exports import DATA
from tracer import formats
from tracer.model.trace import Trace

HOST, THREAD = 100, 101
EVENTS = json.loads((DATA / "chrome-events.json").read_text(encoding="utf-8"))
Event = dict[str, Any]


def event(cat: str, name: str, ts: Any, dur: Any, pid: Any = HOST, tid: Any = THREAD, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def on_gpu(cat: str, name: str, ts: Any, dur: Any, correlation: int, **args: Any) -> Event:
    where = {"device": 0, "context": 1, "stream": 7, "correlation": correlation}
    return event(cat, name, ts, dur, 0, 7, **where, **args)


def events_of(texts: list[Any], step: int = 0, apart: int = 100) -> list[Any]:
    """Events as the data write them; of a step so many steps later, whose correlations are so far apart."""
    found = []
    for each in texts:
        if isinstance(each, list):
            category, name, ts, dur, args, pid, tid = (*each, *({}, HOST, THREAD)[len(each) - 4 :])
            each = event(category, name, ts, dur, pid, tid, **args)
        found.append(_later(each, step, apart) if step else each)
    return found


def _later(event: Event, step: int, apart: int) -> Event:
    args = event.get("args", {})
    later = {key: args[key] + apart * step for key in args if key == "correlation" or key.endswith("corr_id")}
    moved = {"ts": 1000 * step, "id": apart * step}
    moved = {key: type(event[key])(float(event[key]) + by if key == "ts" else int(event[key]) + by)
             for key, by in moved.items() if key in event}  # fmt: skip
    return event | moved | {"name": event["name"].replace("#0", f"#{step}"), "args": args | later}


def _gpu() -> Event:
    parts = EVENTS["gpu"]
    steps = [each for number in range(4) for each in events_of(parts["step"], number, 10)]
    return {**parts["file"], "traceEvents": [*parts["names"], *steps]}


GPU = _gpu()
"""A file of four steps of 1000 µs."""


def write(path: Path, content: Any) -> Path:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(tmp_path: Path, content: Any) -> Trace:
    return formats.read(write(tmp_path / "trace.json", content))


def rows(trace: Trace, table: str, *columns: str) -> list[Any]:
    return trace[table].astype(dict.fromkeys(columns, object))[list(columns)].to_numpy().tolist()
