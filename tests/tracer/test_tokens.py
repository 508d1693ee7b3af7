"""Token steps from NVTX and from the repeating call sequence."""

import pytest

from tests.tracer.handmade import Script, decode_loop
from tracer.analysis.step_work import step_spans
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError
from tracer.model.trace import LIGHT


def test_nvtx_ranges_are_steps_and_last_until_the_next_begins() -> None:
    script = decode_loop("sasgAs", 3)
    for token in range(3):
        script.range(f"token {token}", token * 1000, token * 1000 + 400)
        script.range("inputs", token * 1000, token * 1000 + 50)
    steps = find_steps(script.trace)
    assert steps.source == "nvtx"
    assert steps.table["start"].tolist() == [0, 1000, 2000]
    assert steps.table["end"].tolist() == [1000, 2000, 2400]
    assert steps.table["group"].nunique() == 1


def test_steps_in_different_enclosing_ranges_are_different_groups() -> None:
    script = decode_loop("sasgAs", 6)
    for token in range(6):
        script.range("token", token * 1000, token * 1000 + 400)
    script.range("run one", 0, 2500)
    script.range("run two", 2900, 6000)
    steps = find_steps(script.trace)
    assert steps.table["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert steps.table["end"].tolist()[2] == 2400
    assert len(find_steps(script.trace, within="run two")) == 3
    assert len(find_steps(script.trace, within="run t.*")) == 3


def test_a_range_around_each_single_step_does_not_part_them() -> None:
    script = decode_loop("sasgAs", 5)
    for token in range(5):
        script.range("forward", token * 1000, token * 1000 + 400)
        script.range(f"ProfilerStep#{token}", token * 1000, token * 1000 + 500)
    assert find_steps(script.trace, pattern="forward").table["group"].nunique() == 1


def test_overlapping_steps_and_negative_times_are_kept() -> None:
    script = Script()
    for token in range(6):
        t = token * 1000 - 5000
        script.range("token", t, t + 1200)
        script.launch((t + 10, t + 20), (t + 30, t + 700))
    steps = find_steps(script.trace)
    assert steps.table["start"].tolist() == [token * 1000 - 5000 for token in range(6)]
    assert step_spans(script.trace, steps)["step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_other_names_are_not_steps_unless_asked_for() -> None:
    script = decode_loop("sasgAs", 5)
    for token in range(5):
        script.range("tokenize", token * 1000, token * 1000 + 400)
    assert find_steps(script.trace).source == "calls"
    assert find_steps(script.trace, pattern="^tokenize$").source == "nvtx"


@pytest.mark.parametrize(
    ("letters", "first_call"),
    [
        ("sasasgAs", 0),  # the sync that guards the first write begins the step
        ("saasgAs", 0),
        ("aasgAs", 0),
        ("aagAs", 0),
        ("g", 0),
    ],
)
def test_calls_alone_give_the_steps(letters: str, first_call: int) -> None:
    script = decode_loop(letters, 12)
    steps = find_steps(script.trace)
    assert steps.source == "calls"
    assert len(steps) in (11, 12)  # the first step may lack what is read behind the one before
    offset = 1000 * (12 - len(steps))
    assert steps.table["start"].tolist() == [offset + 1000 * i + 20 * first_call for i in range(len(steps))]
    assert steps.table["end"].tolist()[-1] == 11_000 + (len(letters) - 1) * 20 + 10


def test_warm_up_and_shutdown_are_not_steps() -> None:
    script = Script()
    for i in range(40):
        script.launch((i * 20 - 5000, i * 20 - 4990), (i * 20 - 4980, i * 20 - 4975))
    script.sync(-100, -50)
    loop = decode_loop("saasgAs", 10)
    for table, rows in loop.rows.items():
        script.rows[table] += [row | {"correlation": row["correlation"] + 1000} for row in rows]
    script.call("cudaDeviceSynchronize_v3020", 20_000, 20_010)
    steps = find_steps(script.trace)
    assert len(steps) in (9, 10)
    assert steps.table["end"].max() < 10_000


def test_activities_belong_to_the_step_that_launched_them() -> None:
    script = Script()
    for token in range(3):  # the host runs far ahead of the device
        script.range("token", token * 10, token * 10 + 9)
        script.launch((token * 10 + 1, token * 10 + 3), (1000 + token * 500, 1400 + token * 500))
    spans = step_spans(script.trace, find_steps(script.trace))
    assert spans[["step", "start", "end"]].to_numpy().tolist() == [
        [0, 1000, 1400],
        [1, 1500, 1900],
        [2, 2000, 2400],
    ]


def test_what_cannot_be_answered_is_said() -> None:
    empty = Script()
    empty.sync(0, 1)
    with pytest.raises(EmptyTraceError, match="no kernels"):
        find_steps(empty.trace)
    once = Script()
    once.launch((0, 1), (2, 3))
    with pytest.raises(EmptyTraceError, match="no steps: 1 kernels and graphs"):
        find_steps(once.trace)
    once.range("run", 0, 5)
    with pytest.raises(EmptyTraceError, match=r"no NVTX range 'absent'.*run"):
        find_steps(once.trace, within="absent")
    with pytest.raises(EmptyTraceError, match="regular expression"):
        find_steps(once.trace, within="(")
    with pytest.raises(EmptyTraceError, match="no token step in 50:"):
        find_steps(decode_loop("sasgAs", 9).trace).select(50, None)


def problem_of(script: Script, source: str) -> str:
    trace = script.trace
    trace.metadata["source"] = source
    with pytest.raises(EmptyTraceError) as raised:
        find_steps(trace)
    return str(raised.value)


def test_a_process_that_launches_nothing_is_not_the_one_that_computes() -> None:
    """vLLM's front end: PyTorch's profiler sees neither an operator nor a call."""
    needed = "what it recorded launched no work on a device; needed is the recording of the process that did (vLLM: Eng"
    front = Script()
    front.range("PyTorch Profiler (0)", 0, 1000)
    assert f"no graph launches, no operators and no calls: {needed}" in problem_of(front, "PyTorch profiler")
    assert "was CUDA traced" in problem_of(front, "nsys 2025.3")  # ranges alone: without --trace=cuda, too
    waits = Script()
    waits.sync(0, 10)
    waits.sync(20, 30)
    for source in ("nsys 2025.3", "PyTorch profiler"):
        assert f"and none of its 2 recorded calls launches any: {needed}" in problem_of(waits, source)


@pytest.mark.parametrize(("source", "is_told"), [("PyTorch profiler", True), ("nsys 2023.4", True), (LIGHT, False)])
def test_a_recording_of_launches_alone_says_that_the_device_is_missing(source: str, is_told: bool) -> None:
    script = Script()
    for at in range(0, 3000, 1000):
        script.call("cudaLaunchKernel_v7000", at, at + 10)
    trace = script.trace
    trace.metadata["source"] = source
    with pytest.raises(EmptyTraceError) as raised:
        find_steps(trace)
    assert ("but 3 calls that launch some: its recorder saw the calls" in str(raised.value)) == is_told
    assert ("was CUDA traced" in str(raised.value)) != is_told
