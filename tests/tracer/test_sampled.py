"""Samples of the CPU in nsys's exports: read on request, and the host's idle time by function, with known answers."""

import json
import random
import shutil
import sqlite3
from contextlib import closing

import pandas as pd
import pytest
from click.testing import CliRunner

from tests.tracer.nsys_exports import DATA, GLOBAL_PID, KERNELS, RECORDING, TID, export, real_export
from tracer import analyse, formats
from tracer.analysis.idle_sites import sampled_functions, share_bounds
from tracer.cli import main
from tracer.scrub import scrub

STEPS, PERIOD, BUSY = 40, 1000, 300  # ns; the device computes in the first 300 of each period
LIBRARY = "/opt/llama/libllama.so"
OUTER = [("decode", LIBRARY, 0), ("main", "/opt/llama/llama-bench", 0)]
INNER = {"sample_token": LIBRARY, "detokenise": LIBRARY, "0x7f1200345678": "/usr/lib/libstripped.so"}
ID = {name: 200 + at for at, name in enumerate(dict.fromkeys([*INNER, *INNER.values(), "decode", "main", OUTER[1][1]]))}


def recording(places):
    """An export of `STEPS` steps, sampled at (time, innermost function, thread)."""
    calls, kernels, samples, chains = [], [], [], []
    for step in range(STEPS):
        start = 10_000 + step * PERIOD
        for offset, name, correlation in ((-50, 9, 10 * step + 1), (200, 10, 10 * step + 2)):
            call = {"start": start + offset, "end": start + offset + 40, "correlationId": correlation, "nameId": name}
            calls.append(RECORDING["CUPTI_ACTIVITY_KIND_RUNTIME"][0] | call)
        kernel = {"start": start, "end": start + BUSY, "correlationId": 10 * step + 1, "graphNodeId": None}
        kernels.append(RECORDING[KERNELS][0] | kernel)
    for number, (time, function, thread) in enumerate(places):
        samples.append({"id": number, "start": time, "cpu": 3, "globalTid": GLOBAL_PID | thread, "cpuCycles": 1000})
        stack = [(function, INNER[function], int(function.startswith("0x"))), *OUTER]
        chains += [{"id": number, "symbol": ID[name], "module": ID[module], "unresolved": unresolved,
                    "originalIP": 4096, "stackDepth": depth}
                   for depth, (name, module, unresolved) in enumerate(stack)]  # fmt: skip
    return {
        "StringIds": [*RECORDING["StringIds"], *({"id": id, "value": name} for name, id in ID.items())],
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls, KERNELS: kernels, "COMPOSITE_EVENTS": samples,
        "SAMPLING_CALLCHAINS": chains,
    }  # fmt: skip


def idle_places():
    """While the device idles: 60 samples in `sample_token`, 30 in `detokenise`, 10 in a function without a symbol; in
    no particular order. While it computes, and on another thread: samples that do not count."""
    chosen = random.Random(7)
    functions = ["sample_token"] * 60 + ["detokenise"] * 30 + ["0x7f1200345678"] * 10
    inside = [(10_000 + chosen.randrange(STEPS - 1) * PERIOD + chosen.randrange(BUSY, PERIOD), function, TID)
              for function in functions]  # fmt: skip
    beside = [(10_000 + step * PERIOD + at, "detokenise", tid)
              for step in range(STEPS) for at, tid in ((100, TID), (600, TID + 1))]  # fmt: skip
    places = inside + beside
    chosen.shuffle(places)
    return places


@pytest.fixture
def sampled_export(tmp_path):
    return export(tmp_path / "in.sqlite", recording(idle_places()))


def found(path):
    recorded = analyse(formats.read(path, whole=False, samples=True), pattern="cudaLaunchKernel")
    return sampled_functions(recorded.trace, recorded.steps, recorded.idle)


def gaps(path, *options):
    return CliRunner().invoke(main, ["gaps", str(path), "--call-sites", *options])


def test_idle_time_is_split_by_the_functions_that_samples_found(sampled_export):
    sampled = found(sampled_export)
    assert (sampled.samples, sampled.unresolved, sampled.idle_us) == (100, pytest.approx(0.1), pytest.approx(0.7))
    rows = sampled.functions.frame().set_index("function")
    assert rows["self_share"].to_dict() == pytest.approx({
        "sample_token (libllama.so)": 0.6, "detokenise (libllama.so)": 0.3, "no symbol (libstripped.so)": 0.1,
        "decode (libllama.so)": 0, "main (llama-bench)": 0})  # fmt: skip
    assert rows["self_us"].sum() == rows.loc["main (llama-bench)", "total_us"] == pytest.approx(0.7)
    outer = "main (llama-bench);decode (libllama.so)"
    assert sampled.stacks == {
        f"{outer};sample_token (libllama.so)": 60, f"{outer};detokenise (libllama.so)": 30,
        f"{outer};no symbol (libstripped.so)": 10,
    }  # fmt: skip
    assert "10% of them are in functions without a symbol" in sampled.note
    assert sampled.host_step().length_ns == 700
    low, high = share_bounds([0, 60, 100], 100)  # of Wilson
    assert low.tolist() == pytest.approx([0, 0.502, 0.963], abs=5e-4)
    assert high.tolist() == pytest.approx([0.037, 0.691, 1], abs=5e-4)
    facts = json.loads(gaps(sampled_export, "--pattern", "cudaLaunchKernel", "--json").stdout)
    first = facts["sampled"]["functions"][0]
    assert first["function"] == "sample_token (libllama.so)"
    assert (first["self_share"], first["self_low"]) == (pytest.approx(0.6), pytest.approx(0.502, abs=5e-4))
    assert "60.0% [50.2%, 69.1%]" in gaps(sampled_export, "--pattern", "cudaLaunchKernel").stdout


def test_samples_are_read_on_request_alone_and_written_again(sampled_export, tmp_path):
    trace = formats.read(sampled_export)
    assert len(trace["samples"]) == 180
    for name in ("out.sqlite", "out"):
        formats.write(trace, tmp_path / name)
        again = formats.read(tmp_path / name, whole=False, samples=True)
        by_id = [frame["samples"].sort_values("chain", ignore_index=True) for frame in (again, trace)]
        pd.testing.assert_frame_equal(by_id[0], by_id[1][by_id[0].columns])
        assert found(tmp_path / name).stacks == found(sampled_export).stacks
        assert not len(formats.read(tmp_path / name, whole=False)["samples"])


def test_a_real_export_has_samples_and_the_backtraces_of_calls(tmp_path):
    """`benchmarks/torch_loop.py` under nsys 2025.3 (`--sample=process-tree --backtrace=dwarf --cudabacktrace=all:0`),
    scrubbed: `item` fetches the result, `replay` launches the graph."""
    real = real_export(tmp_path / "real.sqlite", "nsys-2025.3-samples")
    trace = formats.read(real)
    for name in ("out", "out.sqlite"):
        formats.write(trace, tmp_path / name)
        again = formats.read(tmp_path / name)
        pd.testing.assert_frame_equal(again["callchains"], trace["callchains"])
        pd.testing.assert_series_equal(again["api"]["callchain"], trace["api"]["callchain"])
    facts = json.loads(gaps(real, "--json").stdout)
    sites = {row["site"].partition("(")[0]: row["share"] for row in facts["idle_sites"]}
    assert list(sites) == [
        "at::native::_local_scalar_dense_cuda", "_PyEval_EvalFrameDefault ", "at::cuda::CUDAGraph::replay",
    ]  # fmt: skip
    assert sum(sites.values()) == pytest.approx(1)
    assert len(formats.read(real, whole=False, samples=True)["samples"]) > facts["sampled"]["samples"] == 6
    functions = {row["function"]: row for row in facts["sampled"]["functions"]}
    assert functions["no symbol (libcuda.so.580.159.04)"]["self_share"] == 0.5
    assert sum(row["self_share"] for row in functions.values()) == pytest.approx(1)
    assert functions["Py_RunMain (python3.12)"]["total_us"] == pytest.approx(facts["idle_us"]["mean"] / 3, rel=0.01)


# --- samples of Python ---

STACKS = [[("sample_token", 12), ("decode", 30), ("&lt;module&gt;", 99)], [("decode", 31), ("&lt;module&gt;", 99)]]


def python_export(path, states, payload=None):
    """Samples of Python as nsys 2025.3 exports them: marks of a domain, in the idle part of each step; so many in each
    state, of two stacks in turn."""
    tables = recording([])
    strings = {"sample_token": 300, "decode": 301, "&lt;module&gt;": 302, "/opt/serve.py": 303}
    tables["StringIds"] += [{"id": id, "value": text} for text, id in strings.items()]
    named = {"domainId": 1, "globalTid": GLOBAL_PID | TID}
    events = [{"start": 0, "eventType": 75, "text": "Python Periodic Sampling", **named}]
    for number, state in enumerate(state for state, count in states.items() for _ in range(count)):
        frames = [{"Function": strings[function], "File": 303, "Line": line} for function, line in STACKS[number % 2]]
        sample = {"Thread state ID": 1, "Thread state": state, "Frames count": len(frames), "Frames": frames}
        text = json.dumps({"Python Periodic Sampling": sample}) if payload is None else payload
        time = 10_000 + number * PERIOD + 600
        events.append({"start": time, "eventType": 34, "color": 4294944000, "jsonText": text, **named})
    del tables["COMPOSITE_EVENTS"], tables["SAMPLING_CALLCHAINS"]
    return export(path, {**tables, "NVTX_EVENTS": events})


def test_samples_of_python_are_marks_with_their_stack_as_json(tmp_path):
    path = python_export(tmp_path / "python.sqlite", {"Running": 20, "Blocking Wait": 6})
    stacks = found(path).stacks
    assert stacks == {
        "/opt/serve.py(99): <module>;/opt/serve.py(30): decode;/opt/serve.py(12): sample_token": 10,
        "/opt/serve.py(99): <module>;/opt/serve.py(31): decode": 10,
    }
    assert not len(formats.read(path, whole=False)["samples"])
    trace = formats.read(path)
    formats.write(trace, tmp_path / "again.sqlite")
    assert found(tmp_path / "again.sqlite").stacks == stacks
    assert "/opt/serve.py(30): decode" in set(scrub(trace)["sample_chains"]["symbol"].astype(str))


def test_samples_of_python_that_are_without_stacks_or_damaged_are_said(tmp_path):
    """`nsys export` without `--include-json=true`."""
    path = python_export(tmp_path / "python.sqlite", {"Running": 5}, payload="")
    said = "5 samples of Python have no stacks and are left out: export the report again, with "
    for statement in ("SELECT 1", "ALTER TABLE NVTX_EVENTS DROP COLUMN jsonText"):
        with closing(sqlite3.connect(path)) as database:
            database.execute(statement)
            database.commit()
        assert found(path) is None
        assert f"{said}`nsys export --type sqlite --include-json=true`" in formats.read(path, samples=True).notes
        assert formats.read(path, whole=False).notes == []
        assert said in gaps(path, "--pattern", "cudaLaunchKernel").stderr
    for number, payload in enumerate(("{", '{"Python Periodic Sampling": {"Frames": [{"Line": "x"}]}}', "[" * 9_999)):
        result = gaps(python_export(tmp_path / f"{number}.sqlite", {"Running": 5}, payload))
        assert result.exit_code == 2
        assert "column jsonText holds no sample of Python" in " ".join(result.output.split())


@pytest.mark.parametrize("old", ["", "1"])
def test_a_report_is_exported_with_the_stacks_of_python_if_they_are_asked_for(tmp_path, monkeypatch, old):
    shutil.copy(DATA / "nsys_export.txt", tmp_path / "nsys")
    (tmp_path / "nsys").chmod(0o755)
    for name, payload in (("with", None), ("without", "")):
        python_export(tmp_path / f"{name}.sqlite", {"Running": 5}, payload)
    (tmp_path / "a.nsys-rep").write_text("report")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("OLD", old)
    trace = formats.read(tmp_path / "a.nsys-rep", whole=False, samples=True)
    assert len(trace["samples"]) == (0 if old else 5)
    assert any("samples of Python have no stacks" in note for note in trace.notes) is bool(old)
    assert not len(formats.read(tmp_path / "a.nsys-rep", whole=False)["samples"])
