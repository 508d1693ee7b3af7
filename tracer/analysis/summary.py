"""Everything a table of runs shows about one trace, from the other analyses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracer import run_json
from tracer.analysis.causes import present
from tracer.analysis.conditions import conditions
from tracer.analysis.fetches import FetchLag
from tracer.analysis.gaps import GapReport, gap_report, measured_rate
from tracer.analysis.interval import Interval
from tracer.analysis.syncs import SyncReport, sync_report
from tracer.analysis.tokens import ALL_STEPS, Bounds, Steps, choose_steps
from tracer.errors import TraceError
from tracer.trace import Trace


@dataclass(frozen=True)
class Summary:
    """One run in figures. A figure that could not be had is None, and `problem` says why.

    Times are µs. steps_per_s is the recording's own rate, of the wall (see `Steps.steps_per_s`), period_us what the
    median step takes from its first compute to the next one's, traced_tokens_per_s the rate in tokens, None where it is
    not known how many a step gains; idle_us and idle_where are `IdleReport`'s, untraced_idle_us the median at the
    untraced rate, busy_us how long the device computes for the median step; tokens_per_s is measured without tracing
    (None if unknown). `what` says what the recording holds. `strategy` is the class found in the trace, None where
    nothing decodes; `configured` what run.json says was asked for. `tokens_per_s_spread` is the lowest and the highest
    of the untraced repeats, `conditions` are those of `tracer.analysis.conditions`, `notes` are the recording's own.
    """

    name: str
    source: str = ""
    model: str = ""
    configured: str = ""
    concurrency: str = ""
    backend: str = ""
    gpu: str = ""
    strategy: str | None = None
    strategy_share: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_spread: tuple[float, float] | None = None
    traced_tokens_per_s: float | None = None
    steps_per_s: float | None = None
    period_us: float | None = None
    idle_us: dict[str, float] = field(default_factory=dict)
    idle_share: float | None = None
    idle_where: str | None = None
    untraced_idle_us: float | None = None
    busy_us: float | None = None
    what: str | None = None
    gap_p50_us: float | None = None
    gap_p90_us: float | None = None
    untraced_gap_us: float | None = None
    estimated_untraced_gap_us: Interval | None = None
    syncs_per_token: float | None = None
    copies_per_token: float | None = None
    launches_per_token: float | None = None
    blocking_copies_per_token: float | None = None
    polls_per_token: float | None = None
    fetch_lag: FetchLag | None = None
    signature: str | None = None
    steps: int | None = None
    token_source: str | None = None
    confidence: float | None = None
    prefill_steps: int | None = None
    graph_trace: str | None = None
    distortion: float | None = None
    warning: str | None = None
    causes_us: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a trace shows, as far as it goes: its figures, and the parts that they come from, None where one failed."""

    summary: Summary
    steps: Steps | None = None
    syncs: SyncReport | None = None
    gaps: GapReport | None = None


def summarise(trace: Trace, name: str, within: str | None = None, bounds: Bounds = ALL_STEPS) -> Summary:
    """The figures of `analyse`."""
    return analyse(trace, name, within, bounds).summary


def analyse(
    trace: Trace, name: str, within: str | None = None, bounds: Bounds = ALL_STEPS, steps: Steps | None = None
) -> Analysis:
    """Analyse a trace as far as it goes; what fails is stated in the summary's `problem`, never raised.

    Args:
        trace: the recording.
        name: what to call it.
        within: only the NVTX range of this text.
        bounds: only these steps.
        steps: the steps that `within` and `bounds` mean, where somebody has found them already.
    """
    facts = describe(trace, within)
    syncs, gaps = None, None
    try:
        steps = choose_steps(trace, within, bounds) if steps is None else steps
    except TraceError as problem:
        return Analysis(Summary(name, **facts, problem=str(problem)))
    facts |= _step_facts(steps)
    try:
        syncs = sync_report(trace, steps)
        facts |= _sync_facts(syncs, steps.decodes)
    except TraceError as problem:
        facts["problem"] = str(problem)
    try:
        gaps = gap_report(trace, steps, measured_rate(trace, steps, within))
        facts |= _gap_facts(gaps)
    except TraceError as problem:
        facts["problem"] = str(problem)
    return Analysis(Summary(name, **facts), steps, syncs, gaps)


def describe(trace: Trace, within: str | None = None) -> dict[str, Any]:
    """What the recording says of itself: source, model, configured strategy, mode, backend, GPU, rate, conditions."""
    asked = run_json.configuration(trace, within)
    return {
        "source": str(trace.metadata.get("source", "")),
        "model": str(asked.get("model", "")),
        "configured": str(asked.get("strategy", "")),
        "concurrency": str(asked.get("concurrency", "")),
        "backend": str(asked.get("backend", "")),
        "gpu": ", ".join(dict.fromkeys(str(n) for n in trace["devices"]["name"])),
        "tokens_per_s": run_json.tokens_per_s(trace, within),
        "tokens_per_s_spread": None if within else run_json.tokens_per_s_spread(trace),
        "conditions": conditions(trace, within),
        "notes": tuple(trace.notes),
    }


def _step_facts(steps: Steps) -> dict[str, Any]:
    return {
        "steps": len(steps),
        "token_source": steps.source,
        "confidence": steps.confidence,
        "prefill_steps": steps.prefills,
        "what": steps.what,
        "steps_per_s": steps.steps_per_s,
        "traced_tokens_per_s": _product(steps.steps_per_s, steps.tokens_per_step),
    }


def _product(rate: float | None, each: float | None) -> float | None:
    return None if rate is None or each is None else rate * each


def _sync_facts(report: SyncReport, decodes: bool) -> dict[str, Any]:
    return {
        "strategy": report.strategy if decodes else None,
        "strategy_share": report.share if decodes else None,
        "syncs_per_token": report.syncs_per_token,
        "copies_per_token": report.copies_per_token,
        "launches_per_token": report.launches_per_token,
        "blocking_copies_per_token": report.blocking_copies_per_token,
        "polls_per_token": report.polls_per_token,
        "fetch_lag": report.fetch_lag,
        "signature": report.signature,
    }


def _gap_facts(report: GapReport) -> dict[str, Any]:
    known = report.graph_trace != "node"  # of node-level traces it is only a lower bound
    return {
        "idle_us": report.idle.idle_us,
        "idle_share": report.idle.share,
        "idle_where": report.idle.where,
        "untraced_idle_us": report.untraced_idle_us["p50"] if report.untraced_idle_us else None,
        "busy_us": report.idle.busy_us,
        "gap_p50_us": report.gap_us["p50"],
        "gap_p90_us": report.gap_us["p90"],
        "untraced_gap_us": report.untraced_gap_us["p50"] if known and report.untraced_gap_us else None,
        "estimated_untraced_gap_us": report.estimated,
        "graph_trace": report.graph_trace,
        "period_us": report.period_us,
        "distortion": report.distortion,
        "warning": report.warning,
        "causes_us": present(report.causes_us),
    }
