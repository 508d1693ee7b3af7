"""The host's time in single steps: stacks that add up to the step, by function, and as files that viewers read."""

import json
from typing import Any

import pytest

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.analysis.call_sites import MEDIAN, SLOW, by_function, host_steps
from tracer.analysis.tokens import find_steps
from tracer.model.schema import PYTHON_FUNCTION
from tracer.reporting.stacks import speedscope

LENGTHS = [1000] * 18 + [1400, 2000]


def loop() -> Trace:
    """Steps of 1000 ns and two longer ones: a function for 600 ns of the step, with a launch of 100 and a sync of 200
    inside; what is longer is in a second function."""
    script, at = Script(), 0
    for length in LENGTHS:
        script.range("token", at, at + length)
        script.range("m.py(7): step", at + 100, at + 700, domain=PYTHON_FUNCTION)
        script.launch((at + 200, at + 300), (at + 310, at + 400))
        script.sync(at + 400, at + 600)
        if length > 1000:
            script.range("m.py(9): slow", at + 800, at + length, domain=PYTHON_FUNCTION)
        at += length
    trace = script.trace
    trace.metadata["source"] = "host"
    return trace


def test_stacks_of_a_step_are_in_order_and_add_up_to_it() -> None:
    trace = loop()
    median, slow = host_steps(trace, find_steps(trace))
    assert (median.name, slow.name, slow.step) == (MEDIAN, SLOW, 18)
    assert (median.length_ns, slow.length_ns) == (1000, 1400)
    step, call = "token;m.py(7): step", "cudaLaunchKernel_v7000"
    assert median.samples.to_numpy().tolist() == [
        ["token", 100], [step, 100], [f"{step};{call}", 100], [step, 100],
        [f"{step};cudaStreamSynchronize_v3020", 200], [step, 100], ["token", 300],
    ]  # fmt: skip
    assert slow.samples["stack"].tolist()[-1] == "token;m.py(9): slow"


def test_functions_have_their_self_and_total_time() -> None:
    trace = loop()
    table = by_function(host_steps(trace, find_steps(trace))[0].samples).set_index("function")
    assert table.loc["m.py(7): step"].tolist() == [0.3, 0.6]
    assert table.loc["token"].tolist() == [0.4, 1.0]
    assert table.loc["cudaStreamSynchronize_v3020"].tolist() == [0.2, 0.2]
    assert table["self_us"].sum() == pytest.approx(1.0)


def checked(file: dict[str, Any]) -> list[dict[str, Any]]:
    """What file-format-spec.ts of speedscope asks of a file with sampled profiles."""
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert isinstance(file["version"], str)
    frames = file["shared"]["frames"]
    assert all(set(frame) <= {"name", "file", "line", "col"} and isinstance(frame["name"], str) for frame in frames)
    assert 0 <= file["activeProfileIndex"] < len(file["profiles"])
    for profile in file["profiles"]:
        assert (profile["type"], profile["unit"]) == ("sampled", "nanoseconds")
        assert isinstance(profile["name"], str)
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert all(0 <= frame < len(frames) for sample in profile["samples"] for frame in sample)
        assert all(weight > 0 for weight in profile["weights"])
        assert profile["startValue"] + sum(profile["weights"]) == profile["endValue"]
    return list(file["profiles"])


def test_the_file_is_speedscopes_with_files_and_lines() -> None:
    trace = loop()
    file = json.loads(json.dumps(speedscope(host_steps(trace, find_steps(trace)))))
    assert [profile["name"] for profile in checked(file)] == ["median step (9)", "slow step (18)"]
    assert {"name": "m.py(7): step", "file": "m.py", "line": 7} in file["shared"]["frames"]
