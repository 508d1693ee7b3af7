"""Host costs in a recording: its calls, the time between them, the launch latency; and the host as a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from executor.backends.sim.profiles import CALLS, FETCH, HostCost
from executor.graph.fusion import reads_of
from executor.planning import Prepared
from executor.run import prepare_configuration
from executor.run.configuration import Configuration
from tracer.analysis.calls import BLOCKING_COPY, COPY, EVENT, GRAPH_LAUNCH, LAUNCH, SYNC, WAIT, host_calls
from tracer.analysis.causes import of_host_compute
from tracer.analysis.fits import Fits, fits_for
from tracer.analysis.gaps import gap_report
from tracer.analysis.step_work import step_spans
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError, ExecutionError, FormatError, UsageError
from tracer.files.bounded import typed
from tracer.model import run_json
from tracer.model.intervals import covered, total, uncovered, union
from tracer.model.schema import HOST_COMPUTE
from tracer.model.trace import Trace

TRACED: Final = "times under a profiler"
"""The end of the source of figures that include the profiler's share."""
_KINDS: Final = {
    SYNC: "sync", GRAPH_LAUNCH: "graph_launch", LAUNCH: "launch", EVENT: "event_record", WAIT: "event_wait"
}  # fmt: skip


@dataclass(frozen=True)
class HostCalls:
    """The calls of the launching thread inside the steps, in order.

    Attributes:
        calls: start end (ns) correlation kind (one of `CALLS`) previous (one of `CALLS`, or `FETCH`; "" for the first
            call of a group) step (position in the steps) in_flight (work was issued since the last sync) pause (ns
            since the previous call's end without what the host computed; NaN for the first call of a group).
        spans: `step_spans` of the trace.
        how: origin of the times, for `sources`.
        scale: factor applied to host times, 1 for a light pass.
        fits: the constants for the recording's GPU, `fits.host` for what it lacks.
    """

    calls: pd.DataFrame
    spans: pd.DataFrame
    how: str
    scale: float
    fits: Fits

    @classmethod
    def of(cls, trace: Trace, steps: Steps, untraced_per_s: float | None) -> HostCalls:
        """Collect the calls of the launching thread.

        Args:
            trace: the recording.
            steps: its token steps.
            untraced_per_s: steps per second without a profiler, if known; not needed for a light pass.

        Raises:
            EmptyTraceError: no launch in any step, or no consecutive steps.
        """
        calls = host_calls(trace)
        calls["step"] = steps.of(*(calls[c].to_numpy() for c in ("start", "process", "thread")))
        launching = calls.loc[calls["letter"].isin([GRAPH_LAUNCH, LAUNCH]) & (calls["step"] >= 0), "thread"]
        if not len(launching):
            raise EmptyTraceError("cannot calibrate: no token step launches anything")
        calls = calls[(calls["step"] >= 0) & (calls["thread"] == launching.mode()[0])].reset_index(drop=True)
        calls["kind"] = _kinds(calls)
        calls["previous"], calls["in_flight"] = _before(calls["kind"], steps.table["group"].to_numpy()[calls["step"]])
        calls["pause"] = _pauses(calls, trace["nvtx"])
        report = gap_report(trace, steps, untraced_per_s)
        scale, how = 1.0, "light pass" if report.warning is None else TRACED
        if report.untraced_gap_us is not None and report.gap_us["mean"] > 0:
            scale = report.untraced_gap_us["mean"] / report.gap_us["mean"]
            how = f"{TRACED} * {scale:.3f}"
        return cls(calls, step_spans(trace, steps), how, scale, fits_for(trace))

    def typical(self, values: ArrayLike) -> int:
        """Return the mean of host times without the longest 1 %, ns."""
        return round(typical(values) * self.scale)


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


def _pauses(calls: pd.DataFrame, ranges: pd.DataFrame) -> pd.Series:
    """Return the time before each call in which the host does not compute its splits, whose kernels have separate costs
    (`products_on_host`); NaN for the first call of a group.
    """
    computed = ranges[of_host_compute(ranges)]
    before = calls["end"].shift(fill_value=0)
    inside = covered(computed["start"], computed["end"], before, calls["start"])
    return (calls["start"] - before - inside).where(calls["previous"] != "")


def call_costs(host: HostCalls, sources: dict[str, str]) -> dict[str, int]:
    """Return `Profile.calls_ns`, measured for calls in the recording and assumed for the others."""
    costs = {}
    for call in CALLS:
        of_kind = host.calls[host.calls["kind"] == call]
        lengths = of_kind["end"] - of_kind["start"]
        if call == "sync":  # the others waited
            lengths = lengths[~of_kind["in_flight"]]
        costs[call] = host.typical(lengths) if len(lengths) else host.fits.host.calls_ns[call]
        sources[f"calls_ns.{call}"] = (
            f"measured: mean of {len(lengths)}, {host.how}"
            if len(lengths)
            else f"assumed: none in the recording; that of {host.fits.called}, through CuPy's bindings"
        )
    return costs


def pauses(host: HostCalls, sources: dict[str, str]) -> dict[str, int]:
    """Return `Profile.between_ns`: each pair in the recording, each call with any successor, and any pair."""
    calls = host.calls
    pairs = pd.DataFrame({"a": calls["previous"], "b": calls["kind"], "ns": calls["pause"]}).dropna()
    means = {f"{a}>{b}": host.typical(group) for (a, b), group in pairs.groupby(["a", "b"])["ns"]}
    means |= {f"{a}>": host.typical(group) for a, group in pairs.groupby("a")["ns"]}
    sources["between_ns"] = f"measured: mean of each pair of calls, mean after each call, median of all, {host.how}"
    return means | {">": round(float(pairs["ns"].median()) * host.scale)}


def launch_latency(host: HostCalls, sources: dict[str, str]) -> int:
    """Return the time from a launch to the first kernel, in steps where the host had waited for the device before."""
    calls = host.calls
    launches = calls[calls["kind"].isin(["graph_launch", "launch"]) & ~calls["in_flight"]]
    first = host.spans.drop_duplicates("correlation").set_index("correlation")["start"]
    waited = launches[launches["correlation"].isin(first.index)]
    latency = first.loc[waited["correlation"]].to_numpy() - waited["end"].to_numpy()
    if not len(latency):
        sources["launch_latency_ns"] = "assumed: every launch in the recording finds the device busy"
        return host.fits.host.latency_ns
    sources["launch_latency_ns"] = f"measured: mean of {len(latency)}, {host.how}"
    return max(host.typical(latency), 0)


def typical(values: ArrayLike) -> float:
    """Return the mean without the longest 1 %; 0 if there are no values."""
    times = np.asarray(values, dtype=np.float64)
    return float(times[times <= np.percentile(times, 99)].mean()) if len(times) else 0.0


_ASSUMED: Final = "assumed: round figures for a server with DDR5; the recording has no products on the host"


def products_on_host(trace: Trace, sources: dict[str, str]) -> HostCost:
    """Return the costs of the host's products: the line through their times by bytes (means without the longest
    1 %).

    The rate holds for the number of threads of the run. Every other kernel takes an equal share of the time of the
    host's splits that is neither in products or attention nor in a CUDA call.
    """
    ranges = trace["nvtx"]
    computed = ranges[(ranges["domain"] == HOST_COMPUTE).to_numpy()]
    products = computed.dropna(subset=["payload"])
    products = products[products["payload"].astype("float64") > 0]
    threads = run_json.configuration(trace).get("threads")
    if not len(products) or not threads:
        sources["host"] = _ASSUMED
        return HostCost()
    took = (products["end"] - products["start"]).groupby(products["text"].astype(str)).apply(typical)
    nbytes = products["payload"].astype("float64").groupby(products["text"].astype(str)).median()
    rate, fixed_ns = _line(nbytes, took)
    sources["host"] = f"measured: {len(products)} products by bytes, with {threads} threads"
    others = _others(trace, computed)
    sources["host.other_ns"] = "measured: the rest of the host's splits, by their other kernels"
    if others is None:
        sources["host.other_ns"] = "assumed: the plan of the recording is unknown"
        others = HostCost().other_ns
    return HostCost(fixed_ns, others, {str(threads): rate})


def _line(nbytes: pd.Series, took: pd.Series) -> tuple[float, int]:
    """Return bytes per ns, and the time of zero bytes: 0 if all sizes are equal or the fitted line gives less."""
    if nbytes.min() < nbytes.max():
        slope, fixed = np.polyfit(nbytes.to_numpy(), took.to_numpy(np.float64), 1)
        if slope > 0 and fixed >= 0:
            return float(1 / slope), round(float(fixed))
    return float(nbytes.sum() / took.sum()), 0


def _others(trace: Trace, computed: pd.DataFrame) -> int | None:
    """Return the mean time of a kernel that is neither a product nor attention, or None if the plan is unknown."""
    known = plan_of(trace)
    if known is None:
        return None
    nodes = [n.node for part in known[1].splits if part.split.device.is_host for n in part.plan.launches]
    of_step = sum(reads_of(node) is None for node in nodes)
    products = len(nodes) - of_step
    if not of_step or not products:
        return 0
    ranges, api = trace["nvtx"], trace["api"]
    busy = pd.concat([frame[["start", "end"]] for frame in (computed, api)])
    inside = ranges[of_host_compute(ranges)]
    start, end, _ = uncovered(busy["start"], busy["end"], *union(inside["start"], inside["end"]))
    return round(total(start, end) / (len(computed) / products * of_step))


def plan_of(trace: Trace) -> tuple[Configuration, Prepared] | None:
    """Return configuration and plan of a recording of this executor, else None."""
    try:
        configuration = typed(run_json.configuration(trace), Configuration)
        return configuration, prepare_configuration(configuration)
    except (FormatError, UsageError, ExecutionError):
        return None
