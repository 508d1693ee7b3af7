"""The circumstances of a recording: what was run, on which device."""

from __future__ import annotations

from typing import Any

from tracer import run_json
from tracer.trace import Trace


def conditions(trace: Trace, within: str | None = None) -> dict[str, str]:
    """What run.json and the device table say of the circumstances, as text; what is unknown is left out."""
    machine = run_json.machine(trace)
    devices = trace["devices"]
    clocks = sorted({int(rate) for rate in devices["clock_rate"] if rate > 0})
    found: dict[str, Any] = run_json.configuration(trace, within) | {
        "gpu": ", ".join(sorted(set(map(str, devices["name"])))) or machine.get("gpu"),
        "clock rate": ", ".join(f"{rate / 1e6:.0f} MHz" for rate in clocks),
        "driver": machine.get("driver"),
        "source": trace.metadata.get("source"),
    }
    return {key: str(value) for key, value in found.items() if value not in (None, "")}
