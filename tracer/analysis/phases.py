"""Prefill and decode told apart: by what NVTX says, else by the work of a step.

A step is a prefill if the device computes for it at least `LONGER` times as long as for the median step, and some of
the kernels that both have (a share of at least `IN_COMMON`) are at least `WIDER` times as wide, in blocks per launch:
norms and additions over many tokens are. Where graphs hide the kernels, it must have launched no graph that the median
step launched.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import match_rows
from tracer.analysis.launches import Launches
from tracer.schema import MISSING
from tracer.trace import Trace

PREFILL: Final = "prefill"
DECODE: Final = "decode"
PHASES: Final = (PREFILL, DECODE)

LONGER: Final = 1.5
WIDER: Final = 2.0
IN_COMMON: Final = 0.25
"""Also the share of the decode kernels' names that a prefill has, at least: fewer has another work (autotuning)."""

_PREFILL_TEXT: Final = re.compile(
    r"(?i)(?<![a-z])(prefill|prompt|extend)(?![a-z])"
    r"|context_[1-9]\d*\("  # vLLM: execute_context_1(512)_generation_0(0)
    r"|(?<!\d)[1-9]\d* ctx reqs"  # TensorRT-LLM: _forward_step 7: 1 ctx reqs, 0 gen reqs
)
_DECODE_TEXT: Final = re.compile(r"(?i)(?<![a-z])(decode|token)(?![a-z])|context_0\(|(?<!\d)0 ctx reqs")


def phase_of_text(text: str) -> str:
    """The phase that an NVTX text names, "" if it names none; a step with prompt and decode tokens is a prefill.

    Example:
        >>> phase_of_text("prefill"), phase_of_text("token 3"), phase_of_text("forward")
        ('prefill', 'decode', '')
    """
    if _PREFILL_TEXT.search(text):
        return PREFILL
    return DECODE if _DECODE_TEXT.search(text) else ""


def phases_of_work(trace: Trace, launches: Launches, turns: pd.DataFrame) -> NDArray[np.object_]:
    """Per turn PREFILL or DECODE, by its work.

    Args:
        trace: the recording.
        launches: of a thread.
        turns: columns first and last (launches, half open, ascending) and regular: those are the majority.
    """
    turn = np.full(len(launches), -1)
    first, sizes = turns["first"].to_numpy(), (turns["last"] - turns["first"]).to_numpy()
    inside = np.arange(sizes.sum()) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
    turn[inside] = np.repeat(np.arange(len(turns)), sizes)
    calls = launches.calls.iloc[launches.rows]
    kernels = trace["kernels"]
    rows = match_rows(calls, kernels)
    of_kernel = np.where(rows >= 0, turn[rows], -1) if len(calls) else rows
    graphs = trace["graph_launches"]
    rows = match_rows(calls, graphs)
    of_graph = np.where(rows >= 0, turn[rows], -1) if len(calls) else rows
    return judge(trace, of_kernel, of_graph, turns["regular"].to_numpy())


def judge(
    trace: Trace, of_kernel: NDArray[np.int64], of_graph: NDArray[np.int64], regular: NDArray[np.bool_]
) -> NDArray[np.object_]:
    """Per step PREFILL or DECODE, by its work.

    Args:
        trace: the recording.
        of_kernel, of_graph: the step of each row of its kernels and graph_launches, or -1.
        regular: of each step, whether it may be a median step.
    """
    busy = np.zeros(len(regular))
    for name, of in (("kernels", of_kernel), ("graph_launches", of_graph)):
        spent = (trace[name]["end"] - trace[name]["start"]).to_numpy()
        busy += np.bincount(of[of >= 0], spent[of >= 0], minlength=len(regular))
    long = busy >= LONGER * np.median(busy[regular])
    result = np.full(len(regular), DECODE, dtype=object)
    if not long.any() or not busy.any():
        return result
    usual = regular & ~long
    wide = _wider(trace["kernels"], of_kernel, long, usual)
    others = _other_graphs(trace["graph_launches"], of_graph, usual)
    result[long & (wide if (of_kernel >= 0).any() and usual[of_kernel[of_kernel >= 0]].any() else others)] = PREFILL
    return result


def _wider(
    kernels: pd.DataFrame, of: NDArray[np.int64], long: NDArray[np.bool_], usual: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether enough of the kernels that a long step shares with the usual ones are `WIDER` there."""
    chosen = of >= 0
    chosen[chosen] = (long | usual)[of[chosen]]
    rows = kernels[chosen]
    blocks = rows["grid_x"] * rows["grid_y"] * rows["grid_z"]
    name = np.asarray(rows["name"].cat.codes, dtype=np.int64)
    names = len(rows["name"].cat.categories)
    kind = np.where(usual[of[chosen]], 0, of[chosen] + 1)  # all usual steps are one
    key, inverse, count = np.unique(kind * names + name, return_inverse=True, return_counts=True)
    width = np.bincount(inverse, blocks.abs().to_numpy()) / count
    means = pd.DataFrame({"kind": key // names, "name": key % names, "width": width})
    reference = means[means["kind"] == 0].set_index("name")["width"]
    shared = means[(means["kind"] > 0) & means["name"].isin(reference.index)]
    ratio = shared["width"] / reference.reindex(shared["name"]).to_numpy()
    by_step = (ratio >= WIDER).groupby(shared["kind"]).agg(["mean", "size"])
    enough = (by_step["mean"] >= IN_COMMON) & (by_step["size"] >= IN_COMMON * len(reference))
    result = np.zeros(len(long), dtype=bool)
    result[by_step.index[enough].to_numpy() - 1] = True
    return result


def _other_graphs(graphs: pd.DataFrame, of: NDArray[np.int64], usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a step launched none of the graphs that the usual steps launch."""
    known = of >= 0
    usual_graphs = graphs["graph"][known & usual[np.maximum(of, 0)]].unique()
    same = known & graphs["graph"].isin([g for g in usual_graphs if g != MISSING]).to_numpy()
    result = np.ones(len(usual), dtype=bool)
    result[of[same]] = False
    return result
