"""Marks of engines: what their texts tell, on which threads they count, and where the steps begin that they mean."""

from __future__ import annotations

import time

import pytest

from tests.tracer.engines import Host, layers
from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.path.paths import path_report
from tracer.analysis.tokens import find_steps
from tracer.engines import ENGINES
from tracer.errors import EmptyTraceError

MISSING = -1


def told(text: str) -> tuple[str, int, int, str] | None:
    """Phase, sequences and gained tokens by the first engine that knows the text, and its name."""
    for engine in ENGINES:
        for mark in engine.marks:
            if mark.own and (found := mark.text.search(text)):
                work = mark.work(found)
                return work.phase, work.sequences, work.gained, engine.name
    return None


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("execute_context_1(512)_generation_0(0)", ("prefill", 1, MISSING, "vLLM")),
        ("execute_context_0(0)_generation_8(8)", ("decode", 8, 8, "vLLM")),
        ("execute_context_2(100)_generation_6(6)", ("mixed", 8, MISSING, "vLLM")),
        ("execute_context_0(0)_generation_4(12)", ("speculative", 4, MISSING, "vLLM")),
        ("execute_context_0(0)_generation_0(0)", ("empty", 0, 0, "vLLM")),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, MISSING, "vLLM")),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk5508)", ("decode", 32, 32, "vLLM")),
        ("execute_new_2_cached_0", ("prefill", 2, MISSING, "vLLM")),
        ("execute_new_1_cached_3", ("", 4, MISSING, "vLLM")),
        ("spec_decode_worker._run_speculative_decoding_step", ("speculative", MISSING, MISSING, "vLLM")),
        ("gpu_model_runner: forward", ("", MISSING, MISSING, "vLLM")),
        ("gpu_model_runner: sample", None),
        ("schedule: allocate_slots", None),
        ("llm_engine step: get_output", None),
        ("capture_32_DECODE", None),
        ("step[DECODE bs=32]", ("decode", 32, 32, "SGLang")),
        ("step[EXTEND bs=15 toks=15360]", ("prefill", 15, MISSING, "SGLang")),
        ("step[MIXED bs=3]", ("mixed", 3, MISSING, "SGLang")),
        ("step[IDLE bs=0]", ("empty", 0, 0, "SGLang")),
        ("step[TARGET_VERIFY bs=4]", ("speculative", 4, MISSING, "SGLang")),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", ("speculative", 3, MISSING, "SGLang")),
        ("step[DECODE bs=16 g_sq=16 g_sqsq=16 g_sqsk=9 g_sk=9]", ("decode", 16, 16, "SGLang")),
        ("scheduler.run_batch", ("", MISSING, MISSING, "SGLang")),
        ("[Executor] _forward_step 7: 1 ctx reqs, 3 gen reqs", ("mixed", 4, MISSING, "TensorRT-LLM")),
        ("[Executor] _forward_step: 2 ctx reqs, 0 gen reqs", ("prefill", 2, MISSING, "TensorRT-LLM")),
        ("[Executor] _forward_step 9: 0 ctx reqs, 0 ctx tokens, 5 gen reqs", ("decode", 5, MISSING, "TensorRT-LLM")),
        ("[Executor] _forward_step 9: 0 ctx reqs, 0 gen reqs", ("empty", 0, MISSING, "TensorRT-LLM")),
        ("TrtGptModelInflightBatching::forwardAsync", ("", MISSING, MISSING, "TensorRT-LLM")),
        ("execute_diffusion_1_256x256", ("diffusion", MISSING, MISSING, "xDiT")),
        ("ProfilerStep#6", ("", MISSING, MISSING, "PyTorch")),
        ("token 3", ("decode", MISSING, MISSING, "ranges named token")),
        ("Decode", ("decode", MISSING, MISSING, "ranges named decode")),
        ("DecodeStep", ("decode", MISSING, MISSING, "ranges named decode")),
        ("runPrefillStep", ("prefill", MISSING, MISSING, "ranges named step")),
        ("forward", ("", MISSING, MISSING, "ranges named forward")),
        ("tokenize", None),
        ("flash_attn::_flash_attn_forward, op_id = 990813", None),
        ("forward, seq = 5", None),
        ("aten::step", None),
        ("## Call CompiledFxGraph forward ##", None),
    ],
)
def test_what_texts_tell(text: str, truth: tuple[str, int, int, str] | None) -> None:
    assert told(text) == truth


def engine(marks: list[str | None], *, late: int = 0) -> tuple[Host, list[int]]:
    """An engine that launches one graph a step, marked so; `late`: how many kernels it launches before the mark."""
    host, begins = Host(Script()), []
    for text in marks:
        host.step()
        host.copy()
        host.kernels(["prepare"] * late)
        begins.append(host.now)
        if text is not None and "generation_0(0)" not in text:
            host.graph(1)
        if text is not None:
            host.script.range(text, begins[-1], host.now + 5)
        host.fetch()
    return host, begins


def test_steps_last_until_the_next_mark_and_empty_ones_are_none() -> None:
    marks = ["execute_context_1(16)_generation_0(0)x", *["execute_context_0(0)_generation_1(1)"] * 3]
    host, begins = engine([*marks, "execute_context_0(0)_generation_0(0)", marks[-1]])
    host.script.range("execute_context_1(16)_generation_0(0)", begins[0], begins[0] + 40)
    steps = find_steps(host.script.trace, phase="all")
    assert steps.table["phase"].tolist().count("decode") == 4
    assert steps.table["start"].tolist()[-4:] == [*begins[1:4], begins[5]]
    assert steps.table["end"].tolist()[-2] == begins[4]  # where the empty one begins
    assert steps.what == "4 decode steps"
    assert find_steps(host.script.trace).tokens_per_step == 1.0


def test_a_mark_that_opens_late_begins_with_the_first_call_behind_the_result_before() -> None:
    host, begins = engine(["step[DECODE bs=4]"] * 5, late=2)
    steps = find_steps(host.script.trace)
    assert steps.table["start"].tolist() == host.starts
    assert begins[0] > host.starts[0]
    assert steps.table["sequences"].tolist() == [4] * 5


def test_the_outermost_of_nested_marks_is_the_step_and_takes_what_the_inner_tell() -> None:
    host = Host(Script())
    for text in ("step[EXTEND bs=2 toks=32]", "step[DECODE bs=2]", "step[DECODE bs=2]"):
        host.step()
        begin = host.now
        host.copy()
        inner = host.now
        host.graph(1)
        host.script.range(text, inner, host.now)
        host.kernels(["sample"])
        host.fetch()
        host.script.range("scheduler.run_batch", begin, host.now - 5)
    steps = find_steps(host.script.trace, phase="all")
    assert steps.table["start"].tolist() == host.starts
    assert steps.table["phase"].tolist() == ["prefill", "decode", "decode"]


def test_drafts_are_one_step_with_what_verifies_them() -> None:
    texts = ["step[DECODE bs=2]", "step[DECODE bs=2]", "step[TARGET_VERIFY bs=2]", "step[DRAFT_EXTEND bs=2]"] * 4
    host, begins = engine(list(texts))
    steps = find_steps(host.script.trace)
    assert steps.what == "4 speculative steps"
    assert steps.table["sequences"].tolist() == [2] * 4
    assert steps.tokens_per_step is None
    assert len(begins) == 16


@pytest.mark.parametrize("text", ["llm_engine step", "decode", "execute_context_0(0)_generation_1(1)"])
def test_marks_of_threads_that_launch_nothing_never_win(text: str) -> None:
    host = Host(Script())
    for _ in range(6):
        host.step()
        begin = host.now
        host.copy()
        host.graph(1)
        host.fetch()
        host.script.range(text, begin, begin + 7, thread=999)
        host.script.range(text, begin + 8, begin + 15, thread=999)
    steps = find_steps(host.script.trace)
    assert (steps.source, len(steps)) == ("calls", 6)


def test_training_is_no_decoding() -> None:
    host = Host(Script())
    for i in range(4):
        begin = host.now
        host.copy()
        host.kernels([*layers(3), "softmax_backward", "multi_tensor_apply_kernel"])
        host.fetch()
        host.script.range(f"ProfilerStep#{i}", begin, host.now - 5)
        host.script.range("Optimizer.step#AdamW.step", begin + 10, begin + 30)
    steps = find_steps(host.script.trace)
    assert steps.what == "4 training steps"
    assert not steps.decodes


def test_the_mark_of_an_image_is_a_run_of_several_steps_of_its_model() -> None:
    host = Host(Script())
    host.copy()
    for _ in range(4):
        host.kernels(layers(3))
    host.fetch()
    host.script.range("execute_diffusion_1_256x256", 0, host.now)
    steps = find_steps(host.script.trace)
    assert steps.what == "1 diffusion run (all steps that denoise an image)"
    assert (steps.unit, steps.counted) == ("step", "1 step(s)")
    with pytest.raises(EmptyTraceError, match=r"no path: 1 step\(s\)"):
        path_report(host.script.trace, steps)


def test_an_optimizer_s_step_closes_a_step_of_training_to_the_nanosecond_at_any_time() -> None:
    host = Host(Script(), now=1_672_876_799_190_955_001)
    for _ in range(4):
        host.step("training")
        host.kernels(layers(3))
        begin = host.now
        host.kernels(["multi_tensor_apply_kernel"])
        host.script.range("Optimizer.step#SGD.step", begin, host.now - 5)
    steps = find_steps(host.script.trace)
    assert (steps.what, steps.detail) == ("4 training steps", "NVTX ranges Optimizer.step#SGD.step")
    assert steps.table["start"].tolist() == host.starts
    assert steps.table["end"].tolist() == [*host.starts[1:], host.now - 5]


def test_marks_that_never_close_and_marks_of_many_engines_are_no_trouble() -> None:
    host, _ = engine(["token"] * 5)
    for i in range(1000):
        host.script.range(f"step[DECODE bs={i}]", i, host.now + i, thread=5000 + i)
        host.script.range(f"[Executor] _forward_step {i}: 0 ctx reqs, 1 gen reqs", 0, 10**15, thread=7000 + i)
    trace: Trace = host.script.trace
    begin = time.process_time()
    steps = find_steps(trace)
    assert time.process_time() - begin < 10
    assert steps.what == "5 decode steps"


def partly(marked: list[bool], drafts: int = 0) -> Host:
    """Steps of one graph each, some marked; before it as many drafts, each fetched."""
    host = Host(Script())
    for one in marked:
        host.step()
        begin = host.now
        for _ in range(drafts):
            host.copy()
            host.kernels(["draft", "argmax"])
            host.fetch()
        host.copy()
        host.kernels(["prepare"])
        host.graph(1)
        host.fetch()
        if one:
            host.script.range("step[DECODE bs=8]", begin, host.now - 5)
    return host


@pytest.mark.parametrize("every", [2, 3, 7])
def test_marks_on_part_of_the_steps_are_no_steps(every: int) -> None:
    host = partly([step % every == 0 for step in range(60)])
    steps = find_steps(host.script.trace)
    assert (steps.source, steps.what, steps.tokens_per_step) == ("calls", "60 decode steps", None)
    assert steps.table["start"].tolist() == host.starts
    share = f"with marks (NVTX ranges step[DECODE bs=8]) on only {-(-60 // every)} of 60 similar passes"
    assert share in steps.detail
    assert share in steps.notes[0]
    assert len(find_steps(host.script.trace, pattern="step")) == -(-60 // every)  # as asked


def test_marks_that_cease_and_begin_again_are_no_steps() -> None:
    host = partly([not 20 <= step < 40 for step in range(60)])
    assert find_steps(host.script.trace).table["start"].tolist() == host.starts


@pytest.mark.parametrize("drafts", [1, 3])
def test_drafts_inside_a_mark_are_part_of_its_step(drafts: int) -> None:
    host = partly([True] * 20, drafts)
    steps = find_steps(host.script.trace)
    assert (steps.source, steps.table["start"].tolist()) == ("nvtx", host.starts)


def test_marks_on_steps_in_a_row_are_these_steps() -> None:
    host = partly([20 <= step < 40 for step in range(60)])
    steps = find_steps(host.script.trace)
    assert (steps.source, steps.table["start"].tolist()) == ("nvtx", host.starts[20:40])


def test_a_marked_request_is_one_step_and_so_is_a_mark_before_passes_of_another_kind() -> None:
    host = Host(Script())
    for _ in range(8):
        host.step()
        begin = host.now
        for _ in range(6):
            host.copy()
            host.graph(1)
            host.fetch()
        host.script.range("forward", begin, host.now - 5)
    assert find_steps(host.script.trace).table["start"].tolist() == host.starts
    host = Host(Script())
    for _ in range(8):
        host.step()
        begin = host.now
        host.copy()
        host.graph(2, 5000)
        host.fetch()
        host.script.range("prefill", begin, host.now - 5)
        for _ in range(3):
            host.copy()
            host.graph(1)
            host.fetch()
    assert find_steps(host.script.trace, phase="all").table["start"].tolist() == host.starts
