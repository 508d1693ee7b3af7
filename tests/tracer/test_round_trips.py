"""Whatever format a recording is converted to, its steps, syncs, gaps and causes stay the same."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.covering import each_value
from tests.recordings import KINDS, SAMPLES
from tests.tracer.engines import Host, known, layers
from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import DATA
from tracer import formats
from tracer.analysis.gaps import gap_report
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.errors import TraceError
from tracer.model.calls import plain
from tracer.model.trace import Trace

SHARED = Path(__file__).parents[3] / "shared"
SUFFIXES = [".json", ".sqlite", ""]


def answer(trace: Trace) -> dict[str, Any]:
    """What the analyses say of a trace; times from the first step on, calls without their version."""
    try:
        steps = find_steps(trace, phase="all")
    except TraceError as problem:
        return {"problem": str(problem)}
    table = steps.table.assign(start=steps.table["start"] - steps.table["start"].min(), end=0)
    found: dict[str, Any] = {"how": (steps.source, steps.detail, steps.confidence), "steps": table.to_dict("list")}
    try:
        syncs = sync_report(trace, steps)
        waits = syncs.inventory()
        found["counts"] = syncs.counts.drop(columns="start").to_dict("list")
        found["signature"] = syncs.strategy, syncs.share, syncs.signature, syncs.signature_share, syncs.fetch_lag
        waits = waits.astype(object).assign(name=[plain(str(name)) for name in waits["name"]])
        found["waits"] = waits.where(waits.notna(), -1).to_dict("list")
        gaps = gap_report(trace, steps)
        found["gaps"] = gaps.gap_us, gaps.graph_trace, gaps.estimated, gaps.distortion, gaps.warning
        found["causes"] = gaps.causes_us, gaps.parts_us
    except TraceError as problem:
        found["problem"] = str(problem)
    return found


def assert_stays(trace: Trace, path: Path) -> None:
    formats.write(trace, path)
    assert answer(formats.read(path, whole=False)) == answer(trace)


@pytest.mark.parametrize(("name", "suffix"), each_value(product(KINDS, SUFFIXES)))
def test_every_kind_of_recording_in_every_format(name: str, suffix: str, tmp_path: Path) -> None:
    assert_stays(formats.read(SAMPLES / name), tmp_path / f"a{suffix}")


def test_two_processes_whose_correlations_are_equal_stay_apart(tmp_path: Path) -> None:
    one, other = formats.read(SAMPLES / "llama1b-saaas-graph"), formats.read(SAMPLES / "llama1b-sccc-graph")
    both = one.map_tables(lambda name, frame: frame if name == "devices" else _beside(name, frame, other))
    for suffix in SUFFIXES:
        assert_stays(both, tmp_path / f"a{suffix}")


def _beside(name: str, frame: Any, other: Trace) -> Any:
    import pandas as pd

    mine = other[name].assign(process=7777) if "process" in frame else other[name]
    shift = int(frame["start"].min() - mine["start"].min()) if "start" in frame and len(mine) and len(frame) else 0
    if "start" in frame:
        mine = mine.assign(start=mine["start"] + shift, end=mine["end"] + shift)
    return pd.concat([frame, mine], ignore_index=True)


@pytest.mark.parametrize(
    ("through", "recording"),
    each_value(
        product(
            [(".json", ".sqlite", ""), ("", ".json", ".sqlite"), (".sqlite", ".json", ".json")], ["pytorch", "nsys"]
        )
    ),
)
def test_through_all_formats_one_behind_the_other(recording: str, through: tuple[str, ...], tmp_path: Path) -> None:
    trace = formats.read(
        DATA / "pytorch-2.11-cuda.json.gz" if recording == "pytorch" else SAMPLES / "vllm-b1-graph-nvtx"
    )
    wanted, domains = answer(trace), trace["nvtx"]["domain"].astype(str).value_counts().to_dict()
    for number, suffix in enumerate(through):
        formats.write(trace, tmp_path / f"{number}{suffix}")
        trace = formats.read(tmp_path / f"{number}{suffix}")
    assert answer(trace) == wanted
    assert trace["nvtx"]["domain"].astype(str).value_counts().to_dict() == domains


def test_an_operator_stays_one_and_an_annotation_too(tmp_path: Path) -> None:
    texts = ["decode", "decode", "aten::mm", "decode", "decode"]
    domains = ["", "cpu_op", "cpu_op", "gpu_user_annotation", "NCCL"]
    columns: dict[str, list[Any]] = {
        "start": [0, 5, 6, 7, 8],
        "end": [10, 6, 7, 8, 9],
        "text": texts,
        "domain": domains,
    }
    trace = Trace.from_columns({"source": "PyTorch profiler, rank 0 of 8"}, nvtx=columns)
    ours = Trace.from_columns({"source": "cupti 13"}, nvtx=columns)
    for number, (source, suffix) in enumerate((each, suffix) for each in (trace, ours) for suffix in SUFFIXES):
        formats.write(source, path := tmp_path / f"{number}{suffix}")
        read = formats.read(path)
        assert read["nvtx"][["text", "domain"]].astype(str).to_numpy().tolist() == [
            [text, domain if source is ours or domain != "NCCL" or suffix != ".json" else "nccl"]
            for text, domain in zip(texts, domains, strict=True)
        ]
        assert read.metadata["source"] == source.metadata["source"]


@st.composite
def _loops(draw: st.DrawFn) -> Trace:
    """Small loops of an engine, with graphs, without, or with both, with marks or without."""
    script = Script()
    host, marked = Host(script), draw(st.booleans())
    for number in range(draw(st.integers(2, 6))):
        begin = host.now
        host.step()
        for _ in range(draw(st.integers(0, 2))):
            host.copy()
        if draw(st.booleans()):
            host.sync()
        if draw(st.booleans()):
            host.graph(3, 30)
        else:
            host.kernels(layers(2), 5)
        host.fetch()
        if marked:
            script.range(f"decode {number}", begin, host.now)
    return known(script).trace


@given(trace=_loops(), suffix=st.sampled_from(SUFFIXES))
@settings(max_examples=4)
def test_any_small_loop(trace: Trace, suffix: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert_stays(trace, tmp_path_factory.mktemp("loop") / f"a{suffix}")
