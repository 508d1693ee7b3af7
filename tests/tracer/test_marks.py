"""Marks of engines: what their texts tell, where the steps begin that they mean (`test_one_pass.py`), and odd ones."""

import json
import re
import time

import pytest
from click.testing import CliRunner

from tests.tracer.engines import Host
from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import DATA, GLOBAL_TID, RECORDING, export
from tracer import analyse, formats
from tracer.cli import main
from tracer.engines import ENGINES

KNOWN = json.loads((DATA / "marks.json").read_text(encoding="utf-8"))


def told(text):
    """Phase, sequences and gained tokens by the first engine that knows the text, and its name."""
    for engine in ENGINES:
        for mark in engine.marks:
            if mark.own and (found := mark.text.search(text)):
                work = mark.work(found)
                return [work.phase, work.sequences, work.gained, engine.name]
    return None


def test_what_texts_tell():
    assert {text: told(text) for text in KNOWN["texts"]} == KNOWN["texts"]


def test_steps_last_until_the_next_mark_and_empty_ones_are_none():
    host, begins = Host(Script()), []
    decode, empty = "execute_context_0(0)_generation_1(1)", "execute_context_0(0)_generation_0(0)"
    for text in ("execute_context_1(16)_generation_0(0)", decode, decode, decode, empty, decode):
        host.copy()
        begins.append(host.now)
        if text != empty:
            host.graph(1)
        host.script.range(text, begins[-1], host.now + 5)
        host.fetch()
    steps = analyse(host.script.trace).steps
    assert (steps.what, steps.tokens_per_step) == ("4 decode steps, 1 prefill step", 1.0)
    assert steps.table["start"].tolist() == [*begins[1:4], begins[5]]
    assert steps.table["end"].tolist()[-2] == begins[4]  # where the empty one begins


def run(command, *arguments):
    """Exit code and output of a command; never a traceback."""
    result = CliRunner().invoke(main, [command, *map(str, arguments)])
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def loop(texts):
    """A step per text, each of a launch and a sync."""
    script = Script()
    for number, text in enumerate(texts):
        at = number * 1000
        script.range(text, at, at + 900)
        script.launch((at + 10, at + 20), (at + 30, at + 500))
        script.sync(at + 100, at + 510)
    return script


def test_marks_that_never_close(tmp_path):
    mark = {"end": None, "eventType": 59, "globalTid": GLOBAL_TID, "domainId": 0}
    marks = [{**mark, "start": 20 + 10 * n, "text": f"step[DECODE bs={n}]"} for n in range(1, 4)]
    source = export(tmp_path / "a.sqlite", {**RECORDING, "NVTX_EVENTS": marks})
    assert "3 NVTX ranges were never closed; they end with the recording" in run("info", source).stderr
    for command in ("tokens", "gaps", "path"):
        run(command, source)


@pytest.mark.parametrize("text", KNOWN["hostile"])
def test_marks_with_hostile_text(text, tmp_path):
    long = re.sub(r"100000|5000|40|30", lambda digits: "9" * int(digits[0]), text)
    formats.write(loop([long] * 4).trace, tmp_path / "a.json")
    assert not {"\x1b", "\x07", "\u202e"} & set(run("tokens", tmp_path / "a.json").output)


def test_marks_of_many_engines_and_threads_are_no_trouble():
    known = [text for text, truth in KNOWN["texts"].items() if truth is not None]
    assert analyse(loop([known[n % len(known)] for n in range(200)]).trace).steps.source == "nvtx"
    script = loop(["token"] * 5)
    for i in range(1000):
        script.range(f"step[DECODE bs={i}]", i, 5000 + i, thread=5000 + i)
        script.range(f"[Executor] _forward_step {i}: 0 ctx reqs, 1 gen reqs", 0, 10**15, thread=7000 + i)
    begin = time.process_time()
    assert analyse(script.trace).steps.what == "5 decode steps"
    assert time.process_time() - begin < 10
