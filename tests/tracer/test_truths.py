"""What is said of recordings whose truth is known: of ours always, of those in ../shared where they are."""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.recordings import ENGINES, SAMPLES
from tracer import Trace, formats
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import steps_per_s
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import ALL_STEPS, choose_steps, find_steps
from tracer.errors import EmptyTraceError

SHARED = Path(__file__).parents[3] / "shared" / "recordings"


@pytest.mark.parametrize("name", ENGINES)
def test_engines_samples_hold_the_steps_that_the_engine_counted(name: str) -> None:
    trace, truth = formats.read(SAMPLES / name, whole=False), ENGINES[name]
    steps = find_steps(trace)
    told = steps.phases.get("mixed", 0) + steps.phases.get("eager", 0)
    assert (steps.confidence >= 0.9) == (name != "transformers-static")  # no kernel of it says: one token
    assert len(steps) == steps.phases["decode"] == truth.decode
    assert steps.prefills + told <= truth.prefill + truth.mixed
    if "nvtx" in name or name.endswith("torch"):
        assert (steps.prefills, steps.phases.get("mixed", 0)) == (truth.prefill, truth.mixed)
    if truth.sequences is not None and steps.source == "nvtx":
        assert steps.table["sequences"].mode().tolist() == [truth.sequences]
    calls = sync_report(trace, steps)
    found = calls.launches_per_token, calls.copies_per_token, calls.syncs_per_token
    assert found == (truth.calls.launches, truth.calls.copies, truth.calls.syncs)


class Truth(NamedTuple):
    """What is true of a recording: what it holds, how many of that, calls of one (launches, copies, syncs; None where
    the truth does not say), the gap (p50, µs) and how sure we may be."""

    what: str
    steps: int
    calls: tuple[int | None, int | None, int | None] = (None, None, None)
    gap_us: float | None = None
    least: float = 0.9
    most: float = 1.0


NOTHING = Truth("", 0)
GUESS = {"least": 0.0, "most": 0.89}
TRUTHS = {
    "vllm/nsys-graph.1.sqlite.xz": Truth("decode", 99, (20, 5, 1), 757),
    "vllm/nsys-node-nvtx.1.sqlite.xz": Truth("decode", 59, (20, 5, 1)),
    "vllm/torch-b1.json.gz": Truth("decode", 59, (20, 5, 1), 293),
    "public/tl_vllm_decode_full.json.gz": Truth("decode", 1, (5, None, None)),
    "public/tl_vllm_piecewise.json.gz": Truth("mixed", 1),
    "public/tl_b200_eager.json.gz": Truth("prefill", 1),
    "public/tl_sglang_decode.json.gz": Truth("decode", 1, (12, None, None)),  # 7 of them inside step[DECODE]
    "public/tl_mi300_qwen.json.gz": Truth("iteration", 1, (1053, None, None)),
    "public/tl_mi210_gpu_only.json.gz": NOTHING,
    "public/tl_torch_compile_triton.json.gz": NOTHING,
    "public/syn_11_hf_qwen_noann_x2.json.gz": Truth("forward", 2, **GUESS),
    "public/hta_mi250_train.json.gz": Truth("training", 1),
    "public/hta_alexnet.json.gz": Truth("iteration", 2, **GUESS),
    "public/hta_event_sync_ms.json.gz": NOTHING,
    "public/hta_triton.json.gz": NOTHING,
    "serving/syn_1a_tp2_dev01.sqlite.xz": Truth("decode", 60, (1, 7, 5)),
    "serving/syn_2a_two_procs_one_gpu.sqlite.xz": Truth("decode", 120, (1, 7, 5), **GUESS),  # graphs alone
    "serving/syn_3_serving.sqlite.xz": Truth("decode", 154, (1, 7, 5)),
    "serving/syn_4a_spec_hostsampled.sqlite.xz": Truth("speculative", 60, (5, 35, 25), **GUESS),
    "serving/syn_12_hip.json": Truth("iteration", 40, (3, 0, 1), 52, **GUESS),
}
"""See the README beside the recordings. It gives no number of steps for training, AlexNet and ProfilerStep
recordings: the numbers here are what our code says, held against change, and not a truth. `syn_5a` and `syn_5c` are
about clocks (test_clocks)."""


def opened(name: str, place: Path) -> Trace:
    """A recording of ../shared, unpacked."""
    packed = SHARED / name
    if not packed.exists():
        pytest.skip("the recordings of ../shared are not here")
    if name.endswith(".tar.xz"):
        with tarfile.open(packed) as archive:
            archive.extractall(place, filter="data")
        return formats.read(next(place.iterdir()), whole=False)
    if name.endswith(".xz"):
        path = place / Path(name).stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        return formats.read(path, whole=False)
    return formats.read(packed, whole=False)


@pytest.mark.parametrize("name", TRUTHS)
def test_recordings_of_others_are_right_or_doubted(name: str, tmp_path: Path) -> None:
    trace, truth = opened(name, tmp_path), TRUTHS[name]
    if truth is NOTHING:
        with pytest.raises(EmptyTraceError, match="no steps"):
            find_steps(trace)
        return
    steps = find_steps(trace)
    assert set(steps.table["phase"]) == {truth.what}
    assert len(steps) == truth.steps
    assert truth.least <= steps.confidence <= truth.most
    assert ("uncertain" in steps.notes[0]) if steps.confidence < 0.9 else True
    found = Recording(trace, name)
    calls = found.summary.launches_per_token, found.summary.copies_per_token, found.summary.syncs_per_token
    assert all(of_truth in (None, ours) for of_truth, ours in zip(truth.calls, calls, strict=True))
    assert steps.decodes or found.summary.strategy is None
    if truth.gap_us is not None:
        assert found.summary.gap_p50_us == pytest.approx(truth.gap_us, rel=0.02)


def test_regimes_are_found_and_one_is_chosen(tmp_path: Path) -> None:
    trace = opened("vllm/whole-process-graph.tar.xz", tmp_path)
    steps = choose_steps(trace, None, ALL_STEPS)
    assert [(regime.first, regime.last) for regime in steps.regimes] == [(0, 106), (106, 212)]
    assert len(steps) == 106
    assert "--steps 106:212" in steps.notes[0]


def test_a_rate_of_the_wall_has_the_prompts_in_it(tmp_path: Path) -> None:
    trace = opened("serving/syn_3_serving.sqlite.xz", tmp_path)
    serving = find_steps(trace)
    assert steps_per_s(trace, serving) == pytest.approx(262, rel=0.01)
    assert serving.tokens_per_step is None  # how many sequences decode is not told
