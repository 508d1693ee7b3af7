"""Fuzzes run.json and graph.json of a run directory: `r` and `g` as the first byte of an input choose the file."""

import tempfile
from pathlib import Path

from harness import fuzz

from tests.fuzz.contract import assert_clear, check
from tests.tracer.nsys_exports import RECORDING, export
from tracer import formats
from tracer.errors import FormatError
from tracer.model.graph_json import read_graph

RUN = b'{"configuration":{"model":"tiny"},"measured":{"steps_per_s":{"median":5.5}},"ranges":{"a":{"tokens_per_s":1}}}'
GRAPH = (
    b'{"schema":"intertoken.graph/1","nodes":[{"name":"a","op":"ADD","shape":[1],"dtype":"f32","nbytes":4,"stream":0},'
    b'{"name":"b","op":"MUL","shape":[1],"dtype":"f32","nbytes":4,"stream":1,"src":[0],"region":0}],"leaves":[],'
    b'"regions":[{"fork":0,"join":1,"branches":2,"level":0}],"launches":[0,1],"waits":[{"event":0,"source":0,'
    b'"source_stream":0,"target":1,"target_stream":1}],"streams":2,"weights":0,"weight_bytes":0,"memory":[],'
    b'"allocator":"sequential"}'
)


def one_input(data: bytes, work: Path) -> None:
    """The file beside a good recording."""
    run = work / "run"
    if not run.exists():
        with tempfile.TemporaryDirectory() as place:
            rows = {"StringIds": RECORDING["StringIds"][:1]}
            formats.write(formats.read(export(Path(place) / "a.sqlite", rows)), run)
    if data[:1] == b"r":
        (run / "run.json").write_bytes(data[1:])
        check(run, work / "out")
        return
    file = run / "graph.json"
    file.write_bytes(data[1:])
    try:
        graph = read_graph(file)
    except FormatError as error:
        assert_clear(str(error), file)
    else:
        assert len(graph.index) == len(graph.readers) == len(graph.nodes)
        assert all(graph.stream_name(stream) for stream in range(graph.streams))


if __name__ == "__main__":
    fuzz([b"r" + RUN, b"g" + GRAPH], one_input)
