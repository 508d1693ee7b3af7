"""What the pages syncs and what-if ask about a run: slack, predicted gains, another timeline. All of it takes seconds.

Questions refer to runs weakly, so that one whose recording is gone is not kept for its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pandas as pd

from dashboard.run import Recording, Run
from dashboard.store import RunStore
from tracer.analysis.causality.paths import Causality, StepEnds, call_slack, critical_path
from tracer.analysis.causality.positions import syncs_by_position
from tracer.analysis.summary import summarise
from tracer.analysis.tokens import Steps, find_steps
from tracer.analysis.whatif.base import CORRECTED, TRACED, Base
from tracer.analysis.whatif.edits import Edit, WithoutSyncs
from tracer.analysis.whatif.prediction import Prediction, predict_from
from tracer.errors import EmptyTraceError, TraceError
from tracer.trace import Trace

_SYNCS: Final = "syncs"
_WHAT_IF: Final = "what-if"
_MOST_WHAT_IFS: Final = 50
_FIGURES: Final = 7_000  # events that weigh as much as what a what-if holds beside its timelines


@dataclass(frozen=True)
class WhatIf:
    """A prediction, and the runs to draw: the recorded one (without its profiler, if it had one) and the predicted."""

    found: Prediction
    runs: tuple[Run, ...]


def calls_of(store: RunStore, run: Run) -> Future[pd.DataFrame]:
    """Every sync, copy and launch of a run's steps, see `paths.call_slack`; fails with TraceError where there is no
    path."""
    return store.background.ask(_SYNCS, (run.recorded, "calls"), lambda: _calls(store, run), len)


def _calls(store: RunStore, run: Run) -> pd.DataFrame:
    causality, steps = _causality(store, run), _recorded(run)[1]
    ends = StepEnds.of(causality, steps)
    return call_slack(causality, ends, critical_path(causality, ends), steps)


def slack_of(store: RunStore, run: Run) -> Future[pd.DataFrame]:
    """The syncs of a run, see `positions.syncs_by_position`; fails with TraceError where there is no path."""

    return store.background.ask(_SYNCS, (run.recorded, "slack"), lambda: syncs_by_position(_calls(store, run)))


def gain_without(store: RunStore, run: Run, positions: tuple[int, ...] | None) -> Future[Prediction]:
    """What a run would be without the syncs at these positions, None for all that nothing needs; it has no trace.

    Fails with UnsafePlanError where data flow needs one, or TraceError where nothing can be predicted.
    """

    def work() -> Prediction:
        found = predict_from(_base(store, run), [WithoutSyncs(positions)])
        return replace(found, trace=Trace({}))

    return store.background.ask(_SYNCS, (run.recorded, "without", positions, run.rate), work)


def what_if(
    store: RunStore,
    run: Run,
    question: Hashable,
    edits: Callable[[], Sequence[Edit]],
) -> Future[WhatIf]:
    """What a run would be with edits; fails with what making them, or the prediction, raises.

    Args:
        store: that has the run.
        run: which.
        question: what tells this one from others of the run.
        edits: makes them.
    """

    def work() -> WhatIf:
        base = _base(store, run)
        found = predict_from(base, edits())
        before = run
        if base.state == CORRECTED:
            before = _run(run, f"{run.name} · without its profiler", predict_from(base, []).trace)
        under = ", still under its profiler" if base.state == TRACED else ""
        return WhatIf(found, (before, _run(run, f"{run.name} · {found.label}{under}", found.trace)))

    def weight(answer: WhatIf) -> int:
        return 2 * len(answer.found.trace) + _FIGURES

    return store.background.ask(_WHAT_IF, (run.recorded, question, run.rate), work, weight, _MOST_WHAT_IFS)


def _recorded(run: Run) -> tuple[Trace, Steps]:
    if run.trace is None or run.steps is None:
        raise EmptyTraceError(f"{run.name} has no token steps")
    return run.trace, run.steps


def _causality(store: RunStore, run: Run) -> Causality:
    """What waits for what in a run."""
    trace = _recorded(run)[0]
    return store.background.now((run.recorded, "causality"), lambda: Causality.of(trace), lambda _: 2 * len(trace))


def _base(store: RunStore, run: Run) -> Base:
    """What the predictions of a run start from, by its rate."""

    def found() -> Base:
        return Base.of(_causality(store, run), _recorded(run)[1], run.rate, run.within)

    return store.background.now((run.recorded, "base", run.rate), found, lambda _: len(_recorded(run)[0]))


def _run(run: Run, name: str, trace: Trace) -> Run:
    """A predicted trace as a run that a timeline can show; without steps where none are to be seen in it."""
    try:
        steps = find_steps(trace, within=run.within)
    except TraceError:
        steps = None
    summary, recording = summarise(trace, name, run.within), Recording(run.path or Path(), trace)
    return Run(run.key, name, summary, recording, steps, path=run.path, within=run.within, predicted=True)
