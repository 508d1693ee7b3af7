"""Whether each step that was found is one whole pass through a model, as far as what it launches shows.

A fetch may bring the result of a part of a pass (a routing, a check, a piece of a graph that the host computes on), of
several passes (a loss every ten steps, an image, a whole request), or of something that is no model's. So it is asked:

1. does the step launch a graph, or kernels that repeat layer by layer?
2. is it one pass: no graph twice, no layers of layers?
3. do all steps replay the same graph, or does each of several come round every k-th step?
4. do passes of two sizes take turns (drafts, two models, prompts of one token)?
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.analysis.calls import GRAPH_LAUNCH
from tracer.analysis.turn_order import MIN_STEPS, MOST_DRAFTS
from tracer.analysis.turns import Bools, Host, Ints, has_layers
from tracer.schema import MISSING

NO_PASS: Final = "which show no whole pass through a model"
_MOST_STEPS: Final = 512
"""Steps that are looked at, from the middle."""
_SHARE: Final = 0.9
_COME_BACK: Final = 1.5  # runs of each kind
_FEW: Final = 0.02
_LONGEST: Final = 1 << 14  # launches of a step that are looked at


def doubt_of(host: Host, steps: pd.DataFrame) -> str:
    """Why these steps may be parts of passes, or several; "" where all that is asked speaks for one pass each.

    Args:
        host: whose steps they are.
        steps: columns first and last (its launches, half open) and kind.
    """
    launches = host.calls.iloc[host.launches]
    code = np.where((launches["device"] >= 0).to_numpy(), launches["code"].to_numpy(), MISSING)
    graph = (launches["letter"] == GRAPH_LAUNCH).to_numpy()
    middle = max((len(steps) - _MOST_STEPS) // 2, 0)
    steps = steps.iloc[middle : middle + _MOST_STEPS]
    spans = list(zip(steps["first"].tolist(), steps["last"].tolist(), strict=True))
    usual = (steps["kind"] == steps["kind"].mode()[0]).to_numpy()
    number, _ = pd.factorize(np.array([code[a:b].tobytes() for a, b in spans], dtype=object))
    distinct = [slice(*spans[i]) for i in np.unique(number, return_index=True)[1]]
    found = np.array([_passes(code[span], graph[span]) for span in distinct])[number][usual]
    if np.mean(found == 0) > 1 - _SHARE:
        return NO_PASS
    if np.mean(found > 1) > 1 - _SHARE:
        return "which may be several passes each"
    if _has_parts([code[a:b][graph[a:b]] for a, b in spans]):
        return "of which several may be one step: they replay different graphs in turn"
    replays = np.array([bool(graph[a:b].any()) for a, b in spans])
    if _take_turns(steps["kind"].to_numpy(), replays):
        return "of two sizes in turn: drafts, prompts, or two models"
    return ""


def _passes(code: Ints, graph: Bools) -> int:
    """How many passes through a model a step seems to be: 0, 1, or 2 for more."""
    code, graph = code[:_LONGEST], graph[:_LONGEST]
    graphs = code[graph]
    if len(graphs):
        return 2 if len(np.unique(graphs)) < len(graphs) or (len(graphs) > 1 and (graphs == MISSING).any()) else 1
    if not has_layers(code):
        return 0
    names, first, count = np.unique(code, return_index=True, return_counts=True)
    for name in names[(count >= 2) & (first < len(code) // 2)].tolist():
        unit = int(np.median(np.diff(np.flatnonzero(code == name))))
        if len(code) >= 2 * unit and np.mean(code[unit:] == code[:-unit]) >= _SHARE and has_layers(code[:unit]):
            return 2
    return 1


def _has_parts(launched: list[Ints]) -> bool:
    """Whether a graph is replayed by every k-th step, and by no other."""
    pairs = pd.DataFrame({
        "step": np.repeat(np.arange(len(launched)), [len(each) for each in launched]), "code": np.concatenate(launched),
    }).drop_duplicates()  # fmt: skip
    count = pairs.groupby("code")["step"].transform("size")
    some = pairs[(count >= 3) & (count > _FEW * len(launched)) & (count < _SHARE * len(launched))]
    distance = some.sort_values(["code", "step"]).groupby("code")["step"].diff()
    found = pd.DataFrame({"code": some.sort_values(["code", "step"])["code"], "distance": distance}).dropna()
    for _, distances in found.groupby("code")["distance"]:
        usual = distances.mode()[0]
        if usual > 1 and (distances % usual == 0).mean() >= _SHARE:
            return True
    return False


def _take_turns(kind: Ints, replays: Bools) -> bool:
    """Whether passes of several kinds, all graphs or all eager, come back after no more steps than there are drafts."""
    known = kind != MISSING
    kind, replays = kind[known], replays[known]
    if not len(kind) or replays.any() != replays.all():
        return False
    edges = np.flatnonzero(np.concatenate(([True], kind[1:] != kind[:-1], [True])))
    runs, kinds = len(edges) - 1, len(np.unique(kind))
    return runs >= 2 * MIN_STEPS and runs > _COME_BACK * kinds and bool(np.median(np.diff(edges)) <= MOST_DRAFTS)
