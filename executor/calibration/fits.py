"""The constants of `tracer/analysis/fits.toml` that a calibration measures, as a file for INTERTOKEN_FITS."""

from __future__ import annotations

import json
from datetime import datetime, timezone

from executor.backends.sim.profiles import Profile
from executor.calibration.host import TRACED
from tracer.errors import UsageError
from tracer.model.trace import Trace


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
