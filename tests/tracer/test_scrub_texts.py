"""How `intertoken scrub` cleans texts, and what its command refuses."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import LLAMA, SAMPLES
from tests.tracer.test_cli import run
from tracer import formats
from tracer.engines.ours import NAMES, word
from tracer.errors import TraceError
from tracer.model.trace import Trace
from tracer.scrub import Texts, learn, scrub
from tracer.scrub.facts import metadata

HASH = r"name_[0-9a-f]{12}"
RUN_DIRECTORY = SAMPLES / "llama-1.1b-sccc-sequential-cuda"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("load /home/ada/model.gguf", "load [path 1]"),
        ("load '/srv/my models/a b.gguf' now", "load '[path 1]' now"),
        ("~/x/y and more", "[path 1] and more"),
        (r"open C:\Users\Ada L\x.bin", "open [path 1]"),
        (r"\\server\share\x", "[path 1]"),
        ("-I/usr/local/include", "-I[path 1]"),
        ("models/ada/x.safetensors", "[path 1]"),
        ("mine.gguf", "[path 1]"),
        ("{lambda at /build/x.cu:12:3}", "{lambda at [path 1]}"),
        ("fetch https://ada:pw@host/x?y=1", "fetch [address 1]"),
        ("ada@example.org", "[address 1]"),
        ("rank 0 at 10.0.0.7:29500", "rank 0 at [address 1]"),
        ("02:42:ac:11:00:02", "[address 1]"),
        ("on GPU-1c2d3e4f-0011-2233-4455-66778899aabb", "on [id 1]"),
        ("bus 0000:3b:00.0", "bus [id 1]"),
        ("cuda0000280000b", "[id 1]"),
        ("key sk-abcdefghijklmnop1234", "key [credential 1]"),
        ("hf_abcdefghijklmnopqrst", "[credential 1]"),
        ("HF_HOME=x ./a", "[variable 1] [path 1]"),
    ],
)
def test_what_looks_like_a_secret_goes(text: str, cleaned: str) -> None:
    assert Texts().name(text, "nvtx") == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::reduce<float, (int)4>(T1*, at::detail::Array<char*, 1>)", "ampere_fp16_s16816gemm/split",
        "operator/(T1, T2)", "Iteration 3/10", "512 tokens/s", "model.layers.0.attn", "aten::mm", "ProfilerStep#7",
        "_ZN36_INTERNAL_cad803f4_6_cpy_cu_bfba63e212cpy_1_scalarI6__half", "nsys 2025.3.2.0", "12:30:05", "N=5",
        "a.b.c", "split 1: cuda:1", "triton_poi_fused_add_0d1d2d", "", "токен 5 ⏱",
    ],
)  # fmt: skip
def test_ordinary_names_stay(text: str) -> None:
    texts = Texts()
    assert texts.name(text, "kernels") == text
    assert not texts.removed


def test_names_of_kernels_in_real_recordings_stay() -> None:
    trace = formats.read(LLAMA["sccc", "node"])
    clean = scrub(trace)
    for table, column in (("kernels", "name"), ("kernels", "short_name"), ("api", "name"), ("devices", "name")):
        assert clean[table][column].tolist() == trace[table][column].tolist()


def test_what_a_recording_says_of_itself_goes_everywhere() -> None:
    texts = Texts(words=["Project X"])
    texts.learn("HOSTNAME", "babbage.example.org")
    texts.learn("DB_PASSWORD", "hunter2!")
    texts.learn_from("HOME=/home/ada USER=root --api-key=c2VjcmV0==")
    assert texts.name("project x on BABBAGE by ada_l, as root, hunter2!, c2VjcmV0==", "nvtx") == (
        "[secret 2] on [host 1] by [user 1]_l, as root, [secret 3], [secret 1]"
    )
    assert texts.name("adagrad", "kernels") == "adagrad"
    assert texts.removed["secret", "nvtx"] == 3


def test_different_texts_stay_different_and_equal_ones_equal() -> None:
    texts = Texts()
    assert [texts.name(f"open /data/{file}", "nvtx") for file in "aba"] == [f"open [path {i}]" for i in (1, 2, 1)]


STEPS = [re.compile(word(name)) for name in NAMES]
PIECES = st.sampled_from(
    ["token", "Decode", "step", "execute_model", "ProfilerStep#", "forward", " ", "/", "/home/ada/", "7", "12345678901",
     "x", ".gguf", "sk-", "SECRET_TOKEN_abc123", "_", "\u017ftep", "to\u212aen", "'", "=", "C:\\", "@", "\n"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=8).map("".join), st.sampled_from([None, b"key"]))
def test_a_text_names_the_steps_that_it_named(text: str, key: bytes | None) -> None:
    texts = Texts(key)
    texts.learn("API_KEY", "SECRET_TOKEN_abc123")
    cleaned = texts.name(text, "nvtx")
    assert [bool(step.search(cleaned)) for step in STEPS] == [bool(step.search(text)) for step in STEPS]
    assert "SECRET_TOKEN" not in cleaned
    assert "/home/ada" not in cleaned


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("token 17", "token 17"),
        ("ProfilerStep#5", "ProfilerStep#5"),
        ("decode step 3 of ada", f"decode step 3 {HASH}"),
        ("step12 abc123 4111111111111111", f"step 12 {HASH}"),
        ("token GPU-1c2d3e4f-0011-2233-4455-66778899aabb 4", f"token 4 {HASH}"),
        ("run saaas", HASH),
        ("", ""),
    ],
)
def test_hashed_names_keep_words_and_numbers_of_steps(text: str, hashed: str) -> None:
    assert re.fullmatch(hashed, Texts(b"key").name(text, "nvtx"))


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("cudaMemcpy2DAsync_v3020", True), ("cuLaunchKernelEx", True), ("hipStreamSynchronize", True),
        ("memcpyAsync", True), ("streamSynchronize", True), ("cuda call 99", True), ("cudaMemcpyAsync_ptsz", True),
        ("my_function", False), ("cudaX /home/ada", False), ("launchKernel", True), ("launch", False),
        ("hunter", False), ("cuSECRET_abc", False),
    ],
)  # fmt: skip
def test_names_of_api_calls_stay(text: str, stays: bool) -> None:
    assert (Texts(b"key").call(text, "api") == text) == stays


@pytest.mark.parametrize(
    "name",
    ["NVIDIA H200", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-80GB", "Tesla V100-PCIE-16GB",
     "NVIDIA H100 80GB HBM3", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "AMD Instinct MI300X",
     "NVIDIA GB10"],
)  # fmt: skip
def test_gpu_models_stay(name: str) -> None:
    assert Texts(b"key").device(name, "devices") == name
    assert Texts(b"key").device(f"{name} of ada", "devices") != name


def test_threads_lose_the_name_of_their_program() -> None:
    columns = {"process": [7] * 5, "thread": [7, 8, 9, 10, 11]}
    threads = {**columns, "name": ["my-secret-server", "my-secret-server"[:15], "pool 3", "thread 9 (bench)", ""]}
    trace = Trace.from_columns(threads=threads, processes={"process": [7, 8], "name": ["bench", "other"]})
    clean = scrub(trace)
    assert clean["threads"]["name"].tolist() == ["", "", "pool 3", "thread 9 ()", ""]
    assert not len(clean["processes"])
    assert trace["threads"]["name"].tolist() == threads["name"]


def test_metadata_keeps_known_keys_and_all_their_numbers() -> None:
    texts = Texts()
    given = {
        "source": "nsys 2025.3.2.0", "clock": {"name": "CLOCK_REALTIME", "origin_ns": 5, "zone": "CET"},
        "start_utc_ns": 1, "kinds": ["api", "nvtx"],
        "run": {"measured": {"traced": False}, "created": "2026-11-21T13:28:53+00:00"},
    }  # fmt: skip
    assert metadata(given, texts) == given | {"clock": {"name": "CLOCK_REALTIME", "origin_ns": 5}}
    assert dict(texts.removed) == {("unknown entry", "metadata: clock"): 1}


def test_run_json_of_our_runs_stays_as_it_is() -> None:
    for run_directory in (RUN_DIRECTORY, RUN_DIRECTORY / "node"):
        trace = formats.read(run_directory)
        texts = Texts()
        learn(trace, texts)
        assert metadata(trace.metadata, texts) == trace.metadata


# --- the command ---


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    source, target = LLAMA["sccc", "graph"], tmp_path / "a.sqlite"
    assert run("scrub", source, target).exit_code == 0
    before = target.read_bytes()
    again = run("scrub", source, target, "--names")
    assert again.exit_code == 2
    assert again.stderr.splitlines() == [f"intertoken: {target}: already exists; choose another name or --force"]
    assert target.read_bytes() == before
    assert run("scrub", source, target, "--names", "--force").exit_code == 0
    assert target.read_bytes() != before
    assert [path.name for path in tmp_path.iterdir()] == ["a.sqlite"]


def test_force_replaces_a_run_directory_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a"
    assert run("scrub", RUN_DIRECTORY, target).exit_code == 0
    assert run("scrub", target, target, "--force").exit_code == 0
    assert len(formats.read(target / "node")) == len(formats.read(RUN_DIRECTORY / "node"))
    (target / "thesis.tex").touch()
    refused = run("scrub", RUN_DIRECTORY, target, "--force")
    assert (refused.exit_code, "thesis.tex" in refused.stderr) == (2, True)
    assert run("scrub", LLAMA["sccc", "graph"], tmp_path / "b").exit_code == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_was_there_stays_if_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a"
    assert run("scrub", RUN_DIRECTORY, target).exit_code == 0
    files = sorted(tmp_path.rglob("*"))

    def full(*_: object) -> None:
        raise TraceError("no space left on device")

    monkeypatch.setattr("tracer.model.graph_json.write_graph", full)
    assert run("scrub", RUN_DIRECTORY, target, "--force").exit_code == 2
    assert sorted(tmp_path.rglob("*")) == files


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", "x"], "--key needs --names, which requests the hashes"),
        (["--names", "--key", "x" * 65], "--key has 65 bytes"),
        (["--names", "--key", ""], "--key has 0 bytes"),
        (["--word", " "], "--word is empty"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run("scrub", LLAMA["sccc", "graph"], tmp_path / "a", *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)
    assert not (tmp_path / "a").exists()


def test_a_format_that_cannot_be_written_is_refused_before_reading(tmp_path: Path) -> None:
    result = run("scrub", tmp_path / "none", tmp_path / "a.nsys-rep")
    assert result.exit_code == 2
    assert "cannot write .nsys-rep" in result.stderr


def test_the_command_says_that_names_stay(tmp_path: Path) -> None:
    assert "names kept" in run("scrub", RUN_DIRECTORY, tmp_path / "a.sqlite").stdout.splitlines()[-1]
    assert "are hashed" in run("scrub", RUN_DIRECTORY, tmp_path / "b.sqlite", "--names").stdout
