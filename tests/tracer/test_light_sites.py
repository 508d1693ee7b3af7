"""Call sites of any program under the light recorder, over a driver without a GPU."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.fake_driver import Build, compiler_or_skip, run
from tracer import read
from tracer.analysis.call_sites import NATIVE, call_sites
from tracer.model.trace import Trace
from tracer.recorders.light import light_trace
from tracer.recorders.symbols import functions_at, plain_name

TOKENS = 5


def sites_by_call(trace: Trace) -> list[tuple[str, str]]:
    found = call_sites(trace, trace["api"])
    return list(zip(trace["api"]["name"].astype(str), found["site"], strict=True))


def test_each_call_names_its_function_static_or_not_once_per_site(built: Build) -> None:
    built.run("sites", str(TOKENS), INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    assert sites_by_call(trace) == [
        ("cuMemcpyHtoDAsync_v2", "copy_inputs (sites)"), ("cuStreamSynchronize", "wait_for_logits (sites)"),
        ("cuStreamSynchronize", "decode (sites)"),
    ] * TOKENS  # fmt: skip
    assert set(call_sites(trace, trace["api"])["source"]) == {NATIVE}
    chains = trace["callchains"]
    assert chains["chain"].unique().tolist() == [1, 2, 3]
    names = chains[chains["chain"] == 1]["symbol"].astype(str).tolist()
    assert names[: names.index("main") + 1] == ["copy_inputs", "decode", "main"]
    assert trace["api"]["thread"].nunique() == 1
    assert trace["api"]["thread"].iloc[0] == trace["api"]["process"].iloc[0]


def test_without_the_switch_nothing_is_unwound_nor_written(built: Build) -> None:
    built.run("sites", str(TOKENS))
    trace = light_trace(built.read())
    assert set(trace["api"]["callchain"]) == {-1}
    assert not len(trace["callchains"])
    assert not list(built.rings.glob("*.sites"))


def test_a_program_without_symbols_has_calls_without_sites(built: Build, tmp_path: Path) -> None:
    if (strip := shutil.which("strip")) is None:
        pytest.skip("there is no strip")
    bare = tmp_path / "bare"
    shutil.copy(built.folder / "sites", bare)
    subprocess.run([strip, bare], check=True)
    built.run(str(bare), "2", INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    assert len(trace["callchains"])
    assert not any("copy_inputs" in site for _, site in sites_by_call(trace))


def test_processes_and_threads_have_sites_of_their_own(built: Build) -> None:
    built.run("decode", "proc", "forks", "2", INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    assert trace["api"]["process"].nunique() == 2
    used = trace["api"].groupby("process", sort=False)["callchain"].agg(set)
    assert not used.iloc[0] & used.iloc[1]
    assert {site for _, site in sites_by_call(trace)} == {"waits (decode)"}


WRAPS = """
#define _GNU_SOURCE
#include <dlfcn.h>
int backtrace(void **frames, int most) {
    int (*next)(void **, int) = (int (*)(void **, int))dlsym(RTLD_NEXT, "backtrace");
    volatile int found = next(frames, most);
    return found;
}
"""


def test_a_library_that_interposes_backtrace_is_no_site(built: Build, tmp_path: Path) -> None:
    """As the runtimes of sanitizers do."""
    (tmp_path / "wraps.c").write_text(WRAPS)
    command = [compiler_or_skip(), "-shared", "-fPIC", "-o", tmp_path / "wraps.so", tmp_path / "wraps.c", "-ldl"]
    subprocess.run(command, check=True)
    built.run("sites", "1", INTERTOKEN_LIGHT_SITES="1", LD_PRELOAD=str(tmp_path / "wraps.so"))
    assert [site for _, site in sites_by_call(light_trace(built.read()))] == [
        "copy_inputs (sites)", "wait_for_logits (sites)", "decode (sites)",
    ]  # fmt: skip


@pytest.mark.usefixtures("recorder")
def test_the_command_records_them_on_request(built: Build, tmp_path: Path) -> None:
    for options in ((), ("--call-sites",)):
        out = tmp_path / f"out{len(options)}"
        result = run("record", "-o", out, *options, "--", built.folder / "sites", TOKENS)
        assert result.exit_code == 0, result.output
    assert not len(read(tmp_path / "out0")["callchains"])
    assert {site for _, site in sites_by_call(read(tmp_path / "out1"))} == {
        "copy_inputs (sites)", "wait_for_logits (sites)", "decode (sites)",
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_a_file_that_is_no_program_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    assert functions_at(tmp_path / "file", np.array([1, 2])) == ["", ""]
    assert functions_at(tmp_path / "none", np.array([1])) == [""]


def test_names_are_plain(built: Build) -> None:
    assert plain_name("_ZL29ggml_backend_cuda_synchronizeP12ggml_backend") == "ggml_backend_cuda_synchronize"
    assert plain_name("_ZN12_GLOBAL__N_15Model4stepEi") == "Model::step"
    assert plain_name("copy_inputs.constprop.0") == "copy_inputs"
    assert functions_at(Path(sys.executable).resolve(), np.array([-1])) == [""]
