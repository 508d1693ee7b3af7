"""The facts about a recording: those in a run directory's run.json, which are all optional, and its circumstances.

The schema, `intertoken.run/1`: `configuration` (backend, model, strategy, concurrency, ...), `machine`, `measured`
(`tokens_per_s` and `steps_per_s`, each `{median, low, high}`, without a profiler), and for a recording of several
runs `ranges`: NVTX text -> `{strategy, concurrency, tokens_per_s}`.

Of our executor also `unsafe`, why it has data races although they are refused by default, and `waits`: what each wait
of the host in a token step orders according to the plan, `{what, position, order, between, instead}` (`WaitOrder`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from tracer.errors import FormatError, printable
from tracer.files.bounded import typed
from tracer.model.schema import OTHER_DOMAINS
from tracer.model.trace import LACKS, LIGHT, Trace

SCHEMA: Final = "intertoken.run/1"

UNSAFE: Final = "unsafe"
WAITS: Final = "waits"

NODE: Final = "node"
PASSES: Final = ("graph", NODE)
"""Traced passes of a run, in folders of its directory with these names."""

_LEAST: Final = 1e-6  # per second; a value outside these limits is not a rate
_MOST: Final = 1e12
_TRACING_CUDA: Final = {
    LIGHT: "the light recorder cannot time what its notes name; --passes graph can",
    "nsys": "nsys --trace=cuda,nvtx",
    "rocprofv3": "rocprofv3 --runtime-trace, which includes kernels",
    "PyTorch": "torch.profiler with activities=[CPU, CUDA], on a GPU",
}
"""Prefix of a trace's source -> how to make its recorder trace CUDA, or what else does."""


def configuration(trace: Trace, within: str | None = None) -> dict[str, Any]:
    """The configuration of the run, or of the NVTX range `within`."""
    return _object(_run(trace), "configuration") | _range(trace, within)


def is_ours(trace: Trace) -> bool:
    """Whether `intertoken run` made the recording."""
    return isinstance(configuration(trace).get("allocator"), str)


def batch(trace: Trace, within: str | None = None) -> int | None:
    """The number of sequences in a step, or None."""
    value = configuration(trace, within).get("batch")
    return value if type(value) is int and 0 < value < 1 << 31 else None


def tokens_per_s(trace: Trace, within: str | None = None) -> float | None:
    """The rate over all sequences, measured without a profiler, or None."""
    return _number(_range(trace, within).get("tokens_per_s")) if within else _median(trace, "tokens_per_s")


def tokens_per_s_spread(trace: Trace) -> tuple[float, float] | None:
    """The lowest and the highest rate of the repeats, whose median is `tokens_per_s`; or None."""
    measured = _object(_object(_run(trace), "measured"), "tokens_per_s")
    low, high = _number(measured.get("low")), _number(measured.get("high"))
    return None if low is None or high is None else (low, high)


def tokens_per_s_repeats(trace: Trace) -> tuple[float, ...]:
    """The rate of each repeat; empty if unknown."""
    repeats = _object(_object(_run(trace), "measured"), "tokens_per_s").get("repeats")
    rates = [_number(value) for value in repeats] if isinstance(repeats, list) else []
    return tuple(rate for rate in rates if rate is not None)


def process(trace: Trace) -> str:
    """What identifies the recorded processes: when their run began, and their numbers; "" if it does not say when."""
    numbers = sorted(set(trace["api"]["process"].tolist()))
    return f"{_created(trace)} {numbers}" if _created(trace) and numbers else ""


def of_rates(trace: Trace) -> str:
    """What identifies the process in which all rates were measured: `intertoken run` measures those of all its
    configurations, and all repeats, in one, and a recording of several runs those of its ranges. "" if unknown."""
    ranges = _object(_run(trace), "ranges")
    if ranges:
        return f"{_created(trace)} {sorted(ranges)}"
    return _created(trace) if "warmup" in configuration(trace) else ""


def _created(trace: Trace) -> str:
    """When the run began; "" if run.json does not say it to the second."""
    created = _run(trace).get("created")
    return printable(created) if isinstance(created, str) and "T" in created else ""


def machine(trace: Trace) -> dict[str, Any]:
    """The machine on which it ran, as far as known."""
    return _object(_run(trace), "machine")


def steps_per_s(trace: Trace, within: str | None = None) -> float | None:
    """The rate of token steps, measured without a profiler, or None if only the rate of tokens is given."""
    return None if within else _median(trace, "steps_per_s")


def tokens_per_step(trace: Trace, within: str | None = None) -> float | None:
    """The number of tokens per step (one per sequence) from the two rates; None if they are not given."""
    if within is not None:
        return None
    tokens, steps = (_median(trace, key) for key in ("tokens_per_s", "steps_per_s"))
    return tokens / steps if tokens and steps else None


def unsafe_notes(trace: Trace) -> list[str]:
    """Why the run has data races although they are refused by default, a note each."""
    reasons = _run(trace).get(UNSAFE)
    told = [reason for reason in reasons if isinstance(reason, str)] if isinstance(reasons, list) else []
    return [f"ran although it is unsafe (--unsafe): {printable(reason)}" for reason in told]


@dataclass(frozen=True, slots=True)
class WaitOrder:
    """What a wait of the host in a token step orders.

    Attributes:
        what, position: as in the inventory of syncs.
        order: "needed", or "redundant" if the step is as safe without it, as long as all other waits stay.
        between: the two nearest accesses that it orders; empty if none clash.
        instead: what else orders them; "" if nothing does, or nothing needs to.
    """

    what: str
    position: Annotated[int, Meta(ge=1)]
    order: Literal["needed", "redundant"]
    between: Annotated[tuple[str, ...], Meta(max_length=2)]
    instead: str


def wait_orders(trace: Trace) -> list[WaitOrder]:
    """What the waits of a token step order, in order; empty if the run does not tell."""
    try:
        told = typed(_run(trace).get(WAITS, []), list[WaitOrder])
    except FormatError:
        return []
    between = [tuple(map(printable, each.between)) for each in told]
    return [replace(each, between=pair, instead=printable(each.instead))
            for each, pair in zip(told, between, strict=True)]  # fmt: skip


def _run(trace: Trace) -> dict[str, Any]:
    return _object(trace.metadata, "run")


def _median(trace: Trace, key: str) -> float | None:
    return _number(_object(_object(_run(trace), "measured"), key).get("median"))


def _range(trace: Trace, within: str | None) -> dict[str, Any]:
    ranges = _object(_run(trace), "ranges")
    if within is None:
        return {}
    if within in ranges:
        return _object(ranges, within)
    try:
        matching = [text for text in ranges if re.search(within, text)]
    except re.error:  # reported when the range itself is looked up
        return {}
    return _object(ranges, matching[0]) if len(matching) == 1 else {}


def _object(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return dict(inner) if isinstance(inner, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and _LEAST < value < _MOST else None


def conditions(trace: Trace, within: str | None = None) -> dict[str, str]:
    """The circumstances given by run.json and the device table, as text; unknown ones are left out."""
    host = machine(trace)
    devices = trace["devices"]
    clocks = sorted({int(rate) for rate in devices["clock_rate"] if rate > 0})
    values: dict[str, Any] = configuration(trace, within) | {
        "gpu": ", ".join(sorted(set(map(str, devices["name"])))) or host.get("gpu"),
        "clock rate": ", ".join(f"{rate / 1e6:.0f} MHz" for rate in clocks),
        "driver": host.get("driver"),
        "source": trace.metadata.get("source"),
    }
    return {key: str(value) for key, value in values.items() if value not in (None, "")}


def was_traced(what: str, trace: Trace) -> str:
    """A question to the user, such as "were kernels traced?", with the remedy for the recorder of the trace; for a
    recording of an unsupported accelerator or tool, the name of that."""
    others = OTHER_DOMAINS & set(trace["nvtx"]["domain"].astype(str).unique())
    if others:
        return f"its work ran on an accelerator that is not supported ({', '.join(sorted(others))})"
    if isinstance(lacks := trace.metadata.get(LACKS), str):
        return printable(lacks)
    source = str(trace.metadata.get("source", ""))
    remedy = next((f" ({words})" for recorder, words in _TRACING_CUDA.items() if source.startswith(recorder)), "")
    traced = what.replace("CUDA", "HIP") if source.startswith("rocprofv3") else what
    return f"was {traced} traced{remedy}?"
