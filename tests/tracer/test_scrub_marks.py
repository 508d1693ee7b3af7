"""What engines' marks say of their steps survives `scrub`, with hashed names too."""

import pytest

from tests.recordings import SAMPLES
from tracer import Trace, formats
from tracer.analysis.tokens import find_steps
from tracer.scrub import Texts, learn, scrub

MARKS = [
    "execute_context_1(16)_generation_0(0)", "execute_32_context_0(0)_generation_32(32)", "execute_new_1_cached_3",
    "step[DECODE bs=32]", "_forward_step 7: 1 ctx reqs, 3 gen reqs", "ProfilerStep#6", "scheduler.run_batch",
]  # fmt: skip


def hashed(*texts: str) -> list[str]:
    trace = Trace.from_columns(nvtx={"start": [0] * len(texts), "end": [1] * len(texts), "text": list(texts)})
    return scrub(trace, Texts(b"key"))["nvtx"]["text"].tolist()


def test_marks_stay():
    assert hashed(*MARKS) == MARKS


def test_only_the_part_that_matches_stays():
    found = hashed(
        "step[DECODE bs=32 secret]", "execute_context_1(16)_generation_0(0) for ada", "ada [Executor] forward"
    )
    assert found[0].startswith("step[DECODE bs=32 name_")
    assert found[1].startswith("execute_context_1(16)_generation_0(0) name_")
    assert not any(word in " ".join(found) for word in ("secret", "ada", "Executor"))


def test_parts_of_steps_and_operators_become_no_steps():
    assert all(
        text.startswith("name_") for text in hashed("llm_engine step: schedule", "aten::forward_step, op_id = 5")
    )


@pytest.mark.parametrize("key", [None, b"key"])
@pytest.mark.parametrize("name", ["vllm-b8-torch", "vllm-b1-graph-nvtx"])
def test_real_marks_give_the_same_steps(name, key):
    trace = formats.read(SAMPLES / name)
    texts = Texts(key)
    learn(trace, texts)
    scrubbed = scrub(trace, texts)
    assert find_steps(scrubbed, phase="all").table.equals(find_steps(trace, phase="all").table)
    assert scrubbed.metadata["source"] == trace.metadata["source"]
