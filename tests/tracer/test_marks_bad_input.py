"""Recordings whose marks are odd: an answer or one clear line, never a traceback."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import GLOBAL_TID, RECORDING, export
from tracer import Trace, formats
from tracer.cli import main

HOSTILE = [
    "execute_context_1(16)_generation_0(0)\x1b]0;owned\x07",
    "<script>alert(1)</script> step[DECODE bs=2]",
    "execute_context_" + "9" * 5000 + "(1)_generation_1(1)",
    "execute_context_0(0)_generation_" + "9" * 30 + "(1)",
    "step[DECODE bs=" + "9" * 30 + "]",
    "step[DECODE bs=" + "9" * 5000 + "]",
    "step[" + "A" * 100_000,
    "_forward_step 7: " + "9" * 5000 + " ctx reqs, 1 gen reqs",
    "execute_new_" + "9" * 40 + "_cached_1",
    "ProfilerStep#" + "1" * 5000,
    "decode \u202e txet",
    "'; DROP TABLE NVTX_EVENTS; --",
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def one_clear_line(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    errors = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(errors) == 1
    assert all(word in errors[0] for word in words)


def loop(texts: list[str]) -> Trace:
    """A step per text, each of a launch and a sync."""
    script = Script()
    for number, text in enumerate(texts):
        at = number * 1000
        script.range(text, at, at + 900)
        script.launch((at + 10, at + 20), (at + 30, at + 500))
        script.sync(at + 100, at + 510)
    return script.trace


def test_marks_that_never_close(tmp_path: Path) -> None:
    marks = [
        {"start": 20 + 10 * n, "end": None, "eventType": 59, "text": f"step[DECODE bs={n}]", "globalTid": GLOBAL_TID,
         "domainId": 0}
        for n in range(1, 4)
    ]  # fmt: skip
    source = export(tmp_path / "a.sqlite", {**RECORDING, "NVTX_EVENTS": marks})
    told = run("info", source)
    assert told.exit_code == 0
    assert "3 NVTX ranges were never closed; they end with the recording" in told.stderr
    for command in ("tokens", "syncs", "gaps", "streams", "path"):
        result = run(command, source)
        assert result.exit_code in (0, 2)
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "command",
    [
        "tokens",
    ],
)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_marks_with_hostile_text(command: str, text: str, tmp_path: Path) -> None:
    formats.write(loop([text] * 4), tmp_path / "a.json")
    result = run(command, tmp_path / "a.json", *([tmp_path / "b.json"] if command == "scrub" else []))
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not {"\x1b", "\x07", "\u202e"} & set(result.output)


def test_a_thousand_engines_marks_at_once(tmp_path: Path) -> None:
    texts = [
        "execute_context_0(0)_generation_8(8)", "step[DECODE bs=8]", "_forward_step 7: 0 ctx reqs, 8 gen reqs",
        "ProfilerStep#6", "decode 5", "token 3", "forwardAsync", "scheduler.run_batch",
    ]  # fmt: skip
    formats.write(loop([texts[n % len(texts)] for n in range(1000)]), tmp_path / "a.json")
    result = run("tokens", tmp_path / "a.json", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["token_source"] == "nvtx"


@pytest.mark.parametrize("command", ["tokens", "syncs", "gaps", "streams", "path"])
def test_a_file_of_marks_only(command: str, tmp_path: Path) -> None:
    script = Script()
    for number in range(50):
        script.range(f"step[DECODE bs={number}]", number * 10, number * 10 + 9)
    formats.write(script.trace, tmp_path / "a.json")
    one_clear_line(run(command, tmp_path / "a.json"), "a.json", "no kernels and no graph launches")
    assert run("info", tmp_path / "a.json").exit_code == 0
