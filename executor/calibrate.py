"""A cost profile from one recording.

Host costs, latencies and copies come from the light pass (or whatever the recording is), kernels from the node pass
beside it. Times under a profiler are too long: kernels are scaled so that a step takes as long as in the light pass;
the host costs of a recording that is not a light pass so that its gap becomes the untraced one, where run.json gives
the untraced tokens/s. What one recording cannot tell is assumed, and `sources` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from executor.backends.sim_graph import moved_bytes
from executor.graph import Tensor
from executor.profiles import CALLS, FETCH, OTHER, CopyCost, GraphCost, KernelCost, Profile
from executor.run import Configuration, prepare_configuration
from tracer import run_json
from tracer.analysis.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, host_calls
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import Steps, find_steps, step_compute, step_spans
from tracer.errors import EmptyTraceError, FormatError, UsageError
from tracer.trace import Trace
from tracer.typed_json import typed_object

_KINDS = {SYNC: "sync", GRAPH_LAUNCH: "graph_launch", LAUNCH: "launch", EVENT: "event_record", WAIT: "event_wait"}
_ASSUMED_CALLS_NS = {
    "copy_in": 1200, "copy_out": 1200, "launch": 2300, "graph_launch": 2300, "sync": 1400, "event_record": 200,
    "event_wait": 200,
}  # fmt: skip
"""Of calls that a recording lacks: through CuPy's bindings on a host with an H200."""
_ASSUMED_LATENCY_NS, _ASSUMED_EDGE_NS = 2000, 2000
_ASSUMED_COPY_RATE = 25.0  # bytes per ns: PCIe 4.0 with 16 lanes carries 31.5 less what packets cost


def calibrate(trace: Trace, node: Trace | None, name: str) -> Profile:
    """The profile of the machine and engine that made a recording.

    Args:
        trace: the light pass, or any recording with token steps.
        node: its node pass, or None.
        name: of the profile.

    Raises:
        EmptyTraceError: no token steps, or none that follows another.
    """
    steps = find_steps(trace)
    host = _Host.of(trace, steps)
    sources = dict[str, str]()
    calls_ns, between_ns = _call_costs(host, sources), _pauses(host, sources)
    wake_up_ns = calls_ns["sync"]
    sources["wake_up_ns"] = "assumed: a sync that polls returns as soon after the end as one that finds it past"
    latency_ns = _launch_latency(host, sources)
    copy_in, copy_out = _copies(host, node, wake_up_ns, sources)
    edge_ns, bytes_per_ns, kernels = _kernels(trace, node, host, sources)
    sources["graph"] = "assumed: a graph in a queue starts as long after the work before it as one on an idle device"
    sources["graph.host_node_ns"] = sources["graph.host_stream_ns"] = "assumed: part of calls_ns.graph_launch"
    sources["graph.node_ns"] = "assumed: part of the kernels' times"
    sources["streams"] = "assumed: hardware queues of NVIDIA GPUs (CUDA_DEVICE_MAX_CONNECTIONS goes to 32)"
    devices = trace["devices"]["name"].astype(str).tolist()
    return Profile(
        name, devices[0] if devices else "GPU", calls_ns, between_ns, wake_up_ns, latency_ns, copy_in, copy_out,
        edge_ns, bytes_per_ns, kernels, GraphCost(start_ns=latency_ns), sources=sources,
    )  # fmt: skip


@dataclass(frozen=True)
class _Host:
    """The launching thread's calls inside the steps, in order.

    Attributes:
        calls: start end (ns) correlation kind (of `CALLS`) previous (the same, or `FETCH`; "" at a group's first call)
            step (position in the steps) in_flight (work was issued since the last sync).
        spans: `step_spans` of the trace.
        how: "median"-like statistics are of this: for `sources`.
        scale: what times of the host are multiplied with, 1 for a light pass.
    """

    calls: pd.DataFrame
    spans: pd.DataFrame
    how: str
    scale: float

    @classmethod
    def of(cls, trace: Trace, steps: Steps) -> _Host:
        calls = host_calls(trace)
        calls["step"] = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
        launching = calls.loc[calls["letter"].isin([GRAPH_LAUNCH, LAUNCH]) & (calls["step"] >= 0), "thread"]
        if not len(launching):
            raise EmptyTraceError("no launch in any token step; nothing can be calibrated")
        calls = calls[(calls["step"] >= 0) & (calls["thread"] == launching.mode()[0])].reset_index(drop=True)
        calls["group"] = steps.table["group"].to_numpy()[calls["step"]]
        calls = calls.assign(kind=_kinds(calls), previous="", in_flight=False)
        previous, flying = [], []
        last, fetching, in_flight, group = "", False, False, -1
        for kind, own in zip(calls["kind"], calls["group"], strict=True):
            last = last if own == group else ""
            previous.append(last)
            flying.append(in_flight)
            last, group = FETCH if kind == "sync" and fetching else kind, own
            fetching = kind != "sync" and (fetching or kind == "copy_out")
            in_flight = kind != "sync"
        calls["previous"], calls["in_flight"] = previous, flying
        report = gap_report(trace, steps, run_json.steps_per_s(trace))
        light, untraced = report.warning is None, report.untraced_gap_us
        known = untraced is not None and report.gap_us["mean"] > 0
        scale = untraced["mean"] / report.gap_us["mean"] if known and untraced is not None else 1.0
        how = (
            "light pass" if light else f"recording under a profiler, times {scale:.3f}" if known else "profiler's times"
        )
        return cls(calls, step_spans(trace, steps), how, scale)

    def typical(self, values: ArrayLike) -> int:
        """Mean of host times without the longest of a hundred, ns."""
        return round(_typical(values) * self.scale)


def _kinds(calls: pd.DataFrame) -> list[str]:
    """Each call as one of `CALLS`; where the trace does not say whereto a copy goes, the first after a launch fetches."""
    kinds, launched = [], False
    for letter, kind in zip(calls["letter"], calls["kind"].astype(str), strict=True):
        if letter in (COPY, BLOCKING_COPY):
            fetches = kind == "DtoH" or (not kind.endswith("HtoD") and launched)
            kinds.append("copy_out" if fetches else "copy_in")
            launched = False
        else:
            kinds.append(_KINDS[letter])
            launched = letter in (GRAPH_LAUNCH, LAUNCH) or (launched and letter != SYNC)
    return kinds


def _call_costs(host: _Host, sources: dict[str, str]) -> dict[str, int]:
    costs = {}
    for call in CALLS:
        of_kind = host.calls[host.calls["kind"] == call]
        lengths = of_kind["end"] - of_kind["start"]
        if call == "sync":  # the others waited
            lengths = lengths[~of_kind["in_flight"]]
        costs[call] = host.typical(lengths) if len(lengths) else _ASSUMED_CALLS_NS[call]
        sources[f"calls_ns.{call}"] = (
            f"measured: mean of {len(lengths)}, {host.how}"
            if len(lengths)
            else "assumed: the recording has none; through CuPy's bindings on a host with an H200"
        )
    return costs


def _pauses(host: _Host, sources: dict[str, str]) -> dict[str, int]:
    """`Profile.between_ns`: each pair of the recording, each call whatever follows, and any pair."""
    calls = host.calls
    pause = (calls["start"] - calls["end"].shift()).where(calls["previous"] != "")
    pauses = pd.DataFrame({"a": calls["previous"], "b": calls["kind"], "ns": pause}).dropna()
    found = {f"{a}>{b}": host.typical(group) for (a, b), group in pauses.groupby(["a", "b"])["ns"]}
    found |= {f"{a}>": host.typical(group) for a, group in pauses.groupby("a")["ns"]}
    sources["between_ns"] = f"measured: mean of each pair of calls, of all after a call, and median of all, {host.how}"
    return found | {">": round(float(pauses["ns"].median()) * host.scale)}


def _launch_latency(host: _Host, sources: dict[str, str]) -> int:
    """From a launch's return to the first kernel, of steps before whose launch the host had waited for the device."""
    calls = host.calls
    launches = calls[calls["kind"].isin(["graph_launch", "launch"]) & ~calls["in_flight"]]
    first = host.spans.drop_duplicates("correlation").set_index("correlation")["start"]
    waited = launches[launches["correlation"].isin(first.index)]
    latency = first.loc[waited["correlation"]].to_numpy() - waited["end"].to_numpy()
    if not len(latency):
        sources["launch_latency_ns"] = "assumed: no launch in the recording finds the device idle"
        return _ASSUMED_LATENCY_NS
    sources["launch_latency_ns"] = f"measured: mean of {len(latency)}, {host.how}"
    return max(host.typical(latency), 0)


def _copies(host: _Host, node: Trace | None, wake_up_ns: int, sources: dict[str, str]) -> tuple[CopyCost, CopyCost]:
    """Fixed time and rate of copies in both directions.

    Copies to the device: n copies and the sync that follows them return n copies and a wake-up after the first call.
    The copy of the logits: its sync returns the copy and a wake-up after the step's last kernel.
    """
    rates, sizes = {}, {}
    for place, kind in (("copy_in", "HtoD"), ("copy_out", "DtoH")):
        rates[place], sizes[place] = _rate(node, kind)
        sources[f"{place}.bytes_per_ns"] = (
            f"measured: the largest {kind} copies of the node pass" if sizes[place] else "assumed: PCIe 4.0, 16 lanes"
        )
    calls = host.calls
    sent, fetched = [], []
    ends = host.spans.set_index(host.spans["step"])["end"]
    first_end, count, copied_end = 0, 0, 0
    for kind, end, step, previous in zip(calls["kind"], calls["end"], calls["step"], calls["previous"], strict=True):
        if kind == "copy_in":
            first_end, count = (first_end if count and previous == "copy_in" else end), count + 1
        elif kind == "copy_out":
            copied_end = end
        elif kind == "sync":
            if count and previous == "copy_in":
                sent.append((end - first_end - wake_up_ns) / count)
            elif copied_end and step in ends.index:
                fetched.append(end - wake_up_ns - max(int(ends[step]), copied_end))
        if kind != "copy_in":
            count = 0
        if kind == "sync":
            copied_end = 0
    fixed = {"copy_in": _typical(sent), "copy_out": _typical(fetched) - sizes["copy_out"] / rates["copy_out"]}
    sources["copy_in.fixed_ns"] = (
        f"measured: from the return of a copy's call to its sync's, of {len(sent)}, {host.how}"
    )
    sources["copy_out.fixed_ns"] = f"measured: from the last kernel's end to the sync's return, of {len(fetched)}"
    cost = {place: CopyCost(max(round(ns), 0), rates[place]) for place, ns in fixed.items()}
    return cost["copy_in"], cost["copy_out"]


def _rate(node: Trace | None, kind: str) -> tuple[float, int]:
    """Bytes per ns of the largest copies in one direction, and the usual size of those in steps."""
    if node is not None:
        copies = node["memcpys"]
        copies = copies[copies["kind"].astype(str) == kind]
        if len(copies):
            largest = copies[copies["bytes"] == copies["bytes"].max()]
            rate = float((largest["bytes"] / (largest["end"] - largest["start"])).median())
            return rate, int(copies["bytes"].mode().iloc[-1])
    return _ASSUMED_COPY_RATE, 0


def _kernels(
    trace: Trace, node: Trace | None, host: _Host, sources: dict[str, str]
) -> tuple[int, float, dict[str, KernelCost]]:
    """Latency of a dependency across streams, memory bandwidth, and each op's cost.

    A kernel's time is from the end of the one before it to its own: kernels may begin before their predecessor has
    ended. The bandwidth is the best that a kernel reaches; what that leaves of a kernel's time is fixed.
    """
    step_ns = float((host.spans["end"] - host.spans["start"]).median())
    nodes = _nodes(trace)
    times, gaps = _kernel_times(node)
    if len(times) == 0 or (nodes is not None and len(nodes) != len(times)):
        nodes = None
    count = max(len(times), 1)
    scale = step_ns / times.sum() if len(times) else 1.0
    edge_ns = round(float(np.median(gaps[gaps > 0])) * scale) if (gaps > 0).any() else _ASSUMED_EDGE_NS
    sources["edge_ns"] = (
        "measured: between a kernel's end and the next one's start, where that waits for the whole of it, node pass"
        if (gaps > 0).any()
        else "assumed"
    )
    if nodes is None:
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


def _kernel_times(node: Trace | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each kernel of a step its time, and the gap before the next, medians over the steps, ns; none if unknown."""
    nothing = np.zeros(0), np.zeros(0)
    if node is None or not len(node["kernels"]):
        return nothing
    steps = find_steps(node)
    compute = step_compute(node, steps).sort_values(["at", "start"], kind="stable")
    sizes = compute.groupby("at").size()
    usual = sizes[sizes == sizes.mode().iloc[0]].index
    compute = compute[compute["at"].isin(usual)]
    start, end = (compute[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
    reached = np.maximum.accumulate(end, axis=1)
    times = np.diff(np.concatenate((start[:, :1], reached), axis=1), axis=1)
    return np.median(times, axis=0), np.median(start[:, 1:] - reached[:, :-1], axis=0)


def _nodes(trace: Trace) -> Sequence[Tensor] | None:
    """The nodes behind a step's kernels, in order, if it was a run of ours with one stream."""
    try:
        configuration: Configuration = typed_object(run_json.configuration(trace), Configuration, "configuration")
        plan = prepare_configuration(configuration).plan
    except (FormatError, UsageError):
        return None
    return [launch.node for launch in plan.launches] if plan.streams == 1 else None


def _typical(values: ArrayLike) -> float:
    """Mean without the longest of a hundred; 0 of nothing."""
    found = np.asarray(values, dtype=np.float64)
    return float(found[found <= np.percentile(found, 99)].mean()) if len(found) else 0.0
