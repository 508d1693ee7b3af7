"""Loops of engines (`data/loops.json`): a step is one pass, whatever is fetched between, and what is sure is right."""

import json
import re

import pytest

from tests.tracer.engines import Host, layers
from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import DATA
from tracer import analyse
from tracer.analysis.steps import UNSURE
from tracer.analysis.tokens import find_steps
from tracer.errors import EmptyTraceError

_DATA = json.loads((DATA / "loops.json").read_text(encoding="utf-8"))
LOOPS, PARTS = _DATA["loops"], _DATA["parts"]
KERNELS = re.compile(r"(k|layers)(?:@(\d+))?(?:x(\d+))? (.*)")


def run(host, program, n=0, text=""):
    """Make the calls of a program."""
    for part in program:
        if isinstance(part, list):
            times, *body = part
            for _ in range({"n": n, "n+1": n + 1}.get(times, times)):
                run(host, body, n, text)
        elif isinstance(part, str):
            if part in PARTS:
                run(host, PARTS[part], n, text)
            else:
                call(host, part)
        elif "for" in part:
            for each in PARTS.get(part["for"], ()) if isinstance(part["for"], str) else part["for"]:
                run(host, part["do"], each, text)
        elif "mark" in part:
            begin = host.now
            run(host, part["do"], n, text)
            ranges = len(host.script.rows["nvtx"])
            said = part["mark"].replace("{i}", str(ranges)).replace("{text}", text)
            host.script.range(said, begin, host.now + part.get("end", -5), thread=part.get("thread", host.thread))
        else:
            run(host, part["some" if n else "none"], n, text)


def call(host, text):
    word, *rest = text.split()
    if kernels := KERNELS.fullmatch(text):
        kind, length, blocks, names = kernels.groups()
        sizes = {"length": length, "blocks": blocks}
        names = layers(int(names)) if kind == "layers" else names.split()
        host.kernels(names, **{name: int(size) for name, size in sizes.items() if size})
    elif word == "graph":
        host.graph(*map(int, rest))
    elif word == "DtoH":
        host.copy("DtoH")
        host.script.rows["memcpys"][-1]["bytes"] = int(rest[0]) if rest else 4
    else:
        getattr(host, word)()


@pytest.mark.parametrize("name", LOOPS, ids=lambda name: name.partition(":")[0])
def test_the_steps_of_a_loop(name):
    truth = LOOPS[name]
    for text in truth.get("texts", [""]):
        host = Host(Script(), now=truth.get("now", 0))
        run(host, truth["program"], text=text)
        trace = host.script.trace
        every, steps = find_steps(trace, phase="all"), find_steps(trace)
        said = {
            "phases": every.phases, "what": steps.what, "source": steps.source, "confidence": steps.confidence,
            "sure": steps.confidence >= UNSURE, "tokens per step": steps.tokens_per_step,
        }  # fmt: skip
        assert {key: value for key, value in said.items() if key in truth} == {
            key: value for key, value in truth.items() if key in said
        }
        assert all(every.phases.get(phase, 0) <= most for phase, most in truth.get("at most", {}).items())
        assert all(every.phases.get(phase, 0) >= least for phase, least in truth.get("at least", {}).items())
        assert truth.get("note", "") in "".join(steps.notes[:1])
        assert steps.confidence >= UNSURE or steps.notes[0].startswith("the steps are uncertain")
        if "claimed" in truth and every.confidence >= UNSURE:
            assert every.table["phase"].isin(["decode", "training", "speculative"]).sum() == truth["claimed"]
        if "starts" in truth:
            first, last = (0, None) if truth["starts"] is True else truth["starts"]
            assert every.table["start"].tolist() == host.starts[first:last]
        if "sequences" in truth:
            assert set(steps.table["sequences"]) == {truth["sequences"]}
        if "no path" in truth:
            with pytest.raises(EmptyTraceError, match=re.escape(truth["no path"])):
                analyse(trace).path  # noqa: B018
