"""Turns the changes that a reader chooses into the edits of a what-if."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.analysis.whatif.edits import Edit, ScaleHost, ScaleHostCompute, ScaleKernels, SyncLatency, WithoutSyncs
from tracer.analysis.whatif.host_edits import CopiesBehind, LaunchFirst, MergedCopies, ReadLater
from tracer.analysis.whatif.into_graph import IntoGraph
from tracer.analysis.whatif.one_graph import OneGraph
from tracer.errors import UsageError


def edits_of(
    *, without_syncs: bool = False, positions: Sequence[int] = (), one_graph: bool = False, early_starts: bool = False,
    eager_into_graph: bool = False, merge_copies: bool = False, launch_first: bool = False, copies_behind: bool = False,
    read_later: bool = False, kernels: Sequence[tuple[str, float]] = (), scale_host: float | None = None,
    scale_host_compute: float | None = None, sync_latency_us: float | None = None,
) -> list[Edit]:  # fmt: skip
    """The edits in the order in which they are applied, without strategies and streams.

    Raises:
        UsageError: choices that cannot be combined.
    """
    edits: list[Edit] = [WithoutSyncs()] if without_syncs else []
    if positions:
        edits.append(WithoutSyncs(tuple(positions)))
    if early_starts and not one_graph:
        raise UsageError("--early-starts needs --graph")
    if one_graph:
        edits.append(OneGraph(early_starts))
    if eager_into_graph:
        edits.append(IntoGraph())
    if merge_copies:
        edits.append(MergedCopies())
    if launch_first:
        edits.append(LaunchFirst())
    if copies_behind:
        edits.append(CopiesBehind())
    if read_later:
        edits.append(ReadLater())
    edits += [ScaleKernels(pattern, factor) for pattern, factor in kernels]
    if scale_host is not None:
        edits.append(ScaleHost(scale_host))
    if scale_host_compute is not None:
        edits.append(ScaleHostCompute(scale_host_compute))
    if sync_latency_us is not None:
        edits.append(SyncLatency(sync_latency_us))
    return edits
