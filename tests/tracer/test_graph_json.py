"""graph.json that is damaged, or was never ours, says in one line what is wrong."""

import json

import pytest

from tracer.errors import FormatError
from tracer.model.graph_json import SCHEMA, read_graph

GOOD = {
    "schema": SCHEMA,
    "nodes": [
        {"name": "a", "op": "mul", "shape": [4], "dtype": "float32", "nbytes": 16, "stream": 0, "leaves": [0]},
        {"name": "b", "op": "reshape", "shape": [4], "dtype": "float32", "nbytes": 16, "stream": None, "src": [0]},
        {
            "name": "c",
            "op": "mul",
            "shape": [4],
            "dtype": "float32",
            "nbytes": 16,
            "stream": 1,
            "src": [1],
            "region": 0,
        },
    ],
    "leaves": [{"name": "x", "kind": "input", "shape": [4], "dtype": "float32", "nbytes": 16}],
    "regions": [{"fork": 0, "join": 2, "branches": 2, "level": 0}],
    "launches": [0, 2],
    "waits": [{"event": 0, "source": 0, "source_stream": 0, "target": 2, "target_stream": 1}],
    "streams": 2,
    "weights": 0,
    "weight_bytes": 0,
    "memory": [{"allocator": "sequential", "peak_bytes": 128, "peak_live_bytes": 64, "hazards": 1}],
    "allocator": "sequential",
}


@pytest.fixture
def read(tmp_path):
    def read(content):
        file = tmp_path / "graph.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return read_graph(file)

    return read


def test_a_good_one_is_read(read):
    graph = read(GOOD | {"something": "newer"})
    assert graph.nodes[2].src == (1,)
    assert graph.nodes[0].weight_bytes == 0
    assert graph.readers == [[1], [2], []]
    assert graph.index == {"a": 0, "b": 1, "c": 2}


def _with(key, **change):
    return GOOD | {key: [GOOD[key][0] | change, *GOOD[key][1:]]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "its schema is not"),
        ('"text"', "its schema is not"),
        (GOOD | {"schema": "intertoken.graph/9"}, "its schema is not"),
        ({"schema": SCHEMA}, "missing required field `nodes`"),
        (GOOD | {"nodes": []}, r"length >= 1 - at `\$.nodes`"),
        (GOOD | {"nodes": {}}, r"Expected `array`, got `object` - at `\$.nodes`"),
        (GOOD | {"nodes": [7]}, r"Expected `object`, got `int` - at `\$.nodes\[0\]`"),
        (_with("nodes", shape="wide"), r"Expected `array`, got `str` - at `\$.nodes\[0\].shape`"),
        (_with("nodes", nbytes=True), r"Expected `int`, got `bool` - at `\$.nodes\[0\].nbytes`"),
        (_with("nodes", name=None), r"Expected `str`, got `null` - at `\$.nodes\[0\].name`"),
        (_with("nodes", name="c"), "same name"),
        (_with("nodes", src=[0]), "source of node 0 is 0"),
        (_with("nodes", src=[-1]), r">= 0 - at `\$.nodes\[0\].src\[0\]`"),
        (_with("nodes", leaves=[1]), "leaf of node 0 is 1"),
        (_with("nodes", stream=2), "stream of node 0 is 2"),
        (_with("nodes", region=1), "region of node 0 is 1"),
        (_with("regions", join=3), "fork or join is 3"),
        (_with("waits", target=9), "node of a wait is 9"),
        (_with("waits", source_stream=-1), r">= 0 - at `\$.waits\[0\].source_stream`"),
        (GOOD | {"launches": [0]}, "launches are not exactly the nodes"),
        (GOOD | {"launches": [0, 0, 2]}, "launches are not exactly the nodes"),
        (GOOD | {"streams": 10**9}, r"<= 128 - at `\$.streams`"),
    ],
)
def test_a_bad_one_is_refused_in_one_line(read, content, words):
    with pytest.raises(FormatError, match=words) as caught:
        read(content)
    assert "graph.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_and_a_huge_one_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"graph\.json"):
        read_graph(tmp_path / "graph.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(FormatError, match="larger than the limit of 8 MiB"):
        read_graph(tmp_path / "huge.json")
