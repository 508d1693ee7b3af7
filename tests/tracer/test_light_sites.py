"""Call sites of any program under the light recorder, over a driver without a GPU."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.programs import PROGRAMS
from tests.tracer.fake_driver import compiler_or_skip, run
from tracer import read
from tracer.analysis.call_sites import NATIVE, call_sites
from tracer.recorders.light import light_trace
from tracer.recorders.symbols import functions_at, plain_name

TOKENS = 5


def sites(trace):
    return call_sites(trace, trace.api).site.tolist()


def test_each_call_names_its_function_static_or_not_once_per_site(built, tmp_path):
    """A program without symbols has calls without sites."""
    built.run("sites", str(TOKENS), INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    assert trace["api"]["name"].tolist() == ["cuMemcpyHtoDAsync_v2", *["cuStreamSynchronize"] * 2] * TOKENS
    assert sites(trace) == ["copy_inputs (sites)", "wait_for_logits (sites)", "decode (sites)"] * TOKENS
    assert set(call_sites(trace, trace.api).source) == {NATIVE}
    chains = trace["callchains"]
    assert chains["chain"].unique().tolist() == [1, 2, 3]
    names = chains[chains["chain"] == 1]["symbol"].astype(str).tolist()
    assert names[: names.index("main") + 1] == ["copy_inputs", "decode", "main"]
    assert trace["api"]["thread"].unique().tolist() == trace["api"]["process"].unique().tolist()
    if (strip := shutil.which("strip")) is None:
        pytest.skip("there is no strip")
    bare = shutil.copy(built.folder / "sites", tmp_path / "bare")
    subprocess.run([strip, bare], check=True)
    built.run(str(bare), "2", INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    assert len(trace["callchains"])
    assert not any("copy_inputs" in site for site in sites(trace))


def test_a_library_that_interposes_backtrace_is_no_site(built, tmp_path):
    """As the runtimes of sanitizers do."""
    (tmp_path / "wraps.c").write_text(PROGRAMS["wraps backtrace"])
    command = [compiler_or_skip(), "-shared", "-fPIC", "-o", tmp_path / "wraps.so", tmp_path / "wraps.c", "-ldl"]
    subprocess.run(command, check=True)
    built.run("sites", "1", INTERTOKEN_LIGHT_SITES="1", LD_PRELOAD=str(tmp_path / "wraps.so"))
    assert sites(light_trace(built.read())) == ["copy_inputs (sites)", "wait_for_logits (sites)", "decode (sites)"]


def test_processes_and_threads_have_sites_of_their_own(built):
    built.run("decode", "proc", "forks", "2", INTERTOKEN_LIGHT_SITES="1")
    trace = light_trace(built.read())
    of_first, of_second = trace["api"].groupby("process", sort=False)["callchain"].agg(set)
    assert not of_first & of_second
    assert set(sites(trace)) == {"waits (decode)"}


@pytest.mark.usefixtures("recorder")
def test_the_command_records_them_on_request(built, tmp_path):
    """Without it nothing is unwound nor written."""
    for options, found in ((), set()), (("--call-sites",), {"copy_inputs", "wait_for_logits", "decode"}):
        out = tmp_path / f"out{len(options)}"
        assert run("record", "-o", out, *options, "--", built.folder / "sites", TOKENS).exit_code == 0
        trace = read(out)
        assert set(sites(trace)) - {""} == {f"{name} (sites)" for name in found}
        assert len(trace["callchains"]) > 0 if options else set(trace["api"]["callchain"]) == {-1}
    built.run("sites", "1")
    assert not list(built.rings.glob("*.sites"))


def test_files_that_are_no_programs_name_nothing_and_names_are_plain(tmp_path):
    for content in (b"", b"#!/bin/sh\n", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + b"\xff" * 200):
        (tmp_path / "file").write_bytes(content)
        assert functions_at(tmp_path / "file", np.array([1, 2])) == ["", ""]
    assert functions_at(tmp_path / "none", np.array([1])) == [""]
    assert functions_at(Path(sys.executable).resolve(), np.array([-1])) == [""]
    assert plain_name("_ZL29ggml_backend_cuda_synchronizeP12ggml_backend") == "ggml_backend_cuda_synchronize"
    assert plain_name("_ZN12_GLOBAL__N_15Model4stepEi") == "Model::step"
    assert plain_name("copy_inputs.constprop.0") == "copy_inputs"
