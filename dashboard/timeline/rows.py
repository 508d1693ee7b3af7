"""The rows of a timeline: NVTX levels, API calls and Python functions of host threads, and the streams of devices;
and the facts about an event as lines of text, the same on the page and in the hovers of a figure outside of it.

Only recorded facts are included. Names are shortened but not escaped.

Of the functions only those of the program itself are shown, as in `call_sites.BELOW_PROGRAM`, to a depth of `LEVELS`;
the flame graph of the advice page has all of them. Functions that last for several steps, such as the loop over the
steps, and those that do little more than call another one are left out.

`Finder` searches them: a part of a name and filters in one line of text; and the events that match.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final, Literal, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import union_categoricals

from dashboard.palette import KINDS, NAMES
from dashboard.text import difference, duration, markup, plain, size
from dashboard.timeline.pyramid import AtAnyScale
from tracer.analysis.call_sites import BELOW_PROGRAM, PYTHON_FILE, nesting
from tracer.analysis.waits import UNKNOWN
from tracer.model.calls import COPIES, LAUNCHES, SYNC, letters_of
from tracer.model.calls import plain as without_suffixes
from tracer.model.columns import Names, match_rows, numbers, of_thread
from tracer.model.intervals import Ints, covered
from tracer.model.schema import HOST_COMPUTE, MISSING, PYTHON_FUNCTION
from tracer.model.trace import Trace

_SYNC: Final = KINDS.index("sync")
_SHAPE_COLUMNS: Final = [
    *(f"{of}_{axis}" for of in ("grid", "block") for axis in "xyz"),
    *("static_shared", "dynamic_shared", "registers"),
]  # fmt: skip

LEVELS: Final = 8
_PASSES_ON: Final = 0.95  # of its time: a function that spends as much in a single call is left out
_STEPS: Final = 2  # a function that lasts longer than so many of the longest step is left out

Codes = NDArray[np.integer[Any]]
_API_KINDS: Final = {SYNC: "sync"} | dict.fromkeys(COPIES, "copy") | dict.fromkeys(LAUNCHES, "launch")
_DEVICE_KINDS: Final = {"kernels": "kernel", "memcpys": "copy", "memsets": "memset", "graph_launches": "graph"}
_MOST_LEVELS: Final = 6
_PREFIX: Final = re.compile(r"^(cuda|cu|hip)(?=[A-Z])")  # of API names, left out inside bars with their suffixes
_OF_KINETO: Final = re.compile(r"^thread \d+ \((.*)\)$")  # as PyTorch's profiler calls a thread
_HOST_SPLIT: Final = re.compile(r"split \d+: host")  # as the executor calls what it computes on the host
_ON_STREAM: Final = (*_DEVICE_KINDS, "syncs", "cuda_events")
_LANE: Final = ["device", "process", "stream"]
_HEIGHTS: Final = {"nvtx": 17, "api": 24, "stream": 26}


@dataclass(frozen=True, eq=False)
class Row(AtAnyScale):
    """One line of the timeline.

    Attributes:
        role: "nvtx", "api" or "stream".
        process, thread: of a host row; MISSING thread for a device row.
        device, stream: of a device row; MISSING for a host row.
        events: one row per event, by start: start end (ns), what (position in `palette.KINDS`), name and full
            (short and whole, categorical), stream, correlation, bytes (MISSING where there is none), shape (what a
            kernel was launched with, in words, categorical; "" for others).
        aside: whether it has no events during the steps, so that it is shown only on request.
    """

    label: str
    role: Literal["nvtx", "api", "stream"]
    events: pd.DataFrame = field(repr=False)
    process: int = MISSING
    thread: int = MISSING
    device: int = MISSING
    stream: int = MISSING
    aside: bool = False

    @property
    def height(self) -> int:
        """In pixels, with the space below."""
        return _HEIGHTS[self.role]

    def starting(self, time: int) -> int | None:
        """The first event that starts at this time."""
        first = int(np.searchsorted(self.start, time))
        return first if first < len(self.start) and self.start[first] == time else None

    def ending(self, time: int) -> int | None:
        """The last event that ends at this time."""
        near = self.pyramid.in_view(time - 1, time + 1)
        ending = near[self.end[near] == time]
        return int(ending[-1]) if len(ending) else None

    @cached_property
    def finder(self) -> Finder:
        """The search index of the row's events."""
        what, stream = (self.events[column].to_numpy() for column in ("what", "stream"))
        return Finder(self.start, self.end, what, stream, [self.events[c] for c in ("full", "name")])

    @cached_property
    def texts(self) -> NDArray[np.object_]:
        """For each name of an event, the text inside its bar: safe, but neither escaped nor cut to fit."""
        return np.array(
            [plain(_PREFIX.sub("", without_suffixes(str(c))), 80) for c in self.events["name"].cat.categories],
            dtype=object,
        )

    @cached_property
    def titles(self) -> NDArray[np.object_]:
        """For each full name, the headline of a hover: safe for Plotly."""
        return np.array([markup(str(c), width=88) for c in self.events["full"].cat.categories], dtype=object)

    @cached_property
    def brief_titles(self) -> NDArray[np.object_]:
        """Shortened headlines, for views with so many events that whole names would take too much memory."""
        return np.array([markup(str(c), 48) for c in self.events["full"].cat.categories], dtype=object)

    @cached_property
    def codes(self) -> tuple[Codes, Codes]:
        """For each event, its position in `texts` and in `titles`."""
        name, full = (cast(pd.Categorical, self.events[c].array).codes for c in ("name", "full"))  # no copy
        return name, full


def rows_of(
    trace: Trace, low: int | None = None, high: int | None = None, functions: pd.DataFrame | None = None
) -> list[Row]:
    """The rows with an event in [low, high], host threads first, then device streams; the other rows (`aside`) last.

    Args:
        trace: the recording, without Python functions.
        low, high: the range of the steps, ns.
        functions: its `shown_functions`.
    """
    functions = trace["nvtx"].iloc[:0] if functions is None else functions
    rows = [*_host_rows(trace, functions), *_device_rows(trace)]
    if low is None or high is None:
        return rows
    meets = [bool(((row.end >= low) & (row.start <= high)).any()) for row in rows]
    aside = [replace(row, aside=True) for row, does in zip(rows, meets, strict=True) if not does]
    return [*(row for row, does in zip(rows, meets, strict=True) if does), *aside]


def _host_rows(trace: Trace, functions: pd.DataFrame) -> Iterator[Row]:
    nvtx, api = trace["nvtx"], trace["api"]
    both = pd.concat([t[["process", "thread"]] for t in (nvtx, api, functions)]).drop_duplicates()
    hosts = [(int(p), int(t)) for p, t in both.itertuples(index=False)]
    threads = sorted(hosts, key=lambda thread: (thread[1] == MISSING, thread))
    known = [(process, thread) for process, thread in threads if thread != MISSING]
    names = _thread_names(trace["threads"], known)
    processes = len({process for process, _ in known} - {MISSING})
    for process, thread in threads:
        label = _thread_label(process, thread, names, len(known), processes)
        ranges = of_thread(nvtx, process, thread)
        on_host = (ranges["domain"] == HOST_COMPUTE).to_numpy()
        for level, events in enumerate(_levels(ranges[~on_host])):
            text = f"NVTX{label}" if level == 0 else ""
            yield Row(text, "nvtx", events, process, thread)
        if on_host.any():
            yield Row(f"host computes{label}", "nvtx", _host_events(ranges[on_host]), process, thread)
        calls = _api_events(trace, of_thread(api, process, thread))
        if len(calls):
            yield Row(f"API calls{label}", "api", calls, process, thread)
        for level, part in enumerate(levels_of(of_thread(functions, process, thread))):
            short = part["text"].astype("str").str.replace(r"^.*\(\d+\): ", "", regex=True)  # without file and line
            events = _events(part, "nvtx", short.astype("category"), part["text"])
            yield Row("" if level else f"Python{label}", "nvtx", events, process, thread)


def _thread_names(table: pd.DataFrame, threads: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """The names of these threads, without names shared by several threads, whose numbers are more informative."""
    given = {(int(p), int(t)): str(n) for p, t, n in table[["process", "thread", "name"]].itertuples(index=False)}
    named = {thread: _OF_KINETO.sub(r"\1", given[thread]) for thread in threads if thread in given}
    count = Counter((process, name) for (process, _), name in named.items())
    return {thread: name for thread, name in named.items() if count[thread[0], name] == 1}


def _thread_label(process: int, thread: int, names: dict[tuple[int, int], str], threads: int, processes: int) -> str:
    if threads == 0 or (threads == 1 and thread != MISSING):
        return ""
    if thread == MISSING:
        return " · on no thread"
    known = plain(names.get((process, thread), ""), 12)
    place = f" {process}" if processes > 1 else ""
    return f" · {known or thread}{place}"


def _levels(ranges: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Nesting levels of ranges: each takes the first level that is free when it starts."""
    if not len(ranges):
        return
    ranges = ranges.sort_values(["start", "end"], ascending=[True, False], kind="stable")
    level = np.zeros(len(ranges), dtype=np.int64)
    free: list[int] = list(range(_MOST_LEVELS))
    open_until: list[tuple[int, int]] = []
    for i, (start, end) in enumerate(zip(ranges["start"].tolist(), ranges["end"].tolist(), strict=True)):
        while open_until and open_until[0][0] <= start:
            heapq.heappush(free, heapq.heappop(open_until)[1])
        level[i] = heapq.heappop(free) if free else _MOST_LEVELS - 1
        if level[i] < _MOST_LEVELS - 1:
            heapq.heappush(open_until, (end, int(level[i])))
    for depth in range(int(level.max()) + 1):
        part = ranges[level == depth]
        computed = [text for text in part["text"].cat.categories if _HOST_SPLIT.fullmatch(str(text))]
        what = np.where(part["text"].isin(computed), KINDS.index("host"), KINDS.index("nvtx")).astype(np.int8)
        yield _events(part, what, part["text"], part["text"])


def _host_events(ranges: pd.DataFrame) -> pd.DataFrame:
    """Computations of the host as a device, with the bytes of the weights."""
    ranges = ranges.sort_values("start", kind="stable")
    short = ranges["text"].astype("str").str.partition("(")[0].astype("category")
    told = ranges.assign(bytes=ranges["payload"].fillna(MISSING).astype("int64"))
    return _events(told, "host", short, ranges["text"])


def _api_events(trace: Trace, calls: pd.DataFrame) -> pd.DataFrame:
    letters = letters_of(calls["name"])
    what = np.full(len(calls), KINDS.index("api"), np.int8)
    for letter, kind in _API_KINDS.items():
        what[letters == letter] = KINDS.index(kind)
    stream, open_ = np.full(len(calls), MISSING), np.arange(len(calls))
    for name in _ON_STREAM:
        at = match_rows(trace[name], calls.iloc[open_])
        matched = at >= 0
        stream[open_[matched]] = trace[name]["stream"].to_numpy()[at[matched]]
        open_ = open_[~matched]
    called = _plain_calls(calls["name"])
    return _events(calls, what, called, called, stream)


def _plain_calls(names: pd.Series) -> pd.Series:
    """Names of calls without their suffixes."""
    short = [without_suffixes(str(name)) for name in names.cat.categories]
    number = {name: at for at, name in enumerate(dict.fromkeys(short))}
    codes = np.array([*(number[name] for name in short), -1], np.int64)[names.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(list(number), dtype="object")), names.index)


def _device_rows(trace: Trace) -> Iterator[Row]:
    parts: dict[tuple[int, ...], list[pd.DataFrame]] = {}
    for name, kind in _DEVICE_KINDS.items():
        table = trace[name]
        short, full = _device_names(name, table)
        what: str | NDArray[np.int8] = kind
        shape = None
        if name == "kernels":
            kinds = (KINDS.index("communication"), KINDS.index("kernel"))
            what, shape = np.where(trace.kernels.collective, *kinds).astype(np.int8), shapes_of(table)
        events = _events(table, what, short, full, table["stream"].to_numpy(), shape)
        of, count = numbers(*(table[column] for column in _LANE))
        for rows in (slice(None) if count == 1 else np.flatnonzero(of == number) for number in range(count)):
            lane = tuple(int(table[column].iloc[rows].iloc[0]) for column in _LANE)
            parts.setdefault(lane, []).append(events.iloc[rows])
    many_devices, many_processes = (len({lane[at] for lane in parts}) > 1 for at in (0, 1))
    for (device, process, stream), of_lane in sorted(parts.items()):
        label = f"GPU {device} · stream {stream}" if many_devices else f"stream {stream}"
        label += f" · {process}" if many_processes else ""
        yield Row(label, "stream", _by_start(of_lane), process=process, device=device, stream=stream)


def _by_start(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """The events of several tables, each sorted by start, as one."""
    if len(parts) == 1:
        return parts[0].reset_index(drop=True)
    order = np.argsort(np.concatenate([part["start"].to_numpy() for part in parts]), kind="stable")
    columns: dict[str, Any] = {}
    for column in map(str, parts[0]):
        if isinstance(parts[0][column].dtype, pd.CategoricalDtype):
            columns[column] = union_categoricals([part[column] for part in parts]).take(order)
        else:
            columns[column] = np.concatenate([part[column].to_numpy() for part in parts])[order]
    return pd.DataFrame(columns, copy=False)


def _device_names(table: str, frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Short and full names of a device table's rows, as categoricals."""
    if table == "kernels":
        unnamed = (frame["short_name"] == "").to_numpy()
        short = frame["name"] if unnamed.all() else frame["short_name"]
        return short, frame["name"] if not (frame["name"] == "").all() else short
    if table == "memcpys":
        name: pd.Series = (
            frame["kind"].cat.rename_categories(lambda kind: f"memcpy {kind}").cat.remove_unused_categories()
        )
    elif table == "memsets":
        name = pd.Series("memset", index=frame.index, dtype="str")
    else:
        name = ("CUDA graph " + frame["graph"].astype("str")).where(frame["graph"] != MISSING, "CUDA graph")
    return name.astype("category"), name.astype("category")


def _events(
    frame: pd.DataFrame,
    what: str | NDArray[np.int8],
    name: pd.Series,
    full: pd.Series,
    stream: Ints | int = MISSING,
    shape: pd.Categorical | None = None,
) -> pd.DataFrame:
    length = len(frame)
    columns = {
        "start": frame["start"].to_numpy(),
        "end": np.maximum(frame["end"].to_numpy(), frame["start"].to_numpy()),
        "what": np.full(length, KINDS.index(what), np.int8) if isinstance(what, str) else what,
        "name": name.array,
        "full": full.array,
        "stream": np.full(length, stream) if isinstance(stream, int) else stream,
        "correlation": frame["correlation"].to_numpy() if "correlation" in frame else np.full(length, MISSING),
        "bytes": frame["bytes"].to_numpy() if "bytes" in frame else np.full(length, MISSING),
        "shape": pd.Categorical.from_codes(np.zeros(length, np.int8), pd.Index([""])) if shape is None else shape,
    }
    return pd.DataFrame(columns, copy=False)


def without_functions(trace: Trace) -> pd.DataFrame:
    """Remove the Python functions from a trace, in place; returns them."""
    nvtx = trace["nvtx"]
    is_function = (nvtx["domain"] == PYTHON_FUNCTION).to_numpy()
    if not is_function.any():
        return nvtx.iloc[:0]
    others = nvtx[~is_function].reset_index(drop=True)
    for column in ("text", "domain"):
        others[column] = others[column].cat.remove_unused_categories()
    trace.tables["nvtx"] = others
    return nvtx[is_function]


def shown_functions(functions: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """The functions to show."""
    length = (functions["end"] - functions["start"]).to_numpy()
    most = _STEPS * int((steps["end"] - steps["start"]).max())
    of_program = Names.of_series(functions["text"]).chosen(
        lambda text: PYTHON_FILE.search(text) and not BELOW_PROGRAM.search(text)
    )
    return functions[of_program & (length > 0) & (length <= most)]


def levels_of(functions: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The levels of the functions of one thread, outermost first; each is sorted by start."""
    functions = functions.sort_values(["start", "end"], ascending=[True, False], kind="stable")
    parents, _ = _nested(functions)
    length, longest = (functions["end"] - functions["start"]).to_numpy(), np.zeros(len(functions) + 1, np.int64)
    np.maximum.at(longest, parents, length)
    functions = functions[longest[:-1] < _PASSES_ON * length]
    _, depth = _nested(functions)
    for level in range(min(int(depth.max(initial=-1)) + 1, LEVELS)):
        yield functions[depth == level]


def _nested(functions: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """See `call_sites.nesting`."""
    return nesting(*(functions[side].to_numpy(np.int64) for side in ("start", "end")))


def times_of(row: Row, index: Ints, anchor: int) -> list[str]:
    """Durations of events, and their starts on the axis whose zero is at `anchor`."""
    return [
        f"{duration(end - start)}, from {difference(start - anchor, 4)}"
        for start, end in zip(row.start[index].tolist(), row.end[index].tolist(), strict=True)
    ]


def lines_of(row: Row, index: Ints, anchor: int, waits: pd.DataFrame) -> list[list[str]]:
    """All known facts about events, by start, from their own rows.

    Args:
        anchor: time 0, ns of the recording.
        waits: as returned by `marks.waits_of`.
    """
    columns = [row.events[c].iloc[index].tolist() for c in ("stream", "correlation", "bytes", "shape")]
    lengths = (row.end[index] - row.start[index]).tolist()
    each = zip(times_of(row, index, anchor), *columns, lengths, _waits(row, index, waits), strict=True)
    return [
        [line for line in (times, _ids(stream, number, count, ns), shape, wait) if line]
        for times, stream, number, count, shape, ns, wait in each
    ]


def line_of_bar(row: Row, low: int, high: int) -> str:
    """What a bar from `low` to `high`, ns of the recording, stands for; the facts of its longest event follow."""
    merged = row.pyramid.merged(low, high)
    busy = int(covered(row.start[merged], row.end[merged], [low], [high])[0])
    share = int(100 * busy / (high - low) + 0.5)
    return f"{len(merged):,} events in {duration(high - low)}, busy {share}%; the longest of them:"


def _ids(stream: int, correlation: int, count: int, ns: int) -> str:
    known = [f"stream {stream}"] if stream != MISSING else []
    known += [f"correlation {correlation}"] if correlation != MISSING else []
    known += [size(count)] if count != MISSING else []
    known += [f"{count / ns:.2f} GB/s"] if count > 0 and ns > 0 else []
    return " · ".join(known)


def _waits(row: Row, index: Ints, waits: pd.DataFrame) -> Sequence[str]:
    """For the syncs among the events, what they waited for."""
    notes = [""] * len(index)
    if row.role != "api" or not len(index):
        return notes
    near = slice(*waits["start"].searchsorted([row.start[index].min(), row.start[index].max() + 1]))
    mine = of_thread(waits.iloc[near], row.process, row.thread)
    if not len(mine):
        return notes
    starts = mine["start"].to_numpy()
    at = np.minimum(np.searchsorted(starts, row.start[index]), len(starts) - 1)
    syncs = np.flatnonzero((starts[at] == row.start[index]) & (row.events["what"].to_numpy()[index] == _SYNC))
    waited = mine.iloc[at[syncs]]
    columns = [waited[c].tolist() for c in ("waited_until", "waited_for", "end")]
    for i, until, activity, end in zip(syncs.tolist(), *columns, strict=True):
        notes[i] = _wait(until, activity, end)
    return notes


def _wait(until: int, activity: str, end: int) -> str:
    """What a sync that returned at `end` waited for; nothing if the trace does not say."""
    if activity == UNKNOWN:
        return ""
    if until == MISSING:
        return "waited for nothing: all that it waits for had ended before"
    return f"waited for {plain(activity, 60)}, which ended {duration(end - until)} before it returned"


def shapes_of(kernels: pd.DataFrame) -> pd.Categorical:
    """Grid, block, shared memory and registers of each kernel in words; "" if the recording has none.

    Of millions of kernels few are distinct, and each distinct one is described once.
    """
    number = np.zeros(len(kernels), np.int64)
    most = 1  # numbers are smaller
    for values in (kernels[column].to_numpy() for column in _SHAPE_COLUMNS) if len(kernels) else ():
        low, span = int(values.min()), int(values.max()) - int(values.min()) + 1
        if most * span >= 1 << 62:
            number, values = (pd.factorize(each)[0] for each in (number, values))
            low, most, span = 0, int(number.max()) + 1, int(values.max()) + 1
        if span > 1:
            number, most = number * span + np.subtract(values, low, dtype=np.int64), most * span
    code, _ = pd.factorize(number)
    first = np.flatnonzero(~pd.Series(code).duplicated())  # codes count up as they appear
    words, of_code = pd.factorize(
        np.array([_words_of_shape(kernel) for kernel in kernels.iloc[first].to_dict("records")], object)
    )
    return pd.Categorical.from_codes(words[code] if len(code) else code, pd.Index(of_code, dtype="str"))


def _words_of_shape(kernel: dict[Any, Any]) -> str:
    known = [
        f"{of} {' × '.join(str(kernel[f'{of}_{axis}']) for axis in 'xyz')}"
        for of in ("grid", "block")
        if min(kernel[f"{of}_{axis}"] for axis in "xyz") > 0
    ]
    shared = kernel["static_shared"], kernel["dynamic_shared"]
    known += [f"shared memory {size(sum(shared))}"] if known and min(shared) >= 0 else []
    known += [f"{kernel['registers']} registers per thread"] if kernel["registers"] > 0 else []
    return " · ".join(known)


_REMEMBERED: Final = 2  # searches of a row: a position each of ten million events takes 40 MB
_PLURALS: Final = {"copy": "copies", "launch": "launches", "host": "pieces of host code",
                   "other": "of other processes or threads", "communication": "collectives"}  # fmt: skip
Positions = NDArray[np.int32]
HINT: Final = "gemm kind:kernel stream:7 >50us"
_UNITS: Final = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_LENGTH: Final = re.compile(r"([<>])(\d{1,9}(?:\.\d{1,9})?)(ns|us|µs|ms|s)")
_STREAM: Final = re.compile(r"stream:(\d{1,9})")
_LONGEST: Final = 2**62


@dataclass(frozen=True)
class Query:
    """A search.

    Attributes:
        text: substring of the name, ignoring case; "" for any name.
        kinds: positions in `palette.KINDS`, any of which matches; None for all.
        streams: streams, any of which matches; None for all.
        longer, shorter: bounds of the duration, ns, both excluded.
    """

    text: str = ""
    kinds: frozenset[int] | None = None
    streams: frozenset[int] | None = None
    longer: int = -1
    shorter: int = _LONGEST

    @property
    def filters(self) -> bool:
        """Whether there are filters in addition to the name."""
        return self != Query(self.text)


@lru_cache
def query_of(find: str) -> Query:
    """Parse a search: `kind:NAME`, `stream:NUMBER`, `>TIME` and `<TIME` are filters, the rest is the text.

    Several kinds, or several streams, mean any of them. An unknown kind matches nothing.

    Example:
        >>> query_of("gemm stream:7 >50us")
        Query(text='gemm', kinds=None, streams=frozenset({7}), longer=50000, shorter=4611686018427387904)
    """
    words, kinds, streams, longer, shorter = list[str](), list[frozenset[int]](), list[int](), -1, _LONGEST
    for word in find.split():
        if length := _LENGTH.fullmatch(word):
            ns = round(float(length[2]) * _UNITS[length[3]])
            longer, shorter = (max(longer, ns), shorter) if length[1] == ">" else (longer, min(shorter, ns))
        elif stream := _STREAM.fullmatch(word):
            streams.append(int(stream[1]))
        elif word.casefold().startswith("kind:"):
            kinds.append(_kinds(word.partition(":")[2].casefold()))
        else:
            words.append(word)
    return Query(
        " ".join(words),
        frozenset().union(*kinds) if kinds else None,
        frozenset(streams) if streams else None,
        longer,
        shorter,
    )


def _kinds(word: str) -> frozenset[int]:
    """The kinds meant by a word: by key, or by the first word of the name in the legend."""
    return frozenset(at for at, kind in enumerate(KINDS) if word in (kind, NAMES[kind].partition(" ")[0].casefold()))


class Finder:
    """The search index of a row's events.

    Args:
        start: when they begin, in order, ns.
        end: when they end.
        what: their positions in `palette.KINDS`.
        stream: the streams that they are on, MISSING for none.
        names: columns of names, categoricals; one match suffices.
    """

    def __init__(
        self, start: Ints, end: Ints, what: NDArray[np.int8], stream: Ints, names: Sequence[pd.Series]
    ) -> None:
        self._start, self._end, self._what, self._stream = start, end, what, stream
        self._names = [cast(pd.Categorical, column.array) for column in names]
        self.positions = lru_cache(maxsize=_REMEMBERED)(self._positions)

    @cached_property
    def _folded(self) -> list[list[str]]:
        """The distinct names of each column, in lower case."""
        return [[str(name).casefold() for name in column.categories] for column in self._names]

    @cached_property
    def totals(self) -> Ints:
        """The number of events of each kind."""
        return np.bincount(self._what, minlength=len(KINDS))

    def _positions(self, find: str) -> Positions:
        """The events that match a search as typed, by start."""
        query = query_of(find)
        hit = np.zeros(len(self._start), bool)
        for column, names in zip(self._names, self._folded, strict=True):
            wanted = np.array([query.text.casefold() in name for name in names], dtype=bool)
            if wanted.any():
                hit |= wanted[column.codes]
        matches = np.flatnonzero(hit).astype(np.int32)
        return self._kept(matches, query) if query.filters else matches

    def _kept(self, events: Positions, query: Query) -> Positions:
        """The positions of the events that pass the filters."""
        length = self._end[events] - self._start[events]
        kept = (length > query.longer) & (length < query.shorter)
        if query.kinds is not None:
            kept &= np.isin(self._what[events], list(query.kinds))
        if query.streams is not None:
            kept &= np.isin(self._stream[events], list(query.streams))
        return events[kept]

    def among(self, events: Ints, find: str) -> Ints:
        """1 for each of these events that matches, 0 for others."""
        matches = self.positions(find)
        at = np.searchsorted(matches, events)
        return (matches[np.minimum(at, len(matches) - 1)] == events).astype(np.int64) if len(matches) else 0 * events

    def within(self, start: Ints, end: Ints, find: str) -> Ints:
        """The number of matches that begin in each of these spans, ns."""
        matches = self.positions(find)
        first, last = (np.searchsorted(matches, np.searchsorted(self._start, times)) for times in (start, end))
        return cast(Ints, last - first)

    def counts(self, find: str) -> Ints:
        """The number of matches of each kind."""
        return np.bincount(self._what[self.positions(find)], minlength=len(KINDS))

    def before(self, find: str, at: int) -> int:
        """The number of matches before position `at`."""
        return int(np.searchsorted(self.positions(find), at))

    def starting_before(self, find: str, time: int) -> int:
        """The number of matches that start before a time, ns."""
        return self.before(find, int(np.searchsorted(self._start, time)))

    def has(self, find: str, event: int) -> bool:
        """Whether this event matches."""
        return bool(self.among(np.array([event]), find)[0])

    def beside(self, find: str, at: int, step: int) -> int | None:
        """The first match from position `at` on (`step` 1), or the last before it (-1); None if there is none."""
        matches = self.positions(find)
        place = int(np.searchsorted(matches, at)) - (step < 0)
        return int(matches[place]) if 0 <= place < len(matches) else None


def counted(finders: Iterable[Finder], find: str) -> str:
    """The number of matches, in words.

    Example:
        >>> counted([], "gemm")
        'no event is called “gemm”'
    """
    counts, totals = np.zeros((2, len(KINDS)), np.int64)
    for finder in finders:
        counts += finder.counts(find)
        totals += finder.totals
    if not counts.any():
        return f"no matches for “{find}”" if query_of(find).filters else f"no event is called “{find}”"
    kinds = np.flatnonzero(counts).tolist()
    names = {kind: _PLURALS.get(KINDS[kind], f"{NAMES[KINDS[kind]]}s") for kind in kinds}
    return ", ".join(f"{counts[kind]:,} of {totals[kind]:,} {name}" for kind, name in names.items())
