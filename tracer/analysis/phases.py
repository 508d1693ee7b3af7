"""The phase of steps whose marks do not give it, judged by their compute.

Evidence of a step (`_Work`):
- its *kernels*: whether any trains, generates, verifies drafts, or computes one query;
- its *width*: the blocks per launch of the kernels that it shares with the typical step;
- its *inputs* and *results*: its smallest copy to the device, and how much and how often it fetches;
- its *replays* of graphs, and the time the device is busy for it.

Passes over the steps:
1. **Training** (`_trains`): gradients and optimizers, which only training has, in most or some of the steps.
   Example: of 24 steps 6 run a kernel `adam`, and ranges `backward` lie in all: all train.
2. **Generation** (`_generates`): one result per step, and a token or nothing as input; or kernels that only token by
   token generation has. What neither trains nor generates is one *iteration* of a loop.
   Example: steps that copy a token to the device and fetch 4 bytes each generate; steps that fetch nothing do not.
3. **Prompts** (`_by_work`): at least `IN_COMMON` of the kernels that a step shares with the typical one are at least
   `LONGER` times as wide while no more is fetched, or it takes that many times as long. If the typical step replays a
   graph, long steps that replay none and fetch no more are prompts too; others without a graph are *eager*, since they
   may be short prompts or a warm-up. With an engine that captures its graphs before it serves they are prompts, unless
   they fetch more than any step with a graph.
   Example: nine steps take 5 ms, and one takes 20 ms with kernels of four times as many blocks: it is a prompt.
4. **Verification of drafts**: steps with kernels that only it has.
   Example: a step with `rejection_sample` is speculative.
5. **Warm-up** (`_warm_ups`): short requests before the first long one.
   Example: of P T, P T T, P and 100 T, P and 100 T the first five steps are warm-up.
6. **Doubt**: a solver's or a classifier's loop also fetches small results, and each iteration of a loop over prompts
   ends in a token. So decoding is certain only with evidence: attention with one query, products with one column,
   prompts among the tokens, or an engine known to replay whole graphs only for decoding (`_one_token_each`). Prompts
   that may contain others' tokens (`_may_be_mixed`), and results that vary as with drafts (`_fetches_vary`), are doubts
   as well. With any of them the confidence is at most `GUESSED`.
   Example: a classifier's steps are decode steps at 0.80, "assumed to decode, without evidence of one token each".
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.calls import Calls
from tracer.analysis.evidence import is_of_any
from tracer.analysis.passes import GUESSED, MOST
from tracer.analysis.step_work import activity_steps
from tracer.analysis.steps import Steps
from tracer.analysis.turns import CONSTANT, LONGER, SEVERAL, brings_drafts
from tracer.engines import engines
from tracer.engines.engine import DECODE, EAGER, ITERATION, PREFILL, SPECULATIVE, TOKEN_PHASES, TRAINING, WARM_UP
from tracer.engines.torch import OPTIMIZER_KERNELS, TRAINING_KERNELS, TRAINING_TEXT
from tracer.model.calls import GRAPH_LAUNCH, LAUNCHES
from tracer.model.columns import Columns, Names, among, grouped, median, medians, runs
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import MISSING
from tracer.model.tables import GraphLaunches, Kernels
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

VERIFIES: Final = re.compile(
    r"(?i)rejection_?(?:\w*_)?sampl|verify_?tree|tree_?speculative|eagle|medusa|spec_?verify|build_tree_kernel"
)
"""Kernels that accept or reject drafts: vLLM, SGLang, TensorRT-LLM."""


class _Work(Columns):
    """What each step does.

    Attributes:
        busy: ns of the device.
        replays: graphs that its host launches.
        results: how often it fetches something after launches.
        fetched: bytes.
        smallest: bytes of its smallest copy to the device, NaN without any.
        trains, optimizes, generates, verifies, one_query: how many of its kernels do.
    """

    busy: Floats
    replays: Floats
    results: Ints
    fetched: Floats
    smallest: Floats
    trains: Ints
    optimizes: Ints
    generates: Ints
    verifies: Ints
    one_query: Ints


def with_phases(trace: Trace, steps: Steps, calls: Calls) -> Steps:
    """The steps, each with a phase; those whose marks give it keep it."""
    known = ~steps.rows.phase.rows("", ITERATION)
    if known.all():
        return steps
    phase = steps.rows.phase.texts.copy()
    of_kernels = activity_steps(trace, steps, trace.kernels)
    work = _work(trace, steps, calls, of_kernels)
    doubts = []
    trains = _trains(trace, steps, work) & ~known
    asked = (phase == "") & ~trains
    has_tokens, prompts = steps.rows.phase.rows(*TOKEN_PHASES).any(), phase == PREFILL
    phase[trains], phase[asked] = TRAINING, ITERATION
    if trains.any() and steps.source == "calls":  # a loss may be fetched every few steps, or for every micro-batch
        doubts.append("which may not be steps of an optimizer")
    if asked.any() and (has_tokens or _generates(work[asked], steps)):
        by_work, sure = _by_work(trace, steps, calls, of_kernels, work, ~prompts)
        phase[asked] = by_work[asked]
        if not has_tokens and _may_be_mixed(trace, work, steps, phase).mean() > _FEW:
            doubts.append("prompts; other sequences may decode at the same time")
        if not has_tokens and not sure and not _one_token_each(trace, work[(phase == DECODE) & (work.verifies == 0)]):
            doubts.append("assumed to decode, without evidence of one token each")
        if not has_tokens and _share_results(work[asked], steps):
            doubts.append("several of which share a result")
        if _fetches_vary(work, steps, asked & (phase == DECODE)):
            doubts.append("whose results vary in size from step to step, as if drafts were verified")
        phase[asked & (phase == DECODE) & (work.verifies > 0)] = SPECULATIVE
        phase[asked & _warm_ups(steps, phase, work.fetched)] = WARM_UP
    elif _share_results(work[asked], steps):
        doubts.append("several of which share a result")
    confidence = min(steps.confidence, GUESSED) if doubts else steps.confidence
    rows = steps.rows.changed(phase=Names.of(phase))
    return replace(steps, rows=rows, confidence=confidence, detail=", ".join([steps.detail, *doubts]))


def _work(trace: Trace, steps: Steps, calls: Calls, of_kernels: Ints) -> _Work:
    kernels, graphs, copies = trace.kernels, trace.graph_launches, trace.memcpys
    of_graph, of_copy = (activity_steps(trace, steps, each) for each in (graphs, copies))
    launched = calls[calls.letter == GRAPH_LAUNCH]
    replays = steps.of(launched.start, launched.process, launched.thread)
    out = copies.kind.rows("DtoH")

    def total(of: Ints, values: NDArray[Any]) -> Floats:
        inside = of >= 0
        return np.asarray(np.bincount(of[inside], values[inside], minlength=len(steps)), np.float64)

    def having(names: re.Pattern[str]) -> Ints:
        chosen = of_kernels[kernels.name.chosen(names.search)]
        return np.bincount(chosen[chosen >= 0], minlength=len(steps))

    smallest, inputs = np.full(len(steps), np.inf), ~out & ~copies.kind.rows("DtoD") & (of_copy >= 0)
    np.minimum.at(smallest, of_copy[inputs], copies.bytes[inputs].astype(np.float64))
    return _Work(
        busy=total(of_kernels, kernels.end - kernels.start) + total(of_graph, graphs.end - graphs.start),
        replays=total(replays, np.ones(len(replays))),
        results=results_of(steps, calls),
        fetched=total(of_copy, np.where(out, copies.bytes.clip(0), 0)),
        smallest=np.where(np.isinf(smallest), np.nan, smallest),
        trains=having(TRAINING_KERNELS), optimizes=having(OPTIMIZER_KERNELS), generates=having(_GENERATES),
        verifies=having(VERIFIES), one_query=having(_ONE_QUERY),
    )  # fmt: skip


def results_of(steps: Steps, calls: Calls) -> Ints:
    """How often each step fetches something after launches. `calls`: from `calls.host_calls`.

    Example: with launches k and copies to the host f, the calls k f f k k f of a step are two results.
    """
    fetches = calls.kind.rows("DtoH")
    shown = np.flatnonzero(among(calls.letter, LAUNCHES) | fetches)
    shown = shown[np.argsort(calls.start[shown], kind="stable")]
    step = steps.of(calls.start[shown], calls.process[shown], calls.thread[shown])
    order, fetch = np.argsort(step, kind="stable"), fetches[shown]
    step, fetch = step[order], fetch[order]
    behind_fetch = np.append(True, fetch[:-1]) | np.append(True, step[1:] != step[:-1])
    return np.bincount(step[fetch & ~behind_fetch[: len(step)] & (step >= 0)], minlength=len(steps))


def _trains(trace: Trace, steps: Steps, work: _Work) -> Bools:
    """The steps that train: all of them if most have evidence of training. Kernels of optimizers are evidence only
    where others, or texts, show a backward pass."""
    of_training = trace.nvtx.text.chosen(TRAINING_TEXT.search)
    trains = work.trains > 0
    if trains.any() or of_training.any():
        trains |= work.optimizes > 0
    if of_training.any():
        begun = np.searchsorted(np.sort(trace.nvtx.start[of_training]), steps.rows.end)
        ended = np.searchsorted(np.sort(trace.nvtx.end[of_training]), steps.rows.start, side="right")
        trains = trains | (begun > ended)
    return np.full(len(trains), True) if trains.mean() >= MOST else trains


def _generates(work: _Work, steps: Steps) -> bool:
    """Whether most of these steps generate tokens."""
    if len(work) < SEVERAL or (steps.source == "nvtx" and median(work.results) > 1):  # a mark around a request
        return False
    small = ~(work.smallest > ONE_TOKEN * ONE_TOKEN)
    return bool((work.generates > 0).mean() > MOST or ((work.fetched > 0) & small).mean() > MOST)


def _share_results(work: _Work, steps: Steps) -> bool:
    """Whether most of these steps fetch nothing themselves, but some do."""
    return steps.source == "calls" and bool(work.results.any()) and median(work.results) < 1


def _one_token_each(trace: Trace, decodes: _Work) -> bool:
    """Whether there is evidence that these steps compute one token each: by their kernels; or they replay one graph
    each, and the recording has such kernels outside graphs, or kernels of an engine that replays whole graphs to
    decode."""
    if not len(decodes) or (decodes.one_query >= SEVERAL).mean() > MOST:
        return True
    such = bool(trace.kernels.name.chosen(_ONE_QUERY.search).sum() >= SEVERAL)
    such = such or is_of_any(trace, [engine for engine in engines() if engine.whole_graphs_decode])
    return such and median(decodes.replays) == 1


def _fetches_vary(work: _Work, steps: Steps, decodes: Bools) -> bool:
    """Whether many of these steps fetch as much more than the one before, or less, as drafts bring: sequences last for
    many steps, so that few of a batch join or end in one."""
    groups, fetched = steps.rows.group, work.fetched
    low, high = np.minimum(fetched[1:], fetched[:-1]), np.maximum(fetched[1:], fetched[:-1])
    both = decodes[1:] & decodes[:-1] & (groups[1:] == groups[:-1])
    return bool(both.sum() >= SEVERAL and np.mean(brings_drafts(low, high)[both]) > IN_COMMON)


def _by_work(
    trace: Trace, steps: Steps, calls: Calls, of_kernels: Ints, work: _Work, regular: Bools
) -> tuple[NDArray[np.object_], bool]:
    """The phase of each generating step, from its work compared with that of the regular steps, and whether it is
    certain: prompts run wider kernels than tokens.

    Example: nine steps take 5 ms, and one takes 20 ms with kernels of four times as many blocks: it is a prompt.
    """
    share = (1 - CONSTANT) * 100  # prompts may be the majority
    least = LONGER * (float(np.percentile(work.busy[regular], share)) if regular.any() else np.nan)
    usual = (work.busy < least) & regular
    long = work.busy >= LONGER * median(work.busy[regular])
    fetched, replays = median(work.fetched[usual]), median(work.replays[usual])
    prompts = (long | ((work.fetched > 0) & (work.fetched < LONGER * fetched))) & _wider(trace, of_kernels, usual)
    result = np.full(len(regular), DECODE, dtype=object)
    sure = bool(0 < prompts.sum() <= (~prompts).sum())
    if replays > 0:
        result[work.replays == 0] = EAGER
        if is_of_any(trace, [engine for engine in engines() if engine.captures_first]):
            prompts |= (work.replays == 0) & (work.fetched <= work.fetched[work.replays > 0].max())
        others = (work.replays == 0) | ((work.replays > LONGER * replays) & _replays_others(trace, steps, calls, usual))
        prompts |= long & others & (work.fetched < LONGER * fetched)
    result[prompts] = PREFILL
    return result, sure


def _replays_others(trace: Trace, steps: Steps, calls: Calls, usual: Bools) -> Bools:
    """Which steps replay a graph that the usual ones do not, or one that the recording does not name. Those that only
    replay the usual ones more often are several steps, whose results in between have no record."""
    launched = calls[calls.letter == GRAPH_LAUNCH]
    at = steps.of(launched.start, launched.process, launched.thread)
    launched, at = launched[at >= 0], at[at >= 0]
    graph = np.full(len(launched), MISSING)
    tables: tuple[Kernels | GraphLaunches, ...] = (trace.kernels, trace.graph_launches)
    for table in tables:
        call = launched.of(table)
        graph[call[call >= 0]] = table.graph[call >= 0]
    unlike = (graph == MISSING) | ~np.isin(graph, graph[usual[at]])
    return np.bincount(at[unlike], minlength=len(steps)) > 0


def _warm_ups(steps: Steps, phase: NDArray[np.object_], fetched: Floats) -> Bools:
    """The steps of short requests before the first long one: prompts, each with the few tokens that follow it, and as
    many sequences, judged by what is fetched, as then.

    Example: P T, P T T, P and 100 T, P and 100 T: the first five steps are warm-up.
    """
    is_warm_up, rows = np.zeros(len(phase), bool), steps.rows
    for _, mine in grouped(rows.process, rows.thread) if steps.source == "calls" else ():
        tokens = (phase == DECODE) | (phase == SPECULATIVE)
        request = np.cumsum((phase == PREFILL)[mine])
        count = np.bincount(request, tokens[mine])
        long = int(np.argmax(count >= MOST * count.max(initial=0)))
        short = np.flatnonzero(count[:long] > 0)
        if not len(short) or count[0] or count[short].max() > (1 - CONSTANT) * count[long]:
            continue
        before, then = (tokens[mine] & (request <= short[-1]), tokens[mine] & (request == long))
        is_filling = median(fetched[mine[before]]) < median(fetched[mine[then]])
        if not is_filling and before.sum() <= _FEW * tokens[mine].sum():
            is_warm_up[mine[request <= short[-1]]] = True
    return is_warm_up


def _wider(trace: Trace, of_kernels: Ints, usual: Bools) -> Bools:
    """Which steps have enough kernels that are `LONGER` times as wide as in the typical ones."""
    inside = np.flatnonzero(of_kernels >= 0)
    kernels, of = trace.kernels, of_kernels[inside]
    blocks = np.abs(kernels.grid_x[inside] * kernels.grid_y[inside] * kernels.grid_z[inside])
    words = max(len(kernels.name.words), 1)
    both, number = np.unique(of * words + kernels.name.codes[inside], return_inverse=True)
    means = np.bincount(number, blocks) / np.bincount(number)
    step, name = both // words, both % words
    typical = usual[step]
    reference = medians(means[typical], name[typical], words)[name]
    shared = ~np.isnan(reference)
    size = np.bincount(step[shared], minlength=len(usual))
    wide = np.bincount(step[shared], ((means > 0) & (means >= LONGER * reference))[shared], minlength=len(usual))
    return (size > 0) & (wide >= IN_COMMON * size) & (size >= IN_COMMON * len(np.unique(name[typical])))


def _may_be_mixed(trace: Trace, work: _Work, steps: Steps, phase: NDArray[np.object_]) -> Bools:
    """Which steps compute a prompt while others may decode: they follow decoding, and more is fetched than the token of
    one sequence, or than from a graph that only one sequence replays."""
    order, first = runs(steps.rows.group)
    decoded = np.cumsum((phase == DECODE)[order])
    before = np.repeat(np.append(0, decoded)[first], np.diff(first, append=len(order)))
    follows = np.empty(len(steps), bool)
    follows[order] = decoded > before
    replays, alone = work.replays > 0, work.fetched <= ONE_TOKEN
    if replays.any() and is_of_any(trace, [engine for engine in engines() if engine.one_sequence_graphs]):
        alone |= work.fetched <= median(work.fetched[replays])
    return follows & (phase == PREFILL) & ~alone
