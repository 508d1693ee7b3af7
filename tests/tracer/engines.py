"""Traces shaped like those of engines, made by hand, with the steps that they truly have.

A host thread makes its calls one behind the other, 10 ns each and 10 apart; kernels run for the time given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.tracer.handmade import PROCESS, Script
from tracer import Trace

PHASES = {"D": "decode", "I": "iteration", "P": "prefill", "T": "training", "V": "speculative", "W": "warm-up"}
WARM_UP_KERNEL_NS, KERNEL_NS, PROMPT_KERNEL_NS = 20, 50, 500


@dataclass
class Host:
    """One host thread of an engine, with a device.

    Attributes:
        starts: when each step's first call began.
        phases: of each step.
    """

    script: Script
    thread: int = 101
    device: int = 0
    now: int = 0
    starts: list[int] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    def _call(self, name: str) -> tuple[int, int, int]:
        start, self.now = self.now, self.now + 20
        return start, start + 10, self.script.call(name, start, start + 10, self.thread)

    def _on_device(self, table: str, correlation: int, length: int, **columns: object) -> None:
        row = {"start": self.now, "end": self.now + length, "stream": 7, "correlation": correlation, "context": 1}
        self.script.rows[table].append({**row, "device": self.device, "process": PROCESS, **columns})

    def step(self, phase: str = "decode") -> None:
        """A step begins with the next call."""
        self.starts.append(self.now)
        self.phases.append(phase)

    def copy(self, kind: str = "HtoD", size: int = 4) -> None:
        """An asynchronous copy."""
        self._on_device("memcpys", self._call("cudaMemcpyAsync_v3020")[2], 5, kind=kind, bytes=size)

    def peer_copy(self, to: int) -> None:
        """An asynchronous copy to another device, staged by the driver through the host; the next calls are there."""
        correlation = self._call("cudaMemcpyPeerAsync_v4000")[2]
        self._on_device("memcpys", correlation, 5, kind="DtoH", bytes=4)
        self.device = to
        self._on_device("memcpys", correlation, 9, kind="HtoD", bytes=4)

    def sync(self) -> None:
        """A stream synchronisation."""
        start, end, correlation = self._call("cudaStreamSynchronize_v3020")
        row = {"start": start, "end": end, "stream": 7, "correlation": correlation, "type": "stream"}
        self.script.rows["syncs"].append({**row, "device": self.device, "context": 1, "process": PROCESS})

    def kernels(self, names: Sequence[str], length: int = KERNEL_NS, blocks: int = 8) -> None:
        """Eager launches."""
        for name in names:
            self._kernel(self._call("cudaLaunchKernel_v7000")[2], name, length, blocks, -1)

    def _kernel(self, correlation: int, name: str, length: int, blocks: int, graph: int) -> None:
        sizes = {"grid_x": blocks, "grid_y": 1, "grid_z": 1, "graph": graph}
        self._on_device("kernels", correlation, length, name=name, short_name=name, **sizes)

    def graph(self, number: int, length: int = 10 * KERNEL_NS) -> None:
        """A graph launch, traced as a whole."""
        self._on_device("graph_launches", self._call("cudaGraphLaunch_v10000")[2], length, graph=number)

    def replay(self, names: Sequence[str], graph: int = -1) -> None:
        """A graph launch whose kernels are recorded, with the graph's id or without; the wait for it takes as long."""
        correlation, begin = self._call("cudaGraphLaunch_v10000")[2], self.now
        for name in names:
            self._kernel(correlation, name, KERNEL_NS, 8, graph)
            self.now += KERNEL_NS
        self.now = max(begin, self.now - KERNEL_NS)

    def fetch(self, size: int = 4) -> None:
        """The logits of a step, and the wait for them."""
        self.copy("DtoH", size)
        self.sync()

    def play(self, program: str, kernels: Mapping[str, Mapping[str, Any]]) -> Host:
        """Make the calls of a program, a letter each; `12(cs)` makes those in brackets twelve times.

        `c` copies, `s` waits, `f` fetches, `C` and `F` do so with the states of a layer, `p` copies to device 1, `<`
        and `>` go to device 0 and 1, `[` and `]` begin and end a capture, a digit launches that graph, 5 to 9 of a
        small model, `w` warms up, a capital of `PHASES` begins a step, others launch `kernels`, by `names` or `layers`
        (without the head, `until` -1), or replay them in a `graph` of that number, -1 for none.
        """
        while (plain := re.sub(r"(\d+)\(([^()]*)\)", lambda m: int(m[1]) * m[2], program)) != program:
            program = plain
        for letter in program.replace(" ", ""):
            if letter in PHASES:
                self.step(PHASES[letter])
            elif letter.isdigit():
                self.graph(int(letter), (2 if letter >= "5" else 10) * KERNEL_NS)
            elif letter in "<>":
                self.device = "<>".index(letter)
            elif letter in "[]":
                self._call(f"cudaStream{'Begin' if letter == '[' else 'End'}Capture_v10000")
            elif letter in kernels:
                told = dict(kernels[letter])
                names = layers(told.pop("layers"))[: told.pop("until", None)] if "layers" in told else told.pop("names")
                (self.replay if "graph" in told else self.kernels)(names, **told)
            else:
                {"c": self.copy, "C": lambda: self.copy(size=8192), "F": lambda: self.fetch(8192), "s": self.sync,
                 "f": self.fetch, "w": lambda: warm_up(self),
                 "p": lambda: self.peer_copy(to=1)}[letter]()  # fmt: skip
        return self


def known(script: Script, *hosts: Host) -> tuple[Trace, list[tuple[int, str]]]:
    """The trace of the hosts' calls, and its true steps: (start, phase) of each, of all threads, by start."""
    return script.trace, sorted(step for host in hosts for step in zip(host.starts, host.phases, strict=True))


def layers(count: int, prologue: str = "embed") -> list[str]:
    """The kernels of an eager step."""
    return [prologue, *["norm", "mul_mat", "rope", "attention", "mul_mat", "add"] * count, "norm", "head"]


def warm_up(host: Host) -> None:
    """What engines do first: fill memory, tune kernels, run once."""
    for _ in range(6):
        host.copy()
        host.sync()
    for width in range(5):
        host.kernels([f"tune_{width}"] * 3, WARM_UP_KERNEL_NS)
        host.sync()
