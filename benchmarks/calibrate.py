"""Derives the shipped cost profile `h200-linux` of the sim backend from a recording; the other two are not measured.

Host costs, latencies and copies come from the light pass, kernels from the node pass next to it. A profiler lengthens
kernels, so they are scaled until a step takes as long as in the light pass. What the recording cannot show is assumed,
as `sources` states: consecutive copies are as slow as single ones, and kernels on several streams lose only the latency
of an edge.

Usage: python benchmarks/calibrate.py [RUN] [-o PROFILE.json], where RUN is a run directory on one stream of
`intertoken run --backend cuda --sync sccc` with a node pass. Without arguments it regenerates the shipped profile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

import executor.backends.sim.profiles as profiles
from executor.backends.sim.device import moved_bytes
from executor.backends.sim.profiles import (
    CALLS,
    FETCH,
    OTHER,
    CopyCost,
    GraphCost,
    KernelCost,
    Profile,
)
from executor.graph import Tensor
from executor.run import plan_configuration
from executor.run.configuration import Configuration
from tracer import read
from tracer.analysis.calls import host_calls
from tracer.analysis.step_work import step_compute, step_spans
from tracer.analysis.tokens import Steps, find_steps
from tracer.files.bounded import typed
from tracer.model import run_json
from tracer.model.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT
from tracer.model.trace import Trace

ROOT: Final = Path(__file__).parents[1]
RECORDING: Final = ROOT / "sample_traces" / "llama-1.1b-sccc-sequential-cuda"
SHIPPED: Final = Path(profiles.__file__).with_name("h200-linux.json")
UNSEEN: Final = {"launch": 2300, "event_record": 200, "event_wait": 200}
"""Host time of calls that the recording lacks, ns: through CuPy's bindings on a host with an H200."""

_KINDS: Final = {
    SYNC: "sync", GRAPH_LAUNCH: "graph_launch", LAUNCH: "launch", EVENT: "event_record", WAIT: "event_wait"
}  # fmt: skip


def calibrate(trace: Trace, node: Trace, name: str) -> Profile:
    """Return the profile of the machine of a recording.

    Args:
        trace: the light pass.
        node: its node pass.
        name: name of the profile.
    """
    steps = find_steps(trace)
    calls, spans, sources = calls_of(trace, steps), step_spans(trace, steps).frame(), dict[str, str]()
    sources["host"] = "assumed: round figures for a server with DDR5"
    calls_ns, between_ns = call_costs(calls, sources), pauses(calls, sources)
    wake_up_ns = calls_ns["sync"]
    sources["wake_up_ns"] = "assumed: a polling sync returns as soon after the end of the work as an idle one"
    latency_ns = launch_latency(calls, spans, sources)
    copy_in, copy_out = copy_costs(calls, spans, node, wake_up_ns, sources)
    edge_ns, bytes_per_ns, kernels = kernel_costs(spans, kernel_times(node), nodes_of(trace), sources)
    sources["graph"] = "assumed: a queued graph starts with the same delay after earlier work as on an idle device"
    sources["graph.host_node_ns"] = sources["graph.host_stream_ns"] = "assumed: part of calls_ns.graph_launch"
    sources["graph.node_ns"] = "assumed: part of the kernels' times"
    sources["streams"] = "assumed: hardware queues of NVIDIA GPUs (CUDA_DEVICE_MAX_CONNECTIONS is at most 32)"
    return Profile(
        name, str(trace["devices"]["name"].iloc[0]), calls_ns, between_ns, wake_up_ns, latency_ns, copy_in, copy_out,
        edge_ns, bytes_per_ns, kernels, GraphCost(start_ns=latency_ns), sources=sources,
    )  # fmt: skip


def calls_of(trace: Trace, steps: Steps) -> pd.DataFrame:
    """Return the calls of the launching thread inside the steps, in order.

    Columns: start end (ns) correlation kind (one of `CALLS`) previous (one of `CALLS`, or `FETCH`; "" for the first
    call of a group) step (position in the steps) in_flight (work was issued since the last sync) pause (ns since the
    previous call's end; NaN for the first call of a group).
    """
    calls: pd.DataFrame = host_calls(trace).frame()
    calls["step"] = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
    launching = calls.loc[calls["letter"].isin([GRAPH_LAUNCH, LAUNCH]) & (calls["step"] >= 0), "thread"]
    calls = calls[(calls["step"] >= 0) & (calls["thread"] == launching.mode()[0])].reset_index(drop=True)
    calls["kind"] = _kinds(calls)
    calls["previous"], calls["in_flight"] = _before(calls["kind"], steps.table["group"].to_numpy()[calls["step"]])
    calls["pause"] = (calls["start"] - calls["end"].shift(fill_value=0)).where(calls["previous"] != "")
    return calls


def _kinds(calls: pd.DataFrame) -> list[str]:
    """Classify calls as `CALLS`. A copy of unknown direction goes to the host if it is the first after a launch."""
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


def _before(kinds: Iterable[str], groups: Iterable[int]) -> tuple[list[str], list[bool]]:
    """Return, for each call, the previous call in its group, and whether work was issued since the last sync."""
    previous, in_flight = list[str](), list[bool]()
    last, group, issued, fetching = "", -1, False, False
    for kind, own in zip(kinds, groups, strict=True):
        previous.append(last if own == group else "")
        in_flight.append(issued)
        last, group = FETCH if kind == "sync" and fetching else kind, own
        issued = kind != "sync"
        fetching = issued and (fetching or kind == "copy_out")
    return previous, in_flight


def typical(values: ArrayLike) -> float:
    """Return the mean without the longest 1 %."""
    times = np.asarray(values, dtype=np.float64)
    return float(times[times <= np.percentile(times, 99)].mean())


def call_costs(calls: pd.DataFrame, sources: dict[str, str]) -> dict[str, int]:
    """Return `Profile.calls_ns`, measured for calls in the recording and assumed for the others."""
    costs = {}
    for call in CALLS:
        of_kind = calls[calls["kind"] == call]
        lengths = of_kind["end"] - of_kind["start"]
        if call == "sync":  # the others waited
            lengths = lengths[~of_kind["in_flight"]]
        costs[call] = round(typical(lengths)) if len(lengths) else UNSEEN[call]
        sources[f"calls_ns.{call}"] = (
            f"measured: mean of {len(lengths)}, light pass"
            if len(lengths)
            else "assumed: none in the recording; measured through CuPy's bindings on a host with an H200"
        )
    return costs


def pauses(calls: pd.DataFrame, sources: dict[str, str]) -> dict[str, int]:
    """Return `Profile.between_ns`: each pair in the recording, each call with any successor, and any pair."""
    pairs = pd.DataFrame({"a": calls["previous"], "b": calls["kind"], "ns": calls["pause"]}).dropna()
    means = {f"{a}>{b}": round(typical(group)) for (a, b), group in pairs.groupby(["a", "b"])["ns"]}
    means |= {f"{a}>": round(typical(group)) for a, group in pairs.groupby("a")["ns"]}
    sources["between_ns"] = "measured: mean of each pair of calls, mean after each call, median of all, light pass"
    return means | {">": round(float(pairs["ns"].median()))}


def launch_latency(calls: pd.DataFrame, spans: pd.DataFrame, sources: dict[str, str]) -> int:
    """Return the time from a launch to the first kernel, in steps where the host had waited for the device before."""
    launches = calls[calls["kind"].isin(["graph_launch", "launch"]) & ~calls["in_flight"]]
    first = spans.drop_duplicates("correlation").set_index("correlation")["start"]
    waited = launches[launches["correlation"].isin(first.index)]
    latency = first.loc[waited["correlation"]].to_numpy() - waited["end"].to_numpy()
    sources["launch_latency_ns"] = f"measured: mean of {len(latency)}, light pass"
    return max(round(typical(latency)), 0)


def copy_costs(
    calls: pd.DataFrame, spans: pd.DataFrame, node: Trace, wake_up_ns: int, sources: dict[str, str]
) -> tuple[CopyCost, CopyCost]:
    """Return the fixed time and the rate of copies in both directions.

    The sync after n copies to the device returns when the time of n copies and a wake-up have passed since the call of
    the first copy; the sync after the copy of the logits returns one copy and one wake-up after the end of the step's
    last kernel.
    """
    found = []
    sent, fetched = _waits_for_copies(calls, spans, wake_up_ns)
    for place, kind, times in (("copy_in", "HtoD", sent), ("copy_out", "DtoH", fetched)):
        copies = node["memcpys"][node["memcpys"]["kind"].astype(str) == kind]
        largest = copies[copies["bytes"] == copies["bytes"].max()]
        rate = float((largest["bytes"] / (largest["end"] - largest["start"])).median())
        sources[f"{place}.bytes_per_ns"] = f"measured: largest {kind} copies, {largest['bytes'].iloc[0]} bytes"
        usual = int(copies["bytes"].mode().iloc[-1])
        found.append(CopyCost(round(max(typical(times) - usual / rate, 0)), rate))
    sources["copy_in.fixed_ns"] = (
        f"measured: from the return of the first of n copy calls to the return of their sync, / n, {len(sent)} times"
    )
    sources["copy_out.fixed_ns"] = f"measured: from the last kernel's end to the sync's return, {len(fetched)} times"
    return found[0], found[1]


def _waits_for_copies(calls: pd.DataFrame, spans: pd.DataFrame, wake_up_ns: int) -> tuple[list[float], list[float]]:
    """Return the time per copy of syncs that wait only for copies to the device, and of fetching syncs the time since
    the last kernel.
    """
    sent, fetched = list[float](), list[float]()
    last_kernel = spans.groupby("step")["end"].max().to_dict()
    run, first_end, copied_end = 0, 0, 0  # copies since a sync, -1 if mixed with other work
    for kind, in_flight, step, end in zip(
        *(calls[c].tolist() for c in ("kind", "in_flight", "step", "end")), strict=True
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


def kernel_costs(
    spans: pd.DataFrame,
    measured: tuple[NDArray[np.float64], NDArray[np.float64]],
    nodes: Sequence[Tensor],
    sources: dict[str, str],
) -> tuple[int, float, dict[str, KernelCost]]:
    """Return the latency of a dependency across streams, the memory bandwidth, and the cost of each op.

    The time of a kernel runs from the end of the previous kernel to its own end, as kernels may start before their
    predecessor has ended. The bandwidth is the highest that a kernel reaches; the rest of a kernel's time is fixed.
    """
    times, gaps = measured
    scale = float((spans["end"] - spans["start"]).median()) / times.sum()
    sources["edge_ns"] = (
        "measured: from a kernel's end to the start of the next one, if that does not start early, node pass"
    )
    moved = np.array([moved_bytes(n) for n in nodes], dtype=np.float64)
    bandwidth = float((moved / (times * scale)).max())
    fixed = pd.Series(times * scale - moved / bandwidth).groupby([n.op for n in nodes]).mean()
    kernels = {str(op): KernelCost(max(round(ns), 0)) for op, ns in fixed.items()}
    sources["kernels"] = f"measured: node pass, scaled by {scale:.4f} to match the step time of the light pass"
    sources["bytes_per_ns"] = "measured: the highest of all kernels, with bytes derived from the shapes"
    sources[f"kernels.{OTHER}"] = "derived: median of all ops, for ops that the recording lacks"
    edge_ns = round(float(np.median(gaps[gaps > 0])) * scale)
    return edge_ns, bandwidth, kernels | {OTHER: KernelCost(max(round(fixed.median()), 0))}


def kernel_times(node: Trace) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the time of each kernel of a step and the gap after it, ns.

    Times are medians over the steps. Gaps are 10th percentiles, as the tracing of each kernel lengthens them.
    """
    compute = step_compute(node, find_steps(node)).frame().sort_values(["at", "start"], kind="stable")
    sizes = compute.groupby("at").size()
    usual = sizes[sizes == sizes.mode().iloc[0]].index
    compute = compute[compute["at"].isin(usual)]
    start, end = (compute[c].to_numpy(dtype=np.float64).reshape(len(usual), -1) for c in ("start", "end"))
    reached = np.maximum.accumulate(end, axis=1)
    before = np.concatenate((start[:, :1], reached[:, :-1]), axis=1)
    return np.median(reached - before, axis=0), np.quantile(start[:, 1:] - reached[:, :-1], 0.1, axis=0)


def nodes_of(trace: Trace) -> list[Tensor]:
    """Return the nodes of a step's kernels, in order."""
    prepared = plan_configuration(typed(run_json.configuration(trace), Configuration)).prepared
    return [launch.node for part in prepared.splits for launch in part.plan.launches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", default=RECORDING)
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED)
    options = parser.parse_args()
    profile = calibrate(read(options.run), read(options.run / "node"), options.output.stem)
    text = json.dumps({"schema": profiles.SCHEMA} | asdict(profile), indent=2)
    options.output.write_text(text + "\n", encoding="utf-8")
    print(f"profile {profile.name!r} of {profile.device} in {options.output}")


if __name__ == "__main__":
    main()
