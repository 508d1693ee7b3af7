"""Costs of the host as a device, from a recording of a hybrid run."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from executor.backends.cpu.host import reads_of
from executor.backends.sim.profiles import HostCost
from executor.calibration.host import typical
from executor.run import prepare_configuration
from executor.run.configuration import Configuration
from tracer import run_json
from tracer.analysis.causes import of_host_compute
from tracer.errors import ExecutionError, FormatError, UsageError
from tracer.intervals import total, uncovered, union
from tracer.schema import HOST_COMPUTE
from tracer.trace import Trace
from tracer.typed_json import typed_object

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
    threads = _configured(trace).get("threads")
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
    try:
        configuration: Configuration = typed_object(_configured(trace), Configuration, "configuration")
        splits = prepare_configuration(configuration).splits
    except (FormatError, UsageError, ExecutionError):
        return None
    nodes = [n.node for part in splits if part.split.device.is_host for n in part.plan.launches]
    of_step = sum(reads_of(node) is None for node in nodes)
    products = len(nodes) - of_step
    if not of_step or not products:
        return 0
    ranges, api = trace["nvtx"], trace["api"]
    busy = pd.concat([frame[["start", "end"]] for frame in (computed, api)])
    inside = ranges[of_host_compute(ranges)]
    start, end, _ = uncovered(busy["start"], busy["end"], *union(inside["start"], inside["end"]))
    return round(total(start, end) / (len(computed) / products * of_step))


def _configured(trace: Trace) -> dict[str, object]:
    return run_json.configuration(trace)
