"""What `intertoken scrub` takes out of recordings, and what analyses find in them afterwards."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.recordings import LLAMA, SAMPLES, SIX
from tests.thorough import covering, each_value, examples, thorough
from tests.tracer.planted import HOST, PATH, PLANTED, SECRETS, TOKEN, USER, graph_of, planted_chrome, planted_run
from tests.tracer.test_cli import as_json, run
from tests.tracer.test_formats_roundtrip import NAMES, traces
from tracer import formats
from tracer.formats import Format
from tracer.model.graph_json import read_graph, write_graph
from tracer.model.schema import TABLES
from tracer.model.trace import Trace
from tracer.scrub import Texts, learn, scrub

RUN_DIRECTORY = SAMPLES / "llama-1.1b-sccc-sequential-cuda"
LIGHT = SAMPLES / "llama-1.1b-aaag-sequential-cuda-ngl13"
KEPT_OR_HASHED = [(), ("--names",)]
HASHED = pytest.mark.parametrize("mode", [pytest.param((), marks=thorough), ("--names",)], ids=["kept", "hashed"])
Mode = tuple[str, ...]


def spellings(secret: str) -> Iterator[bytes]:
    """A secret in lower case as UTF-8 and UTF-16; Base64 of it at each alignment, as its bytes stand in the middle."""
    for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
        yield secret.lower().encode(encoding)
    for text in (secret, secret.lower(), secret.upper()):
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + text.encode())
            yield coded[4 if shift else 0 : -4].lower()


def contents(path: Path) -> Iterator[bytes]:
    """Everything that a recording holds: names of files, raw bytes, and what is compressed in them."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        yield file.name.encode()
        if file.suffix == ".parquet":
            parquet = pq.ParquetFile(file)
            yield repr(parquet.metadata.metadata).encode() + repr(parquet.schema_arrow).encode()
            for column in parquet.read().columns:
                yield b"\n".join(v if isinstance(v, bytes) else str(v).encode() for v in column.to_pylist())
        elif file.suffix == ".sqlite":
            with closing(sqlite3.connect(file)) as database:
                yield "\n".join(database.iterdump()).encode()
        if file.is_file():
            raw = file.read_bytes()
            yield gzip.decompress(raw) if file.suffix == ".gz" else raw


def found_in(path: Path) -> set[str]:
    """The secrets that a recording holds in any spelling."""
    pieces = [piece.lower() for piece in contents(path)]
    return {s for s in SECRETS if any(spelling in piece for spelling in spellings(s) for piece in pieces)}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The recording of a name with all the secrets, made once."""

    @cache
    def recording(name: str) -> Path:
        source = PLANTED[name](tmp_path_factory.mktemp("planted") / name)
        assert found_in(source) == set(SECRETS)
        return source

    return recording


@pytest.mark.parametrize(
    ("name", "format", "mode"),
    covering(product(PLANTED, [f for f in formats.registered() if f.write is not None], KEPT_OR_HASHED)),
    ids=lambda value: value.suffix if isinstance(value, Format) else None,
)
def test_no_secret_survives(
    name: str, format: Format, mode: Mode, planted: Callable[[str], Path], tmp_path: Path
) -> None:
    source = planted(name)
    target = tmp_path / f"shared{format.suffix}"
    result = run("scrub", source, target, *mode)
    assert result.exit_code == 0, result.output
    assert found_in(target) == set()
    if format.read is not None:
        assert len(formats.read(target)) == len(formats.read(source))


def test_a_run_keeps_its_passes_and_graph(tmp_path: Path) -> None:
    facts = as_json("scrub", planted_run(tmp_path / "run"), tmp_path / "shared", "--names")
    assert facts["schema"] == "intertoken.scrub/1"
    assert (facts["passes"], facts["names"]) == (["node"], "hashed")
    assert {path.name for path in (tmp_path / "shared").iterdir() if path.suffix != ".parquet"} == {
        "run.json", "graph.json", "node",
    }  # fmt: skip
    assert len(read_graph(tmp_path / "shared" / "graph.json").nodes) == 2
    shared = json.loads((tmp_path / "shared" / "run.json").read_text())
    assert shared["measured"] == {"tokens_per_s": {"median": 100.5}}
    assert shared["versions"] == {"numpy": "2.5.2"}
    assert shared["ranges"] == {"token": {"tokens_per_s": 7}}
    removed = {(row["what"], row["where"]): row["count"] for row in facts["removed"]}
    assert removed["environment", "TARGET_INFO_SYSTEM_ENV"] == 2 * 5
    assert removed["unknown table", TOKEN] == 2
    assert removed["left out", f"{HOST}.log"] == 1


# --- what analyses find ---


@cache
def figures(path: Path, *options: str) -> dict[str, Any]:
    """All that the analyses print, but for what quotes names, and how sure steps are, of which names are a sign."""
    found = {name: as_json(name, path, *options) for name in ("tokens", "syncs", "gaps", "streams")}
    found["tokens"].pop("detail")
    found["tokens"].pop("confidence")
    found["gaps"].pop("holes")
    found["gaps"].pop("idle_where")
    for call in found["syncs"]["inventory"]:
        call.pop("waits_for")
    return {name: {key: value for key, value in facts.items() if key != "notes"} for name, facts in found.items()}


@pytest.mark.parametrize(
    ("source", "mode"),
    each_value(product([LLAMA["saaas", "graph"], SIX, RUN_DIRECTORY, RUN_DIRECTORY / "node", LIGHT], KEPT_OR_HASHED)),
)
def test_analyses_give_the_same_figures(source: Path, mode: Mode, tmp_path: Path) -> None:
    assert run("scrub", source, tmp_path / "a", *mode).exit_code == 0
    assert figures(tmp_path / "a") == figures(source)


@HASHED
def test_ranges_keep_their_facts(mode: Mode, tmp_path: Path) -> None:
    assert run("scrub", SIX, tmp_path / "a", *mode).exit_code == 0
    before, after = (formats.read(path)["nvtx"]["text"].astype("str") for path in (SIX, tmp_path / "a"))
    text = after[before == "run saaas concurrent"].iloc[0]
    assert (text == "run saaas concurrent") == (not mode)
    assert figures(tmp_path / "a", "--range", text) == figures(SIX, "--range", "run saaas concurrent")


@HASHED
def test_planted_recordings_give_the_same_figures(mode: Mode, tmp_path: Path) -> None:
    source = planted_chrome(tmp_path / "a.json.gz")
    assert run("scrub", source, tmp_path / "a", *mode).exit_code == 0
    assert figures(tmp_path / "a") == figures(source)


# --- hashed names ---


def hashed(trace: Trace, key: bytes = b"key") -> Trace:
    texts = Texts(key)
    learn(trace, texts)
    return scrub(trace, texts)


@given(
    trace=traces(),
    secret=st.sampled_from([TOKEN, PATH, USER, "hunter2", "ключ_7", "a b\nc"]),
    around=st.tuples(NAMES | st.sampled_from(["token 7 ", "cudaLaunchKernel", "NVIDIA H200 "]), NAMES),
)
@examples(20)
def test_no_text_column_keeps_a_secret(trace: Trace, secret: str, around: tuple[str, str]) -> None:
    text = secret.join(around)
    assume(not re.fullmatch("(cuda|cu|hip)[A-Z][A-Za-z0-9]*", text))  # what reads as an API call is one

    def plant(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        columns = [column.name for column in TABLES[name].columns if column.is_name]
        return frame.assign(**{column: pd.Categorical([text] * len(frame)) for column in columns})

    planted = trace.map_tables(plant)
    planted.metadata |= {text: {"x": text}, "run": {text: [text], "configuration": {"model": text}}}
    clean = hashed(planted)
    names = [column for table in TABLES.values() for column in table.columns if column.is_name]
    texts = [str(t) for frame in clean.tables.values() for c in {n.name for n in names} & {*frame} for t in frame[c]]
    assert not [t for t in texts if secret.lower() in t.lower()]
    assert secret not in json.dumps(clean.metadata, ensure_ascii=False)


@pytest.mark.parametrize("source", [LLAMA["sccc", "node"], SIX], ids=lambda path: path.name)
def test_hashed_names_keep_their_structure(source: Path) -> None:
    before = formats.read(source)
    after = hashed(before)
    for table, column in (("kernels", "name"), ("kernels", "short_name"), ("nvtx", "text"), ("api", "name")):
        groups = [pd.factorize(trace[table][column].astype("str"))[0].tolist() for trace in (before, after)]
        assert groups[0] == groups[1]
    assert not set(before["kernels"]["name"]) & set(after["kernels"]["name"])
    assert before["api"]["name"].tolist() == after["api"]["name"].tolist()


def test_equal_keys_make_equal_hashes(tmp_path: Path) -> None:
    for i, key in enumerate((("--key", "a"), ("--key", "a"), ("--key", "b"), (), ())):
        assert run("scrub", LLAMA["sccc", "node"], tmp_path / str(i), "--names", *key).exit_code == 0
    kernels = [tuple(formats.read(tmp_path / str(i))["kernels"]["name"]) for i in range(5)]
    assert kernels[0] == kernels[1]
    assert len(set(kernels)) == 4


def test_kernels_of_the_cpu_backend_still_name_their_node(tmp_path: Path) -> None:
    kernels = {"start": [0, 9], "end": [1, 10], "name": ["mul_mat(ffn)", "add(out)"]}
    formats.write(Trace.from_columns(kernels=kernels), tmp_path / "a")
    write_graph(graph_of(("mul_mat", "ffn"), ("add", "out")), tmp_path / "a" / "graph.json")
    assert run("scrub", tmp_path / "a", tmp_path / "b", "--names").exit_code == 0
    names = formats.read(tmp_path / "b")["kernels"]["name"].tolist()
    shared = read_graph(tmp_path / "b" / "graph.json").nodes
    assert names == [f"{node.op}({node.name})" for node in shared]
    assert {node.name for node in shared}.isdisjoint({"ffn", "out"})
