"""What a recording says of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from executor.backends.sim_graph import moved_bytes
from executor.calibrate_host import HostCalls
from executor.configuration import Configuration
from executor.graph import Tensor
from executor.profiles import OTHER, KernelCost
from executor.run import prepare_configuration
from tracer import run_json
from tracer.analysis.step_work import step_compute
from tracer.analysis.tokens import find_steps
from tracer.errors import ExecutionError, FormatError, UsageError
from tracer.trace import Trace
from tracer.typed_json import typed_object

_ASSUMED_EDGE_NS: Final = 2000


def kernel_costs(
    host: HostCalls,
    measured: tuple[NDArray[np.float64], NDArray[np.float64]],
    nodes: Sequence[Tensor] | None,
    sources: dict[str, str],
) -> tuple[int, float, dict[str, KernelCost]]:
    """Latency of a dependency across streams, memory bandwidth, and each op's cost.

    A kernel's time is from the end of the one before it to its own: kernels may begin before their predecessor has
    ended. The bandwidth is the best that a kernel reaches; what that leaves of a kernel's time is fixed.
    """
    step_ns = float((host.spans["end"] - host.spans["start"]).median())
    times, gaps = measured
    count = max(len(times), 1)
    scale = step_ns / times.sum() if len(times) else 1.0
    edge_ns = round(float(np.median(gaps[gaps > 0])) * scale) if (gaps > 0).any() else _ASSUMED_EDGE_NS
    sources["edge_ns"] = (
        "measured: between a kernel's end and the next one's start, where that waits for the whole of it, node pass"
        if (gaps > 0).any()
        else "assumed"
    )
    if nodes is None or len(nodes) != len(times):
        sources["kernels"] = "derived: the step's time, shared out evenly; ops and bytes are not known"
        sources["bytes_per_ns"] = "assumed: so high that bytes cost nothing, for the kernels' times hold them"
        return edge_ns, 1e9, {OTHER: KernelCost(round(step_ns / count))}
    moved = np.array([moved_bytes(n) for n in nodes], dtype=np.float64)
    bandwidth = float((moved / (times * scale)).max())
    fixed = pd.Series(times * scale - moved / bandwidth).groupby([n.op for n in nodes]).mean()
    kernels = {str(op): KernelCost(max(round(ns), 0)) for op, ns in fixed.items()}
    sources["kernels"] = f"measured: node pass, times {scale:.4f} to last as long as in the {host.how}"
    sources["bytes_per_ns"] = "measured: the best of all kernels, bytes by their shapes"
    sources[f"kernels.{OTHER}"] = "derived: the median of all ops, for those that the recording lacks"
    return edge_ns, bandwidth, kernels | {OTHER: KernelCost(max(round(fixed.median()), 0))}


def kernel_times(node: Trace | None, within: str | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each kernel of a step its time and the gap before the next, ns; none if unknown.

    Times are medians over the steps. Of gaps it is the 10th percentile: each record of a kernel lengthens them.
    """
    nothing = np.zeros(0), np.zeros(0)
    if node is None or not len(node["kernels"]):
        return nothing
    steps = find_steps(node, within=within)
    compute = step_compute(node, steps).sort_values(["at", "start"], kind="stable")
    sizes = compute.groupby("at").size()
    usual = sizes[sizes == sizes.mode().iloc[0]].index
    compute = compute[compute["at"].isin(usual)]
    start, end = (compute[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
    reached = np.maximum.accumulate(end, axis=1)
    times = np.diff(np.concatenate((start[:, :1], reached), axis=1), axis=1)
    return np.median(times, axis=0), np.quantile(start[:, 1:] - reached[:, :-1], 0.1, axis=0)


def nodes_of(trace: Trace) -> Sequence[Tensor] | None:
    """The nodes behind a step's kernels, in order, if it was a run of ours with one stream."""
    try:
        configuration: Configuration = typed_object(run_json.configuration(trace), Configuration, "configuration")
        plan = prepare_configuration(configuration).splits[0].plan
    except (FormatError, UsageError, ExecutionError):
        return None
    return [launch.node for launch in plan.launches] if plan.streams == 1 else None
