"""What is open on the host: the call site of each call, and the stacks of single steps (`HostStep`).

A call site is the function, or else the range, that is open when the call begins. The site of a call is the innermost
function of the program itself; the functions below it (CUDA, PyTorch, Triton, the standard library) show how the
program reached the call.

Functions are the Python functions of PyTorch's profiler (`with_stack=True`), or those of call chains: the stacks of
CUDA calls that nsys (`--cudabacktrace`) and our recorders keep. If all functions of a chain are below the program, the
innermost one outside CUDA is the site. Between two calls a thread is in the innermost function on the stacks of both,
or in a function called from it that makes no CUDA call.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.calls import PlainCalls, outer_rows
from tracer.analysis.tokens import Steps
from tracer.compiled import compiled
from tracer.model.calls import MEANING
from tracer.model.columns import Columns, Names, Texts, firsts, grouped, numbers, positions, spread
from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import DEVICE_DOMAINS, MISSING, OTHER_DOMAINS, PYTHON_FUNCTION
from tracer.model.tables import Api, Callchains, Nvtx
from tracer.model.trace import Trace
from tracer.text import spelled

PYTHON, NATIVE, RANGES = "python", "native", "ranges"

PYTHON_FILE: Final = re.compile(r"\(\d+\): ")
"""Matches the text of a Python function that has a file, `FILE(LINE): FUNCTION`."""

BELOW_PROGRAM: Final = re.compile(
    r"(^|/)(torch|triton|numpy|cupy|cuda|nvtx|importlib|concurrent|asyncio|multiprocessing)/|^<"
    r"|(^|/)executor/backends/(cpu|cuda|sim)(\.py\(|/)"
    r"|(^|/)(contextlib|functools|threading|queue|typing|enum|abc|collections|weakref|dataclasses|_[a-z_]+)\.py\("
)
"""Files of Python libraries: a program calls them but does not contain them. Paths are shortened to the module, as
Kineto does. The executor's backends are libraries to the executor.
"""

_OF_CUDA: Final = re.compile(
    r"^(lib(cuda|cudart|cupti|nvrtc|nvToolsExt|ToolsInjection\w*|intertoken_light|dl|pthread|c)|ld-linux[\w-]*)[-.]"
)
_OF_FRAMEWORKS: Final = re.compile(
    r"^(lib(torch\w*|c10\w*|cu(blas|dnn|fft|sparse|solver)\w*|nccl|stdc\+\+|gcc_s|m|python|gomp|jemalloc|tcmalloc\w*)[-.\d]"
    r"|python[\d.]*$|\w+\.(cpython-|abi3\.))"
)
_CALL: Final = re.compile(r"^_*cuda[A-Z]\w*$|^cu[A-Z]\w*$|^libcudart_static_|^cudart::")
_UNNAMED: Final = "(unnamed)"
_COUNTER: Final = re.compile(r"^(.*?\D)\d+$")
_SOURCES: Final = np.array(["", PYTHON, NATIVE, RANGES], dtype=object)

MEDIAN, SLOW = "median step", "slow step"
_SHARES: Final = {MEDIAN: 0.5, SLOW: 0.95}
"""The kind of step -> the share of steps that are no longer than it."""
_NOTHING: Final = "(no range or call)"

Frames = Sequence[tuple[str, str]]
"""Symbol and module of each function, the outermost first."""


class Moments(Columns):
    """Times of threads, ns."""

    start: Ints
    process: Ints
    thread: Ints


class CallMoments(Moments):
    """The starts of calls, with the number of each."""

    correlation: Ints


OnThread = Api | PlainCalls | Moments
"""Rows with a time and a thread."""


class Ranges(Columns):
    """What is open on threads, start and end in ns."""

    start: Ints
    end: Ints
    process: Ints
    thread: Ints
    text: Names


class Sites(Columns):
    """Where calls were made.

    Attributes:
        site: `FILE(LINE): FUNCTION` of the program, `FUNCTION (LIBRARY)` of native code, or the innermost range if the
            recording has no functions (its text `without_counters`); "" for neither.
        through: the innermost function below it that has a file; "" for none.
        source: `PYTHON`, `NATIVE`, `RANGES` or "".
    """

    site: Texts
    through: Texts
    source: Texts


class _OfChains(Columns):
    """The sites of call chains: site and through as in `Sites`, and whether the site is a Python function."""

    site: Texts
    through: Texts
    is_python: Bools


def call_sites(trace: Trace, calls: Api | PlainCalls | CallMoments) -> Sites:
    """Where each call was made.

    Args:
        trace: the recording, read with its Python functions if it has any.
    """
    chains, api = trace.callchains, trace.api
    known = np.unique(chains.chain)
    with_chain = api[np.isin(api.callchain, known)] if len(known) else api[:0]
    return _sites(trace, calls, _of_chains(chains, spread(with_chain.callchain, with_chain.of(calls), MISSING)))


def sites_at(trace: Trace, process: int, thread: int, times: Ints) -> Sites:
    """Where a thread is at each time (ns), as far as its calls show it (`chains_at`)."""
    moments = Moments(times, np.full(len(times), process), np.full(len(times), thread))
    chain, chains = chains_at(trace, process, thread, times)
    return _sites(trace, moments, _of_chains(chains, chain))


def _sites(trace: Trace, calls: OnThread, chains: _OfChains) -> Sites:
    nvtx = host_ranges(trace)
    is_function = nvtx.domain.rows(PYTHON_FUNCTION)
    python, others = nvtx[is_function], nvtx[~is_function]
    of_program, with_file, ranges = (
        innermost_ranges(python[python.text.chosen(_is_of_program)], calls),
        innermost_ranges(python[python.text.chosen(PYTHON_FILE.search)], calls),
        innermost_ranges(others.changed(text=without_counters(others.text)), calls),
    )
    own, lowest, around = of_program.texts, with_file.texts, ranges.texts
    has_site, is_python = ~of_program.rows(""), ~of_program.rows("") | ~with_file.rows("")
    has_chain = chains.site != ""
    is_native = has_chain & ~chains.is_python & ~is_python
    site = np.where(has_site, own, np.where(is_python, lowest, around))
    site = np.where((has_chain & chains.is_python) | is_native, chains.site, site)
    source = np.select([is_python | chains.is_python, is_native, ~ranges.rows("")], [1, 2, 3], 0)
    through = np.where(has_site & (lowest != own), lowest, "")
    through = np.where(has_chain & (site == chains.site), chains.through, through)
    return Sites(site, through, _SOURCES[source])


def _is_of_program(text: str) -> bool:
    return PYTHON_FILE.search(text) is not None and BELOW_PROGRAM.search(text) is None


def host_ranges(trace: Trace) -> Nvtx:
    """The ranges that nest within their thread: no marks, and no ranges that may end on another thread."""
    nvtx = trace.nvtx
    return nvtx[nvtx.kind.rows("push/pop") & ~nvtx.domain.rows(*DEVICE_DOMAINS, *OTHER_DOMAINS)]


def without_counters(texts: Names) -> Names:
    """Texts of ranges, with "N" in place of a trailing counter: a number with several values, each used once.

    `token 0`, `token 1`, … are one site; `split 0` and `split 1`, which occur in every step, are two.
    """
    once = np.flatnonzero(np.bincount(texts.codes, minlength=len(texts.words)) == 1).tolist()
    stems = {code: match[1] for code in once if (match := _COUNTER.search(str(texts.words[code])))}
    several = {stem for stem, count in Counter(stems.values()).items() if count > 1}
    words = texts.words.copy()
    for code, stem in stems.items():
        if stem in several:
            words[code] = f"{stem}N"
    return Names.at_codes(texts.codes.astype(np.int64), words) if several else texts


def without_site(share: float) -> list[str]:
    """A note if this share of calls, or of idle time, has no call site."""
    if not share:
        return []
    return [
        f"{share:.0%} have no call site; record with --call-sites, nsys --cudabacktrace=all or torch.profiler's "
        "with_stack=True\nthe recording has neither a call chain, a Python function nor a range around them"
    ]


def innermost_ranges(ranges: Nvtx | Ranges, calls: OnThread) -> Names:
    """The text of the innermost range open when each call begins, "" for none; ranges nest on each thread."""
    ranges = ranges[ranges.end > ranges.start]
    words = ranges.text.words
    codes, places = np.full(len(calls.start), len(words)), dict(grouped(ranges.process, ranges.thread))
    for thread, rows in grouped(calls.process, calls.thread) if len(ranges) else ():
        if (here := places.get(thread)) is None:
            continue
        here = here[np.lexsort((-ranges.end[here], ranges.start[here]))]
        rows = rows[np.argsort(calls.start[rows], kind="stable")]
        at = _open_at(ranges.start[here], ranges.end[here], calls.start[rows])
        codes[rows] = spread(ranges.text.codes[here].astype(np.int64), at, len(words))
    return Names.at_codes(codes, [*(str(word) or _UNNAMED for word in words), ""])


# --- call chains ---


def _of_chains(chains: Callchains, chain: Ints) -> _OfChains:
    """The sites of some of these chains by their numbers; texts are empty for others."""
    if not len(chains):
        nothing = np.full(len(chain), "", dtype=object)
        return _OfChains(nothing, nothing, np.zeros(len(chain), bool))
    chains = chains[np.lexsort((chains.depth, chains.chain))]
    is_python, of_cuda = chains.symbol.chosen(PYTHON_FILE.search), _of_cuda(chains)
    of_library = np.where(
        is_python, chains.symbol.chosen(BELOW_PROGRAM.search), chains.module.chosen(_file_in(_OF_FRAMEWORKS))
    )
    of_program = ~of_cuda & ~of_library
    is_named = ~chains.symbol.rows("")
    begins = np.append(True, chains.chain[1:] != chains.chain[:-1])
    number = np.cumsum(begins) - 1
    lowest = _first(number, is_named & ~of_cuda)
    site = lowest.copy()
    for chosen in (
        is_named & of_program,
        is_python & of_program,
    ):  # beside Python functions, native code is a library's
        first = _first(number, chosen)
        site[first >= 0] = first[first >= 0]
    texts, known = _texts(chains), site >= 0
    through = np.where(known & (lowest != site), texts[lowest], "")
    at = positions([chain], [chains.chain[begins]])
    return _OfChains(
        spread(np.where(known, texts[site], ""), at, ""), spread(through, at, ""),
        spread(known & is_python[site], at, False),
    )  # fmt: skip


def _first(number: Ints, chosen: Bools) -> Ints:
    """The first chosen row of each chain, which are numbered; -1 for none."""
    rows = np.flatnonzero(chosen)
    return firsts(number[rows], int(number[-1]) + 1, rows)


def _of_cuda(chains: Callchains) -> Bools:
    """Which functions are CUDA's."""
    is_native = ~chains.symbol.chosen(PYTHON_FILE.search)
    return is_native & (chains.module.chosen(_file_in(_OF_CUDA)) | chains.symbol.chosen(_CALL.search))


def _file_in(modules: re.Pattern[str]) -> Callable[[str], object]:
    """Whether a module's file name, without its directory, is one of these."""
    return lambda module: modules.match(module.rpartition("/")[2])


def _texts(chains: Callchains) -> Texts:
    """Display names of functions; those in a library are followed by its file."""
    return np.asarray(chains.symbol.texts + in_file(chains.module), dtype=object)


def in_file(modules: Names) -> Texts:
    """The file of each module as it is told behind a function: ` (FILE)`, "" for none."""
    files = [str(module).rpartition("/")[2] for module in modules.words]
    return np.array([f" ({file})" if file else "" for file in files], dtype=object)[modules.codes]


def with_chains(trace: Trace, process: int, thread: int) -> Api:
    """The calls of a thread that have a call chain, by start; calls inside others are left out."""
    api = trace.api
    here = (api.process == process) & (api.thread == thread) & (api.callchain != MISSING)
    if here.any():
        here &= np.isin(api.callchain, np.unique(trace.callchains.chain))
    return api[outer_rows(trace, here)]


def chains_at(trace: Trace, process: int, thread: int, times: Ints) -> tuple[Ints, Callchains]:
    """The stack of a thread at each time (ns), as far as its calls show it.

    Returns:
        For each time the number of a chain, `MISSING` if unknown: that of the call in progress, or else one of the
        functions that the previous and the next call have in common. And these chains.
    """
    calls, known = with_chains(trace, process, thread), trace.callchains
    if not len(calls):
        return np.full(len(times), MISSING), known[:0]
    start, chain = calls.start, calls.callchain
    at = np.searchsorted(start, times, side="right") - 1
    inside = (at >= 0) & (times < spread(calls.end, at, 0))
    between = ~inside & (at >= 0) & (at < len(start) - 1)
    pairs = np.column_stack([chain[at[between]], chain[at[between] + 1]])
    distinct, number = np.unique(pairs, axis=0, return_inverse=True)
    known = known[np.isin(known.chain, chain)]
    known = known[np.lexsort((-known.depth, known.chain))]
    frames: dict[int, Frames] = {
        one: [*zip(known.symbol[rows], known.module[rows], strict=True)] for (one,), rows in grouped(known.chain)
    }
    first = max(frames, default=0) + 1
    for pair, (before, after) in enumerate(distinct.tolist()):
        frames[first + pair] = _common(frames[before], frames[after])
    of_time = np.full(len(times), MISSING)
    of_time[inside], of_time[between] = chain[at[inside]], first + number.ravel()
    rows = [
        (one, depth, *frame)
        for one in np.unique(of_time[of_time != MISSING]).tolist()
        for depth, frame in enumerate(reversed(frames[one]))
    ]
    numbered, depths, symbols, modules = zip(*rows, strict=True) if rows else ((), (), (), ())
    table = Callchains(
        np.array(numbered, np.int64), np.array(depths, np.int64), Names.of(symbols), Names.of(modules)
    )  # fmt: skip
    return of_time, table


def _common(one: Frames, other: Frames) -> Frames:
    """The outer functions that two stacks share, as they are in the first one: line numbers of Python functions may
    differ."""
    alike = 0
    for (symbol, module), (its_symbol, its_module) in zip(one, other, strict=False):
        if (PYTHON_FILE.sub("", symbol), module) != (PYTHON_FILE.sub("", its_symbol), its_module):
            break
        alike += 1
    return one[:alike]


def chain_stacks(trace: Trace, process: int, thread: int, times: Ints) -> list[str]:
    """The functions on the stack of a thread at each time (ns), see `chains_at`: outermost first, separated by `;`,
    without CUDA's own; "" for none."""
    chain, chains = chains_at(trace, process, thread, times)
    chains = chains[np.lexsort((-chains.depth, chains.chain))]
    chains = chains[~_of_cuda(chains) & ~chains.symbol.rows("")]
    texts = [spelled(text.replace(";", ",")) for text in _texts(chains).tolist()]
    stacks = {one: ";".join(texts[row] for row in rows.tolist()) for (one,), rows in grouped(chains.chain)}
    return [stacks.get(one, "") for one in chain.tolist()]


# --- stacks ---


def stacks(trace: Trace, process: int, thread: int, times: Ints) -> Names:
    """Collapsed stacks of the ranges open on a thread at each time (ns, ascending): outermost first, separated by `;`,
    "" for none; below them the functions of call chains, as far as known (`chains_at`). Python functions without a file
    are left out.
    """
    here = of_thread(host_ranges(trace), process, thread)
    here = here[(here.end > here.start) & (here.text.chosen(PYTHON_FILE.search) | ~here.domain.rows(PYTHON_FUNCTION))]
    here = here[np.lexsort((-here.end, here.start))]
    words = [spelled(str(text).replace(";", ",")) or _UNNAMED for text in here.text.words]
    texts = Names.at_codes(here.text.codes.astype(np.int64), words)
    paths, names = joined_stacks(texts.codes, texts.words.tolist(), *nesting(here.start, here.end))
    at = spread(paths, _open_at(here.start, here.end, times), len(names) - 1)
    if not len(trace.callchains):
        return Names.at_codes(at, names)
    called = chain_stacks(trace, process, thread, times)
    return Names.of(";".join(filter(None, pair)) for pair in zip((names[one] for one in at), called, strict=True))


def of_thread(ranges: Nvtx, process: int, thread: int) -> Nvtx:
    """The ranges of a thread."""
    return ranges[(ranges.process == process) & (ranges.thread == thread)]


def joined_stacks(codes: Ints, texts: list[str], parents: Ints, depths: Ints) -> tuple[Ints, list[str]]:
    """The number of the stack of each range or function, and the stacks, outermost name first, separated by `;`; the
    last one is empty. Level by level, each distinct stack is joined once.

    Args:
        codes: the position of each one's name in `texts`.
        parents, depths: as from `nesting`.
    """
    paths, names = np.full(len(codes), -1, np.int64), list[str]()
    for depth in range(int(depths.max(initial=-1)) + 1):
        rows = np.flatnonzero(depths == depth)
        around = np.append(paths, -1)[parents[rows]]
        keys, number = np.unique((around + 1) * len(texts) + codes[rows], return_inverse=True)
        paths[rows] = len(names) + number
        outer, text = (keys // len(texts) - 1).tolist(), (keys % len(texts)).tolist()
        names += [f"{names[o]};{texts[t]}" if o >= 0 else texts[t] for o, t in zip(outer, text, strict=True)]
    return paths, [*names, ""]


@compiled
def nesting(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The position of the range around each range (-1 for none), and its nesting depth; ranges are sorted by start,
    outer ones first.
    """
    parents, depths = np.full(len(starts), -1, np.int64), np.zeros(len(starts), np.int64)
    stack = np.empty(len(starts), np.int64)
    depth = 0
    for at in range(len(starts)):
        while depth > 0 and ends[stack[depth - 1]] <= starts[at]:
            depth -= 1
        if depth > 0:
            parents[at] = stack[depth - 1]
        depths[at] = depth
        stack[depth] = at
        depth += 1
    return parents, depths


@compiled
def _open_at(starts: Ints, ends: Ints, times: Ints) -> Ints:
    """Position of the innermost range open at each time, -1 for none; ranges are sorted by start, outer ones first."""
    innermost = np.full(len(times), -1, np.int64)
    stack = np.empty(len(starts), np.int64)
    depth, at = 0, 0
    for i in range(len(times)):
        while at < len(starts) and starts[at] <= times[i]:
            while depth > 0 and ends[stack[depth - 1]] <= starts[at]:
                depth -= 1
            stack[depth] = at
            depth += 1
            at += 1
        while depth > 0 and ends[stack[depth - 1]] <= times[i]:
            depth -= 1
        if depth > 0:
            innermost[i] = stack[depth - 1]
    return innermost


# --- by call site, and single steps ---


class SiteCalls(Columns):
    """The calls of the steps by their sites, in the order of `MEANING`, the most time first.

    Attributes:
        what: as in `model.calls.MEANING`.
        name: of the calls.
        site, through, source: as in `Sites`.
        per_step: the number of calls.
        us_per_step: the time inside them.
    """

    what: Texts
    name: Texts
    site: Texts
    through: Texts
    source: Texts
    per_step: Floats
    us_per_step: Floats


def by_site(calls: PlainCalls, sites: Sites, steps: int) -> SiteCalls:
    """The calls of the steps by their sites."""
    letters = np.array([*MEANING])
    is_letter = np.asarray(calls.letter)[:, None] == letters
    chosen = np.flatnonzero(is_letter.any(axis=1))
    order, name, site = np.argmax(is_letter[chosen], axis=1), calls.name[chosen], sites[chosen]
    group, count = numbers(order, name.codes, site.site, site.through, site.source)
    first = firsts(group, count)
    ns = np.bincount(group, weights=(calls.end - calls.start)[chosen], minlength=count)
    by = np.lexsort((-ns, order[first]))
    first, ns, size = first[by], ns[by], np.bincount(group, minlength=count)[by]
    what, rows = np.array([*MEANING.values()], dtype=object)[order[first]], site[first]
    return SiteCalls(
        what, name[first].texts, rows.site, rows.through, rows.source, size / steps, ns / 1e3 / steps
    )  # fmt: skip


class StackTimes(Columns):
    """Stacks (outermost name first, separated by `;`) in chronological order, and the time in each, ns."""

    stack: Names
    ns: Ints

    def sums(self) -> dict[str, int]:
        """The time of each stack, by its first time."""
        number, count = numbers(self.stack.codes)
        ns = np.bincount(number, weights=self.ns, minlength=count).astype(np.int64)
        return dict(zip(self.stack[firsts(number, count)], ns.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class HostStep:
    """The thread that runs a step, from the beginning of the step to its end.

    Attributes:
        name: `MEDIAN`, `SLOW`, or another description.
        step: its number; None if it is a mean of several.
        samples: its stacks; they add up to the duration of the step.
    """

    name: str
    step: int | None
    samples: StackTimes

    @property
    def title(self) -> str:
        """The name, with the number of the step."""
        return self.name if self.step is None else f"{self.name} ({self.step})"

    @property
    def length_ns(self) -> int:
        """The duration of the step."""
        return int(self.samples.ns.sum())


def host_steps(trace: Trace, steps: Steps) -> list[HostStep]:
    """The step of median duration and a slow one (at the 95th percentile); only one of them if they are the same step.

    Args:
        trace: the recording, read with its Python functions if it has any.
    """
    order = np.argsort(steps.rows.end - steps.rows.start, kind="stable")
    chosen = {name: int(order[int(share * (len(order) - 1))]) for name, share in _SHARES.items()} if len(order) else {}
    places = {place: name for name, place in reversed(chosen.items())}
    return [
        HostStep(name, int(steps.rows.step[place]), _samples(trace, steps, place))
        for place, name in reversed(places.items())
    ]


def _samples(trace: Trace, steps: Steps, at: int) -> StackTimes:
    process, thread, start, end = (
        int(each[at]) for each in (steps.rows.process, steps.rows.thread, steps.rows.start, steps.rows.end)
    )
    api, here = trace.api, of_thread(host_ranges(trace), process, thread)
    calls = api[outer_rows(trace, (api.process == process) & (api.thread == thread))]
    edges = np.concatenate([calls.start, calls.end, here.start, here.end])
    cuts = np.unique(np.concatenate([[start, end], edges[(edges > start) & (edges < end)]]))
    low = cuts[:-1]
    stack = stacks(trace, process, thread, low).texts
    moments = Moments(low, np.full(len(low), process), np.full(len(low), thread))
    called = Ranges.from_table(calls, text=calls.name)
    call = innermost_ranges(called, moments).texts
    both = np.where((stack != "") & (call != ""), ";", "").astype(object)
    folded = stack + both + call
    folded[folded == ""] = _NOTHING
    first = np.flatnonzero(np.append(True, folded[1:] != folded[:-1]))[: len(folded)]
    ns = np.add.reduceat(np.diff(cuts), first) if len(first) else first
    return StackTimes(Names.of(folded[first]), ns)


class FunctionTimes(Columns):
    """Functions, the largest self time first.

    Attributes:
        function: its name.
        self_us, total_us: its time, without and with its callees.
    """

    function: Texts
    self_us: Floats
    total_us: Floats


def by_function(samples: StackTimes) -> FunctionTimes:
    """The times of each function on the stacks."""
    own, total = Counter[str](), Counter[str]()
    for stack, ns in samples.sums().items():
        names = stack.split(";")
        own[names[-1]] += ns
        for name in dict.fromkeys(names):
            total[name] += ns
    functions = sorted(total)
    self_us, total_us = (np.array([each[name] for name in functions], np.float64) / 1e3 for each in (own, total))
    table = FunctionTimes(np.array(functions, dtype=object), self_us, total_us)
    return table[np.lexsort((-total_us, -self_us))]
