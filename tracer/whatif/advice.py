"""What to change: every edit of a recording that data flow allows is predicted.

An edit is kept if its gain exceeds the whole model margin (`fits.Margin`). An edit of a kind that was never measured
has no margin and is not kept, however large the predicted gain. A prediction above what the device would gain without
any idle time is withheld. The recorded engine's settings name the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.call_sites import RANGES, call_sites
from tracer.analysis.evidence import engine_of
from tracer.analysis.interval import SHOWN
from tracer.analysis.path.paths import work_at
from tracer.analysis.recording import Recording
from tracer.analysis.syncs import SyncReport
from tracer.analysis.tokens import Steps
from tracer.engines.engine import COPIES, GRAPH, RUN_AHEAD, Engine, Setting
from tracer.errors import CannotTellError, TraceError, UnsafePlanError, UsageError
from tracer.model.calls import GRAPH_LAUNCH
from tracer.model.columns import most_common, numbers
from tracer.model.run_json import is_ours
from tracer.model.trace import Trace
from tracer.text import percent
from tracer.whatif.base import TRACED, Base, Figures
from tracer.whatif.changes import Changes, Edit
from tracer.whatif.edits import LADDER, CopiesBehind, FollowStrategy, LaunchFirst, MergedCopies, ReadLater, WithoutSyncs
from tracer.whatif.graph_edits import IntoGraph, OneGraph, eager_launches
from tracer.whatif.needed import needed_syncs
from tracer.whatif.prediction import Prediction, predict

_MOST_SYNCS: Final = 24
"""Maximum number of sync positions to try individually."""
_MOST_SITES: Final = 8
_MOST_EAGER: Final = 16

_COPIES: Final = (
    "input copies are enqueued on the compute stream, so that they run after the previous step has read its inputs",
    "no copy's source is overwritten before the copy has finished (pinned memory per step, or an event)",
)
CONDITIONS: Final = {
    "saaas": ("no copy's source is overwritten before the second sync",),
    "aaas": (_COPIES[0], "no copy's source is overwritten before the sync that follows the copies"),
    "aaag": _COPIES,
    "ggg": ("the device samples the token and prepares its next step; the host reads tokens later",),
}
"""Strategy -> what must be true for it to be safe, in addition to the data flow that the recording shows."""

_SYNCS_GONE: Final = (
    "whatever else the syncs protect is protected in another way, such as host memory that is overwritten or freed "
    "while a copy may still read it",
)
_STAGED: Final = (
    "inputs are in one pinned host buffer and one device buffer, from which the kernels read them",
    "the pinned buffer is written again only after the copy has finished",
)
_LATER: Final = ("none of that code prepares what the launch reads (or another thread prepares it ahead)",)
_EARLY: Final = ("the copied inputs are known one step ahead, whatever the result of the previous step", _COPIES[0])
_SAMPLED: Final = (
    "the device chooses the token and the next step starts from it",
    "the host decides the next step before it has the result (stop conditions may take effect a step later)",
)
_AS_GRAPH: Final = (
    "shapes and addresses are the same in every step, or updated in the graph",
    "the host reads no result between the launches",
)


_EDITS: Final[dict[str, Edit]] = {RUN_AHEAD: ReadLater(), GRAPH: OneGraph()}
"""What an unused setting changes -> the edit that predicts it."""


@dataclass(frozen=True)
class Advice:
    """An edit whose gain exceeds its margin.

    Attributes:
        edits: the changes.
        prediction: the predicted figures.
        conditions: what must be true for the edit to be safe but cannot be seen in the recording.
        command: options of `intertoken whatif` that show it.
        effort: what it takes to make, by the kind of edit.
        settings: the names of the change in the recorded engine.
        sites: where in the program the calls that it removes are made, the most common first; empty if unknown.
    """

    edits: tuple[Edit, ...]
    prediction: Prediction
    conditions: tuple[str, ...]
    effort: str
    command: str
    settings: tuple[Setting, ...]
    sites: tuple[str, ...]


@dataclass(frozen=True)
class KernelOutsideGraph:
    """A kernel that is launched individually in steps that also launch a graph.

    Attributes:
        kernel: its short name.
        operator: the innermost range around its launch; "" for none.
        site: the function that launches it most often, see `call_sites`; "" if no functions are recorded.
        where: before or after the step's first graph.
        per_step: the number of launches per step.
        hole_us, kernel_us, launch_us: means per step, as recorded: the time before the kernel during which nothing runs
            on its device, the kernel's own time, and the time inside the launch call.
        speedup: predicted with the kernel in the graph, which was never measured; None if nothing is predicted.
        why: why nothing is predicted; "" if something is.
    """

    kernel: str
    operator: str
    where: str
    per_step: float
    hole_us: float
    kernel_us: float
    launch_us: float
    speedup: float | None
    why: str
    site: str


@dataclass(frozen=True)
class Advised:
    """The results of `advise`.

    Attributes:
        kept: edits by gain, the largest first.
        unsure: label -> the prediction of an edit without a margin, or whose margin includes zero.
        refused: label -> why data flow forbids the edit.
        withheld: label -> why the gain of the edit cannot be determined from this recording.
        before: the figures of the recording, without the profiler if a rate is known.
        state: as in `Base`; `base.TRACED` if nothing is predicted because no rate is known.
        bound: speedup if the device never idled; None if unknown. No prediction is above it.
        engine: the engine that was recorded; None if unknown.
        unused: settings of the engine that are off in the recording, and the label of the edit that predicts each.
        eager: kernels launched individually in steps that also launch a graph, the largest holes first.
    """

    kept: tuple[Advice, ...]
    unsure: dict[str, Prediction]
    refused: dict[str, str]
    withheld: dict[str, str]
    before: Figures
    state: str
    bound: float | None
    engine: Engine | None
    unused: dict[Setting, str]
    eager: tuple[KernelOutsideGraph, ...]


@dataclass(frozen=True)
class _Candidate:
    edits: tuple[Edit, ...]
    conditions: tuple[str, ...]
    command: str


def advise(recording: Recording, base: Base, functions: Trace | None = None) -> Advised:
    """Try every edit.

    Args:
        base: the starting point of its predictions.
        functions: the same recording with its Python functions, where it was read without them.

    Raises:
        EmptyTraceError: no step is followed by another.
    """
    trace, steps = recording.trace, recording.steps
    kept: list[Advice] = []
    unsure: dict[str, Prediction] = {}
    refused: dict[str, str] = {}
    withheld: dict[str, str] = {}
    engine, syncs = engine_of(trace), recording.syncs
    offered = engine.settings if engine is not None else ()
    unused = _unused(offered, syncs) if steps.decodes else ()
    bound = _bound(base.before)
    strategy = syncs.strategy if steps.decode_alone else None
    for candidate in _candidates(strategy, steps, base) if base.state != TRACED else ():
        label = ", ".join(edit.label for edit in candidate.edits)
        try:
            prediction = predict(base, candidate.edits, timeline=False)
        except UnsafePlanError as problem:
            refused[label] = str(problem).removeprefix(f"{label}: ").removeprefix(f"{label} is impossible: ")
        except CannotTellError as problem:
            withheld[label] = str(problem)
        except (UsageError, TraceError):
            continue  # this recording does not allow the edit
        else:
            if bound is not None and prediction.speedup.estimate > bound * (1 + SHOWN):
                gain, most = (f"{percent(each - 1)}" for each in (prediction.speedup.estimate, bound))
                withheld[label] = f"the prediction, {gain}, is above what the device would gain without idling, {most}"
            elif prediction.speedup.low is not None and prediction.speedup.low > 1 + SHOWN:
                names = tuple(name for edit in candidate.edits for name in _settings_of(offered, edit))
                sites = _sites(base, candidate.edits, functions or trace)
                effort = effort_of(candidate.edits[0], names)
                kept.append(
                    Advice(candidate.edits, prediction, candidate.conditions, effort, candidate.command, names, sites)
                )
            else:
                unsure[label] = prediction
    kept.sort(key=lambda advice: advice.prediction.speedup.estimate, reverse=True)
    known = {setting for advice in kept for setting in advice.settings}
    edits = {setting: _EDITS[setting.change].label for setting in unused if setting not in known}
    eager = tuple(_eager(base, steps, functions or trace))
    return Advised(tuple(kept), unsure, refused, withheld, base.before, base.state, bound, engine, edits, eager)


def _candidates(strategy: str | None, steps: Steps, base: Base) -> Iterator[_Candidate]:
    for name in LADDER[LADDER.index(strategy) + 1 :] if strategy in LADDER else ():
        yield _Candidate((FollowStrategy(name),), CONDITIONS[name], f"--sync {name}")
    yield _Candidate((WithoutSyncs(),), _SYNCS_GONE, "--without-syncs")
    syncs = needed_syncs(base.causality, steps)
    free = np.flatnonzero(np.bincount(syncs.position[~syncs.is_needed]) * 2 > len(steps))
    for position in free[:_MOST_SYNCS].tolist():
        yield _Candidate((WithoutSyncs((position,)),), _SYNCS_GONE, f"--without-sync {position}")
    for early in (False, True) if _starts_early(base, steps) else (False,):
        conditions = (*_AS_GRAPH, "its kernels are built for programmatic dependent launch") if early else _AS_GRAPH
        yield _Candidate((OneGraph(early),), conditions, "--graph --early-starts" if early else "--graph")
    yield _Candidate((IntoGraph(),), _AS_GRAPH, "--eager-into-graph")
    yield _Candidate((MergedCopies(),), _STAGED, "--merge-copies")
    yield _Candidate((LaunchFirst(),), _LATER, "--launch-first")
    yield _Candidate((CopiesBehind(),), _EARLY, "--copies-behind")
    yield _Candidate((ReadLater(),), _SAMPLED, "--read-later")


def _starts_early(base: Base, steps: Steps) -> bool:
    """Whether the program's kernels can start early: the recording shows as many that start before the previous one of
    their stream has ended as it has steps, or it is of our executor, which builds its kernels for that.
    """
    work, at = base.causality.segments.activities, base.causality.once(work_at, steps)
    kernel = work.is_kernel & (at >= 0)
    early = kernel[1:] & kernel[:-1] & (work.lane[1:] == work.lane[:-1]) & (work.start[1:] < work.end[:-1])
    return is_ours(base.causality.trace) or int(early.sum()) >= len(steps)


def _eager(base: Base, steps: Steps, trace: Trace) -> Iterator[KernelOutsideGraph]:
    launches = eager_launches(base.causality, steps)
    places = call_sites(trace, base.causality.segments.calls[launches.table.call])
    sites = np.where(places.source != RANGES, places.site, "")
    table, number = launches.by_kernel(), launches.table.kinds[0]
    for row in range(min(len(table), _MOST_EAGER)):
        edit = IntoGraph(table.kernel.at(row), table.operator.at(row), table.where.at(row))
        speedup, why = None, "the untraced rate is not known"
        if base.state != TRACED:
            try:
                speedup, why = predict(base, (edit,), timeline=False).of_steps.estimate, ""
            except (UnsafePlanError, TraceError) as problem:
                why = str(problem)
        yield KernelOutsideGraph(
            kernel=str(edit.kernel),
            operator=edit.operator,
            where=edit.where,
            per_step=float(table.per_step[row]),
            hole_us=float(table.hole_us[row]),
            kernel_us=float(table.kernel_us[row]),
            launch_us=float(table.launch_us[row]),
            speedup=speedup,
            why=why,
            site=most_common(sites[number == table.number[row]]),
        )


def _sites(base: Base, edits: tuple[Edit, ...], trace: Trace) -> tuple[str, ...]:
    changes = Changes(base.causality, base.assumed)
    for edit in edits:
        edit.apply(changes, base.steps)
    calls = changes.calls[changes.removed[: len(changes.calls)]]
    sites = call_sites(trace, calls).site
    counts = Counter(sites[sites != ""].tolist())
    return tuple(site for site, _ in counts.most_common(_MOST_SITES))


def _bound(before: Figures) -> float | None:
    busy = before.period_us - before.idle_us["p50"] if "p50" in before.idle_us else 0.0
    return before.period_us / busy if busy > 0 else None


def _settings_of(offered: Sequence[Setting], edit: Edit) -> tuple[Setting, ...]:
    """Those of an engine's settings that make the change of an edit, see `Setting.change`."""
    if isinstance(edit, FollowStrategy):
        change = RUN_AHEAD if edit.name == LADDER[-1] else COPIES
    else:
        change = {OneGraph: GRAPH, ReadLater: RUN_AHEAD}.get(type(edit), "")
    return tuple(setting for setting in offered if setting.change == change)


def effort_of(edit: Edit, settings: tuple[Setting, ...]) -> str:
    """The effort of an edit, judged by its kind: a setting of the engine, or the part of the program that changes."""
    if any(setting.change != COPIES for setting in settings):
        return "small: a setting of the engine"
    match edit:
        case WithoutSyncs():
            return "small: calls are deleted"
        case FollowStrategy(name) if name != LADDER[-1]:
            return "medium: the code that copies a step's inputs changes"
        case FollowStrategy() | ReadLater():
            return "large: sampling and the preparation of the next step move to the device"
        case OneGraph(early):
            return "large: kernels are rebuilt" if early else "medium: the step is captured as a graph and replayed"
        case IntoGraph():
            return "medium: the launches move into the capture"
        case MergedCopies():
            return "small: inputs share a buffer"
        case CopiesBehind():
            return "medium: known inputs are copied a step earlier"
    return "medium: host code is reordered, or moves to another thread"


def _unused(offered: Sequence[Setting], report: SyncReport) -> tuple[Setting, ...]:
    """An engine's settings that are off according to the recorded steps.

    The host runs ahead if it reads the result of an earlier step than the one launched last. A step is one graph launch
    if the median step replays one graph; with none it is eager, with several it is piecewise.
    """
    step, steps = numbers(report.rows.step)
    graphs = np.bincount(step[report.rows.letter == GRAPH_LAUNCH], minlength=steps)
    is_off = {
        RUN_AHEAD: report.fetch_lag is not None and report.fetch_lag.median == 0,
        GRAPH: bool(len(graphs)) and float(np.median(graphs)) != 1,
    }
    return tuple(setting for setting in offered if is_off.get(setting.change))
