"""What `intertoken scrub` takes out of recordings, and what analyses find in them afterwards."""

import base64
import gzip
import json
import re
import sqlite3
import time
from contextlib import closing
from itertools import product

import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.covering import each_value
from tests.recordings import LLAMA, SAMPLES, SIX
from tests.tracer.kineto import GPU, event, write
from tests.tracer.nsys_exports import DATA, EVERYTHING, GLOBAL_PID, GLOBAL_TID, KERNELS, RECORDING, export
from tests.tracer.planted import HOST, PLANTED, SECRETS, TOKEN, graph_of, planted_run
from tests.tracer.test_formats_roundtrip import NAMES, answer
from tracer import analyse, formats
from tracer.cli import main
from tracer.engines import engines
from tracer.errors import TraceError
from tracer.model.calls import LETTERS
from tracer.model.graph_json import read_graph, write_graph
from tracer.model.schema import TABLES
from tracer.model.trace import Trace
from tracer.scrub import Texts, learn, scrub, scrub_metadata, vocabulary

HASH = "[bcdfghjklmnpqrst]{10}"
KNOWN = json.loads((DATA / "scrubbed-texts.json").read_text(encoding="utf-8"))
NAMED = [(table.name, column.name) for table in TABLES.values() for column in table.columns if column.is_name]
WORDS = [word for word in vocabulary() if len(word) > 1]


def run(*arguments):
    return CliRunner().invoke(main, ["scrub", *map(str, arguments)])


def scrubbed(source, target, *options):
    """What the command says in JSON."""
    result = run(source, target, *options, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_which_texts_stay():
    for kind, texts in KNOWN["texts"].items():
        for text, becomes in texts.items():
            wanted = re.escape(text) if becomes is True else becomes.replace("HASH", HASH)
            found = getattr(Texts(), kind)(text, "x")
            assert re.fullmatch(wanted, found, re.IGNORECASE), (kind, text, found)
    assert [name for name in LETTERS if Texts().name(name, "api") != name] == []
    texts = Texts(keep=["(?i)MINE.*", "acme_[a-z]+"])
    assert (texts.range("mine 5", "x"), texts.name("acme_kernel", "x")) == ("mine 5", "acme_kernel")
    assert "acme" not in texts.name("an acme_kernel", "x")
    names = [Texts(key).range("mine", "x") for key in (b"a", b"a", b"b", None, None)]
    assert (names[0] == names[1], len(set(names))) == (True, 4)  # equal keys make equal hashes, none makes others


@pytest.mark.parametrize("unit", ["1", "a1", "0x", "1a.", "step ", "x-1:"])
def test_a_hostile_text_takes_no_long_time(unit):
    before = time.process_time()
    assert Texts().name(unit * 20_000, "x")
    assert Texts().range(unit * 20_000, "x")
    assert time.process_time() - before < 5


MARKS = [mark.text for engine in engines() for mark in engine.marks]
PIECES = st.sampled_from(
    ["token", "Decode", "step", "execute_model", "ProfilerStep#", "forward", "prefill", "step[DECODE", " bs=4]",
     "aten::", " ", "/", "7", "12345678901", "x", "X", "é", "sk-", "_", "=", "\n"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=8).map("".join))
@example("step[DECODE12345678901token")
@example("aten::éDecode")
def test_a_text_is_the_marks_that_it_was(text):
    """But numbers of so many digits may be a secret: a mark with one may be lost."""
    before = [bool(mark.search(text)) for mark in MARKS]
    assume("12345678901" not in text or not any(before))
    cleaned = Texts().range(text, "nvtx")
    assert [bool(mark.search(cleaned)) for mark in MARKS] == before


UNKNOWN = st.text("bcdfghjklmnpqrstvwxzBDGJKQXZ7éßЖ密", min_size=4, max_size=12)


@given(
    secret=st.lists(UNKNOWN, min_size=1, max_size=3).map(".".join),
    around=st.tuples(NAMES | st.sampled_from(["token 7 ", "cudaLaunchKernel", "NVIDIA H200 ", "step[DECODE "]), NAMES),
)
@settings(max_examples=25)
@example("hunter2go", ("token 7 ", ""))
def test_no_planted_text_survives(secret, around):
    """None that holds no known word, nor is made of letters between numbers alone (`16x64`)."""
    unknown = {run for run in secret.split(".") if not any(map(run.lower().__contains__, WORDS))}
    unknown = {run for run in unknown if not re.fullmatch(r"7*(\D7+)*\D?|\w7*", run)}
    text = secret.join(around)
    columns = {name: {"start": [0], "end": [1]} if "start" in table.column_names else {}
               for name, table in TABLES.items()}  # fmt: skip
    for table, column in NAMED:
        columns[table][column] = [text]
    run = {text: [text], "configuration": {"model": text}, "ranges": {text: {}}}
    planted = Trace.from_columns({text: {"x": text}, "run": run}, **{t: c for t, c in columns.items() if c})
    planted.notes.append(text)
    clean = scrub(planted)
    found = [str(t) for table, column in NAMED if column in clean[table] for t in clean[table][column]]
    found += [json.dumps(clean.metadata, ensure_ascii=False), *clean.notes]
    assert [(run, text) for run in unknown for text in found if run in text] == []


def test_our_notes_stay_whole_and_say_nothing_else():
    trace = Trace.from_columns({})
    trace.notes = ["3 calls are missing\nthey were overwritten", "3 calls are missing\nthey were of hunter2go"]
    kept, other = scrub(trace).notes
    assert kept == trace.notes[0]
    assert other.startswith("3 calls are missing\nthey were of ")
    assert "hunter2go" not in other


def _letters(number, length, letters="qZ3xW8vK5jR2mT7pL9nB4cH6dS1fGy0aEuXo", step=7, more=3):
    """As random as a token, the same each time."""
    return "".join(letters[(step * number + i * (i + number + more)) % len(letters)] for i in range(length))


def texts_with_secrets():
    """(text, the secret in it); the tokens are made here: no file holds one."""
    made = [(text.format(secret), secret) for text, secret in KNOWN["words"]]
    for number, (prefix, length) in enumerate(KNOWN["tokens"]):
        made.append((f"with {prefix}{_letters(number, length)} done", prefix + _letters(number, length)))
    for prefix, length in (("", 40), ("", 32), ("dapi", 32)):
        token = prefix + _letters(length, length, "0123456789abcdef", 5, 2)
        made.append((token, token))
    key = "\n".join(_letters(ord("R"), 64)[i:] for i in range(2))
    return [*made, (f"key -----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY----- read", key)]


CREDENTIALS = texts_with_secrets()


def planted_names(path):
    """An export where nothing but names of every kind holds them: of kernels, ranges, domains, threads and calls."""
    texts = {1000 + number: text for number, (text, _) in enumerate(CREDENTIALS)}
    node = EVERYTHING["CUDA_GRAPH_NODE_EVENTS"][0]
    rows = {
        "StringIds": [*RECORDING["StringIds"], *({"id": id, "value": text} for id, text in texts.items())],
        "CUDA_GRAPH_NODE_EVENTS": [{**node, "start": id, "nameId": id} for id in texts],
        "PROCESSES": [{"globalPid": GLOBAL_PID + id, "pid": id, "name": text} for id, text in texts.items()],
        "NVTX_EVENTS": [
            {"globalTid": GLOBAL_TID, "domainId": 0, "start": id, "end": id + 1, **row}
            for id, text in texts.items()
            for row in (
                {"eventType": 59, "text": text}, {"eventType": 59, "textId": id},
                {"eventType": 59, "jsonText": text, "jsonTextId": id}, {"eventType": 75, "text": text, "domainId": id},
                {"eventType": 33, "text": text, "domainId": id, "category": id},
            )
        ],
    }  # fmt: skip
    for table, *columns in (
        (KERNELS, "demangledName", "shortName", "mangledName"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
        ("ThreadNames", "nameId"),
    ):  # fmt: skip
        first = RECORDING[table][0]
        rows[table] = [
            {**first, "start": 10 * id, "end": 10 * id + 9, "globalTid": GLOBAL_PID | id, **dict.fromkeys(columns, id)}
            for id in texts
        ]
    return export(path, {**EVERYTHING, **rows})


PLANTERS = {**PLANTED, "names.sqlite": planted_names}
ALL_SECRETS = {*SECRETS, *(secret for _, secret in CREDENTIALS)}


def spellings(secret):
    """A secret in lower case as UTF-8 and UTF-16 and in JSON; Base64 of it at each alignment."""
    for text in {secret, secret.replace("\n", "\\n"), json.dumps(secret)[1:-1]}:
        for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
            yield text.lower().encode(encoding)
    for text in (secret, secret.lower(), secret.upper()):
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + text.encode())
            if len(middle := coded[4 if shift else 0 : -4].lower()) > 5:
                yield middle


def contents(path):
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


def found_in(path):
    """The secrets that a recording holds in any spelling."""
    pieces = b"\0".join(piece.lower() for piece in contents(path))
    return {s for s in ALL_SECRETS if any(spelling in pieces for spelling in spellings(s))}


WRITTEN = [f for f in formats.registered() if f.write is not None]


@pytest.mark.parametrize(
    ("name", "format"),
    each_value(product(PLANTERS, WRITTEN)),
    ids=lambda value: value.suffix if isinstance(value, formats.Format) else None,
)
def test_no_secret_survives(name, format, tmp_path):
    source = PLANTERS[name](tmp_path / name)
    assert found_in(source) >= (set(SECRETS) if name in PLANTED else ALL_SECRETS - set(SECRETS))
    for target in {tmp_path / f"shared{format.suffix}", tmp_path / "shared.sqlite"}:
        result = run(source, target)
        assert result.exit_code == 0, result.output
        assert found_in(target) == set()
        if target.suffix == format.suffix and format.read is not None:
            assert len(formats.read(target)) == len(formats.read(source))


def test_a_run_keeps_its_passes_graph_and_measurements(tmp_path):
    facts = scrubbed(planted_run(tmp_path / "run"), tmp_path / "shared")
    assert (facts["schema"], facts["passes"]) == ("intertoken.scrub/1", ["node"])
    assert {path.name for path in (tmp_path / "shared").iterdir() if path.suffix != ".parquet"} == {
        "run.json", "graph.json", "node",
    }  # fmt: skip
    assert len(read_graph(tmp_path / "shared" / "graph.json").nodes) == 2
    shared = json.loads((tmp_path / "shared" / "run.json").read_text())
    assert (shared["measured"], shared["versions"]) == ({"tokens_per_s": {"median": 100.5}}, {"numpy": "2.5.2"})
    assert shared["ranges"]["token"]["tokens_per_s"] == 7
    removed = {row["where"]: row["count"] for row in facts["removed"]}
    assert [removed[name] for name in ("TARGET_INFO_SYSTEM_ENV", TOKEN, f"file {HOST}.log")] == [2 * 5, 2, 1]
    kept = {row["where"]: (row["kept"], row["hashed"]) for row in facts["texts"]}
    assert kept["TARGET_INFO_GPU.name"] == (0, 1)


def _numbers(value):
    """All but texts and notes."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items() if key != "notes"}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return None if isinstance(value, str) else value


@pytest.mark.parametrize(
    "name", ["llama1b-saaas-graph", "sync-beside", "llama-1.1b-aaag-sequential-cuda-ngl13", "vllm-b8-torch",
             "vllm-b1-node-nvtx", "vllm-joining-graph"],
)  # fmt: skip
def test_analyses_give_the_same_figures(name, tmp_path):
    facts = scrubbed(SAMPLES / name, tmp_path / "a")
    assert {row["where"]: row["hashed"] for row in facts["texts"]}.get("api: name", 0) == 0
    before, after = formats.read(SAMPLES / name), formats.read(tmp_path / "a")
    assert _numbers(answer(after)) == _numbers(answer(before))
    for table, column in NAMED:
        groups = [pd.factorize(trace[table][column].astype("str"))[0].tolist() for trace in (before, after)]
        assert groups[0] == groups[1], (table, column)
    assert scrub_metadata(before.metadata, Texts()) == before.metadata or "llama-1.1b" not in name


def test_ranges_keep_their_facts(tmp_path):
    scrubbed(SIX, tmp_path / "a")
    before, after = (formats.read(path)["nvtx"]["text"].astype("str") for path in (SIX, tmp_path / "a"))
    text = after[before == "run saaas concurrent"].iloc[0]
    assert re.fullmatch(f"text-{HASH}", text)
    found, wanted = analyse(tmp_path / "a", within=text), analyse(SIX, within="run saaas concurrent")
    assert found.syncs.counts.equals(wanted.syncs.counts)
    assert found.gaps.causes_us == wanted.gaps.causes_us
    assert found.path.path_us == wanted.path.path_us


def test_kernels_of_the_cpu_backend_still_name_their_node(tmp_path):
    kernels = {"start": [0, 9], "end": [1, 10], "name": ["mul_mat(mine)", "add(ours)"]}
    formats.write(Trace.from_columns(kernels=kernels), tmp_path / "a")
    write_graph(graph_of(("mul_mat", "mine"), ("add", "ours")), tmp_path / "a" / "graph.json")
    scrubbed(tmp_path / "a", tmp_path / "b")
    nodes = read_graph(tmp_path / "b" / "graph.json").nodes
    assert formats.read(tmp_path / "b")["kernels"]["name"].tolist() == [f"{node.op}({node.name})" for node in nodes]
    assert {node.name for node in nodes}.isdisjoint({"mine", "ours"})


def test_python_functions_lose_unknown_words(tmp_path):
    functions = ["/home/babbage/my code/model.py(7): forward", "torch/nn/module.py(9): __call__", "nn.Module: Linear_0"]
    events = [event("python_function", name, 100 * n, 9) for n, name in enumerate(functions)]
    source = write(tmp_path / "a.json", GPU | {"traceEvents": [*GPU["traceEvents"], *events]})
    formats.write(formats.read(source, python_functions=True), tmp_path / "b")
    scrubbed(tmp_path / "b", tmp_path / "c")
    nvtx = formats.read(tmp_path / "c")["nvtx"]
    found = nvtx.loc[nvtx["domain"] == "python_function", "text"].tolist()
    assert found[1:] == functions[1:]
    assert re.fullmatch(rf"/x{HASH}/x{HASH}/x{HASH} code/model\.py\(7\): forward", found[0])


def test_run_json_keeps_known_keys_and_all_their_numbers():
    given = {
        "source": "nsys 2025.3.2.0", "clock": {"name": "CLOCK_REALTIME", "origin_ns": 5, "owner": "CET"},
        "start_utc_ns": 1, "kinds": ["api", "nvtx"], "pauses_ns": [[1, 2, None]],
        "run": {"measured": {"traced": False}, "created": "2026-11-21T13:28:53+00:00"},
    }  # fmt: skip
    texts = Texts()
    assert scrub_metadata(given, texts) == given | {"clock": {"name": "CLOCK_REALTIME", "origin_ns": 5}}
    assert dict(texts.removed) == {"metadata: unknown entries": 1}


def test_related_recordings_share_what_they_learn():
    texts, domains = ["my gemm", "my softmax", "my relu"], ["", "", "cpu_op"]
    nvtx = {"start": [0] * 3, "end": [1] * 3, "text": texts, "domain": domains}
    trace = Trace.from_columns(kernels={"start": [0], "end": [1], "name": ["my gemm"]}, nvtx=nvtx)
    texts = Texts()
    learn(trace, texts)
    found = scrub(trace, texts)["nvtx"]["text"].tolist()
    assert [re.sub(HASH, "?", text) for text in found] == ["x? gemm", "text-?", "x? relu"]


def test_force_replaces_a_run_directory_and_nothing_else(tmp_path, monkeypatch):
    source, target = SAMPLES / "llama-1.1b-sccc-sequential-cuda", tmp_path / "a"
    scrubbed(source, target)
    again = run(source, target)
    assert again.exit_code == 2
    assert again.stderr.splitlines() == [f"intertoken: {target}: already exists; choose another name or --force"]
    scrubbed(target, target, "--force")
    assert len(formats.read(target / "node")) == len(formats.read(source / "node"))
    files = sorted(tmp_path.rglob("*"))

    def full(*_):
        raise TraceError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tracer.model.graph_json.write_graph", full)
        assert run(source, target, "--force").exit_code == 2
    assert sorted(tmp_path.rglob("*")) == files
    (target / "thesis.tex").touch()
    refused = run(source, target, "--force")
    assert (refused.exit_code, "thesis.tex" in refused.stderr) == (2, True)


def test_bad_options_are_refused(tmp_path):
    for (name, *options), message in (
        (["a", "--key", "x" * 65], "--key has 65 bytes"), (["a", "--key", ""], "--key has 0 bytes"),
        (["a", "--keep", "("], "--keep '(' is no regular expression"), (["a.nsys-rep"], "cannot write .nsys-rep"),
    ):  # fmt: skip
        result = run(LLAMA["sccc", "graph"], tmp_path / name, *options)
        assert (result.exit_code, message in result.stderr) == (2, True), message
        assert not (tmp_path / name).exists()
