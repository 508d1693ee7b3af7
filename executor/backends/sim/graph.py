"""Costs of kernels and whole graphs on the simulated device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from executor.backends.sim.device import FenceWait, Span, Stage, Task, VirtualDevice
from executor.backends.sim.profiles import Profile
from executor.graph import Tensor
from executor.graph.fusion import PARTS, outer_sources
from executor.planning.plans import Instruction, Launch, Plan, Record


@dataclass(frozen=True, slots=True)
class SimKernel:
    """A kernel: its label, in the place of a demangled name, and its cost."""

    label: str
    stage: Stage


@dataclass(frozen=True, slots=True)
class Execution:
    """A kernel's place in a graph: its stream, its number in the plan, and its times in ns from the graph's start."""

    kernel: SimKernel
    stream: int
    node: int
    span: Span


@dataclass(frozen=True, slots=True)
class SimGraph:
    """An instantiated plan.

    Attributes:
        id: its number.
        executions: its kernels.
        stages: its work on the device: one stage of known length if it runs alone, else its kernels in sequence, as
            other work may slow them down.
        host_ns: host time of a launch in addition to that of the call.
        as_kernels: whether launches are reported kernel by kernel.
    """

    id: int
    executions: Sequence[Execution]
    stages: Sequence[Stage]
    host_ns: int
    as_kernels: bool


def moved_bytes(node: Tensor) -> int:
    """Return the bytes that a node's kernel reads and writes, derived from the shapes.

    Intermediate results of a fused kernel do not count, nor do table rows, experts and KV cells that are not used.
    """
    parts: Sequence[Tensor] = node.params.get(PARTS, (node,))
    outside = set(outer_sources(parts))
    read = dict.fromkeys(outside, 0)
    for part in parts:
        for place, source in enumerate(part.src):
            if source in outside:
                read[source] = max(read[source], _read_bytes(part, place, source))
    return sum(read.values()) + _written_bytes(parts[-1]) + sum(state.nbytes for p in parts for state in p.updates)


def _read_bytes(part: Tensor, place: int, source: Tensor) -> int:
    if (part.op, place) == ("get_rows", 0):
        return part.nbytes
    if (part.op, place) in (("set_rows", 2), ("cpy", 1)):
        return 0
    if (part.op, place) == ("mul_mat_id", 0):
        chosen = part.src[2].shape[0] * part.src[2].shape[1]
        return source.nbytes * min(chosen, source.shape[0]) // source.shape[0]
    if part.op == "flash_attn_ext" and place in (1, 2):
        return source.nbytes * part.src[3].shape[1] // source.shape[1]
    return source.nbytes


def _written_bytes(node: Tensor) -> int:
    return min(node.nbytes, node.src[0].nbytes) if node.op == "set_rows" else node.nbytes


def kernel_of(profile: Profile, node: Tensor) -> SimKernel:
    """Return the kernel of a node."""
    cost = profile.kernel(node.op)
    return SimKernel(f"{node.op}({node.name})", Stage(cost.fixed_ns, moved_bytes(node), cost.ns_per_byte))


def instantiate(
    profile: Profile, plan: Plan, kernels: Mapping[Tensor, SimKernel], number: int, *, as_kernels: bool
) -> SimGraph:
    """Run a plan once on a separate device, so that a launch need not simulate its kernels."""
    executions, length = run_alone(profile, plan.instructions, kernels)
    graph = profile.graph
    stages = [_in_graph(profile, e.kernel.stage) for e in executions]
    host_ns = graph.host_node_ns * len(executions) + graph.host_stream_ns * (min(plan.streams, profile.streams) - 1)
    return SimGraph(number, executions, [Stage(length)] if plan.whole else stages, host_ns, as_kernels)


def run_alone(
    profile: Profile, instructions: Sequence[Instruction], kernels: Mapping[Tensor, SimKernel]
) -> tuple[list[Execution], int]:
    """Return the times of each kernel of a plan that runs alone, and its end, in ns from the start."""
    device, executions = VirtualDevice(profile.bytes_per_ns, profile.edge_ns), list[Execution]()
    fences = {}
    for number, instruction in enumerate(instructions):
        queue = instruction.stream % profile.streams
        if isinstance(instruction, Launch):
            kernel = kernels[instruction.node]
            keep = partial(_keep, executions, kernel, instruction.stream, number)
            device.submit(queue, Task(0, [_in_graph(profile, kernel.stage)], done=keep))
        elif isinstance(instruction, Record):
            fences[instruction.event] = device.fence(queue)
        else:
            device.submit(queue, FenceWait(fences[instruction.event]))
    length = device.drain()
    return sorted(executions, key=lambda e: e.node), length


def _in_graph(profile: Profile, stage: Stage) -> Stage:
    return stage._replace(fixed_ns=stage.fixed_ns + profile.graph.node_ns)


def _keep(into: list[Execution], kernel: SimKernel, stream: int, number: int, spans: list[Span]) -> None:
    into.append(Execution(kernel, stream, number, spans[0]))
