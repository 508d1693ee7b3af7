"""Cost profiles made by hand, with round figures."""

import json
from dataclasses import asdict

from executor.backends.sim.profiles import CALLS, SCHEMA, CopyCost, GraphCost, KernelCost, Profile


def handmade(**changes):
    """Every call takes 1 us, every pause 100 ns, a copy 2 us (3 us back), a kernel 10 us, a ns of it for any bytes."""
    figures = {
        "name": "handmade",
        "device": "test device",
        "calls_ns": dict.fromkeys(CALLS, 1000),
        "between_ns": {">": 100},
        "wake_up_ns": 500,
        "launch_latency_ns": 2000,
        "copy_in": CopyCost(1999, 1e18),
        "copy_out": CopyCost(2999, 1e18),
        "edge_ns": 0,
        "bytes_per_ns": 1e18,
        "kernels": {"other": KernelCost(9_999)},
        "graph": GraphCost(),
    }
    return Profile(**(figures | changes))


def written(profile, path):
    """The path, with the profile in the file."""
    path.write_text(json.dumps({"schema": SCHEMA} | asdict(profile)))
    return path
