"""What to change: every edit of a recording that data flow allows is predicted, and kept if it gains for sure.

An edit is kept if its gain is above nothing by the whole model margin (`whatif.margin`); one of which no case was ever
measured has no margin, and is not kept, however much the replay gains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import Steps
from tracer.analysis.whatif.base import TRACED, Base, Figures
from tracer.analysis.whatif.edits import Edit, OneGraph, Strategy, WithoutSyncs
from tracer.analysis.whatif.needed import needed_syncs
from tracer.analysis.whatif.prediction import Prediction, predict_from
from tracer.analysis.whatif.strategies import LADDER
from tracer.errors import TraceError, UnsafePlanError, UsageError
from tracer.trace import Trace

_MOST_SYNCS: Final = 24
"""Positions of syncs that are tried one by one."""

_COPIES: Final = (
    "the copies of inputs go to the stream of the compute, which keeps them behind what still reads the inputs",
    "nothing writes to the source of a copy before it is done (pinned memory of its own for each step, or an event)",
)
CONDITIONS: Final = {
    "saaas": ("nothing writes to the source of a copy before the second sync",),
    "aaas": (_COPIES[0], "nothing writes to the source of a copy before the sync behind the copies"),
    "aaag": _COPIES,
    "ggg": ("the device chooses the token and prepares its own next step; the host reads tokens later",),
}
"""Strategy -> what must be true for it to be safe, beside the data flow that the recording shows."""

_SYNCS_GONE: Final = (
    "what the syncs guard beside the data flow that the recording shows is guarded otherwise: memory that the host "
    "writes to while a copy may still read it, or that it frees",
)
_AS_GRAPH: Final = (
    "shapes and addresses are the same in every step, or updated in the graph",
    "nothing between the launches reads a result on the host",
)


@dataclass(frozen=True)
class Advice:
    """An edit that gains.

    Attributes:
        edits: what is different.
        prediction: what that would be; its margin excludes no gain.
        conditions: what must be true for it to be safe, which the recording does not show.
        command: options of `intertoken whatif` that show it.
    """

    edits: tuple[Edit, ...]
    prediction: Prediction
    conditions: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Advised:
    """What is worth changing in a recording, and what is not.

    Attributes:
        kept: by gain, the largest first.
        unsure: label -> the prediction of an edit whose margin holds no gain, or that has none.
        refused: label -> why data flow forbids it.
        before: the recording, without its profiler where there is a rate.
        state: as of `Base`; `base.TRACED` where nothing is predicted, for want of a rate.
        bound: how much faster it would be if the device never idled; None where that is not known.
    """

    kept: tuple[Advice, ...]
    unsure: dict[str, Prediction]
    refused: dict[str, str]
    before: Figures
    state: str
    bound: float | None


@dataclass(frozen=True)
class _Candidate:
    edits: tuple[Edit, ...]
    conditions: tuple[str, ...]
    command: str


def advise(trace: Trace, steps: Steps, base: Base, more: Iterable[tuple[Edit, str, Sequence[str]]] = ()) -> Advised:
    """Try every edit.

    Args:
        trace: the recording.
        steps: its steps.
        base: what its predictions start from.
        more: edits that need more than the recording, with the options of `intertoken whatif` for them and what must
            be true.

    Raises:
        EmptyTraceError: no step is followed by another.
    """
    kept: list[Advice] = []
    unsure: dict[str, Prediction] = {}
    refused: dict[str, str] = {}
    extra = (_Candidate((edit,), tuple(conditions), command) for edit, command, conditions in more)
    for candidate in (*_candidates(trace, steps, base), *extra) if base.state != TRACED else ():
        label = ", ".join(edit.label for edit in candidate.edits)
        try:
            found = predict_from(base, candidate.edits)
        except UnsafePlanError as problem:
            refused[label] = str(problem)
        except (UsageError, TraceError):
            continue  # it cannot be made in this recording
        else:
            if found.speedup.low is not None and found.speedup.low > 1:
                kept.append(Advice(candidate.edits, found, candidate.conditions, candidate.command))
            else:
                unsure[label] = found
    kept.sort(key=lambda advice: advice.prediction.speedup.estimate, reverse=True)
    return Advised(tuple(kept), unsure, refused, base.before, base.state, _bound(base.before))


def _candidates(trace: Trace, steps: Steps, base: Base) -> Iterator[_Candidate]:
    strategy = sync_report(trace, steps).strategy if steps.decode_alone else None
    for name in LADDER[LADDER.index(strategy) + 1 :] if strategy in LADDER else ():
        yield _Candidate((Strategy(name),), CONDITIONS[name], f"--sync {name}")
    yield _Candidate((WithoutSyncs(),), _SYNCS_GONE, "--without-syncs")
    syncs = needed_syncs(base.causality, steps)
    free = syncs[syncs["reason"] == ""].groupby("position").size()
    for position in free[free * 2 > len(steps)].index[:_MOST_SYNCS]:
        yield _Candidate((WithoutSyncs((int(position),)),), _SYNCS_GONE, f"--without-sync {position}")
    for early in (False, True):
        conditions = (*_AS_GRAPH, "its kernels are built for programmatic dependent launch") if early else _AS_GRAPH
        yield _Candidate((OneGraph(early),), conditions, "--graph --early-starts" if early else "--graph")


def _bound(before: Figures) -> float | None:
    busy = before.period_us - before.idle_us["p50"] if "p50" in before.idle_us else 0.0
    return before.period_us / busy if busy > 0 else None
