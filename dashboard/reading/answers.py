"""Slow analyses of runs that the pages ask for, computed in the background: syncs and their slack, predicted gains,
advice, call sites, predicted timelines; and comparisons of runs with the first one, as in `intertoken compare`.

Questions hold weak references to runs, so that answers do not keep a run alive after its recording was removed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from dashboard.reading.run import LazyTrace, Run, run_of
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.timeline.flows import open_ranges
from tracer.analysis import compare
from tracer.analysis.call_sites import RANGES, CallMoments, HostStep, by_site, call_sites, host_steps, without_site
from tracer.analysis.gaps import gap_report
from tracer.analysis.idle_sites import Sampled, idle_by_site, sampled_functions
from tracer.analysis.path import paths
from tracer.analysis.recorded import Measured
from tracer.analysis.recording import Recording
from tracer.analysis.surplus import ranges_around
from tracer.analysis.syncs import WAITS
from tracer.analysis.tokens import Steps
from tracer.errors import EmptyTraceError, IntertokenError, printable
from tracer.model.calls import SYNC
from tracer.model.calls import plain as plain_call
from tracer.model.columns import of_thread
from tracer.model.trace import Trace
from tracer.notes import brief
from tracer.reporting.compare import compare_table
from tracer.whatif.advice import Advised, advise
from tracer.whatif.base import CORRECTED, TRACED, Base
from tracer.whatif.changes import Edit
from tracer.whatif.edits import WithoutSyncs
from tracer.whatif.prediction import Prediction, predict

_SYNCS: Final = "syncs"
_ADVICE: Final = "advice"
_SITE: Final = "site"
_WHAT_IF: Final = "what-if"
_MOST_WHAT_IFS: Final = 50
_FIGURES: Final = 7_000  # events that weigh as much as the rest of a what-if beside its timelines


@dataclass(frozen=True)
class WhatIf:
    """A prediction, and the runs to draw: the recorded one (without its profiler, if it had one) and the predicted."""

    prediction: Prediction
    runs: tuple[Run, ...]


def calls_of(store: RunStore, run: Run) -> Future[pd.DataFrame]:
    """Every sync, copy and launch of a run's steps, see `paths.call_slack`; raises TraceError if there is no path."""
    return store.background.ask(_SYNCS, (run.recorded, "calls"), lambda: _calls(store, run).frame(), len)


def activities_of(store: RunStore, run: Run) -> Future[pd.DataFrame]:
    """The slack of what ran on the device, see `paths.activity_slack`."""

    def work() -> pd.DataFrame:
        causality = _causality(store, run)
        ends = paths.StepEnds.of(causality, _recorded(run)[1])
        return paths.activity_slack(causality, ends, paths.critical_path(causality, ends)).frame()

    return store.background.ask(_SYNCS, (run.recorded, "activities"), work, len)


def _calls(store: RunStore, run: Run) -> paths.CallSlack:
    causality, steps = _causality(store, run), _recorded(run)[1]
    ends = paths.StepEnds.of(causality, steps)
    return paths.call_slack(causality, ends, paths.critical_path(causality, ends), steps)


def site_of(store: RunStore, run: Run, call: pd.DataFrame) -> Future[tuple[str, str]]:
    """The call site of a call, and the function it went through, see `call_sites`; "" if no function is recorded.

    The run is read again if its Python functions were left out. `call` is a row with start (ns), process, thread and
    correlation.
    """
    process, thread, start = (int(call[name].iloc[0]) for name in ("process", "thread", "start"))

    def work() -> tuple[str, str]:
        recorded = _recorded(run)[0]
        ranges = open_ranges(store.with_functions(run) or recorded, process, thread, start)
        api, chains = of_thread(recorded["api"], process, thread), recorded["callchains"]
        api = api[api["start"] == start]
        chains = chains[chains["chain"].isin(api["callchain"])]
        made = CallMoments(*(call[name].to_numpy(np.int64) for name in ("start", "process", "thread", "correlation")))
        sites = call_sites(Trace({"nvtx": ranges, "api": api, "callchains": chains}), made)
        return ("", "") if sites.source[0] == RANGES else (str(sites.site[0]), str(sites.through[0]))

    return store.background.ask(_SITE, (run.recorded, "site", process, thread, start), work)


def slack_of(store: RunStore, run: Run) -> Future[pd.DataFrame]:
    """The syncs of a run, see `syncs_by_position`; raises TraceError if there is no path."""

    return store.background.ask(
        _SYNCS, (run.recorded, "slack"), lambda: paths.syncs_by_position(_calls(store, run)).frame()
    )


def gain_without(store: RunStore, run: Run, positions: tuple[int, ...] | None) -> Future[Prediction]:
    """The prediction without the syncs at these positions, None for all unneeded ones; it has no trace.

    Raises UnsafePlanError if the data flow needs one of them, or TraceError if nothing can be predicted.
    """

    def work() -> Prediction:
        return predict(_base(store, run), [WithoutSyncs(positions)], timeline=False)

    return store.background.ask(_SYNCS, (run.recorded, "without", positions, run.rate), work)


def advice_of(store: RunStore, run: Run) -> Future[Advised]:
    """Edits worth making in a run; their predictions have no traces.

    Raises TraceError if nothing can be predicted.
    """

    def work() -> Advised:
        return advise(run.analysed(), _base(store, run), store.with_functions(run))

    return store.background.ask(_ADVICE, (run.recorded, "advice", run.rate), work)


@dataclass(frozen=True)
class Listed:
    """A row of the inventory without answers, and a step that has that sync: its number, and the call."""

    row: dict[str, Any]
    step: int
    call: pd.DataFrame


def inventory_of(store: RunStore, run: Run) -> list[Listed]:
    """The rows of `SyncReport.inventory`, each with thread and NVTX path of the middle step that has it."""
    return store.background.now((run.recorded, "inventory"), lambda: _inventory(run), len)


def _inventory(run: Run) -> list[Listed]:
    if run.syncs is None or run.trace is None:
        return []
    calls = run.syncs.calls[run.syncs.calls["letter"].isin(WAITS)]
    what = calls["letter"].map(WAITS)
    by_position = calls.groupby([what, calls.groupby([what, calls["step"]]).cumcount() + 1])
    threads = run.trace["threads"]
    inventory = []
    for row in run.syncs.inventory().records():
        waits = by_position.get_group((row["what"], row["position"]))
        call = waits.iloc[len(waits) // 2]
        process, thread, start = (int(call[c]) for c in ("process", "thread", "start"))
        names = of_thread(threads, process, thread)["name"]
        name = plain(str(names.iloc[0]), 60) if len(names) else ""
        facts = {
            **{key: row[key] for key in ("what", "position", "steps", "stream", "median_us", "max_us")},
            "waiting_share": None if pd.isna(row["waiting_share"]) else row["waiting_share"],
            "name": plain(plain_call(row["name"]), 200),
            "waits_for": plain(str(row["waits_for"]), 200),
            "key": str(row["position"]) if row["what"] == WAITS[SYNC] else f"{row['what']} {row['position']}",
            "thread": f"{name} {thread}".strip(),
            "path": plain(" › ".join(ranges_around(run.trace.nvtx, start, process, thread)), 300),
        }
        inventory.append(Listed(facts, int(call["step"]), waits.iloc[[len(waits) // 2]]))
    return inventory


@dataclass(frozen=True)
class Sites:
    """The call sites at which a run's host spends its time.

    Attributes:
        idle: while the device idles, see `idle_by_site`; None if the recording shows no idle time.
        calls: in launches, copies and waits, see `by_site`; None if the recording shows no calls.
        notes: the parts without a call site.
        hosts: the host in the median step and in a slow one, see `host_steps`, and in samples, if there are any.
        threads: the threads for which the host waits meanwhile, as in `IdleReport.threads`.
        sampled: what samples show of the time in which the device idles.
    """

    idle: pd.DataFrame | None
    calls: pd.DataFrame | None
    notes: list[str]
    hosts: list[HostStep] = field(default_factory=list)
    threads: list[dict[str, Any]] = field(default_factory=list)
    sampled: Sampled | None = None


def sites_of(store: RunStore, run: Run) -> Future[Sites]:
    """The call sites of a run, which is read again if its Python functions were left out."""

    def work() -> Sites:
        without, steps = _recorded(run)
        trace = store.with_functions(run) or without
        idle = calls = sampled = None
        notes: list[str] = []
        threads: list[dict[str, Any]] = []
        if run.gaps is not None:
            by_idle = idle_by_site(trace, steps, run.gaps.idle)
            idle = by_idle.frame()
            sampled = sampled_functions(trace, steps, run.gaps.idle)
            gaps = run.gaps if trace is without else gap_report(trace, steps)  # functions show who holds the GIL
            threads = [asdict(thread) for thread in gaps.idle.threads]
            notes += map(brief, without_site(by_idle.unknown))
        if run.syncs is not None:
            calls = by_site(run.syncs.rows, call_sites(trace, run.syncs.rows), run.syncs.steps).frame()
        hosts = [*host_steps(trace, steps), *([sampled.host_step()] if sampled else [])]
        return Sites(idle, calls, notes, hosts, threads, sampled)

    return store.background.ask(_ADVICE, (run.recorded, "sites"), work, lambda _: _FIGURES)


def what_if(store: RunStore, run: Run, question: Hashable, edits: Callable[[], Sequence[Edit]]) -> Future[WhatIf]:
    """A run with edits; raises the errors of creating them, and of the prediction.

    `question` distinguishes the prediction from others of the run.
    """

    def work() -> WhatIf:
        base = _base(store, run)
        prediction = predict(base, edits())
        before = run
        if base.state == CORRECTED:
            before = _run(run, f"{run.name} · without its profiler", predict(base, []).trace)
        under = ", still under its profiler" if base.state == TRACED else ""
        return WhatIf(prediction, (before, _run(run, f"{run.name} · {prediction.label}{under}", prediction.trace)))

    def weight(answer: WhatIf) -> int:
        return 2 * len(answer.prediction.trace) + _FIGURES

    return store.background.ask(_WHAT_IF, (run.recorded, question, run.rate), work, weight, _MOST_WHAT_IFS)


def _recorded(run: Run) -> tuple[Trace, Steps]:
    if run.trace is None or run.steps is None:
        raise EmptyTraceError(f"{run.name} has no token steps")
    return run.trace, run.steps


def _causality(store: RunStore, run: Run) -> paths.Causality:
    """The dependencies of a run."""
    trace = _recorded(run)[0]
    return store.background.now(
        (run.recorded, "causality"), lambda: paths.Causality.of(trace), lambda _: 2 * len(trace)
    )


def _base(store: RunStore, run: Run) -> Base:
    """The starting point of a run's predictions, from its rate."""

    def work() -> Base:
        return Base.of(_causality(store, run), run.analysed())

    return store.background.now((run.recorded, "base", run.rate), work, lambda _: len(_recorded(run)[0]))


def _run(run: Run, name: str, trace: Trace) -> Run:
    """A predicted trace as a run for the timeline; without steps if none are found in it."""
    analysed, recording = (
        Recording(trace, name, within=run.within, bounds=run.bounds),
        LazyTrace(run.path or Path(), trace),
    )
    return run_of(analysed, recording, key=run.key, owner=run.owner, predicted=True)


_LANE: Final = "compare"
_NUMBERS: Final = ("base", "other", "estimate", "low", "high")


@dataclass(frozen=True, eq=False)
class Against:
    """A run compared with the base; `comparison` is None if `problem` says why the two cannot be compared."""

    base: Run
    other: Run
    comparison: compare.Comparison | None = None
    problem: str = ""


def measured(run: Run) -> Measured:
    """A run's measurement for comparisons, under a name that can be shown.

    Raises:
        TraceError: it can no longer be read, or it has no two consecutive steps.
    """
    return run.analysed().measured


def against_base(runs: Sequence[Run], recording_of: Callable[[Run], Measured] = measured) -> list[Against]:
    """Compare all other runs with the first one, each on the best basis that both have."""
    sides: dict[str, compare.Side] = {}
    problems: dict[str, str] = {}
    base, *others = runs
    for run in runs if others else ():
        try:
            sides[run.key] = compare.Side.of(recording_of(run))
        except IntertokenError as problem:
            problems[run.key] = printable(str(problem))
    answers = []
    for other in others:
        why, comparison = problems.get(base.key) or problems.get(other.key, ""), None
        try:
            comparison = None if why else compare.compare(sides[base.key], sides[other.key])
        except IntertokenError as problem:
            why = printable(str(problem))
        answers.append(Against(base, other, comparison, why))
    return answers


def ask_against_base(store: RunStore, runs: Sequence[Run]) -> Future[list[Against]]:
    """Like `against_base`, but computed in the background; a run's measurement is shared by all its comparisons."""

    def recording_of(run: Run) -> Measured:
        return store.background.now((run.recorded, "measured", run.state), lambda: measured(run), _weight)

    question = "against", *((run.recorded, run.state) for run in runs)
    return store.background.ask(
        _LANE, question, lambda: against_base(runs, recording_of), lambda answers: sum(map(_kept, answers))
    )


def _weight(recording: Measured) -> int:
    return len(recording.kernels) + len(recording.device_steps)


def _kept(against: Against) -> int:
    return 1 if against.comparison is None else sum(_weight(r) for r in against.comparison.other.recordings)


def cautions_of(comparisons: Sequence[Against]) -> list[str]:
    """Cautions that apply to any of their differences, each once."""
    known = [one.comparison for one in comparisons if one.comparison is not None]
    return list(dict.fromkeys(text for comparison in known for text in comparison.cautions))


def methods_of(comparisons: Sequence[Against]) -> str:
    """How the intervals of rates were computed; "" if there are none."""
    known = [one.comparison for one in comparisons if one.comparison is not None]
    methods = "; ".join(dict.fromkeys(each.method for each in known if each.speedup is not None))
    return f"95 % intervals of rates: {methods}." if methods else ""


def comparison_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per figure and run, except the first run, as returned by `tracer.reporting.compare.compare_table`.

    Columns run, against (the first), figure, base, other, estimate, low, high, and problem: a run that cannot be
    compared has one row that says why; for others it is empty.
    """
    columns = ["run", "against", "figure", "base", "other", "estimate", "low", "high", "problem"]
    tables = [_rows(comparison).reindex(columns=columns) for comparison in against_base(runs)] if runs else []
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def _rows(against: Against) -> pd.DataFrame:
    rows = pd.DataFrame([{"figure": ""}]) if against.comparison is None else compare_table([against.comparison])
    numbers = {name: rows.get(name, pd.Series(dtype="float64")).astype("float64") for name in _NUMBERS}
    return rows.assign(run=against.other.key, against=against.base.key, problem=against.problem, **numbers)
