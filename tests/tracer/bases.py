"""Predictions from steps that a test chose, and loops of a machine whose costs are known."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.tracer.machine import RETURN, SYNC, Machine
from tests.tracer.truths import rows
from tracer import Trace
from tracer.analysis.path.paths import Causality
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import Steps, find_steps
from tracer.model.schema import HOST_COMPUTE
from tracer.whatif.base import Base
from tracer.whatif.changes import Edit
from tracer.whatif.prediction import Prediction, predict

COMPUTED = 2_000
"""What the host computes in each part of a hybrid step, ns."""


def base_of(causality: Causality, steps: Steps, rate: float | None = None) -> Base:
    """From these steps of a recording, at a rate without a profiler if one is given."""
    rates = () if rate is None else (rate,)
    return Base.of(causality, Recording.of_steps(causality.trace, steps, rates=rates))


def based(trace: Trace, rate: float | None = None) -> Base:
    """From all steps."""
    return base_of(Causality.of(trace), find_steps(trace), rate)


def predicted(trace: Trace, *edits: Edit, rate: float | None = None) -> Prediction:
    """With these edits."""
    return predict(based(trace, rate), edits)


def light(trace: Trace) -> Trace:
    """The same as if nothing had been traced."""
    trace.metadata["source"] = "host"
    return trace


def looped(program: str | Sequence[str], tokens: int = 8) -> Trace:
    """Equal steps of a machine, or one for each program, under no profiler: a number thinks for so long (ns), and
    letters are calls.

    `c` copies, `f` fetches, `s` waits, `l` launches, `k` launches 5 ns, `e` does so without a graph, the same in
    capitals on stream 9; `r` records an event and `w` waits for it, `h` computes on the host, in a split that begins
    behind the last launch, and with `x` another process launches.
    """
    machine = Machine()
    script, begin, recorded = machine.script, 0, 0

    def launch(stream: int, *of: Any) -> None:
        nonlocal begin
        machine.launch(stream, *of)
        begin = machine.now

    def compute() -> None:
        start = machine.now
        machine.think(COMPUTED)
        script.range("mul_mat_id(x)", start, machine.now, domain=HOST_COMPUTE)
        script.range("split 1: host", begin, machine.now)

    def record() -> None:
        nonlocal recorded
        script.record(machine.now, machine.now + 2, event=1)
        machine.now, recorded = machine.now + 4, machine.free.get(7, 0)

    def await_event() -> None:
        end = max(machine.now + SYNC, recorded + RETURN)
        script.sync(machine.now, end, name="cudaEventSynchronize_v3020", type="event", event=1)
        machine.now = end + 4

    def launch_elsewhere() -> None:
        now = machine.now
        script.launch((now + 1, now + 2), (now + 10, now + 20), process=200, thread=201)

    on_stream: dict[str, Callable[[int], None]] = {
        "c": lambda stream: machine.copy("HtoD", stream), "f": lambda stream: machine.copy("DtoH", stream),
        "s": machine.sync, "l": launch, "k": lambda stream: launch(stream, 5),
        "e": lambda stream: launch(stream, 5, "cudaLaunchKernel_v7000"),
    }  # fmt: skip
    others = {"r": record, "w": await_event, "h": compute, "x": launch_elsewhere}
    for step in [program] * tokens if isinstance(program, str) else program:
        start = machine.now
        for letter in re.findall(r"\d+|\S", step):
            if letter.isdigit():
                machine.think(int(letter))
            elif letter in others:
                others[letter]()
            else:
                on_stream[letter.lower()](9 if letter.isupper() else 7)
        script.range("token", start, machine.now)
    return light(script.trace)


def period_ns(trace: Trace) -> float:
    """From kernel to kernel."""
    return float(np.median(np.diff(rows(trace["kernels"], "end"))))


def step_ns(trace: Trace) -> float:
    """From the end of a step's last kernel to that of the next."""
    ends = np.array(rows(trace["kernels"], "end"))
    tokens = [end for text, end in rows(trace["nvtx"], "text", "end") if text == "token"]
    return float(np.median(np.diff([ends[ends <= end].max() for end in tokens])))
