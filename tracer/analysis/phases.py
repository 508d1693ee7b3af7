"""What steps are whose marks do not say it: judged by what they compute.

1. Training: optimizers, gradients and their kernels, which only training has; of most of the steps, or of single ones.
2. Decoding: one result fetched each step, and as input a token or nothing at all; or kernels that only the generation
   of one token after the other has. Then, of these steps, prompts: those in which some of the kernels that they share
   with the median one (at least `IN_COMMON`) are at least `WIDER` times as wide, in blocks per launch, while no more is
   fetched, or which take at least `LONGER` times as long. Where the median step replays a graph, also long ones that
   replay none of its graphs and fetch no more; other steps without a graph are `eager`, for they may be short prompts
   or a warm-up. Steps that verify drafts have kernels that say so.
3. What is left is a turn of a loop (`iteration`).

A loop of a solver or a classifier fetches small results, too, and a loop of prompts ends each in a token. So decoding
is sure only with evidence: attention of one query, products with one column, prompts beside the tokens, or an engine
that is known to replay whole graphs for decoding alone; else the confidence is at most `GUESSED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import COPIES, GRAPH_LAUNCH, LAUNCHES, among, match_rows, rows_named
from tracer.analysis.passes import GUESSED
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.engines import ENGINES
from tracer.engines.engine import DECODE, EAGER, ITERATION, PREFILL, SPECULATIVE, TOKEN_PHASES, TRAINING, Engine
from tracer.engines.torch import TRAINING_KERNELS, TRAINING_TEXT
from tracer.schema import MISSING
from tracer.trace import Trace

LONGER: Final = 1.5
WIDER: Final = 2.0
IN_COMMON: Final = 0.25
MOST: Final = 0.5
"""What holds of this share of the steps holds of all."""
_SHORT: Final = 0.1
MIN_LAYERS: Final = 3
"""A head alone computes for one token of a prompt, too."""
MIN_LOOP: Final = 3
"""Fewer steps are single passes."""
_FEW: Final = 0.05
"""What holds of no more of the steps than this changes no figure."""
ONE_TOKEN: Final = 8
"""The most bytes of one sequence's token."""
TOKEN_BYTES: Final = 64
"""A step's smallest input is at most this large where it is a number per sequence (token, position, length) of up to
eight sequences of 8 bytes, or sixteen of 4; a prompt or an image is larger."""

_GENERATES: Final = re.compile(
    r"(?i)gemv|mul_mat_vec|splitkv|split_kv|paged_attention|masked_multihead_attention|flash_attn(?:_ext)?_vec"
    r"|decode|argmax|reshape_and_cache|top_?k.*sampl|gumbel"
)
"""Kernels of a step that generates: products with one column, attention of one query, caches, sampling. Names of ggml,
cuBLAS, FlashAttention, FlashInfer, vLLM and TensorRT-LLM."""

_ONE_QUERY: Final = re.compile(
    r"(?i)mul_mat_vec|splitkv|split_kv|paged_attention_(?:v\d|ll4mi|2d)|masked_multihead_attention|\bmmha"
    r"|flash_attn(?:_ext)?_vec|batch_?decode|decode_?attention|attention_?decode|mla_?decode"
)
"""Of these, kernels for one token of a sequence, which prompts do not use."""

_VERIFIES: Final = re.compile(r"(?i)rejection_?(?:\w*_)?sampl|verify_?tree|tree_?speculative|eagle|medusa|spec_?verify")
"""Kernels that take or refuse drafts: vLLM, SGLang, TensorRT-LLM."""


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
    phase, confidence, detail = known.copy(), steps.confidence, steps.detail
    trains = _trains(trace, steps, of_kernel) & (known == "")
    asked = (known == "") & ~trains
    phase[trains], phase[asked] = TRAINING, ITERATION
    told = np.isin(known, TOKEN_PHASES).any()
    if trains.any() and steps.source == "calls":  # a loss may be fetched every few steps, or of every micro-batch
        confidence, detail = min(confidence, GUESSED), f"{detail}, which need not be steps of an optimizer"
    generates = bool(asked.any() and (told or _generates(trace, steps, calls, of_kernel, asked)))
    if asked.any() and not generates and steps.source == "calls":
        results = _turns(trace, steps, calls)[asked]
        if results.any() and np.median(results) < 1:
            confidence, detail = min(confidence, GUESSED), f"{detail}, of which several share a result"
    if generates:
        found, sure = _by_work(trace, steps, calls, known != PREFILL)
        found[(found == DECODE) & (_share_of(trace, of_kernel, _VERIFIES, len(steps)) > 0)] = SPECULATIVE
        phase[asked] = found[asked]
        if not told and _may_be_mixed(trace, steps, phase).mean() > _FEW:
            confidence, detail = min(confidence, GUESSED), f"{detail}, prompts beside which others may decode"
        if not told and not sure and not _one_token_each(trace, steps, of_kernel, phase == DECODE):
            confidence, detail = (
                min(confidence, GUESSED),
                f"{detail}, taken for decoding without a sign of one token each",
            )
    return replace(steps, table=steps.table.assign(phase=phase), confidence=confidence, detail=detail)


def _trains(trace: Trace, steps: Steps, of_kernel: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which steps train: all, if most of them show it."""
    nvtx, table = trace["nvtx"], steps.table
    texts = nvtx[rows_named(nvtx["text"], _has(TRAINING_TEXT))]
    begun = np.searchsorted(np.sort(texts["start"].to_numpy()), table["end"].to_numpy())
    ended = np.searchsorted(np.sort(texts["end"].to_numpy()), table["start"].to_numpy(), side="right")
    found = (begun > ended) | (_share_of(trace, of_kernel, TRAINING_KERNELS, len(steps)) > 0)
    return np.full(len(found), True) if found.mean() >= MOST else found


def _share_of(trace: Trace, of_kernel: NDArray[np.int64], names: re.Pattern[str], steps: int) -> NDArray[np.float64]:
    """The share of each step's kernels that have such a name."""
    all_of = np.bincount(of_kernel[of_kernel >= 0], minlength=steps)
    return _count_of(trace, of_kernel, names, steps) / np.maximum(all_of, 1)


def _count_of(trace: Trace, of_kernel: NDArray[np.int64], names: re.Pattern[str], steps: int) -> NDArray[np.int64]:
    """How many of each step's kernels have such a name."""
    chosen = rows_named(trace["kernels"]["name"], _has(names))
    return np.bincount(of_kernel[(of_kernel >= 0) & chosen], minlength=steps)


def _one_token_each(trace: Trace, steps: Steps, of_kernel: NDArray[np.int64], decodes: NDArray[np.bool_]) -> bool:
    """Whether there is evidence that these steps compute a token each: by their kernels; or they replay one graph each,
    and the recording has such kernels outside of graphs, or those of an engine that replays whole graphs to decode."""
    if not decodes.any():
        return True
    if (_count_of(trace, of_kernel, _ONE_QUERY, len(steps))[decodes] >= MIN_LAYERS).mean() > MOST:
        return True
    at = activity_steps(trace, steps, trace["graph_launches"])
    if np.median(np.bincount(at[at >= 0], minlength=len(steps))[decodes]) != 1:
        return False
    return (
        _whole_graphs_decode(trace) or int(rows_named(trace["kernels"]["name"], _has(_ONE_QUERY)).sum()) >= MIN_LAYERS
    )


def _whole_graphs_decode(trace: Trace) -> bool:
    """Whether kernels of an engine are there that replays whole graphs for nothing but decoding."""
    return _has_kernels_of(trace, [engine for engine in ENGINES if engine.whole_graphs_decode])


def _has_kernels_of(trace: Trace, engines: list[Engine]) -> bool:
    """Whether kernels are there that only one of these engines launches."""
    patterns = [engine.kernels for engine in engines if engine.kernels is not None]
    return any(rows_named(trace["kernels"]["name"], _has(pattern)).any() for pattern in patterns)


def _has(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.search(name) is not None


def _generates(
    trace: Trace, steps: Steps, calls: pd.DataFrame, of_kernel: NDArray[np.int64], asked: NDArray[np.bool_]
) -> bool:
    """Whether most of the steps that are asked about generate tokens."""
    if asked.sum() < MIN_LOOP or not steps.passes:
        return False
    if steps.source == "nvtx" and np.median(_turns(trace, steps, calls)[asked]) > 1:
        return False  # a mark around a request
    if (_share_of(trace, of_kernel, _GENERATES, len(steps))[asked] > 0).mean() > MOST:
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
    return bool((fetches & ((least[asked] <= TOKEN_BYTES) | without)).mean() > MOST)


def _turns(trace: Trace, steps: Steps, calls: pd.DataFrame) -> NDArray[np.int64]:
    """How often each step's host fetches something behind launches."""
    launches = among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES)
    outs = (calls["kind"] == "DtoH").to_numpy()
    rows = calls[launches | outs].sort_values("start", kind="stable")
    at = steps.of(*(rows[name].to_numpy() for name in ("start", "process", "thread")))
    order = np.argsort(at, kind="stable")
    out = (rows["kind"] == "DtoH").to_numpy()[order]
    fetches = out & ~np.append(True, out[:-1]) & (at[order] >= 0)
    return np.bincount(at[order][fetches], minlength=len(steps))


def _by_work(
    trace: Trace, steps: Steps, calls: pd.DataFrame, regular: NDArray[np.bool_]
) -> tuple[NDArray[np.object_], bool]:
    """Per step that generates its phase, by its work; and whether that is sure: wide prompts beside narrow tokens.

    `regular` are those that may be a median step.
    """
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
    short = regular & (busy < LONGER * np.quantile(busy[regular], _SHORT))
    narrow = short if short.sum() >= MIN_LOOP else usual  # prompts may be the most
    prompts = (long | same) & _wider(trace["kernels"], of_kernel, long | same, narrow)
    sure = bool(0 < prompts.sum() <= (~prompts).sum())
    if usual.any() and np.median(graphs[usual]) > 0:
        result[graphs == 0] = EAGER
        prompts |= long & (graphs == 0) & (fetched < LONGER * np.median(fetched[usual]))
        other = long & (graphs > 0) & _other_graphs(trace["graph_launches"], of_graph, usual) & ~prompts
        other &= fetched < LONGER * np.median(fetched[usual])
        if not _whole_graphs_decode(trace):  # else graphs of larger batches
            prompts |= other
            sure &= not other.any()
    result[prompts] = PREFILL
    return result, sure


def _may_be_mixed(trace: Trace, steps: Steps, phase: NDArray[np.object_]) -> NDArray[np.bool_]:
    """Which steps compute a prompt in which others may decode: it follows decoding, and more is fetched than a token of
    one sequence, or than a graph gives that only one sequence replays."""
    follows = pd.Series(phase == DECODE).groupby(steps.table["group"].to_numpy()).cumsum().to_numpy() > 0
    fetched = _fetched(trace, steps)
    alone = fetched <= ONE_TOKEN
    at = activity_steps(trace, steps, trace["graph_launches"])
    replays = np.bincount(at[at >= 0], minlength=len(steps)) > 0
    if replays.any() and _has_kernels_of(trace, [engine for engine in ENGINES if engine.one_sequence_graphs]):
        alone |= fetched <= np.median(fetched[replays])
    return np.asarray(follows & (phase == PREFILL) & ~alone)


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
