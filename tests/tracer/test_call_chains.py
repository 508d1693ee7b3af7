"""Call sites from call chains: of an nsys export, of handmade ones, and what is kept of them elsewhere."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from tests.tracer.nsys_exports import RECORDING, export
from tracer import formats
from tracer.analysis.call_sites import NATIVE, PYTHON, call_sites, stacks
from tracer.cli import main
from tracer.model.schema import MISSING
from tracer.model.trace import Trace
from tracer.scrub import scrub

GGML = "/opt/ggml/libggml-cuda.so"
CHAINS = {
    5: [("cudaStreamSynchronize", GGML), ("ggml_backend_cuda_synchronize", GGML),
        ("ggml_backend_sched_compute_splits", "/opt/ggml/libggml-base.so"), ("main", "/opt/llama-bench")],
    6: [("cuLaunchKernel", "/usr/lib/libcuda.so.1"), ("at::native::add", "/x/libtorch_cuda.so"),
        ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12"),
        ("/x/site-packages/torch/_ops.py(7): __call__", ""), ("/home/ada/decode.py(31): step", "")],
    7: [("cuLaunchKernel", "/usr/lib/libcuda.so.1"), ("at::native::add", "/x/libtorch_cuda.so"),
        ("_PyEval_EvalFrameDefault", "/usr/bin/python3.12")],
}  # fmt: skip


def handmade(chain_of: dict[int, int], chains: dict[int, list[tuple[str, str]]] = CHAINS) -> Trace:
    """A call for each correlation, with its chain."""
    rows = [(chain, depth, *f) for chain, functions in chains.items() for depth, f in enumerate(functions)]
    chain, depth, symbol, module = (list(column) for column in zip(*reversed(rows), strict=True))
    starts = [10 * correlation for correlation in chain_of]
    return Trace.from_columns(
        api={"start": starts, "end": [s + 5 for s in starts], "process": [1] * len(starts), "thread": [1] * len(starts),
             "correlation": list(chain_of), "name": ["cuStreamSynchronize"] * len(starts),
             "callchain": list(chain_of.values())},
        callchains={"chain": chain, "depth": depth, "symbol": symbol, "module": module},
    )  # fmt: skip


def sites(trace: Trace) -> list[list[Any]]:
    return call_sites(trace, trace["api"]).to_numpy().tolist()


def test_the_site_is_the_innermost_function_that_is_neither_of_cuda_nor_of_a_framework() -> None:
    assert sites(handmade({1: 5, 2: 6, 3: 7, 4: MISSING, 5: 99})) == [
        ["ggml_backend_cuda_synchronize (libggml-cuda.so)", "", NATIVE],
        ["/home/ada/decode.py(31): step", "at::native::add (libtorch_cuda.so)", PYTHON],
        ["at::native::add (libtorch_cuda.so)", "", NATIVE],
        ["", "", ""],
        ["", "", ""],
    ]


def test_between_calls_the_host_is_in_the_functions_that_both_have_on_their_stacks() -> None:
    """Calls at 10, 20, ... for 5 ns each; before the first and behind the last one nothing is known."""
    scheduler = ("ggml_backend_sched_compute_splits", "/opt/ggml/libggml-base.so")
    copies = [("cudaMemcpyAsync", GGML), ("ggml_backend_cuda_cpy_tensor_async", GGML), scheduler, CHAINS[5][-1]]
    python = [("/x/torch/_ops.py(7): __call__", ""), ("/home/ada/decode.py(31): step", "")]
    later = [("/x/torch/_ops.py(9): __call__", ""), ("/home/ada/decode.py(40): step", "")]
    trace = handmade({1: 5, 2: 5, 3: 8, 4: 9, 5: 10}, CHAINS | {8: copies, 9: python, 10: later})
    times = [5, 12, 16, 27, 37, 46, 58]
    found = call_sites(trace, pd.DataFrame({"start": np.array(times), "process": 1, "thread": 1}))
    inside = "ggml_backend_cuda_synchronize (libggml-cuda.so)"
    assert found.to_numpy().tolist() == [
        ["", "", ""],
        [inside, "", NATIVE],
        [inside, "", NATIVE],
        ["ggml_backend_sched_compute_splits (libggml-base.so)", "", NATIVE],
        ["", "", ""],
        ["/home/ada/decode.py(31): step", "/x/torch/_ops.py(7): __call__", PYTHON],
        ["", "", ""],
    ]
    outer = "main (llama-bench);ggml_backend_sched_compute_splits (libggml-base.so)"
    assert stacks(trace, 1, 1, np.array(times)).tolist() == [
        "", f"{outer};{inside}", f"{outer};{inside}", outer, "",
        "/home/ada/decode.py(31): step;/x/torch/_ops.py(7): __call__", "",
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["", ".sqlite"])
def test_chains_of_an_export_are_read_and_written_again(tmp_path: Path, suffix: str) -> None:
    strings = [*RECORDING["StringIds"], {"id": 90, "value": "ggml_sync"}, {"id": 91, "value": "/a/libggml.so"},
               {"id": 92, "value": "cudaFree"}]  # fmt: skip
    calls = [row | {"callchainId": 3 if row["correlationId"] == 10 else 0}
             for row in RECORDING["CUPTI_ACTIVITY_KIND_RUNTIME"]]  # fmt: skip
    chains = [{"id": 3, "symbol": symbol, "module": 91, "originalIP": 4096, "stackDepth": depth}
              for depth, symbol in ((1, 90), (0, 92))]  # fmt: skip
    recording = {**RECORDING, "StringIds": strings, "CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUDA_CALLCHAINS": chains}
    trace = formats.read(export(tmp_path / "in.sqlite", recording))
    found = dict(zip(trace["api"]["correlation"], sites(trace), strict=True))
    assert found.pop(10) == ["ggml_sync (libggml.so)", "", NATIVE]
    assert {source for _, _, source in found.values()} <= {"", "ranges"}
    formats.write(trace, tmp_path / f"out{suffix}")
    again = formats.read(tmp_path / f"out{suffix}")
    pd.testing.assert_frame_equal(again["callchains"], trace["callchains"])
    pd.testing.assert_series_equal(again["api"]["callchain"], trace["api"]["callchain"])


def test_scrub_keeps_them() -> None:
    kept = scrub(handmade({1: 5, 2: 6}))
    native, python = (site for site, *_ in sites(kept))
    assert native == "ggml_backend_cuda_synchronize (libggml-cuda.so)"
    assert re.fullmatch(r"(/x[a-z]{10}){2}/decode\.py\(31\): step", python)


def test_syncs_names_the_functions_of_an_export_with_cuda_backtraces(tmp_path: Path) -> None:
    """The tables of `nsys profile --cudabacktrace=all`; the schema is that of a real export of 2025.3."""
    functions = ["cudaStreamSynchronize", "ggml_backend_cuda_synchronize", "ggml_backend_sched_compute_splits"]
    modules = ["/opt/cuda/libcudart.so.13", "/opt/ggml/libggml-cuda.so", "/opt/ggml/libggml-base.so"]
    strings = [{"id": 100 + n, "value": text} for n, text in enumerate([*functions, *modules])]
    chain = [{"id": 3, "symbol": 100 + n, "module": 103 + n, "originalIP": 4096, "stackDepth": n} for n in range(3)]
    start, calls, kernels = 1000, [], []
    for step in range(6):
        for offset, name, correlation in ((0, 9, 10 * step + 1), (200, 10, 10 * step + 2)):
            calls.append(RECORDING["CUPTI_ACTIVITY_KIND_RUNTIME"][0] | {
                "start": start + offset, "end": start + offset + 90, "correlationId": correlation, "nameId": name,
                "callchainId": 3 if name == 10 else 0})  # fmt: skip
        kernels.append(RECORDING["CUPTI_ACTIVITY_KIND_KERNEL"][0] | {
            "start": start + 100, "end": start + 280, "correlationId": 10 * step + 1, "graphNodeId": None})  # fmt: skip
        start += 500
    recording = {
        "StringIds": [*RECORDING["StringIds"], *strings], "CUDA_CALLCHAINS": chain,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
    }  # fmt: skip
    path = export(tmp_path / "in.sqlite", recording)
    result = CliRunner().invoke(main, ["syncs", str(path), "--call-sites", "--json", "--pattern", "cudaLaunchKernel"])
    assert result.exit_code == 0, result.output
    sites = json.loads(result.stdout)["call_sites"]
    assert [(one["site"], one["source"]) for one in sites if one["what"] == "sync"] == [
        ("ggml_backend_cuda_synchronize (libggml-cuda.so)", NATIVE)
    ]
