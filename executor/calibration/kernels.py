"""Kernel costs in a recording."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from executor.backends.sim.graph import moved_bytes
from executor.backends.sim.profiles import OTHER, KernelCost
from executor.calibration.host import HostCalls, plan_of
from executor.graph import Tensor
from tracer.analysis.causes import of_host_compute
from tracer.analysis.step_work import step_compute
from tracer.analysis.tokens import find_steps
from tracer.model.intervals import covered
from tracer.model.schema import COMPUTE_TABLES
from tracer.model.trace import Trace


def step_time(host: HostCalls, trace: Trace, within: str | None) -> float:
    """Return how long the device computes in a step, ns: from first to last kernel, without splits of the host."""
    if of_host_compute(trace["nvtx"]).any():
        return float(kernel_times(trace, within)[0].sum())
    return float((host.spans["end"] - host.spans["start"]).median())


def kernel_costs(
    step_ns: float,
    host: HostCalls,
    measured: tuple[NDArray[np.float64], NDArray[np.float64]],
    nodes: Sequence[Tensor] | None,
    sources: dict[str, str],
) -> tuple[int, float, dict[str, KernelCost]]:
    """Return the latency of a dependency across streams, the memory bandwidth, and the cost of each op.

    The time of a kernel runs from the end of the previous kernel to its own end, as kernels may start before their
    predecessor has ended. The bandwidth is the highest that a kernel reaches; the rest of a kernel's time is fixed.
    """
    times, gaps = measured
    count = max(len(times), 1)
    scale = step_ns / times.sum() if len(times) else 1.0
    edge_ns = round(float(np.median(gaps[gaps > 0])) * scale) if (gaps > 0).any() else host.fits.host.edge_ns
    sources["edge_ns"] = (
        "measured: from a kernel's end to the start of the next one, if that does not start early, node pass"
        if (gaps > 0).any()
        else "assumed"
    )
    if nodes is None or len(nodes) != len(times):
        sources["kernels"] = "derived: the time of a step, divided evenly; ops and bytes are unknown"
        sources["bytes_per_ns"] = "assumed: so high that bytes cost nothing, as the kernels' times include them"
        return edge_ns, 1e9, {OTHER: KernelCost(round(step_ns / count))}
    moved = np.array([moved_bytes(n) for n in nodes], dtype=np.float64)
    bandwidth = float((moved / (times * scale)).max())
    fixed = pd.Series(times * scale - moved / bandwidth).groupby([n.op for n in nodes]).mean()
    kernels = {str(op): KernelCost(max(round(ns), 0)) for op, ns in fixed.items()}
    sources["kernels"] = f"measured: node pass, scaled by {scale:.4f} to match the step time of the {host.how}"
    sources["bytes_per_ns"] = "measured: the highest of all kernels, with bytes derived from the shapes"
    sources[f"kernels.{OTHER}"] = "derived: median of all ops, for ops that the recording lacks"
    return edge_ns, bandwidth, kernels | {OTHER: KernelCost(max(round(fixed.median()), 0))}


def kernel_times(node: Trace | None, within: str | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the time of each kernel of a step and the gap after it, ns; empty if unknown.

    Times are medians over the steps; after a split of the host, a kernel's time runs from its own start. Gaps are
    10th percentiles, as the tracing of each kernel lengthens them.
    """
    nothing = np.zeros(0), np.zeros(0)
    if node is None or not any(len(node[name]) for name in COMPUTE_TABLES):
        return nothing
    steps = find_steps(node, within=within)
    compute = step_compute(node, steps).sort_values(["at", "start"], kind="stable")
    sizes = compute.groupby("at").size()
    usual = sizes[sizes == sizes.mode().iloc[0]].index
    compute = compute[compute["at"].isin(usual)]
    start, end = (compute[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
    reached = np.maximum.accumulate(end, axis=1)
    before = np.concatenate((start[:, :1], reached[:, :-1]), axis=1)
    ranges = node["nvtx"][of_host_compute(node["nvtx"])]
    apart = covered(ranges["start"], ranges["end"], before.ravel(), start.ravel()).reshape(start.shape) > 0
    times = reached - np.where(apart, start, before)
    return np.median(times, axis=0), np.quantile(start[:, 1:] - reached[:, :-1], 0.1, axis=0)


def nodes_of(trace: Trace) -> Sequence[Tensor] | None:
    """Return the nodes of a step's kernels, in order, for a run of this executor with one stream, else None."""
    known = plan_of(trace)
    if known is None or known[0].halves:  # whose kernels take turns
        return None
    plans = [part.plan for part in known[1].splits if not part.split.device.is_host]
    return None if any(plan.streams > 1 for plan in plans) else [n.node for plan in plans for n in plan.launches]
