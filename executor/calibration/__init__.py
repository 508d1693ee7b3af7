"""Derives a cost profile from one recording, and those constants of `tracer/analysis/fits.toml` that it shows.

Host costs, latencies and copies come from the light pass (or the only recording), kernels from the node pass next to
it. Times under a profiler are too long. Kernels are scaled so that a step takes as long as in the light pass. Host
times of a recording other than a light pass are scaled so that its gap becomes the untraced one, if the untraced rate
is known. What one recording cannot show is assumed, as `sources` states: consecutive copies are as slow as single ones,
and kernels on several streams lose only the latency of an edge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from executor.backends.sim.device import moved_bytes
from executor.backends.sim.profiles import OTHER, CopyCost, GraphCost, KernelCost, Profile
from executor.calibration.host import (
    TRACED,
    HostCalls,
    call_costs,
    launch_latency,
    pauses,
    plan_of,
    products_on_host,
    typical,
)
from executor.graph import Tensor
from tracer.analysis.causes import of_host_compute
from tracer.analysis.gaps import measured_rate
from tracer.analysis.step_work import step_compute
from tracer.analysis.tokens import find_steps
from tracer.errors import UsageError
from tracer.model.intervals import covered
from tracer.model.schema import COMPUTE_TABLES
from tracer.model.trace import Trace

_PCIE_4: Final = 25.0  # bytes per ns: 31.5 on 16 lanes, less the packet overhead
_NO_BYTES: Final = 1e9
_LARGE: Final = 1 << 16  # bytes from which a copy shows the rate


def calibrate(
    trace: Trace,
    node: Trace | None,
    name: str,
    *,
    within: str | None = None,
    untraced_tokens_per_s: float | None = None,
) -> Profile:
    """Return the profile of the machine and engine of a recording.

    Args:
        trace: the light pass, or any recording with token steps.
        node: its node pass, or None.
        name: name of the profile.
        within: only steps inside the NVTX ranges with this text.
        untraced_tokens_per_s: token steps per second without a profiler; None for the value in run.json.
    """
    steps = find_steps(trace, within=within)
    host = HostCalls.of(trace, steps, untraced_tokens_per_s or measured_rate(trace, steps, within))
    sources = dict[str, str]()
    calls_ns, between_ns = call_costs(host, sources), pauses(host, sources)
    wake_up_ns = calls_ns["sync"]
    sources["wake_up_ns"] = "assumed: a polling sync returns as soon after the end of the work as an idle one"
    latency_ns = launch_latency(host, sources)
    copy_in, copy_out = _copy_costs(host, node, wake_up_ns, sources)
    edge_ns, bytes_per_ns, kernels = kernel_costs(
        step_time(host, trace, within), host, kernel_times(node, within), nodes_of(trace), sources
    )
    sources["graph"] = "assumed: a queued graph starts with the same delay after earlier work as on an idle device"
    sources["graph.host_node_ns"] = sources["graph.host_stream_ns"] = "assumed: part of calls_ns.graph_launch"
    sources["graph.node_ns"] = "assumed: part of the kernels' times"
    sources["streams"] = "assumed: hardware queues of NVIDIA GPUs (CUDA_DEVICE_MAX_CONNECTIONS is at most 32)"
    of_host = products_on_host(trace, sources)
    devices = trace["devices"]["name"].astype(str).tolist()
    return Profile(
        name, devices[0] if devices else "GPU", calls_ns, between_ns, wake_up_ns, latency_ns, copy_in, copy_out,
        edge_ns, bytes_per_ns, kernels, GraphCost(start_ns=latency_ns), of_host, sources=sources,
    )  # fmt: skip


def fits_toml(profile: Profile, trace: Trace, recording: str) -> str:
    """Return a file of one device with what was measured; what the profile assumes is left out.

    Raises:
        UsageError: the recording names no GPU, or its times include the profiler's share.
    """
    if not len(trace["devices"]):
        raise UsageError(f"{recording}: names no GPU, by which INTERTOKEN_FITS chooses constants")
    measured = {figure: ns for figure, ns in profile.figures.items() if str(profile.source(figure)).startswith("meas")}
    if any(str(profile.source(figure)).endswith(TRACED) for figure in measured):
        raise UsageError(
            f"{recording}: its times include the profiler's, so it shows no constants: give the engine's own rate "
            "(--untraced-steps-per-s), or a recording without a profiler (intertoken record)"
        )
    calls = {call: ns for call, ns in profile.calls_ns.items() if f"calls_ns.{call}" in measured}
    named = {"latency_ns": "launch_latency_ns", "edge_ns": "edge_ns", "copy_ns": "copy_in.fixed_ns"}
    host = {ours: str(measured[theirs]) for ours, theirs in named.items() if theirs in measured}
    if calls:
        host["calls_ns"] = "{ " + ", ".join(f"{call} = {ns}" for call, ns in calls.items()) + " }"
    launch = calls.get("graph_launch", calls.get("launch"))
    usual = {} if launch is None or "latency_ns" not in host else {"launch_ns": launch + profile.launch_latency_ns}
    lines = ["[[device]]", f"gpu = {json.dumps(profile.device)}", f"called = {json.dumps('your ' + profile.device)}"]
    for table, values in (("host", host), ("usual", usual)):
        if values:
            today = datetime.now(timezone.utc).date()
            lines += ["", f"[device.{table}]", f'date = "{today}"', f"fitted_to = {json.dumps(recording)}"]
            lines += ['known_error = "not estimated: one recording"', *(f"{key} = {ns}" for key, ns in values.items())]
    return "\n".join(lines) + "\n"


def _copy_costs(
    host: HostCalls, node: Trace | None, wake_up_ns: int, sources: dict[str, str]
) -> tuple[CopyCost, CopyCost]:
    """Return the fixed time and the rate of copies in both directions.

    The sync after n copies to the device returns when the time of n copies and a wake-up have passed since the call of
    the first copy; the sync after the copy of the logits returns one copy and one wake-up after the end of the step's
    last kernel.
    """
    rates, byte_ns = {}, {}
    for place, kind in (("copy_in", "HtoD"), ("copy_out", "DtoH")):
        rates[place], nbytes, sources[f"{place}.bytes_per_ns"] = _rate(node, kind)
        byte_ns[place] = nbytes / rates[place]
    sent, fetched = _waits_for_copies(host, wake_up_ns)
    sources["copy_in.fixed_ns"] = (
        f"measured: from the return of the first of n copy calls to the return of their sync, / n, {len(sent)} times"
        if sent
        else "assumed: the recording has no copies followed by a sync"
    )
    sources["copy_out.fixed_ns"] = (
        f"measured: from the last kernel's end to the sync's return, {len(fetched)} times"
        if fetched
        else "assumed: the recording has no copy to the host followed by a sync"
    )
    fixed_ns = {
        place: round(max(typical(times) - byte_ns[place], 0)) if times else host.fits.host.copy_ns
        for place, times in (("copy_in", sent), ("copy_out", fetched))
    }
    copy_in, copy_out = (CopyCost(fixed_ns[place], rates[place]) for place in rates)
    return copy_in, copy_out


def _waits_for_copies(host: HostCalls, wake_up_ns: int) -> tuple[list[float], list[float]]:
    """Return the time per copy of syncs that wait only for copies to the device, and of fetching syncs the time since
    the last kernel.
    """
    sent, fetched = list[float](), list[float]()
    last_kernel = host.spans.groupby("step")["end"].max().to_dict()
    run, first_end, copied_end = 0, 0, 0  # copies since a sync, -1 if mixed with other work
    for kind, in_flight, step, end in zip(
        *(host.calls[c].tolist() for c in ("kind", "in_flight", "step", "end")), strict=True
    ):
        if kind == "copy_in":
            run, first_end = (run + (run > 0), first_end) if in_flight else (1, end)
        elif kind == "copy_out":
            run, copied_end = -1, end
        elif kind != "sync":
            run = -1
        else:
            if run > 0:
                sent.append((end - first_end - wake_up_ns) / run)
            elif copied_end and step in last_kernel:
                fetched.append(end - wake_up_ns - max(last_kernel[step], copied_end))
            run, copied_end = 0, 0
    return sent, fetched


def _rate(node: Trace | None, kind: str) -> tuple[float, int, str]:
    """Return the bytes per ns of the largest copies in one direction, the size of a typical copy, and the source."""
    copies = node["memcpys"] if node is not None else Trace({})["memcpys"]
    copies = copies[copies["kind"].astype(str) == kind]
    if not len(copies):
        return _NO_BYTES, 0, "assumed: so high that bytes cost nothing, as the fixed time includes them"
    usual = int(copies["bytes"].mode().iloc[-1])
    largest = copies[copies["bytes"] == copies["bytes"].max()]
    if largest["bytes"].iloc[0] < _LARGE:
        return _PCIE_4, usual, "assumed: PCIe 4.0, 16 lanes; the recording has no large copies"
    rate = float((largest["bytes"] / (largest["end"] - largest["start"])).median())
    return rate, usual, f"measured: largest {kind} copies, {largest['bytes'].iloc[0]} bytes"


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
