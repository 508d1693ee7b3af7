"""Runs all passes on a step's graph, before any memory is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from executor.graph.models.step import DecodeStep
from executor.names import lookup
from executor.planning.allocator import ALLOCATORS, BufferPlan, Schedule, allocate
from executor.planning.concurrency import MODES, Region, find_dependencies, map_streams
from executor.planning.devices import Placement, Split, assign_devices, only, split_graph
from executor.planning.hazards import Hazard, find_hazards
from executor.planning.plans import Plan, make_plan
from tracer.errors import UnsafePlanError


@dataclass(frozen=True)
class PreparedSplit:
    """The results of the passes for a split, before any memory is allocated."""

    split: Split
    regions: list[Region]
    plan: Plan
    memory: BufferPlan
    hazards: list[Hazard]


@dataclass(frozen=True)
class Prepared:
    """The results of the passes for a step: its splits in the order in which they run."""

    step: DecodeStep
    splits: tuple[PreparedSplit, ...]
    concurrency: str

    @property
    def races(self) -> str:
        """Why the plan is unsafe, as a sentence; "" if it is not."""
        if not (hazards := self.hazards):
            return ""
        told = f"concurrency {self.concurrency!r} with allocator {self.allocator!r} has data races ({len(hazards)})"
        return f"{told}: {hazards[0]}"

    @property
    def hazards(self) -> list[Hazard]:
        """The hazards of all splits."""
        return [hazard for part in self.splits for hazard in part.hazards]

    @property
    def allocator(self) -> str:
        """The allocator of all splits."""
        return self.splits[0].memory.allocator


def prepare(
    step: DecodeStep, placement: Placement | str, concurrency: str, allocator: str | None = None,
    *, allow_hazards: bool = False,
) -> Prepared:  # fmt: skip
    """Assign devices and split the graph; for each split find regions, map streams, plan, allocate and check.

    Args:
        placement: the placement; or a backend's name, for everything on its first device.
        concurrency: a name of `concurrency.MODES`.
        allocator: a name of `ALLOCATORS`; None for the default of the mode.

    Raises:
        UsageError: an unknown name, or a placement that does not fit the model.
        UnsafePlanError: a plan has hazards.
    """
    mode = lookup("concurrency mode", concurrency, MODES)
    allocator = allocator or mode.allocator
    lookup("allocator", allocator, ALLOCATORS)
    placement = only(placement) if isinstance(placement, str) else placement
    assigned = assign_devices(step.graph, placement)
    made = []
    for split in split_graph(step.graph, assigned, copy_experts=placement.experts == "copy"):
        order = find_dependencies(split.nodes)
        here = MODES["sequential"] if split.device.is_host else mode
        regions = here.regions(split.nodes, order)
        streams = map_streams(split.nodes, regions)
        plan = make_plan(split.nodes, order, streams, cut=here.cut)
        memory = allocate(Schedule(split, regions, streams, plan), allocator)
        made.append(PreparedSplit(split, regions, plan, memory, find_hazards(split, plan, memory.offsets)))
    prepared = Prepared(step, tuple(made), mode.name)
    if (reason := prepared.races) and not allow_hazards:
        raise UnsafePlanError(f"{reason}. Choose allocator {mode.allocator!r}, which has none; --unsafe runs it anyway")
    return prepared
