"""The circumstances of a recording: what was run, on which device, and what was traced."""

from __future__ import annotations

from typing import Any, Final

from tracer.model import run_json
from tracer.model.schema import OTHER_DOMAINS
from tracer.model.trace import Trace

_TRACING_CUDA: Final = {
    "nsys": "nsys --trace=cuda,nvtx",
    "PyTorch": "torch.profiler with activities=[CPU, CUDA], on a GPU",
}
"""Prefix of a trace's source -> how to make its recorder trace CUDA."""


def conditions(trace: Trace, within: str | None = None) -> dict[str, str]:
    """The circumstances given by run.json and the device table, as text; unknown ones are left out."""
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


def was_traced(what: str, trace: Trace) -> str:
    """A question to the user, such as "were kernels traced?", with the remedy for the recorder of the trace; for a
    recording of an unsupported accelerator, the name of that accelerator."""
    others = OTHER_DOMAINS & set(trace["nvtx"]["domain"].astype(str).unique())
    if others:
        return f"its work ran on an accelerator that is not supported ({', '.join(sorted(others))})"
    source = str(trace.metadata.get("source", ""))
    remedy = next((f" ({words})" for recorder, words in _TRACING_CUDA.items() if source.startswith(recorder)), "")
    return f"was {what} traced{remedy}?"
