"""What `intertoken scrub` takes out of recordings, and what analyses find in them afterwards."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.covering import covering
from tests.recordings import KINDS, LLAMA, SAMPLES, SIX
from tests.tracer import credential_texts
from tests.tracer.kineto import GPU, event, write
from tests.tracer.planted import HOST, PLANTED, SECRETS, TOKEN, graph_of, planted_chrome, planted_run
from tests.tracer.test_cli import as_json, run
from tests.tracer.test_formats_roundtrip import NAMES, traces
from tracer import formats
from tracer.analysis.tokens import find_steps
from tracer.engines import engines
from tracer.errors import TraceError
from tracer.model.calls import LETTERS
from tracer.model.graph_json import read_graph, write_graph
from tracer.model.schema import TABLES
from tracer.model.trace import Trace
from tracer.scrub import Texts, learn, scrub, scrub_metadata, vocabulary

RUN_DIRECTORY = SAMPLES / "llama-1.1b-sccc-sequential-cuda"
RECORDINGS = KINDS
PLANTERS = PLANTED | credential_texts.PLANTED
ALL_SECRETS = {*SECRETS, *(secret for _, secret in credential_texts.TEXTS)}
NAMED = [(table.name, column.name) for table in TABLES.values() for column in table.columns if column.is_name]
HASH = "[bcdfghjklmnpqrst]{10}"

# --- which texts stay, one by one ---

TRUTHS = {
    "name": {
        # what everybody's recordings hold
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>, std::array<char*, 1ul> >": 1,
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": 1,
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT": 1,
        "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": 1,
        "flash_fwd_splitkv_kernel": 1, "mul_mat_vec_q": 1, "triton_poi_fused_mul_silu_8": 1, "quantize_q8_1": 1,
        "cudaMemcpy2DAsync_v3020": 1, "cuLaunchKernelEx": 1, "hipStreamSynchronize": 1, "cudaMemcpyAsync_ptsz": 1,
        "cuda call 99": 1, "streamSynchronize": 1, "aten::_scaled_dot_product_flash_attention": 1, "blk.0.attn": 1,
        "vllm/v1/worker/gpu_worker.py(123): execute_model": 1, "torch/nn/module.py(9): __call__": 1,
        "<built-in method acquire of _thread.lock object>": 1, "libcuda.so.580.159.04": 1, "MainThread": 1,
        "cuda-EvtHandlr": 1, "pt_nccl_watchdg": 1, "llama-bench": 1, "python3.12": 1, "llama 1.1B Q8_0": 1, "": 1,
        "process 4094 (python3): a device stamp takes 0.5 µs": 1,
        # what does not: the words that are known stay
        "acme_fused_attention<float, 128>": f"x{HASH}_fused_attention<float, 128>",
        "AcmeGemm": f"X{HASH}Gemm",
        "/home/ada/decode.py(31): my_step": rf"/x{HASH}/x{HASH}/decode\.py\(31\): x{HASH}_step",
        "hunter2": f"x{HASH}", "my-server": f"x{HASH}-server", "k7k8k9": f"x{HASH}", "0x7fb0": "0x[0-9a-f]{10}",

        "qZ3xHash5jR2m": f"x{HASH}Z?.*Hash.*", "AUnaryFunctor": 1,
        "8431": f"1x{HASH}1", "v1.2.3.4": rf"v1\.1x{HASH}1", "qZ3xW8vK5jR2mT7pL9nB4c": f"x{HASH}",
        "_ZN36_INTERNAL_cad803f4_6_cpy_cu_bfba63e212cpy_1E": f"_X{HASH.upper()}.*",
    },
    "range": {
        **dict.fromkeys([
            "execute_new_1_cached_3", "execute_context_1(16)_generation_0(0)",
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086)",
            "step[DECODE bs=32]", "_forward_step 7: 1 ctx reqs, 3 gen reqs", "ProfilerStep#61234",
            "scheduler.run_batch", "token 51234", "Decode", "prefill", "split 1: host", "gpu_model_runner: forward",
            "aten::mm", "Optimizer.step#Adam.step", "llm_engine step: schedule", "host compute", "python_function",
        ], 1),
        "decode step 3 of ada": f"decode step 3 of x{HASH}", "step[DECODE bs=32 ada]": rf"step\[DECODE bs=32 x{HASH}\]",
        "execute_context_1(16)_generation_0(0) for ada": rf"execute_context_1\(16\)_generation_0\(0\) for x{HASH}",
        "step 3 411111111111": f"step 1x{HASH}1", "run saaas": f"text-{HASH}",
        "layer 17": f"text-{HASH} 17",
        "layer 1234": f"text-{HASH}", "mine": f"text-{HASH}", "my softmax": f"text-{HASH}",
    },
    "device": {
        **dict.fromkeys([
            "NVIDIA H200", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB",
            "NVIDIA H100 80GB HBM3", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "AMD Instinct MI300X",
            "NVIDIA GB10",
        ], 1),
        "NVIDIA H200 of ada": f"NVIDIA H200 of x{HASH}",
    },
    "version": {
        **dict.fromkeys(["nsys 2025.3.2.0", "PyTorch profiler, rank 0 of 1", "580.159.04", "2.11.0+cu130",
                         "2026-11-21T13:28:53+00:00", "Linux 6.18.44"], 1),
        "6.8.0-babbage": f".*x{HASH}", "10.0.0.7": f"1x{HASH}1",
    },
}  # fmt: skip
"""How a text is cleaned -> text -> the expression for what it becomes; 1 where it stays."""


@pytest.mark.parametrize("kind", TRUTHS)
def test_which_texts_stay(kind: str) -> None:
    texts = Texts()
    found = {text: getattr(texts, kind)(text, "x") for text in TRUTHS[kind]}
    wanted = {text: re.escape(text) if becomes == 1 else str(becomes) for text, becomes in TRUTHS[kind].items()}
    assert {text: found[text] for text in found if not re.fullmatch(wanted[text], found[text], re.IGNORECASE)} == {}


def test_every_call_with_a_letter_stays() -> None:

    assert [name for name in LETTERS if Texts().name(name, "api") != name] == []


def test_equal_keys_make_equal_hashes_and_none_makes_others() -> None:
    names = [Texts(key).range("mine", "x") for key in (b"a", b"a", b"b", None, None)]
    assert names[0] == names[1]
    assert len(set(names)) == 4


@pytest.mark.parametrize("unit", ["1", "a1", "0x", "1a.", "step ", "x-1:"])
def test_a_hostile_text_takes_no_long_time(unit: str) -> None:
    before = time.process_time()
    assert Texts().name(unit * 20_000, "x")
    assert Texts().range(unit * 20_000, "x")
    assert time.process_time() - before < 5


def test_what_is_asked_for_stays() -> None:
    texts = Texts(keep=["(?i)MINE.*", "acme_[a-z]+"])
    assert texts.range("mine 5", "x") == "mine 5"
    assert texts.name("acme_kernel", "x") == "acme_kernel"
    assert "acme" not in texts.name("an acme_kernel", "x")


MARKS = [mark.text for engine in engines() for mark in engine.marks]
PIECES = st.sampled_from(
    ["token", "Decode", "step", "execute_model", "ProfilerStep#", "forward", "prefill", "step[DECODE", " bs=4]",
     "aten::", " ", "/", "7", "12345678901", "x", "X", "é", "sk-", "_", "=", "\n"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=8).map("".join))
@example("step[DECODE12345678901token")
@example("aten::éDecode")
def test_a_text_is_the_marks_that_it_was(text: str) -> None:
    """But numbers of so many digits may be a secret: a mark with one may be lost."""
    before = [bool(mark.search(text)) for mark in MARKS]
    assume("12345678901" not in text or not any(before))
    cleaned = Texts().range(text, "nvtx")
    assert [bool(mark.search(cleaned)) for mark in MARKS] == before


def words_of(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]{4,}", text))


def is_made_of_known(run: str) -> bool:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", run)
    return "".join(parts) == run and all(part.isdecimal() or part.lower() in vocabulary() for part in parts)


@given(
    trace=traces(),
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=4) | st.from_regex(r"[A-Za-z0-9_./:-]{4,30}"),
    around=st.tuples(NAMES | st.sampled_from(["token 7 ", "cudaLaunchKernel", "NVIDIA H200 ", "step[DECODE "]), NAMES),
)
@settings(max_examples=20)
@example(Trace.from_columns(nvtx={"start": [0], "end": [1], "text": [""]}), "hunter2go", ("token 7 ", ""))
def test_no_planted_text_survives(trace: Trace, secret: str, around: tuple[str, str]) -> None:
    """Every run of at least four letters and digits goes that holds no known word of four letters, unless it is made of
    shorter ones and numbers alone (`fp16`)."""
    unknown = {run for run in words_of(secret) if not run.isdecimal() and not any(map(run.lower().__contains__, LONG))}
    unknown = {run for run in unknown if not re.fullmatch(r"(\d{1,4}[a-zA-Z])+\d{0,4}|[a-zA-Z]\d{1,5}", run)}
    unknown = {run for run in unknown if run.lower() not in vocabulary() and not is_made_of_known(run)}
    assume(unknown)
    text = secret.join(around)

    def plant(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        columns = [column.name for column in TABLES[name].columns if column.is_name]
        return frame.assign(**{column: pd.Categorical([text] * len(frame)) for column in columns})

    planted = trace.map_tables(plant)
    planted.metadata |= {
        text: {"x": text},
        "run": {text: [text], "configuration": {"model": text}, "ranges": {text: {}}},
    }
    planted.notes.append(text)
    clean = scrub(planted)
    names = {column.name for table in TABLES.values() for column in table.columns if column.is_name}
    found = [str(t) for frame in clean.tables.values() for c in names & {*frame} for t in frame[c]]
    found += [json.dumps(clean.metadata, ensure_ascii=False), *clean.notes]
    assert [(run, text) for run in unknown for text in found if run in text] == []


LONG = [word for word in vocabulary() if len(word) > 3]

# --- whole recordings ---


def spellings(secret: str) -> Iterator[bytes]:
    """A secret in lower case as UTF-8 and UTF-16 and in JSON; Base64 of it at each alignment."""
    for text in {secret, secret.replace("\n", "\\n"), json.dumps(secret)[1:-1]}:
        for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
            yield text.lower().encode(encoding)
    for text in (secret, secret.lower(), secret.upper()):
        for shift in range(3):
            coded = base64.b64encode(b"\0" * shift + text.encode())
            if len(middle := coded[4 if shift else 0 : -4].lower()) > 5:
                yield middle


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
    pieces = b"\0".join(piece.lower() for piece in contents(path))
    return {s for s in ALL_SECRETS if any(spelling in pieces for spelling in spellings(s))}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The recording of a name with all the secrets, made once."""

    @cache
    def recording(name: str) -> Path:
        source = PLANTERS[name](tmp_path_factory.mktemp("planted") / name)
        wanted = set(SECRETS) if name in PLANTED else ALL_SECRETS - set(SECRETS)
        assert found_in(source) >= wanted
        return source

    return recording


@pytest.mark.parametrize(
    ("name", "format"),
    covering(product(PLANTERS, [f for f in formats.registered() if f.write is not None])),
    ids=lambda value: value.suffix if isinstance(value, formats.Format) else None,
)
def test_no_secret_survives(name: str, format: formats.Format, planted: Callable[[str], Path], tmp_path: Path) -> None:
    source, target = planted(name), tmp_path / f"shared{format.suffix}"
    result = run("scrub", source, target)
    assert result.exit_code == 0, result.output
    assert found_in(target) == set()
    if format.read is not None:
        assert len(formats.read(target)) == len(formats.read(source))


def test_a_run_keeps_its_passes_and_graph(tmp_path: Path) -> None:
    facts = as_json("scrub", planted_run(tmp_path / "run"), tmp_path / "shared")
    assert (facts["schema"], facts["passes"]) == ("intertoken.scrub/1", ["node"])
    assert {path.name for path in (tmp_path / "shared").iterdir() if path.suffix != ".parquet"} == {
        "run.json", "graph.json", "node",
    }  # fmt: skip
    assert len(read_graph(tmp_path / "shared" / "graph.json").nodes) == 2
    shared = json.loads((tmp_path / "shared" / "run.json").read_text())
    assert shared["measured"] == {"tokens_per_s": {"median": 100.5}}
    assert shared["versions"] == {"numpy": "2.5.2"}
    assert shared["ranges"]["token"]["tokens_per_s"] == 7
    removed = {row["where"]: row["count"] for row in facts["removed"]}
    assert removed["TARGET_INFO_SYSTEM_ENV"] == 2 * 5
    assert removed[TOKEN] == 2
    assert removed[f"file {HOST}.log"] == 1
    kept = {row["where"]: (row["kept"], row["hashed"]) for row in facts["texts"]}
    assert kept["TARGET_INFO_GPU.name"] == (0, 1)


# --- what analyses find ---


def figures(path: Path, *options: str) -> Any:
    """All that commands print, without texts and notes."""
    commands = ("tokens", "syncs", "gaps", "streams", "path") + (() if options else ("info",))
    return _numbers({name: as_json(name, path, *options) for name in commands})


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items() if key != "notes"}
    return [_numbers(item) for item in value] if isinstance(value, list) else None if isinstance(value, str) else value


@pytest.mark.parametrize("source", RECORDINGS)
def test_analyses_give_the_same_figures(source: str, tmp_path: Path) -> None:
    facts = as_json("scrub", SAMPLES / source, tmp_path / "a")
    names = {row["where"]: row["hashed"] for row in facts["texts"]}
    assert names.get("api: name", 0) == 0
    assert figures(tmp_path / "a") == figures(SAMPLES / source)
    before, after = formats.read(SAMPLES / source), formats.read(tmp_path / "a")
    for table, column in NAMED:
        groups = [pd.factorize(trace[table][column].astype("str"))[0].tolist() for trace in (before, after)]
        assert groups[0] == groups[1], (table, column)
    if "vllm" in source:
        assert find_steps(after, phase="all").table.equals(find_steps(before, phase="all").table)


def test_ranges_keep_their_facts(tmp_path: Path) -> None:
    assert run("scrub", SIX, tmp_path / "a").exit_code == 0
    before, after = (formats.read(path)["nvtx"]["text"].astype("str") for path in (SIX, tmp_path / "a"))
    text = after[before == "run saaas concurrent"].iloc[0]
    assert re.fullmatch(f"text-{HASH}", text)
    assert figures(tmp_path / "a", "--range", text) == figures(SIX, "--range", "run saaas concurrent")


def test_planted_recordings_give_the_same_figures(tmp_path: Path) -> None:
    source = planted_chrome(tmp_path / "a.json.gz")
    assert run("scrub", source, tmp_path / "a").exit_code == 0
    assert as_json("syncs", tmp_path / "a")["signature"] == as_json("syncs", source)["signature"]


def test_kernels_of_the_cpu_backend_still_name_their_node(tmp_path: Path) -> None:
    kernels = {"start": [0, 9], "end": [1, 10], "name": ["mul_mat(mine)", "add(ours)"]}
    formats.write(Trace.from_columns(kernels=kernels), tmp_path / "a")
    write_graph(graph_of(("mul_mat", "mine"), ("add", "ours")), tmp_path / "a" / "graph.json")
    assert run("scrub", tmp_path / "a", tmp_path / "b").exit_code == 0
    names = formats.read(tmp_path / "b")["kernels"]["name"].tolist()
    shared = read_graph(tmp_path / "b" / "graph.json").nodes
    assert names == [f"{node.op}({node.name})" for node in shared]
    assert {node.name for node in shared}.isdisjoint({"mine", "ours"})


def test_python_functions_lose_unknown_words(tmp_path: Path) -> None:
    functions = ["/home/babbage/my code/model.py(7): forward", "torch/nn/module.py(9): __call__", "nn.Module: Linear_0"]
    events = [event("python_function", name, 100 * n, 9) for n, name in enumerate(functions)]
    source = write(tmp_path / "a.json", GPU | {"traceEvents": [*GPU["traceEvents"], *events]})
    assert run("convert", source, tmp_path / "b", "--python-functions").exit_code == 0
    assert run("scrub", tmp_path / "b", tmp_path / "c").exit_code == 0
    nvtx = formats.read(tmp_path / "c")["nvtx"]
    found = nvtx.loc[nvtx["domain"] == "python_function", "text"].tolist()
    assert found[1:] == functions[1:]
    assert re.fullmatch(rf"/x{HASH}/x{HASH}/x{HASH} code/model\.py\(7\): forward", found[0])


def test_run_json_keeps_known_keys_and_all_their_numbers() -> None:
    given = {
        "source": "nsys 2025.3.2.0", "clock": {"name": "CLOCK_REALTIME", "origin_ns": 5, "owner": "CET"},
        "start_utc_ns": 1, "kinds": ["api", "nvtx"], "pauses_ns": [[1, 2, None]],
        "run": {"measured": {"traced": False}, "created": "2026-11-21T13:28:53+00:00"},
    }  # fmt: skip
    texts = Texts()
    assert scrub_metadata(given, texts) == given | {"clock": {"name": "CLOCK_REALTIME", "origin_ns": 5}}
    assert dict(texts.removed) == {"metadata: unknown entries": 1}
    for run_directory in (RUN_DIRECTORY, RUN_DIRECTORY / "node"):
        trace = formats.read(run_directory)
        assert scrub_metadata(trace.metadata, Texts()) == trace.metadata


def test_related_recordings_share_what_they_learn() -> None:
    trace = Trace.from_columns(
        kernels={"start": [0], "end": [1], "name": ["my gemm"]},
        nvtx={
            "start": [0, 0, 0],
            "end": [1, 1, 1],
            "text": ["my gemm", "my softmax", "my relu"],
            "domain": ["", "", "cpu_op"],
        },
    )
    texts = Texts()
    learn(trace, texts)
    found = scrub(trace, texts)["nvtx"]["text"].tolist()
    assert [re.sub(HASH, "?", text) for text in found] == ["x? gemm", "text-?", "x? relu"]


# --- the command ---


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    source, target = LLAMA["sccc", "graph"], tmp_path / "a.sqlite"
    assert run("scrub", source, target).exit_code == 0
    before = target.read_bytes()
    again = run("scrub", source, target)
    assert again.exit_code == 2
    assert again.stderr.splitlines() == [f"intertoken: {target}: already exists; choose another name or --force"]
    assert target.read_bytes() == before
    assert run("scrub", source, target, "--force", "--keep", "python3").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]


def test_force_replaces_a_run_directory_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a"
    assert run("scrub", RUN_DIRECTORY, target).exit_code == 0
    assert run("scrub", target, target, "--force").exit_code == 0
    assert len(formats.read(target / "node")) == len(formats.read(RUN_DIRECTORY / "node"))
    files = sorted(tmp_path.rglob("*"))

    def full(*_: object) -> None:
        raise TraceError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tracer.model.graph_json.write_graph", full)
        assert run("scrub", RUN_DIRECTORY, target, "--force").exit_code == 2
    assert sorted(tmp_path.rglob("*")) == files
    (target / "thesis.tex").touch()
    refused = run("scrub", RUN_DIRECTORY, target, "--force")
    assert (refused.exit_code, "thesis.tex" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a", "--key", "x" * 65], "--key has 65 bytes"),
        (["a", "--key", ""], "--key has 0 bytes"),
        (["a", "--keep", "("], "--keep '(' is no regular expression"),
        (["a.nsys-rep"], "cannot write .nsys-rep"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    name, *options = arguments
    result = run("scrub", LLAMA["sccc", "graph"], tmp_path / name, *options)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert not (tmp_path / name).exists()
