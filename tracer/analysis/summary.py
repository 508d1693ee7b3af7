"""The figures of one recording: the only place that takes them from the analyses.

Commands, pages, reports and exports choose from the fields of a `Summary`; none computes a figure itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tracer.analysis.causes import present
from tracer.analysis.gaps import GapReport, measured_rate
from tracer.analysis.interval import Interval
from tracer.analysis.step_work import steps_per_s, tokens_per_step
from tracer.analysis.syncs import FetchLag
from tracer.analysis.waits_elsewhere import WaitsElsewhere
from tracer.errors import TraceError
from tracer.model import run_json
from tracer.model.run_json import conditions
from tracer.model.trace import Trace
from tracer.notes import brief, by_weight

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording


@dataclass(frozen=True)
class Summary:
    """One recording in figures. A figure that could not be determined is None, and `problem` says why.

    Times are µs and as recorded, unless their name says untraced.

    Attributes:
        name: as shown to readers.
        source, model, configured, concurrency, backend, gpu: from the recording, run.json (`configured` is the
            requested strategy) and the device table; "" if unknown.
        strategy: the class of its steps; `strategy_share` of their input copies (or of the steps) follow it; None if
            nothing decodes.
        tokens_per_s: measured without tracing; None if unknown, or if not all steps decode. `tokens_per_s_spread` is
            the lowest and the highest of its repeats.
        traced_tokens_per_s: the recording's own wall-clock rate; None if the tokens per step are unknown.
        steps_per_s: by wall-clock time (`analysis.step_work.steps_per_s`); `rate_doubt` says why it may be too low.
        measured_steps_per_s: from run.json, without a profiler and without what is between repeats; None if unknown.
        tokens_per_step: the mean number of tokens per step; None if unknown.
        run_ahead: how far the host is ahead of the device when the device starts a step, median and 5th percentile of
            `time_us` and of `launches` (`analysis.run_ahead`); None if `run_ahead_unknown` says why.
        untraced_steps_per_s: without a profiler, from run.json or the user; None if no such rate applies.
        period_us: from the first compute of a step to that of the next, median.
        idle_us: `IdleReport.idle_us`; `idle_share` of all periods, and `idle_where`, where most of it is, in words.
        untraced_idle_us: the median that remains at the untraced rate; None where its interval is so wide that there is
            only `estimated_untraced_idle_us`. `untraced_idle_mean_us` is the mean, which a rate determines.
        busy_us: how long the device computes for a step, median.
        compute_us: from the first start to the last end of a step's compute, median.
        what: what the recording contains, in words.
        gap_p50_us, gap_p90_us, gap_mean_us: the gap; `causes_us` and their `parts_us` add up to the mean.
        untraced_causes_us: the causes, which add up to the mean gap at the untraced rate (`GapReport.corrected`).
        untraced_gap_us: the median gap at the untraced rate; `estimated_untraced_gap_us` with its interval if it is
            only known that way. Where that is wide (`Interval.is_wide`), there is no figure. `untraced_gap_mean_us` is
            the mean.
        syncs_per_token, copies_per_token, launches_per_token, blocking_copies_per_token, polls_per_token, fetch_lag,
            waits_elsewhere: as in `SyncReport`, like `signature` and `signature_share`.
        steps: their number; `token_source`, `confidence` and `prefill_steps` as in `Steps`.
        traced: whether it was made under a profiler; `graph_trace` and `distortion` as in `GapReport`.
        warning: the caveat for its times.
        left_out: `GapReport.left_out`.
        conditions: from `tracer.model.run_json.conditions`.
        notes: the recording's own, a sentence each.
        problem: why figures are missing.
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
    rate_doubt: str | None = None
    measured_steps_per_s: float | None = None
    tokens_per_step: float | None = None
    run_ahead: dict[str, dict[str, float]] | None = None
    run_ahead_unknown: str | None = None
    untraced_steps_per_s: float | None = None
    period_us: float | None = None
    idle_us: dict[str, float] = field(default_factory=dict)
    idle_share: float | None = None
    idle_where: str | None = None
    untraced_idle_us: float | None = None
    untraced_idle_mean_us: float | None = None
    estimated_untraced_idle_us: Interval | None = None
    busy_us: float | None = None
    compute_us: float | None = None
    what: str | None = None
    gap_p50_us: float | None = None
    gap_p90_us: float | None = None
    gap_mean_us: float | None = None
    untraced_gap_us: float | None = None
    untraced_gap_mean_us: float | None = None
    estimated_untraced_gap_us: Interval | None = None
    syncs_per_token: float | None = None
    copies_per_token: float | None = None
    launches_per_token: float | None = None
    blocking_copies_per_token: float | None = None
    polls_per_token: float | None = None
    fetch_lag: FetchLag | None = None
    waits_elsewhere: WaitsElsewhere | None = None
    signature: str | None = None
    signature_share: float | None = None
    steps: int | None = None
    token_source: str | None = None
    confidence: float | None = None
    prefill_steps: int | None = None
    traced: bool = False
    graph_trace: str | None = None
    distortion: float | None = None
    warning: str | None = None
    left_out: str | None = None
    causes_us: dict[str, float] = field(default_factory=dict)
    parts_us: dict[str, dict[str, float]] = field(default_factory=dict)
    untraced_causes_us: dict[str, float] = field(default_factory=dict)
    conditions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The fields as JSON. An estimate has no figure where its interval is wide. That of the idle time is only there
        where it is, and means only where a rate tells them."""
        facts, intervals = asdict(self), ("estimated_untraced_gap_us", "estimated_untraced_idle_us")
        facts |= {name: one.facts for name in intervals if (one := getattr(self, name))}
        optional = (intervals[1], "untraced_idle_mean_us", "untraced_gap_mean_us")
        return {name: fact for name, fact in facts.items() if fact is not None or name not in optional}


def figures(recording: Recording) -> Summary:
    """All figures of a recording; of several engines none that are not theirs together. Analyses that fail are reported
    in `problem`, never raised."""
    values, problem = _described(recording.trace, recording.within), None
    try:
        values |= _of_steps(recording)
        recording.steps.of_one_engine()
    except TraceError as error:
        unknown = dict.fromkeys(_RATES) if "steps" in values else {}
        return Summary(recording.name, **values | unknown, problem=str(error))
    for part in ("syncs", "gaps"):
        try:
            values |= _PARTS[part](recording)
        except TraceError as error:
            problem = str(error)
    return Summary(recording.name, **values, problem=problem)


def figures_of(recording: Recording, *parts: str) -> Summary:
    """The figures of these parts ("steps", "syncs", "gaps"); the others are None.

    Raises:
        TraceError: one of their analyses fails.
    """
    values = _described(recording.trace, recording.within)
    for part in parts:
        values |= _PARTS[part](recording)
    return Summary(recording.name, **values)


def rated(summary: Summary, gaps: GapReport) -> Summary:
    """The figures at a rate that a user gave instead of run.json's: the rate of these gaps."""
    rate, gained = gaps.untraced_steps_per_s, summary.tokens_per_step
    tokens_per_s = None if rate is None or gained is None else rate * gained
    return replace(summary, **_of_gaps(gaps), tokens_per_s=tokens_per_s, tokens_per_s_spread=None)


def _described(trace: Trace, within: str | None) -> dict[str, Any]:
    """The facts that the recording and run.json give about the run."""
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
        "notes": tuple(f"{brief(note)}." for note in by_weight(trace.notes)),
    }


def _of_steps(recording: Recording) -> dict[str, Any]:
    trace, steps, within = recording.trace, recording.steps, recording.within
    rate, gained = steps_per_s(trace, steps, recording.spans), tokens_per_step(trace, steps, within)
    measured: dict[str, Any] = {} if steps.decode_alone else {"tokens_per_s": None, "tokens_per_s_spread": None}
    return measured | {
        "steps": len(steps),
        "token_source": steps.source,
        "confidence": steps.confidence,
        "prefill_steps": steps.prefills,
        "what": steps.what,
        "steps_per_s": rate,
        "rate_doubt": None if rate is None else steps.rate_doubt,
        "measured_steps_per_s": measured_rate(trace, steps, within),
        "tokens_per_step": gained,
        "run_ahead": recording.run_ahead.figures,
        "run_ahead_unknown": recording.run_ahead.unknown or None,
        "traced_tokens_per_s": None if rate is None or gained is None else rate * gained,
    }


def _of_syncs(recording: Recording) -> dict[str, Any]:
    report, decodes = recording.syncs, recording.steps.decodes
    return {
        "strategy": report.strategy if decodes else None,
        "strategy_share": report.share if decodes else None,
        "syncs_per_token": report.syncs_per_token,
        "copies_per_token": report.copies_per_token,
        "launches_per_token": report.launches_per_token,
        "blocking_copies_per_token": report.blocking_copies_per_token,
        "polls_per_token": report.polls_per_token,
        "fetch_lag": report.fetch_lag,
        "waits_elsewhere": report.waits_elsewhere,
        "signature": report.signature,
        "signature_share": report.signature_share,
    }


def _of_gaps(report: GapReport) -> dict[str, Any]:
    idle, gap = report.untraced_idle_us or {}, report.untraced_gap_us or {}
    causes = present(report.causes_us)
    return {
        "idle_us": report.idle.idle_us,
        "idle_share": report.idle.share,
        "idle_where": report.idle.where,
        "untraced_steps_per_s": report.untraced_steps_per_s,
        "untraced_idle_us": idle.get("p50"),
        "untraced_idle_mean_us": idle.get("mean"),
        "estimated_untraced_idle_us": report.estimated_idle,
        "busy_us": report.idle.busy_us,
        "compute_us": report.compute_us,
        "gap_p50_us": report.gap_us["p50"],
        "gap_p90_us": report.gap_us["p90"],
        "gap_mean_us": report.gap_us["mean"],
        "untraced_gap_us": gap.get("p50"),
        "untraced_gap_mean_us": gap.get("mean"),
        "estimated_untraced_gap_us": report.estimated,
        "traced": report.warning is not None,
        "graph_trace": report.graph_trace,
        "period_us": report.period_us,
        "distortion": report.distortion,
        "warning": report.warning,
        "left_out": report.left_out,
        "causes_us": causes,
        "parts_us": {cause: report.parts_us[cause] for cause in causes},
        "untraced_causes_us": present(report.corrected().causes_us) if report.warning and gap else {},
    }


_RATES: Final = (
    "tokens_per_s", "tokens_per_s_spread", "steps_per_s", "measured_steps_per_s", "tokens_per_step",
    "traced_tokens_per_s",
)  # fmt: skip
"""Figures of the steps that several engines do not share."""

_PARTS: Final[dict[str, Callable[[Recording], dict[str, Any]]]] = {
    "steps": _of_steps, "syncs": _of_syncs, "gaps": lambda recording: _of_gaps(recording.gaps_at_rate),
}  # fmt: skip
