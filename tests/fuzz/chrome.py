"""Fuzzes the reader of Chrome JSON: an input that begins with `z` is gzipped, one with `Z` is gzip data."""

import gzip
from pathlib import Path

from harness import fuzz

from tests.fuzz.contract import check

EVENTS = (
    b'{"schemaVersion":1,"deviceProperties":[{"id":0,"name":"GPU"}],"traceEvents":['
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"device":0,"stream":7,'
    b'"correlation":3,"grid":[1,2,3]}},{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,'
    b'"ts":1,"dur":1,"args":{"correlation":3}},{"ph":"s","id":3,"pid":9,"tid":9,"ts":1,"cat":"ac2g"},'
    b'{"ph":"X","cat":"user_annotation","name":"ProfilerStep#1","pid":9,"tid":9,"ts":0,"dur":9},'
    b'{"ph":"M","name":"thread_name","pid":9,"tid":9,"args":{"name":"main"}}],"displayTimeUnit":"ms"}'
)
LONG = (
    EVENTS.replace(b'"ts":1.5', b'"ts":' + b"1" * 4301),
    EVENTS.replace(b'"ts":1.5', b'"ts":1e999999999'),
    EVENTS.replace(b'"ts":1.5', b'"ts":-1e99999999999999999999'),
    EVENTS.replace(b'"main"', b'"' + b"7" * 4301 + b'"'),
    EVENTS.replace(b'"main"', b'"' + b'\\"' * 100_000 + b'"'),
    EVENTS.replace(b'"ms"', b"9" * 101),
    EVENTS.replace(b"[1,2,3]", b"[" * 1001),
)
"""Numbers, texts and nesting about where they are refused."""


def one_input(data: bytes, work: Path) -> None:
    """A file of the rest of the input."""
    path = work / "a.json"
    path.write_bytes({b"z": gzip.compress, b"Z": bytes}.get(data[:1], bytes)(data[1:]))
    check(path, work / "out", copies=data[-1:] < b"\x20")


if __name__ == "__main__":
    seeds = [b"j" + EVENTS, b"z" + EVENTS, b"Z" + gzip.compress(EVENTS), b"j[" + EVENTS[80:-24]]
    fuzz(seeds + [b"j" + text for text in LONG], one_input)
