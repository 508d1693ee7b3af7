"""What steps are whose marks do not say it: judged by what they compute.

1. Training: optimizers, gradients and their kernels, which only training has.
2. Decoding: one result fetched each step, and as input a token or nothing at all; or kernels that only the generation
   of one token after the other has. Then, of these steps, prompts: those in which some of the kernels that they share
   with the median one (at least `IN_COMMON`) are at least `WIDER` times as wide, in blocks per launch, while no more is
   fetched, or which take at least `LONGER` times as long. Where the median step replays a graph, also long ones that
   replay none of its graphs; other steps without a graph are `eager`, for they may be short prompts or a warm-up.
3. What is left is a turn of a loop (`iteration`).
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import COPIES, GRAPH_LAUNCH, among, match_rows, rows_named
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.engines.engine import DECODE, EAGER, ITERATION, PREFILL, TOKEN_PHASES, TRAINING
from tracer.engines.torch import TRAINING_KERNELS, TRAINING_TEXT
from tracer.schema import MISSING
from tracer.trace import Trace

LONGER: Final = 1.5
WIDER: Final = 2.0
IN_COMMON: Final = 0.25
MIN_LOOP: Final = 3
"""Fewer steps are single passes."""
TOKEN_BYTES: Final = 64
"""A step's smallest input is at most this large where it is a number per sequence (token, position, length) of up to
eight sequences of 8 bytes, or sixteen of 4; a prompt or an image is larger."""

_ONE_TOKEN: Final = re.compile(
    r"(?i)gemv|mul_mat_vec|splitkv|split_kv|paged_attention|masked_multihead_attention|flash_attn(?:_ext)?_vec"
    r"|decode|argmax|reshape_and_cache|top_?k.*sampl|gumbel"
)
"""Kernels of a step that generates: products with one column, attention of one query, sampling. Names of ggml,
cuBLAS, FlashAttention, FlashInfer, vLLM and TensorRT-LLM."""


def with_phases(trace: Trace, steps: Steps, calls: pd.DataFrame) -> Steps:
    """The steps, each with a phase; those whose marks tell it keep theirs.

    Args:
        trace: the recording.
        steps: found in it.
        calls: as `calls.host_calls` gives them.
    """
    known = steps.table["phase"].to_numpy(dtype=object)
    if (known != "").all():
        return steps
    of_kernel = activity_steps(trace, steps, trace["kernels"])
    phase = known.copy()
    if _trains(trace, steps, of_kernel):
        phase[known == ""] = TRAINING
    elif np.isin(known, TOKEN_PHASES).any() or _generates(trace, steps, calls, of_kernel, known == ""):
        phase[known == ""] = _by_work(trace, steps, calls, known != PREFILL)[known == ""]
    else:
        phase[known == ""] = ITERATION
    return steps.with_table(steps.table.assign(phase=phase))


def _trains(trace: Trace, steps: Steps, of_kernel: NDArray[np.int64]) -> bool:
    nvtx, table = trace["nvtx"], steps.table
    texts = nvtx[rows_named(nvtx["text"], lambda text: TRAINING_TEXT.search(text) is not None)]
    if ((texts["start"] < table["end"].max()) & (texts["end"] > table["start"].min())).any():
        return True
    return bool((_share_of(trace, of_kernel, TRAINING_KERNELS, len(steps)) > 0).mean() > 0.5)


def _share_of(trace: Trace, of_kernel: NDArray[np.int64], names: re.Pattern[str], steps: int) -> NDArray[np.float64]:
    """The share of each step's kernels that have such a name."""
    chosen = rows_named(trace["kernels"]["name"], lambda name: names.search(name) is not None)
    inside = of_kernel >= 0
    all_of = np.bincount(of_kernel[inside], minlength=steps)
    return np.bincount(of_kernel[inside & chosen], minlength=steps) / np.maximum(all_of, 1)


def _generates(
    trace: Trace, steps: Steps, calls: pd.DataFrame, of_kernel: NDArray[np.int64], asked: NDArray[np.bool_]
) -> bool:
    """Whether most of the steps that are asked about generate tokens."""
    if asked.sum() < MIN_LOOP:
        return False
    if (_share_of(trace, of_kernel, _ONE_TOKEN, len(steps))[asked] > 0).mean() > 0.5:
        return True
    letters = calls["letter"].to_numpy(dtype="U1")
    copies = calls[among(letters, COPIES)]
    at = steps.of(*(copies[name].to_numpy() for name in ("start", "process", "thread")))
    copied = match_rows(trace["memcpys"], copies)
    size = np.append(trace["memcpys"]["bytes"].to_numpy(), MISSING)[copied]
    out = (copies["kind"] == "DtoH").to_numpy()
    fetches = np.bincount(at[out & (at >= 0)], minlength=len(steps))[asked] > 0
    into = ~out & (copies["kind"] != "DtoD").to_numpy() & (at >= 0)
    least = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(least, at[into], size[into])
    without = np.bincount(at[into], minlength=len(steps))[asked] == 0
    return bool((fetches & ((least[asked] <= TOKEN_BYTES) | without)).mean() > 0.5)


def _by_work(trace: Trace, steps: Steps, calls: pd.DataFrame, regular: NDArray[np.bool_]) -> NDArray[np.object_]:
    """Per step that generates its phase, by its work; `regular` are those that may be a median step."""
    of_kernel, of_graph = (activity_steps(trace, steps, trace[name]) for name in ("kernels", "graph_launches"))
    busy = np.zeros(len(regular))
    for name, of in (("kernels", of_kernel), ("graph_launches", of_graph)):
        spent = (trace[name]["end"] - trace[name]["start"]).to_numpy()
        busy += np.bincount(of[of >= 0], spent[of >= 0], minlength=len(regular))
    long = busy >= LONGER * np.median(busy[regular])
    usual = regular & ~long
    result = np.full(len(regular), DECODE, dtype=object)
    launching = calls[calls["letter"] == GRAPH_LAUNCH]
    at = steps.of(*(launching[name].to_numpy() for name in ("start", "process", "thread")))
    graphs = np.bincount(at[at >= 0], minlength=len(regular))
    fetched = _fetched(trace, steps)
    same = (fetched > 0) & (fetched < WIDER * np.median(fetched[usual])) if usual.any() else long
    prompts = (long | same) & _wider(trace["kernels"], of_kernel, long | same, usual)
    if usual.any() and np.median(graphs[usual]) > 0:
        result[graphs == 0] = EAGER
        prompts |= long & ((graphs == 0) | _other_graphs(trace["graph_launches"], of_graph, usual))
    result[prompts] = PREFILL
    return result


def _fetched(trace: Trace, steps: Steps) -> NDArray[np.int64]:
    """The bytes that each step copies to the host."""
    copies = trace["memcpys"]
    copies = copies[copies["kind"] == "DtoH"]
    at = activity_steps(trace, steps, copies)
    return np.bincount(at[at >= 0], copies["bytes"].to_numpy().clip(0)[at >= 0], minlength=len(steps)).astype(np.int64)


def _wider(
    kernels: pd.DataFrame, of: NDArray[np.int64], asked: NDArray[np.bool_], usual: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which of the steps that are asked about have enough kernels that are `WIDER` there than in the usual ones."""
    rows = kernels[of >= 0]
    blocks = (rows["grid_x"] * rows["grid_y"] * rows["grid_z"]).abs()
    launched = pd.DataFrame({"step": of[of >= 0], "name": rows["name"].cat.codes, "blocks": blocks})
    means = launched.groupby(["step", "name"])["blocks"].mean().reset_index()
    reference = means[usual[means["step"]]].groupby("name")["blocks"].median()
    shared = means[asked[means["step"]] & means["name"].isin(reference.index)]
    ratio = shared["blocks"] / reference.reindex(shared["name"]).to_numpy()
    by_step = (ratio >= WIDER).groupby(shared["step"]).agg(["mean", "size"])
    enough = (by_step["mean"] >= IN_COMMON) & (by_step["size"] >= IN_COMMON * len(reference))
    result = np.zeros(len(usual), dtype=bool)
    result[by_step.index[enough]] = True
    return result


def _other_graphs(graphs: pd.DataFrame, of: NDArray[np.int64], usual: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a step launched none of the graphs that the usual steps launch."""
    known = of >= 0
    usual_graphs = graphs["graph"][known & usual[np.maximum(of, 0)]].unique()
    same = known & graphs["graph"].isin([g for g in usual_graphs if g != MISSING]).to_numpy()
    result = np.ones(len(usual), dtype=bool)
    result[of[same]] = False
    return result
