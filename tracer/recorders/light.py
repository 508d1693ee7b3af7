"""The light recorder: converts the rings that the preloaded library writes to a trace.

Host calls have host times. On the device, stamps give the start and end of each CUDA graph and of some runs of
eager launches. Runs whose kernels can be reconstructed from samples are rows of `kernels`; the others, and graphs, are
rows of `graph_launches` (runs have no graph). The time of a copy is unknown and not invented: it has no duration and is
placed at its earliest possible start.

`record` preloads the library into any program and its children. Platform wheels contain the compiled library. Other
installations contain only its C sources and compile them on first use into the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from platformdirs import user_cache_path

from tracer.compiled import compiled
from tracer.errors import FormatError, RecordError
from tracer.files.bounded import opened
from tracer.model.calls import (
    BLOCKING_COPY,
    CALLBACK,
    COPY,
    EVENT,
    GRAPH_LAUNCH,
    HOST_FUNCTION,
    LAUNCH,
    POLL,
    SYNC,
    WAIT,
    plain,
)
from tracer.model.devices import numbered_by_gpu
from tracer.model.fits import Fits
from tracer.model.intervals import Ints
from tracer.model.schema import MEMCPY_KINDS, MISSING
from tracer.model.trace import CONDITIONAL, DEVICE_ERROR, LIGHT, UNSTAMPED, Trace, add_pauses
from tracer.notes import fitting
from tracer.recorders import foreground, native
from tracer.recorders.cupti_library import INJECTION as NVTX
from tracer.recorders.cupti_library import is_cupti
from tracer.recorders.light_clock import Alignment
from tracer.recorders.light_kernels import fits_of_ring
from tracer.recorders.light_ring import NO_CONTEXT, Ring, has_rings, kept_small, nvtx_table, read_ring
from tracer.recorders.light_waits import letters, stream_keys
from tracer.recorders.light_work import StampedWork, covered, stamped_work
from tracer.recorders.symbols import chains_beside, kernel_names, renamed, short_name, sites_of
from tracer.recorders.window import WHOLE, TimeRange, Window, newest, pauses_between, profiler_spans, switched
from tracer.text import spelled

_DEFAULT_STREAM: Final = 7  # as CUPTI numbers it
_FIRST_STREAM: Final = 13
_RECORDS, _WAITS = 1, 2  # of an event
_SYNC_TYPES: Final = {
    "cuStreamSynchronize": "stream", "cuEventSynchronize": "event", "cuCtxSynchronize": "context",
    "cuStreamWaitEvent": "stream wait",
}  # fmt: skip
_KINDS: Final = {number: word for word, number in MEMCPY_KINDS.items()}
_LEFT: Final = {
    "graphs_left_conditional": "with conditional nodes", "graphs_left_memory": "that allocate memory",
    "graphs_left_unknown": "with nodes that cannot be stamped",
    "graphs_left_device": "that the device launches",
    "graphs_left_many": "beyond the limit of 32766 at a time",
    "graphs_left_refused": "for which the driver refused stamps", "graphs_left_empty": "without nodes",
    "graphs_left_captured": "that were captured into others",
    "graphs_left_context": "instantiated while no context, or one without stamps, was current",
}  # fmt: skip
_FAILED: Final = {
    "stamps_failed": "stamps failed: the driver refused them, or there was not enough memory",
    "runs_left": "runs of launches have an unknown end: they ended before a wait, or where no stamp was possible",
    "launches_between": "launches were made while another thread ended their run; they belong to no run",
    "names_left": "kernels have a number instead of a name: there was no space for it, or there were too many",
    "functions_captured": "host functions were captured into CUDA graphs; their own runs are not recorded",
    "brackets_serial": "contexts share a hardware queue with our own work (CUDA_DEVICE_MAX_CONNECTIONS=1, MPS): their "
    "clock was read only when they began and when the program ended",
    "entries_left": "driver functions are newer than this recorder or from another library; they are not recorded",
}

REFUSED: Final = {
    "space": "there is not enough space for a ring in {folder}, half of which is kept free",
    "size": "the program's limit on the size of files is too low for a ring (ulimit -f)",
    "files": "the program may open no more files (ulimit -n)",
    "memory": "the program may map no more memory (ulimit -v)",
    "seccomp": "the program forbade itself system calls (seccomp) before its first call of the driver",
    "folder": "the recorder's folder {folder} cannot be reached from the program (chroot, container, other user)",
}
"""Why the library could not keep something (`files.h`)."""

FOLDER: Final = "INTERTOKEN_LIGHT"
SITES: Final = "INTERTOKEN_LIGHT_SITES"
_MOST_NAMES: Final = 6
_PROGRAMS_BYTES: Final = 1 << 16  # of the file of programs, as in files.c
_NO_CALL: Final = "made no call of the CUDA driver (libcuda.so.1) that launches, copies or waits"
SHIPPED: Final = native.SOURCES / native.NAME
_SHIPPED_RACES: Final = native.SOURCES / native.RACES


def read_rings(folder: Path, unread: list[str] | None = None) -> list[Ring]:
    """Read the rings in a folder, sorted by their start. `unread` receives a note on each that cannot be read, such as
    that of a process killed while creating it; without it FormatError is raised."""
    rings = []
    for path in folder.glob("*.ring"):
        try:
            rings.append(read_ring(newest(path)))
        except FormatError as problem:
            if unread is None:
                raise
            unread.append(f"process {path.stem.partition('-')[0]} is left out: {problem}")
    return sorted(rings, key=lambda ring: (ring.start_ns, ring.process))


def light_trace(rings: Sequence[Ring]) -> Trace:
    """Build one trace from the rings of all processes, which share a clock. Times count from the first call. Where a
    process called exec, or another one got its number, the trace has a pause. Raises FormatError if there is no ring.
    """
    if not rings:
        raise FormatError("there is no ring to read")
    kept = [covered(ring) for ring in rings]
    begun = [int(ring.records["begin"].min()) for ring in kept if len(ring.records)]
    origin = min(begun, default=rings[0].start_ns)
    tables: dict[str, list[pd.DataFrame]] = {}
    notes: list[str] = []
    clocks: list[Alignment] = []
    calls: Counter[int] = Counter()
    chained = 0  # call chains of earlier rings
    for whole, ring in zip(rings, kept, strict=True):
        work = stamped_work(ring)
        for name, frame in _tables(ring, work, calls[ring.process], chained).items():
            timed = [column for column in ("start", "end") if column in frame]
            tables.setdefault(name, []).append(frame.assign(**{c: frame[c] - origin for c in timed}))
        chains = chains_beside(ring.path)
        tables.setdefault("callchains", []).append(chains.assign(chain=chains["chain"] + chained))
        chained += int(chains["chain"].max()) if len(chains) else 0
        ranges = nvtx_table(ring, notes)
        if len(ranges):
            tables.setdefault("nvtx", []).append(ranges.assign(**{c: ranges[c] - origin for c in ("start", "end")}))
        calls[ring.process] += len(ring.records)
        if lost := len(whole.records) - len(ring.records):
            notes.append(
                f"{_who(ring)}: device stamps are kept only for the last {ring.places // 2} graphs and runs of "
                f"launches; the {lost} calls before them are left out"
            )
        notes += _notes(ring, work)
        clocks += [clock for clock in work.alignments if clock is not None]
    joined = {name: pd.concat(frames, ignore_index=True) for name, frames in tables.items()}
    gpus = [(r.process, c.device, int.from_bytes(c.uuid, "little")) for r in kept for c in r.contexts]
    joined = numbered_by_gpu(joined, pd.DataFrame(gpus, columns=["process", "cuda", "uuid"]), notes)
    for name, key in (("processes", ["process"]), ("threads", ["process", "thread"])):  # twice if a process called exec
        joined[name] = joined[name].drop_duplicates(key, keep="last")
    clock: dict[str, Any] = {"name": "CLOCK_MONOTONIC", "origin_ns": origin}
    if errors := [each.error_ns for each in clocks if each.error_ns is not None]:
        clock[DEVICE_ERROR] = max(errors)
    if clocks:
        clock["device_brackets"] = min(each.brackets for each in clocks)
    metadata = {"source": LIGHT, "clock": clock, "start_utc_ns": rings[0].start_utc_ns + origin - rings[0].start_ns}
    if conditional := sum(ring.counters.get("graphs_left_conditional", 0) for ring in kept):
        metadata[CONDITIONAL] = conditional
    trace = Trace.from_columns(metadata, **joined)
    trace.notes += notes
    lives = [
        TimeRange(int(ring.records["begin"].min()) - origin, int(ring.records["end"].max()) - origin + 1, ring.process)
        for ring in kept if len(ring.records)
    ]  # fmt: skip
    between = pauses_between(lives)
    add_pauses(trace, [each._replace(is_exec=True) for each in between])
    return trace


def _tables(ring: Ring, work: StampedWork, earlier: int, chained: int) -> dict[str, pd.DataFrame]:
    """The tables of a ring; `earlier` calls are in the process's rings from before it called exec, `chained` is the
    largest number of a call chain in earlier rings."""
    records, letter, site = ring.records, letters(ring), sites_of(ring)
    caller = _callers(ring)
    correlation = caller + 1 + earlier
    keys = stream_keys(records)[caller]  # a driver's thread has no stream of its own
    stream = _streams(records["stream"], keys)
    event = _numbered(records["object"])
    device, context = _places(ring, letter, keys)
    on_stream = {
        "device": device, "context": context, "stream": stream, "correlation": correlation,
        "process": np.full(len(records), ring.process),
    }  # fmt: skip

    def rows(which: NDArray[np.bool_], **columns: Any) -> pd.DataFrame:
        return pd.DataFrame({n: np.asarray(v)[which] for n, v in (on_stream | columns).items()})

    times = {"start": records["begin"], "end": records["end"]}
    names = np.array(ring.calls or [""])[records["call"]]
    types = np.array([_SYNC_TYPES.get(plain(name), "unknown") for name in ring.calls] or [""])[records["call"]]
    fills = np.array([plain(name).startswith("cuMemset") for name in ring.calls] or [False])[records["call"]]
    copies = (letter == COPY) | (letter == BLOCKING_COPY)
    earliest = _earliest(records, letter, keys, work)
    moment = {"start": earliest, "end": earliest, "bytes": records["bytes"].astype(np.int64)}
    kinds = np.array([_KINDS.get(int(kind), "unknown") for kind in range(256)])[records["copy_kind"]]
    graphs = work.table.drop(work.kernels.table["run"].unique())
    at = graphs["record"].to_numpy(np.int64)
    kernels = work.kernels.table
    launch = kernels["record"].to_numpy(np.int64)
    names_of = kernel_names(ring.path, records[launch])
    facts = [(c.device, c.name) for c in ring.contexts]
    return {
        "api": pd.DataFrame(times | {
            "process": ring.process, "thread": records["thread"].astype(np.int64), "correlation": correlation,
            "name": pd.Categorical(names), "return_value": records["result"].astype(np.int64),
            "layer": pd.Categorical(np.full(len(records), "driver")),
            "callchain": np.where(site == MISSING, MISSING, site + chained),
            "count": np.where((letter == POLL) & (records["bytes"] > 1), records["bytes"].astype(np.int64), MISSING),
        }),
        "syncs": rows((letter == SYNC) | (letter == WAIT), **times, type=types,
                      stream=np.where(np.isin(types, ["event", "context"]), MISSING, stream),
                      event=np.where(records["object"] > 0, event, MISSING)),
        "cuda_events": rows(letter == EVENT, event=event),
        "memcpys": rows(copies, **moment, kind=kinds),
        "memsets": rows(fills, **moment),
        "graph_launches": pd.DataFrame({
            "start": graphs["start"], "end": graphs["end"], "device": device[at],
            "context": graphs["context"] + 1, "stream": stream[at], "correlation": correlation[at],
            "process": ring.process, "graph": graphs["graph"],
        }),
        "kernels": pd.DataFrame({
            "start": kernels["start"], "end": kernels["end"], "device": device[launch], "context": context[launch],
            "stream": stream[launch], "correlation": correlation[launch], "process": ring.process,
            "name": names_of, "short_name": renamed(names_of, short_name),
        }),
        "streams": pd.DataFrame({"process": ring.process, "context": context, "stream": stream})
        .drop_duplicates().query("context >= 0"),
        "devices": pd.DataFrame({"device": [d for d, _ in facts], "name": [n for _, n in facts]}),
        "threads": pd.DataFrame({"process": ring.process, "thread": pd.unique(records["thread"].astype(np.int64))})
        .assign(name=""),
        "processes": pd.DataFrame({"process": [ring.process], "name": [ring.program]}),
    }  # fmt: skip


def _callers(ring: Ring) -> Ints:
    """For each record its own position; for the run of a host function, that of the call that put it on its stream."""
    records, callers = ring.records, np.arange(len(ring.records))
    is_run = np.array([name.endswith(CALLBACK) for name in ring.calls] or [False])[records["call"]]
    if is_run.any():
        puts = np.flatnonzero((letters(ring) == HOST_FUNCTION) & (records["object"] > 0))
        at = pd.Index(records["object"][puts]).get_indexer(pd.Index(records["object"][is_run]))
        callers[is_run] = np.where(at >= 0, np.append(puts, -1)[at], callers[is_run])
    return callers


def _places(ring: Ring, letter: NDArray[np.str_], keys: Ints) -> tuple[Ints, Ints]:
    """Device and context of each record; MISSING if the thread had none.

    A record holds the context that was current. Launches require that of their stream; copies, waits and events do not,
    so they get the context of the launches on their stream, if these agree.
    """
    devices = np.full(256, MISSING)
    devices[: len(ring.contexts)] = [context.device for context in ring.contexts]
    number = ring.records["context"].astype(np.int64)
    launched = np.isin(letter, [LAUNCH, GRAPH_LAUNCH]) & (ring.records["result"] == 0)
    owners = pd.Series(number[launched]).groupby(keys[launched]).agg(["min", "max"])
    owner = owners.loc[owners["min"] == owners["max"], "min"]
    number = pd.Series(keys).map(owner).fillna(pd.Series(number)).to_numpy(np.int64)
    return devices[number], np.where(number == NO_CONTEXT, MISSING, number + 1)


def _streams(handles: NDArray[Any], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Stream numbers: 7 for the legacy default stream (handles 0 and 1), as in CUPTI; others in order of occurrence."""
    is_default = handles <= 1
    streams = np.full(len(handles), _DEFAULT_STREAM)
    streams[~is_default] = _FIRST_STREAM - 1 + _numbered(keys[~is_default])
    return streams


def _numbered(handles: NDArray[Any]) -> NDArray[np.int64]:
    """Number handles 1, 2, ... in order of occurrence."""
    return np.asarray(pd.factorize(handles)[0] + 1, np.int64)


def _earliest(records: NDArray[Any], letter: NDArray[np.str_], keys: Ints, work: StampedWork) -> Ints:
    """The earliest start of each record's work on the device: after the call, and after the earlier work of known times
    on its stream and on those for whose events its stream waits."""
    ends, kernels = np.zeros(len(records), np.int64), work.kernels.table
    for done in (work.table.drop(kernels["run"].unique()), kernels):
        ends[done["record"].to_numpy(np.int64)] = done["end"]
    kinds = np.select([letter == EVENT, letter == WAIT], [_RECORDS, _WAITS], 0)
    streams, events = (pd.factorize(column)[0].astype(np.int64) for column in (keys, records["object"]))
    return _after_others(records["begin"].astype(np.int64), ends, kinds, streams, events)


@compiled
def _after_others(begin: Ints, ends: Ints, kinds: Ints, streams: Ints, events: Ints) -> Ints:  # pragma: no cover
    """Each begin, or the latest of the ends that its stream has or waits for before, if that is later."""
    latest, of_stream, of_event = begin.copy(), np.zeros(len(begin), np.int64), np.zeros(len(begin), np.int64)
    for row in range(len(begin)):
        stream, event = streams[row], events[row]
        latest[row] = max(begin[row], of_stream[stream])
        if kinds[row] == _RECORDS:
            of_event[event] = of_stream[stream]
        elif kinds[row] == _WAITS:
            of_stream[stream] = max(of_stream[stream], of_event[event])
        of_stream[stream] = max(of_stream[stream], ends[row])
    return latest


def _who(ring: Ring) -> str:
    return f"process {ring.process} ({ring.program})"


def _empty(fits: Fits) -> str:
    """The part of each kernel's duration that stamps cannot measure."""
    told = f"{fits.light.empty_ns / 1e3:.2f} µs of each is what CUPTI reports for a kernel that does nothing"
    if "light" not in fits.foreign:
        return told
    return f"{told}, on another GPU: on this one each may be some 0.4 µs longer or shorter, and idle time the opposite"


def _notes(ring: Ring, work: StampedWork) -> list[str]:
    who = _who(ring)
    counters = ring.counters
    notes = []
    if ring.overwritten:
        notes.append(
            f"{who}: the ring holds the last {ring.capacity} calls; {ring.overwritten} older ones were overwritten"
        )
    left = [f"{counters[name]} {words}" for name, words in _LEFT.items() if counters.get(name)]
    if left:
        unknown = f"{who}: {UNSTAMPED}, whose times are unknown"
        notes.append(fitting(f"{unknown}: {', '.join(left)}", unknown))
    notes += [f"{who}: {counters[name]} {words}" for name, words in _FAILED.items() if counters.get(name)]
    notes += [
        f"{who}: {counters[f'refused_{reason}']} parts of the recording are missing: "
        + words.format(folder=ring.path.parent.parent)
        for reason, words in REFUSED.items()
        if counters.get(f"refused_{reason}")
    ]
    if ring.lost:
        notes.append(
            f"{who}: {ring.lost} calls are missing: the process was killed, or was running, while it wrote them"
        )
    if counters.get("contexts_left"):
        notes.append(f"{who}: contexts after the first {len(ring.contexts)} have no times")
    notes += [
        f"{who}: a device stamp takes {cost.stamp / 1e3:.1f} µs, and {cost.step / 1e3:.1f} µs until the next node\n"
        "each stamped graph and run contains two, counted as part of it, not as idle time"
        for cost in work.costs
        if cost is not None
    ]
    kernels = work.kernels
    is_run, is_stamped = work.table["graph"] == MISSING, work.table["is_stamped"].astype(bool)
    is_resolved = work.table.index.isin(kernels.table["run"])
    if resolved := int(is_resolved.sum()):
        notes.append(
            f"{who}: {len(kernels.table)} kernels of {resolved} runs of eager launches have the median duration of "
            f"their kind\nthese are from {kernels.timed} launches with stamps; "
            f"{int((is_resolved & is_stamped).sum())} of the runs have stamps, which confirm their ends within "
            f"{kernels.apart_ns / 1e3:.1f} µs (median); {_empty(fits_of_ring(ring))}"
        )
    if runs := int((is_run & is_stamped & ~is_resolved).sum()):
        notes.append(
            f"{who}: {runs} of the graph launches are runs of eager launches, whose kernels and idle time are unknown\n"
            "they are stamped at both ends; steps in which they take over 2 % of the time have no idle time"
        )
    if bounded := int((is_run & ~is_stamped & ~is_resolved).sum()):
        notes.append(
            f"{who}: {bounded} of the graph launches are runs of eager launches without stamps, whose times are "
            "unknown\neach is from its first launch to the next stamp or wait; steps in which they take over 2 % of "
            "the time have no idle time, and the gap after one may be longer"
        )
    if len(kernels.unsampled):
        often = Counter(kernel_names(ring.path, ring.records[kernels.unsampled])).most_common()
        whose = _some(
            [f"{name if name.startswith('kernel ') else short_name(name)} ({count})" for name, count in often]
        )
        notes.append(
            f"{who}: {len(kernels.unsampled)} eager launches have no duration, as stamps were taken of none like them\n"
            f"they are {whose}"
        )
    if work.untimed:
        notes.append(f"{who}: {work.untimed} graph launches and runs of launches have no stamps and so no times")
    if work.unmatched:
        notes.append(
            f"{who}: {work.unmatched} device stamps are left out: their launches are not in the recording\n"
            "they were overwritten, made outside the recorded part of the run, or had not ended"
        )
    for number, clock in enumerate(work.alignments):
        if clock is not None and not clock.brackets:
            notes.append(
                f"{who}: the clock of the device of context {number + 1} was never read, so its times are bounds\n"
                "it had no room, or refused: they are known only from the program's launches and waits"
            )
        if clock is not None and clock.error_ns is None:
            notes.append(f"{who}: nothing waited for the device of context {number + 1}, so its times may be late")
        if clock is not None and clock.contradictions:
            notes.append(f"{who}: {clock.contradictions} windows of the clock alignment are contradictory")
    return notes


def library(*, races: bool = False) -> Path:
    """The library for this machine, or that of `intertoken races`, compiled now if necessary.

    Raises:
        RecordError: there is no library and no compiler, it does not load, or the system is not Linux.
    """
    if not sys.platform.startswith("linux"):
        raise RecordError("the light recorder preloads a library, which is possible only on Linux")
    shipped = _SHIPPED_RACES if races else SHIPPED
    path = shipped if shipped.is_file() else _compiled(races)
    try:
        ctypes.CDLL(str(path))
    except OSError as problem:
        raise RecordError(f"the recorder's library does not load on this machine: {problem}") from problem
    return path


def _compiled(races: bool) -> Path:
    made = cached(races=races)
    if made.is_file():
        return made
    compiler = native.compiler()
    if compiler is None:
        raise RecordError(
            "the recorder's library is not compiled in this installation, and there is no C compiler (cc, gcc or "
            "clang on PATH, or CC); install one, or a wheel of intertoken for this machine"
        )
    new = made.with_suffix(f".{os.getpid()}")
    try:
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        native.compile_library(new, compiler, races=races)
        new.rename(made)
    except native.CompileError as problem:
        raise RecordError(f"the recorder's library cannot be compiled: {problem}") from problem
    except OSError as problem:
        raise RecordError(f"{made.parent}: cannot be written: {problem.strerror or problem}") from problem
    return made


def cached(*, races: bool = False) -> Path:
    """The path in the user's cache of the library compiled from these sources for this machine and its C library."""
    digest = hashlib.sha256("\0".join(platform.libc_ver()).encode())
    more = native.SOURCES.glob("races/*.[ch]") if races else ()
    for source in sorted([*native.SOURCES.glob("*.[ch]"), *native.SOURCES.glob("*.py"), *more]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    name = native.RACES if races else native.NAME
    return user_cache_path("intertoken") / f"{digest.hexdigest()[:16]}-{os.uname().machine}-{name}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: the recording, None if nothing was recorded (and `why`), and the code as returned by
    `foreground.run`."""

    trace: Trace | None
    code: int
    why: str = ""


def record(
    command: Sequence[str], rings: Path, window: Window = WHOLE, *, call_sites: bool = False,
    pass_fds: Sequence[int] = (),
) -> Outcome:  # fmt: skip
    """Run a command in the foreground and read the rings that it and its children left in a folder.

    With `call_sites` the stack of each call is kept. The command inherits `pass_fds`.

    Raises:
        RecordError: there is no library for this machine, or the command cannot be started.
    """
    given = environment(library(), rings) | ({SITES: "1"} if call_sites else {})
    code = run(command, given, rings, window, pass_fds)
    unread: list[str] = []
    trace = read_folder(rings, unread)
    if trace is not None and window.is_programs:
        add_pauses(trace, pauses_between(profiler_spans(trace)))
    return Outcome(trace, code, "" if trace else "; ".join([why_nothing(rings), *unread]))


def run(
    command: Sequence[str], environment: Mapping[str, str], rings: Path, window: Window,
    pass_fds: Sequence[int] = (), *, output: int | None = None, folder: Path | None = None,
) -> int:  # fmt: skip
    """Run a command in the foreground, recorded while the window is open; takes and returns the same as
    `foreground.run`. Raises RecordError if it cannot be started."""
    with switched(rings, window), kept_small(rings):
        try:
            return foreground.run(
                command, pass_fds, {**environment, **window.variables}, output=output, folder=folder
            )  # fmt: skip
        except OSError as problem:
            raise RecordError(f"{command[0]} cannot be run: {problem.strerror or problem}") from problem


def read_folder(rings: Path, unread: list[str] | None = None) -> Trace | None:
    """Read the recording in a folder; None if it is empty. Notes on missing rings go to the trace and to `unread`."""
    missing = [] if unread is None else unread
    recorded = [ring for ring in read_rings(rings, missing) if len(ring.records)]
    if not recorded:
        return None
    trace = light_trace(recorded)
    trace.notes += missing + without_room(rings)
    return trace


def environment(preloaded: Path, rings: Path, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the program to record. A library that is already preloaded stays before ours, and an existing
    NVTX injection library is kept, unless it is libcupti, which the CUPTI recorder of this process has set for itself.

    Raises:
        RecordError: the path of the library contains a separator of LD_PRELOAD (ld.so(8)).
    """
    if any(character in " :" for character in str(preloaded)):
        raise RecordError(
            f"{preloaded}: LD_PRELOAD does not support spaces or colons in paths; set XDG_CACHE_HOME to another folder"
        )
    before = base.get("LD_PRELOAD", "")
    given = {"LD_PRELOAD": f"{before}:{preloaded}" if before else str(preloaded), FOLDER: str(rings)}
    nvtx = {} if base.get(NVTX) and not is_cupti(base[NVTX]) else {NVTX: str(preloaded)}
    return {**base, **given, **nvtx}


def why_nothing(rings: Path, omitted: str = _NO_CALL) -> str:
    """Which programs ran, and why nothing was recorded; `omitted` describes what none of them did."""
    if not (rings / "programs").exists():
        return (
            "the library was not preloaded into any program: the command is statically linked, runs with other "
            "privileges (setuid, sudo), or clears LD_PRELOAD (env -i, a container)"
        )
    if has_rings(rings):
        return "no call of the CUDA driver that launches, copies or waits was made while the window was open"
    if without := without_room(rings):
        return "; ".join(without)
    names = list(dict.fromkeys(line.partition(" ")[2] for line in _programs(rings)))
    return f"{_some(names)} ran, and {omitted}"


def without_room(rings: Path) -> list[str]:
    """A note on the processes that have no ring, for each reason."""
    whose: dict[str, list[str]] = {}
    for line in _programs(rings):
        who, _, name = line.partition(" ")
        process, mark, reason = who.partition("!")
        if mark:
            whose.setdefault(REFUSED.get(reason, reason), []).append(f"process {process} ({name})")
    return [f"{words.format(folder=rings.parent)}; not recorded: {_some(names)}" for words, names in whose.items()]


def _programs(rings: Path) -> list[str]:
    """The lines that programs wrote: process id, "!" and the reason if it has no ring, and name."""
    with suppress(OSError), opened(rings / "programs") as file:
        return [spelled(line) for line in file.read(_PROGRAMS_BYTES).decode(errors="replace").split("\n") if line]
    return []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more
