"""Recordings of vLLM and transformers hold what their engines counted, by the tables of the files, not our readers."""

import json
import re

import pandas as pd
import pytest

from tests.recordings import ENGINES, SAMPLES

LAUNCHES = ("cudaGraphLaunch", "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
SYNCS = ("cudaEventSynchronize", "cudaStreamSynchronize")
MARK = re.compile(r"execute_context_(\d+)\(\d+\)_generation_(\d+)\(\d+\)")
MARKED = [name for name in ENGINES if name.endswith(("nvtx", "vllm-b8-torch"))]


def named(name: str, table: str, column: str) -> pd.DataFrame:
    """A table of a recording, with the text behind an id as `text`."""
    texts = pd.read_parquet(SAMPLES / name / "StringIds.parquet").set_index("id")["value"]
    rows = pd.read_parquet(SAMPLES / name / f"{table}.parquet")
    return rows.assign(text=rows[column].map(texts).str.replace(r"_v\d+$", "", regex=True)).sort_values("start")


@pytest.mark.parametrize("name", ENGINES)
def test_the_run_says_what_the_engine_counted(name):
    counted = json.loads((SAMPLES / name / "run.json").read_text(encoding="utf-8"))["counted"]
    truth = ENGINES[name]
    assert counted == {"decode": truth.decode, "prefill": truth.prefill, "mixed": truth.mixed}


@pytest.mark.parametrize("name", ENGINES)
def test_calls_of_a_decode_step(name):
    """Between two steps stands vLLM's wait of its copying stream for the results, or the copy of what is fetched."""
    truth = ENGINES[name]
    calls = named(name, "CUPTI_ACTIVITY_KIND_RUNTIME", "nameId")
    copies = pd.read_parquet(SAMPLES / name / "CUPTI_ACTIVITY_KIND_MEMCPY.parquet")
    fetches = copies.loc[copies["copyKind"] == 2, "correlationId"]
    ends = calls["text"] == "cudaStreamWaitEvent" if name.startswith("vllm") else calls["correlationId"].isin(fetches)
    step = ends.cumsum() - ends  # whatever ends a step is of it
    count = pd.DataFrame(
        {
            "graphs": calls["text"].eq("cudaGraphLaunch").groupby(step).sum(),
            "launches": calls["text"].isin(LAUNCHES).groupby(step).sum(),
            "copies": calls["text"].eq("cudaMemcpyAsync").groupby(step).sum(),
            "syncs": calls["text"].isin(SYNCS).groupby(step).sum(),
        }
    )
    assert count.median().to_dict() == truth.calls._asdict()
    steps = truth.decode + truth.prefill + truth.mixed
    assert (count["launches"] >= truth.calls.launches / 2).sum() == steps
    assert count["graphs"].sum() == truth.calls.graphs * (steps if "batching" in name else truth.decode)


def marks(name: str) -> list[tuple[bool, bool]]:
    """Of each of vLLM's marks whether it reads prompts and whether it adds tokens to what was read."""
    path = SAMPLES / name / "NVTX_EVENTS.parquet"
    if not path.exists():
        return []
    ranges = pd.read_parquet(path)
    texts = ranges.loc[ranges["domainId"] == 0, "text"]  # the profiler repeats them for the device in another domain
    found = map(MARK.fullmatch, texts.dropna())
    return [(int(mark[1]) > 0, int(mark[2]) > 0) for mark in found if mark]


@pytest.mark.parametrize("name", MARKED)
def test_marks_of_vllm(name):
    found, truth = marks(name), ENGINES[name]
    steps = [found.count(kind) for kind in ((False, True), (True, False), (True, True))]
    assert steps == [truth.decode, truth.prefill, truth.mixed]
    assert found.count((False, False)) == 2  # iterations that compute nothing


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in MARKED])
def test_the_others_have_no_marks(name):
    assert not marks(name)
    assert name.startswith("transformers") or not (SAMPLES / name / "NVTX_EVENTS.parquet").exists()
