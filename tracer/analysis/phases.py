"""What steps are whose marks do not say it: judged by what they compute.

1. Training: optimizers, gradients and their kernels, which only training has; of most of the steps, or of single ones.
2. Decoding: one result fetched each step, and as input a token or nothing at all; or kernels that only the generation
   of one token after the other has. Then, of these steps, prompts: those in which some of the kernels that they share
   with the median one (at least `IN_COMMON`) are at least `WIDER` times as wide, in blocks per launch, while no more is
   fetched, or which take at least `LONGER` times as long. Where the median step replays a graph, also long ones that
   replay none and fetch no more; other steps without a graph are `eager`, for they may be short prompts or a warm-up.
   Steps that verify drafts have kernels that say so.
3. What is left is a turn of a loop (`iteration`).

A loop of a solver or a classifier fetches small results, too, and a loop of prompts ends each in a token. So decoding
is sure only with evidence: attention of one query, products with one column, prompts beside the tokens, or an engine
that is known to replay whole graphs for decoding alone; else the confidence is at most `GUESSED`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.calls import GRAPH_LAUNCH, LAUNCHES, rows_named
from tracer.analysis.passes import GUESSED, MIN_STEPS, MOST
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.analysis.turns import Bools, Ints
from tracer.engines import ENGINES
from tracer.engines.engine import DECODE, EAGER, ITERATION, PREFILL, SPECULATIVE, TOKEN_PHASES, TRAINING, Engine
from tracer.engines.torch import TRAINING_KERNELS, TRAINING_TEXT
from tracer.trace import Trace

LONGER: Final = 1.5
WIDER: Final = 2.0
IN_COMMON: Final = 0.25
_SHORT: Final = 0.1
MIN_LAYERS: Final = 3
"""A head alone computes for one token of a prompt, too."""
_FEW: Final = 0.05
"""What holds of no more of the steps than this changes no figure."""
ONE_TOKEN: Final = 8
"""The most bytes of one sequence's token."""
TOKEN_BYTES: Final = 64
"""A step's smallest input is at most this large where it is a number per sequence (token, position, length) of up to
eight sequences of 8 bytes, or sixteen of 4; a prompt or an image is larger."""

_NOTHING: Final = np.iinfo(np.int64).max

_ONE_QUERY: Final = re.compile(
    r"(?i)mul_mat_vec|splitkv|split_kv|paged_attention_(?:v\d|ll4mi|2d)|masked_multihead_attention|\bmmha"
    r"|flash_attn(?:_ext)?_vec|batch_?decode|decode_?attention|attention_?decode|mla_?decode"
)
"""Kernels for one token of a sequence, which prompts do not use: products with one column, attention of one query.
Names of ggml, cuBLAS, FlashAttention, FlashInfer, vLLM and TensorRT-LLM."""

_GENERATES: Final = re.compile(
    _ONE_QUERY.pattern + "|gemv|paged_attention|decode|argmax|reshape_and_cache|top_?k.*sampl|gumbel"
)
"""These, and others of a step that generates: caches, sampling."""

_VERIFIES: Final = re.compile(r"(?i)rejection_?(?:\w*_)?sampl|verify_?tree|tree_?speculative|eagle|medusa|spec_?verify")
"""Kernels that take or refuse drafts: vLLM, SGLang, TensorRT-LLM."""


@dataclass(frozen=True)
class _Work:
    """What the steps launched and fetched.

    Attributes:
        kernels, graphs: of each row of trace["kernels"] and trace["graph_launches"] the position of its step, or -1.
        replays: how many graphs each step launches.
        fetched: bytes that each copies to the host.
        smallest: bytes of each step's smallest copy to the device; `_NOTHING` where there is none.
        results: how often each step's host fetches something behind launches.
    """

    trace: Trace
    kernels: Ints
    graphs: Ints
    replays: Ints
    fetched: Ints
    smallest: Ints
    results: Ints

    @classmethod
    def of(cls, trace: Trace, steps: Steps, calls: pd.DataFrame) -> _Work:
        """Of all steps; `calls` as `calls.host_calls` gives them."""
        copies = trace["memcpys"]
        at, size, out = activity_steps(trace, steps, copies), copies["bytes"].to_numpy(), copies["kind"] == "DtoH"
        fetches, gives = out & (at >= 0), ~out & (copies["kind"] != "DtoD") & (at >= 0)
        smallest = np.full(len(steps), _NOTHING)
        np.minimum.at(smallest, at[gives], size[gives])
        calls = calls[calls["letter"].isin(LAUNCHES) | (calls["kind"] == "DtoH")].sort_values("start", kind="stable")
        step = steps.of(*(calls[name].to_numpy() for name in ("start", "process", "thread")))
        order = np.argsort(step, kind="stable")
        fetch = (calls["kind"] == "DtoH").to_numpy()[order]
        return cls(
            trace,
            activity_steps(trace, steps, trace["kernels"]),
            activity_steps(trace, steps, trace["graph_launches"]),
            _counted(step[(calls["letter"] == GRAPH_LAUNCH).to_numpy()], len(steps)),
            np.bincount(at[fetches], size[fetches].clip(0), minlength=len(steps)).astype(np.int64),
            smallest,
            _counted(step[order][fetch & ~np.append(True, fetch[:-1])], len(steps)),
        )

    def named(self, names: re.Pattern[str]) -> Ints:
        """How many of each step's kernels have such a name."""
        return _counted(self.kernels[rows_named(self.trace["kernels"]["name"], _has(names))], len(self.replays))

    def of_engine(self, engines: list[Engine]) -> bool:
        """Whether kernels are there that only one of these engines launches."""
        patterns = [engine.kernels for engine in engines if engine.kernels is not None]
        return any(rows_named(self.trace["kernels"]["name"], _has(pattern)).any() for pattern in patterns)


def _counted(at: Ints, steps: int) -> Ints:
    return np.bincount(at[at >= 0], minlength=steps)


def _has(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda name: pattern.search(name) is not None


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
    work = _Work.of(trace, steps, calls)
    phase, doubts = known.copy(), []
    trains = _trains(work, steps) & (known == "")
    asked = (known == "") & ~trains
    phase[trains], phase[asked] = TRAINING, ITERATION
    told = np.isin(known, TOKEN_PHASES).any()
    if trains.any() and steps.source == "calls":  # a loss may be fetched every few steps, or of every micro-batch
        doubts.append("which need not be steps of an optimizer")
    if asked.any() and (told or _generates(work, steps, asked)):
        found, sure = _by_work(work, known != PREFILL)
        found[(found == DECODE) & (work.named(_VERIFIES) > 0)] = SPECULATIVE
        phase[asked] = found[asked]
        if not told and _may_be_mixed(work, steps, phase).mean() > _FEW:
            doubts.append("prompts beside which others may decode")
        if not told and not sure and not _one_token_each(work, phase == DECODE):
            doubts.append("taken for decoding without a sign of one token each")
    elif steps.source == "calls" and work.results[asked].any() and np.median(work.results[asked]) < 1:
        doubts.append("of which several share a result")
    confidence = min(steps.confidence, GUESSED) if doubts else steps.confidence
    table = steps.table.assign(phase=phase)
    return replace(steps, table=table, confidence=confidence, detail=", ".join([steps.detail, *doubts]))


def _trains(work: _Work, steps: Steps) -> Bools:
    """Which steps train: all, if most of them show it."""
    nvtx, table = work.trace["nvtx"], steps.table
    texts = nvtx[rows_named(nvtx["text"], _has(TRAINING_TEXT))]
    begun = np.searchsorted(np.sort(texts["start"].to_numpy()), table["end"].to_numpy())
    ended = np.searchsorted(np.sort(texts["end"].to_numpy()), table["start"].to_numpy(), side="right")
    found = (begun > ended) | (work.named(TRAINING_KERNELS) > 0)
    return np.full(len(found), True) if found.mean() >= MOST else found


def _generates(work: _Work, steps: Steps, asked: Bools) -> bool:
    """Whether most of the steps that are asked about generate tokens."""
    if asked.sum() < MIN_STEPS or not steps.passes:
        return False
    if steps.source == "nvtx" and np.median(work.results[asked]) > 1:
        return False  # a mark around a request
    inputs = (work.smallest <= TOKEN_BYTES) | (work.smallest == _NOTHING)
    return bool((work.named(_GENERATES)[asked] > 0).mean() > MOST or ((work.fetched > 0) & inputs)[asked].mean() > MOST)


def _one_token_each(work: _Work, decodes: Bools) -> bool:
    """Whether there is evidence that these steps compute a token each: by their kernels; or they replay one graph each,
    and the recording has such kernels outside of graphs, or those of an engine that replays whole graphs to decode."""
    if not decodes.any() or (work.named(_ONE_QUERY)[decodes] >= MIN_LAYERS).mean() > MOST:
        return True
    if np.median(_counted(work.graphs, len(decodes))[decodes]) != 1:
        return False
    all_of = rows_named(work.trace["kernels"]["name"], _has(_ONE_QUERY)).sum()
    return bool(all_of >= MIN_LAYERS) or work.of_engine([engine for engine in ENGINES if engine.whole_graphs_decode])


def _by_work(work: _Work, regular: Bools) -> tuple[NDArray[np.object_], bool]:
    """Per step that generates its phase, by its work; and whether that is sure: wide prompts beside narrow tokens.

    `regular` are those that may be a median step.
    """
    busy = np.zeros(len(regular))
    for name, of in (("kernels", work.kernels), ("graph_launches", work.graphs)):
        spent = (work.trace[name]["end"] - work.trace[name]["start"]).to_numpy()
        busy += np.bincount(of[of >= 0], spent[of >= 0], minlength=len(regular))
    long = busy >= LONGER * np.median(busy[regular])
    usual = regular & ~long
    result = np.full(len(regular), DECODE, dtype=object)
    same = (work.fetched > 0) & (work.fetched < WIDER * np.median(work.fetched[usual])) if usual.any() else long
    short = regular & (busy < LONGER * np.quantile(busy[regular], _SHORT))
    narrow = short if short.sum() >= MIN_STEPS else usual  # prompts may be the most
    prompts = (long | same) & _wider(work, long | same, narrow)
    sure = bool(0 < prompts.sum() <= (~prompts).sum())
    if usual.any() and np.median(work.replays[usual]) > 0:
        result[work.replays == 0] = EAGER
        prompts |= long & (work.replays == 0) & (work.fetched < LONGER * np.median(work.fetched[usual]))
    result[prompts] = PREFILL
    return result, sure


def _may_be_mixed(work: _Work, steps: Steps, phase: NDArray[np.object_]) -> Bools:
    """Which steps compute a prompt in which others may decode: it follows decoding, and more is fetched than a token of
    one sequence, or than a graph gives that only one sequence replays."""
    follows = pd.Series(phase == DECODE).groupby(steps.table["group"].to_numpy()).cumsum().to_numpy() > 0
    alone = work.fetched <= ONE_TOKEN
    replays = _counted(work.graphs, len(phase)) > 0
    if replays.any() and work.of_engine([engine for engine in ENGINES if engine.one_sequence_graphs]):
        alone |= work.fetched <= np.median(work.fetched[replays])
    return np.asarray(follows & (phase == PREFILL) & ~alone)


def _wider(work: _Work, asked: Bools, usual: Bools) -> Bools:
    """Which of the steps that are asked about have enough kernels that are `WIDER` there than in the usual ones."""
    of = work.kernels
    rows = work.trace["kernels"][of >= 0]
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
