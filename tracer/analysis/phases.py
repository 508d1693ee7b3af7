"""The phase of steps whose marks do not give it, judged by their compute.

1. Training: optimizers, gradients and their kernels, which only training has, in most or some of the steps.
2. Decoding: one result fetched per step, and a token or nothing as input; or kernels that only token-by-token
   generation has. Among these steps, prompts are those in which some of the kernels shared with the typical step (at
   least `IN_COMMON`) are at least `LONGER` times as wide, in blocks per launch, while no more is fetched, or which take
   that many times as long. If the typical step replays a graph, long steps that replay none and fetch no more are
   prompts too; other steps without a graph are `eager`, since they may be short prompts or a warm-up. Steps that verify
   drafts have kernels that show it.
3. Everything else is one iteration of a loop (`iteration`).

A solver's or a classifier's loop also fetches small results, and each iteration of a loop over prompts ends in a token.
So decoding is certain only with evidence: attention with one query, products with one column, prompts among the tokens,
or an engine known to replay whole graphs only for decoding. Otherwise the confidence is at most `GUESSED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.passes import CONSTANT, GUESSED, MOST
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.analysis.turns import LONGER, SEVERAL, brings_drafts
from tracer.engines import engines
from tracer.engines.engine import DECODE, EAGER, ITERATION, PREFILL, SPECULATIVE, TOKEN_PHASES, TRAINING, Engine
from tracer.engines.torch import TRAINING_KERNELS, TRAINING_TEXT
from tracer.model.calls import GRAPH_LAUNCH, LAUNCHES
from tracer.model.intervals import Bools, Ints
from tracer.model.rows import among, rows_named, taken
from tracer.model.trace import Trace

IN_COMMON: Final = 0.25
_FEW: Final = 0.05
"""What applies to at most this share of the steps does not change a figure."""
ONE_TOKEN: Final = 8
"""Maximum number of bytes of one sequence's token. The smallest input of a step is at most `ONE_TOKEN` times as large
if it is one number per sequence (token, position, length), for up to that many sequences; a prompt or an image is
larger."""

_ONE_QUERY: Final = re.compile(
    r"(?i)mul_mat_vec|splitkv_(?:combine|mla)|split_kv|paged_attention_(?:v\d|ll4mi|2d)|masked_multihead_attention|\bmmha"
    r"|flash_attn(?:_ext)?_vec|batch_?decode|decode_?attention|attention_?decode|mla_?decode"
)
"""Kernels for one token of a sequence, which prompts do not use: products with one column, attention with one query.
Names from ggml, cuBLAS, FlashAttention, FlashInfer, vLLM and TensorRT-LLM. The output head has one for a prompt too.
FlashAttention 2 runs `flash_fwd_splitkv_kernel` for every paged cache, prompts included (`mha_varlen_fwd` in its
flash_api.cpp); only for one query it splits, and then combines."""

_GENERATES: Final = re.compile(
    _ONE_QUERY.pattern + "|splitkv|gemv|paged_attention|decode|argmax|reshape_and_cache|top_?k.*sampl|gumbel"
)
"""These and other kernels of a step that generates: caches, sampling."""

_VERIFIES: Final = re.compile(r"(?i)rejection_?(?:\w*_)?sampl|verify_?tree|tree_?speculative|eagle|medusa|spec_?verify")
"""Kernels that accept or reject drafts: vLLM, SGLang, TensorRT-LLM."""


def with_phases(trace: Trace, steps: Steps, calls: pd.DataFrame) -> Steps:
    """The steps, each with a phase; those whose marks give it keep it.

    Args:
        trace: the recording.
        steps: its steps.
        calls: from `calls.host_calls`.
    """
    phase = steps.table["phase"].to_numpy(dtype=object, copy=True)
    known = ~np.isin(phase, ["", ITERATION])
    if known.all():
        return steps
    kernels = trace["kernels"].assign(at=activity_steps(trace, steps, trace["kernels"]))
    work = _work(trace, steps, calls, kernels)
    doubts = []
    trains = _trains(trace, steps, work) & ~known
    asked = (phase == "") & ~trains
    has_tokens, prompts = np.isin(phase, TOKEN_PHASES).any(), phase == PREFILL
    phase[trains], phase[asked] = TRAINING, ITERATION
    if trains.any() and steps.source == "calls":  # a loss may be fetched every few steps, or for every micro-batch
        doubts.append("which may not be steps of an optimizer")
    if asked.any() and (has_tokens or _generates(work[asked], steps)):
        found, sure = _by_work(kernels, work, ~prompts)
        phase[asked] = found[asked]
        if not has_tokens and _may_be_mixed(kernels, work, steps, phase).mean() > _FEW:
            doubts.append("prompts; other sequences may decode at the same time")
        if not has_tokens and not sure and not _one_token_each(kernels, work[phase == DECODE]):
            doubts.append("assumed to decode, without evidence of one token each")
        if _fetches_vary(work, steps, asked & (phase == DECODE)):
            doubts.append("whose results vary in size from step to step, as if drafts were verified")
        phase[asked & (phase == DECODE) & (work["verifies"] > 0)] = SPECULATIVE
    elif steps.source == "calls" and work["results"][asked].any() and work["results"][asked].median() < 1:
        doubts.append("several of which share a result")
    confidence = min(steps.confidence, GUESSED) if doubts else steps.confidence
    table = steps.table.assign(phase=phase)
    return replace(steps, table=table, confidence=confidence, detail=", ".join([steps.detail, *doubts]))


def _work(trace: Trace, steps: Steps, calls: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    """Per step busy (ns of the device), replays (graphs that its host launches), results (how often it fetches
    something after launches), fetched (bytes), smallest (bytes of its smallest copy to the device, NaN without any),
    and how many of its kernels train, generate, verify, or take one_query."""
    graphs, copies = trace["graph_launches"], trace["memcpys"]
    of_graph, of_copy = (activity_steps(trace, steps, each) for each in (graphs, copies))
    graph_calls = taken(calls, (calls["letter"] == GRAPH_LAUNCH).to_numpy(), ["start", "process", "thread"])
    replays = steps.of(*(graph_calls[name].to_numpy() for name in ("start", "process", "thread")))
    out = copies["kind"] == "DtoH"
    inputs = copies["bytes"].where(~out & (copies["kind"] != "DtoD"))

    at = kernels["at"].to_numpy()

    def per_step(of: Ints, values: pd.Series | Bools) -> pd.Series:
        inside = of >= 0
        return pd.Series(np.bincount(of[inside], values[inside], minlength=len(steps)))

    def having(names: re.Pattern[str]) -> pd.Series:
        chosen = at[rows_named(kernels["name"], names.search)]
        return pd.Series(np.bincount(chosen[chosen >= 0], minlength=len(steps)).astype(float))

    busy = per_step(at, kernels["end"] - kernels["start"])
    return pd.DataFrame({
        "busy": busy + per_step(of_graph, graphs["end"] - graphs["start"]),
        "replays": per_step(replays, np.ones(len(replays), bool)),
        "results": results_of(steps, calls),
        "fetched": per_step(of_copy, copies["bytes"].clip(0).where(out, 0)),
        "smallest": inputs.groupby(of_copy).min().reindex(busy.index),
        "trains": having(TRAINING_KERNELS), "generates": having(_GENERATES), "verifies": having(_VERIFIES),
        "one_query": having(_ONE_QUERY),
    })  # fmt: skip


def results_of(steps: Steps, calls: pd.DataFrame) -> Ints:
    """How often each step fetches something after launches. `calls`: from `calls.host_calls`."""
    shown = among(calls["letter"].to_numpy(dtype="U1"), LAUNCHES) | (calls["kind"] == "DtoH").to_numpy()
    calls = taken(calls, shown, ["start", "process", "thread", "kind"]).sort_values("start", kind="stable")
    step = steps.of(*(calls[name].to_numpy() for name in ("start", "process", "thread")))
    fetch = calls["kind"] == "DtoH"
    found = (fetch & ~fetch.groupby(step).shift(fill_value=True)).to_numpy() & (step >= 0)
    return np.bincount(step[found], minlength=len(steps))


def _trains(trace: Trace, steps: Steps, work: pd.DataFrame) -> Bools:
    """The steps that train: all of them if most have evidence of training."""
    texts = trace["nvtx"][rows_named(trace["nvtx"]["text"], TRAINING_TEXT.search)]
    begun = np.searchsorted(np.sort(texts["start"].to_numpy()), steps.table["end"].to_numpy())
    ended = np.searchsorted(np.sort(texts["end"].to_numpy()), steps.table["start"].to_numpy(), side="right")
    found = (begun > ended) | (work["trains"] > 0).to_numpy()
    return np.full(len(found), True) if found.mean() >= MOST else found


def _generates(work: pd.DataFrame, steps: Steps) -> bool:
    """Whether most of these steps generate tokens."""
    if len(work) < SEVERAL or (steps.source == "nvtx" and work["results"].median() > 1):  # a mark around a request
        return False
    small = ~(work["smallest"] > ONE_TOKEN * ONE_TOKEN)
    return bool((work["generates"] > 0).mean() > MOST or ((work["fetched"] > 0) & small).mean() > MOST)


def _one_token_each(kernels: pd.DataFrame, decodes: pd.DataFrame) -> bool:
    """Whether there is evidence that these steps compute one token each: by their kernels; or they replay one graph
    each, and the recording has such kernels outside graphs, or kernels of an engine that replays whole graphs to
    decode."""
    if not len(decodes) or (decodes["one_query"] >= SEVERAL).mean() > MOST:
        return True
    such = rows_named(kernels["name"], _ONE_QUERY.search).sum() >= SEVERAL
    such = such or _of_engine(kernels, [engine for engine in engines() if engine.whole_graphs_decode])
    return bool(such and decodes["replays"].median() == 1)


def _fetches_vary(work: pd.DataFrame, steps: Steps, decodes: Bools) -> bool:
    """Whether many of these steps fetch as much more than the one before, or less, as drafts bring: sequences last for
    many steps, so that few of a batch join or end in one."""
    groups, fetched = steps.table["group"].to_numpy(), work["fetched"].to_numpy()
    low, high = np.minimum(fetched[1:], fetched[:-1]), np.maximum(fetched[1:], fetched[:-1])
    both = decodes[1:] & decodes[:-1] & (groups[1:] == groups[:-1])
    return bool(both.sum() >= SEVERAL and np.mean(brings_drafts(low, high)[both]) > IN_COMMON)


def _of_engine(kernels: pd.DataFrame, such: Iterable[Engine]) -> bool:
    """Whether there are kernels that only one of these engines launches."""
    patterns = [engine.kernels for engine in such if engine.kernels is not None]
    return any(rows_named(kernels["name"], pattern.search).any() for pattern in patterns)


def _by_work(kernels: pd.DataFrame, work: pd.DataFrame, regular: Bools) -> tuple[NDArray[np.object_], bool]:
    """The phase of each generating step, from its work compared with that of the regular steps, and whether it is
    certain: prompts run wider kernels than tokens."""
    least = LONGER * work["busy"][regular].quantile(1 - CONSTANT)  # prompts may be the majority
    usual = (work["busy"] < least) & regular
    long = work["busy"] >= LONGER * work["busy"][regular].median()
    fetched = work["fetched"][usual].median()
    prompts = (long | ((work["fetched"] > 0) & (work["fetched"] < LONGER * fetched))) & _wider(kernels, usual)
    result = np.full(len(regular), DECODE, dtype=object)
    sure = bool(0 < prompts.sum() <= (~prompts).sum())
    if work["replays"][usual].median() > 0:
        result[work["replays"] == 0] = EAGER
        others = (work["replays"] == 0) | (work["replays"] > LONGER * work["replays"][usual].median())
        prompts |= long & others & (work["fetched"] < LONGER * fetched)
    result[prompts] = PREFILL
    return result, sure


def _wider(kernels: pd.DataFrame, usual: pd.Series) -> Bools:
    """Which steps have enough kernels that are `LONGER` times as wide as in the typical ones."""
    blocks = (kernels["grid_x"] * kernels["grid_y"] * kernels["grid_z"]).abs().to_numpy()
    at, names = kernels["at"].to_numpy(), len(kernels["name"].cat.categories)
    codes, both = pd.factorize(at * names + kernels["name"].cat.codes.to_numpy())
    means = pd.DataFrame({"step": both // names, "name": both % names})
    means["blocks"] = np.bincount(codes, blocks) / np.bincount(codes)
    means = means[means["step"] >= 0]
    reference = means[usual.to_numpy()[means["step"]]].groupby("name")["blocks"].median()
    shared = means[means["name"].isin(reference.index)]
    ratio = shared["blocks"] / reference.reindex(shared["name"]).to_numpy()
    size = np.bincount(shared["step"], minlength=len(usual))
    wide = np.bincount(shared["step"], ratio >= LONGER, minlength=len(usual))
    return (size > 0) & (wide >= IN_COMMON * size) & (size >= IN_COMMON * len(reference))


def _may_be_mixed(kernels: pd.DataFrame, work: pd.DataFrame, steps: Steps, phase: NDArray[np.object_]) -> Bools:
    """Which steps compute a prompt while others may decode: they follow decoding, and more is fetched than the token of
    one sequence, or than from a graph that only one sequence replays."""
    follows = pd.Series(phase == DECODE).groupby(steps.table["group"].to_numpy()).cumsum() > 0
    replays = work["replays"] > 0
    alone = work["fetched"] <= ONE_TOKEN
    if replays.any() and _of_engine(kernels, [engine for engine in engines() if engine.one_sequence_graphs]):
        alone |= work["fetched"] <= work["fetched"][replays].median()
    return np.asarray(follows & (phase == PREFILL) & ~alone)
