"""Credentials in every text of a recording go; names that only look odd stay."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.thorough import each_value, examples, of_every_kind
from tests.tracer.credential_texts import PLANTED, TEXTS
from tests.tracer.kineto import GPU, event, write
from tests.tracer.test_cli import as_json, run
from tests.tracer.test_scrub import contents, spellings
from tracer import formats
from tracer.model.schema import TABLES
from tracer.model.trace import Trace
from tracer.scrub import Texts, learn, scrub

RECORDINGS = of_every_kind(sorted({str(path.parent.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.parquet")}))
NAMES = [(table.name, column.name) for table in TABLES.values() for column in table.columns if column.is_name]


def found_in(path: Path) -> set[str]:
    """The planted secrets that a recording holds in any spelling, also as JSON spells them."""
    pieces = b"\0".join(piece.lower() for piece in contents(path))
    spelled = {secret: {secret, secret.replace("\n", "\\n").replace('"', '\\"')} for _, secret in TEXTS}
    return {s for s, forms in spelled.items() if any(b in pieces for form in forms for b in spellings(form))}


def test_the_table_of_secrets_is_long() -> None:
    assert len({secret for _, secret in TEXTS}) == len(TEXTS) >= 60


@pytest.mark.parametrize(("text", "secret"), TEXTS, ids=range(len(TEXTS)))
def test_a_credential_goes_from_a_name(text: str, secret: str) -> None:
    for texts in (Texts(), Texts(b"key")):
        cleaned = [texts.name(text, "nvtx"), texts.message(text, "notes"), texts.thread(text, "threads")]
        cleaned += [texts.name(f"decode 5 {text}", "nvtx"), texts.call(text, "api"), texts.plain(text, "x")]
        assert [name for name in cleaned if secret.lower() in name.lower()] == []


@pytest.mark.parametrize(("name", "target"), each_value(product(PLANTED, ["shared.sqlite", "shared", "shared.json"])))
def test_no_credential_survives(name: str, target: str, tmp_path: Path) -> None:
    source = PLANTED[name](tmp_path / name)
    assert found_in(source) == {secret for _, secret in TEXTS}
    result = run("scrub", source, tmp_path / target, "--python-functions")
    assert result.exit_code == 0, result.output
    assert found_in(tmp_path / target) == set()
    again = run("scrub", tmp_path / target, tmp_path / "again", "--python-functions")
    assert [line for line in again.stdout.splitlines() if line.split()[:1] == ["credential"]] == []


@pytest.mark.parametrize(
    "text",
    [
        "token 5",
        "token: 5/128",
        "token=5",
        "tokens=[1, 2]",
        "max_tokens=128",
        "512 tokens/s",
        "token_ids=[5]",
        "password",
        "check the password, please",
        "no password! retry",
        "the secret of fast decoding",
        "bearer of news",
        "execute_context_0(0)_generation_1(1)",
        "--tokenizer meta-llama",
        "--tokens 5",
        "basic block 7",
        "secret::detail::kernel<float>(secret::args)",
        "api_key::lookup(int)",
        "triton_hf_rotary_embedding_kernel_fused",
        "sk_gemm_fp16_tile_128x128_stages_3",
        "APBarrierWaitAndSignal",
        "ac2g",
        "void k<(Auth)0, Token>(Token*)",
        "Cijk_Ailk_Bljk_HHS_BH_Bias_HAS_SAV_UserArgs_MT128x128x64_MI16x16x1_SN_LDSB1_SK3_SKFTR0",
        "eyJ",
        "sk-learn",
        "_ZN7cutlass13device_kernelIN8password4gemmE0A1B2C3D4E5F6A7B8C9D0E1F2AC0123456789abcdef0123456789abcdefEEvT_",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    texts = Texts()
    assert texts.name(text, "nvtx") == text
    assert not texts.removed


def test_what_stands_around_a_credential_stays() -> None:
    whole = 'token 5: login(user=7, password="a b") --token abcdefgh -x'
    assert Texts().name(whole, "nvtx") == "token 5: login(user=7, password=[credential 1]) --token [credential 2] -x"
    assert Texts().name(whole, "nvtx") == Texts().name(Texts().name(whole, "nvtx"), "nvtx")


@given(st.lists(st.sampled_from([text for text, _ in TEXTS] + ["step 5", "/x/y", "a@b", "[id 1]"]), max_size=4))
@examples(100)
def test_what_is_clean_stays_as_it_is(parts: list[str]) -> None:
    once = Texts().name(" ".join(parts), "nvtx")
    texts = Texts()
    assert texts.name(once, "nvtx") == once
    assert not texts.removed


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_bundled_recordings_hold_nothing_to_remove(name: str) -> None:
    trace, texts = formats.read(SAMPLES / name), Texts()
    learn(trace, texts)
    clean = scrub(trace, texts)
    of_names = [(table, column) for table, column in NAMES if table != "processes"]
    for table, column in of_names:
        assert clean[table][column].tolist() == trace[table][column].tolist(), (table, column)
    assert {what for what, _ in texts.removed} <= {"process names"}


@pytest.mark.parametrize(
    "unit",
    [
        "sk-",
        "eyJ",
        "password",
        'password="',
        "://a:b@",
        "-----BEGIN PRIVATE KEY",
        "//",
        "/home/",
        "A=",
        "~/",
        '"',
        "a:",
    ],
)
def test_a_hostile_text_takes_no_long_time(unit: str) -> None:
    before = time.process_time()
    assert Texts().name((unit * 10_000)[:10_000], "nvtx")
    assert Texts().name(unit * 20_000, "nvtx") == "[text 1]"
    assert time.process_time() - before < 5


# --- Python functions ---


def with_python(path: Path) -> Path:
    functions = [
        "/home/babbage/my code/plugh/model.py(7): forward",
        r"C:\Users\babbage\x (2)\y.py(8): <lambda>",
        "torch/nn/module.py(9): __call__",
        "<string>(1): f",
        "nn.Module: Linear_0",
        "<built-in method mm of type object at 0x7fb0>",
        "a.py(3): password=hunter2x",
    ]
    events = [event("python_function", name, 100 * n, 9) for n, name in enumerate(functions)]
    return write(path, GPU | {"traceEvents": [*GPU["traceEvents"], *events]})


def python_functions(path: Path) -> list[str]:
    nvtx = formats.read(path)["nvtx"]
    return nvtx.loc[nvtx["domain"] == "python_function", "text"].tolist()


@pytest.mark.parametrize("mode", [(), ("--names",)])
def test_python_functions_go_unless_asked_for(mode: tuple[str, ...], tmp_path: Path) -> None:
    source = with_python(tmp_path / "a.json")
    assert run("convert", source, tmp_path / "b", "--python-functions").exit_code == 0
    for kept, target in ((source, "c"), (tmp_path / "b", "d")):
        assert run("scrub", kept, tmp_path / target, *mode).exit_code == 0
        assert python_functions(tmp_path / target) == []
        assert len(formats.read(tmp_path / target)) == len(formats.read(source))


@pytest.mark.parametrize("target", ["d", "d.sqlite"])
def test_python_functions_lose_their_directories(target: str, tmp_path: Path) -> None:
    source = with_python(tmp_path / "a.json")
    assert run("convert", source, tmp_path / "b", "--python-functions").exit_code == 0
    for kept in (source, tmp_path / "b"):
        facts = as_json("scrub", kept, tmp_path / target, "--python-functions", "--force")
        assert python_functions(tmp_path / target) == [
            "model.py(7): forward",
            "y.py(8): <lambda>",
            "module.py(9): __call__",
            "<string>(1): f",
            "nn.Module: Linear_0",
            "<built-in method mm of type object at 0x7fb0>",
            "a.py(3): password=[credential 1]",
        ]
        assert {"what": "directories of Python files", "where": "nvtx: text", "count": 3} in facts["removed"]
        raw = b"".join(contents(tmp_path / target)).lower()
        assert not [word for word in (b"babbage", b"my code", b"plugh", b"torch/", b"hunter2x") if word in raw]


# --- what the command says ---


def test_the_last_line_names_the_fields_that_were_kept(tmp_path: Path) -> None:
    trace = Trace.from_columns(
        kernels={"start": [0, 5, 9], "end": [1, 6, 10], "name": ["k", "l", "k"]},
        nvtx={"start": [0], "end": [9], "text": ["password=abc"], "domain": ["mine"]},
        threads={"process": [1], "thread": [2], "name": [""]},
    )
    formats.write(trace, tmp_path / "a")
    result = run("scrub", tmp_path / "a", tmp_path / "b")
    kept = "kernels: name (2), nvtx: domain (1), nvtx: text (1)"
    assert result.stdout.splitlines()[-1] == f"names kept (review them, or hash them with --names): {kept}"
    facts = as_json("scrub", tmp_path / "a", tmp_path / "c")
    assert facts["kept"] == [
        {"where": "kernels: name", "count": 2},
        {"where": "nvtx: domain", "count": 1},
        {"where": "nvtx: text", "count": 1},
    ]
    assert as_json("scrub", tmp_path / "a", tmp_path / "d", "--names")["kept"] == []


def test_only_scrub_loads_the_patterns() -> None:
    code = "import sys, tracer.cli, tracer.commands.scrub, tracer.formats; sys.exit('detect_secrets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
