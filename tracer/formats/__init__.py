"""Trace formats, one file each, named in `_SHIPPED`; `read` and `write` find the one that fits.

Other distributions add theirs through the entry-point group `intertoken.formats`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

import pandas as pd

from tracer.errors import FormatError, TraceError, printable
from tracer.extensions import FORMATS, extensions
from tracer.files.others import known_first, known_last
from tracer.files.output import appearing, check_place, is_leftover
from tracer.model.run_json import unsafe_notes
from tracer.model.trace import Trace
from tracer.notes import fitting

Writer = Callable[[Trace, Path], Sequence[str] | None]
Counters = Callable[[Trace], pd.DataFrame]
"""Trace -> `start` and counts (syncs, copies, launches) of each of its steps. Raises EmptyTraceError if it has none."""


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format.

    Attributes:
        name: for messages.
        suffix: the suffix of files written in this format; "" for a directory.
        sniff: whether a path holds this format, judged by its content.
        read: path -> Trace, raises FormatError with one clear line; None if the format can only be written.
        write: (trace, path) -> notes on differences between the file and the trace, if any; None if the format can
            only be read.
        aliases: other suffixes that select this format for writing.
        options: keyword options of `read`, all off by default.
        lossless: whether a written trace is read back unchanged.
        has_counters: whether `write` takes `counters` (`Counters`), too.
        is_part: for a directory: whether an entry belongs to the recording, and is replaced with it.
        rank: which rank a recording is of, told before it is read; None if it does not tell.
    """

    name: str
    suffix: str
    sniff: Callable[[Path], bool]
    read: Callable[..., Trace] | None
    write: Callable[..., Sequence[str] | None] | None = None
    aliases: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    lossless: bool = True
    has_counters: bool = False
    is_part: Callable[[Path], bool] | None = None
    rank: Callable[[Path], int | None] | None = None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """All suffixes that select this format for writing."""
        return (self.suffix, *self.aliases)


WHOLE: Final = frozenset({"whole"})
"""The option of formats that hold more than a trace has columns for; see `read`."""

_FUNCTIONS: Final = frozenset({"python_functions", "samples"})

_SUFFIX: Final = re.compile(r"\.[a-z]\w*(-rep)?", re.IGNORECASE)
"""The pattern of a suffix; the end of `llama-1.1b-sccc` is not one."""

_MOST_NAMES: Final = 5  # of unknown calls, and of recordings in a directory
_MOST_ENTRIES: Final = 500  # of a directory that are looked at


_SHIPPED: Final = ("nsys_parquet", "chrome", "zipped", "perfetto", "rocpd", "nsys_sqlite", "rocprof_csv")
"""The files of this folder with a `Format`, in the order in which they are tried: each is imported only when the ones
before it do not hold. nsys's accepts any SQLite file, to say what it lacks."""


@cache
def _of_file(name: str) -> tuple[Format, ...]:
    return tuple(value for value in vars(import_module(f"{__name__}.{name}")).values() if isinstance(value, Format))


def registered() -> Iterator[Format]:
    """All known formats, in the order in which they are tried, those that other distributions add first."""
    yield from (added for _, added in extensions(FORMATS, Format))
    yield from chain.from_iterable(map(_of_file, _SHIPPED))


def is_trace(path: Path) -> bool:
    """Whether a readable format recognises the path."""
    return any(f.read is not None and f.sniff(path) for f in registered())


def read(path: str | Path, *, whole: bool = True, **options: bool) -> Trace:
    """Read a recording of any known format, with the named options of its reader.

    If `whole`, the trace carries what the file holds beyond the trace's columns, so that it can be written again.
    Without it, reading is faster. No analysis uses carried data.

    Raises:
        FormatError: the path does not exist, is not a trace, is damaged, or its format has no such option.
    """
    source = Path(path)
    wanted = {name: True for name, is_wanted in options.items() if is_wanted}
    try:
        form = format_of(source)
        if form.read is None:
            raise FormatError(f"{source}: {form.name} can be written but not read")
        if unknown := wanted.keys() - form.options:
            raise FormatError(f"{source}: {form.name} has no {', '.join(unknown).replace('_', ' ')}")
        if whole and "whole" in form.options:
            wanted["whole"] = True
        trace = form.read(source, **wanted)
    except OSError as error:
        raise FormatError(f"{source}: cannot be read: {error.strerror or error}") from error
    except FormatError as error:
        raise FormatError(printable(str(error))) from error
    trace.name = printable(source.resolve().name)
    told = [*_of_unknown_calls(trace), *unsafe_notes(trace)]
    trace.notes += [note for note in told if note not in trace.notes]  # a converted one has them
    return trace


def _of_unknown_calls(trace: Trace) -> list[str]:
    """A note that names calls that look relevant but are missing from our list of calls."""
    unknown = trace.api.unknown_calls()
    if not unknown:
        return []
    names = ", ".join(f"{name} ({count})" for name, count in unknown.most_common(_MOST_NAMES))
    more = f" and {len(unknown) - _MOST_NAMES} other names" if len(unknown) > _MOST_NAMES else ""
    calls = f"{unknown.total()} calls seem to launch, copy or synchronise, but are unknown and not counted as such"
    return [fitting(f"{calls}: {names}{more}", calls)]


def functions_of(source: Path) -> dict[str, bool]:
    """The options of `read` that add the functions which the recording's format leaves out by default, if any. Raises
    like `format_of`."""
    return dict.fromkeys(sorted(_FUNCTIONS & format_of(source).options), True)


def format_of(source: Path) -> Format:
    """The format of a recording, judged by its content. Raises FormatError: no such path, or not a trace."""
    try:
        source.stat()  # `exists` hides other refusals of the system since Python 3.14
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise FormatError(f"{source}: no such file or directory") from None
    if not source.is_file() and not source.is_dir():
        raise FormatError(f"{source}: neither a regular file nor a directory")
    if source.is_file() and source.stat().st_size == 0:
        raise FormatError(f"{source}: the file is empty")
    if other := known_first(source):
        raise FormatError(f"{source}: {other}")
    for f in registered():
        if f.sniff(source):
            return f
    if other := known_last(source):
        raise FormatError(f"{source}: {other}")
    if source.is_dir() and (recordings := _recordings_in(source)):
        raise FormatError(f"{source}: {recordings}")
    what = "directory holds no trace" if source.is_dir() else "not a trace"
    known = ", ".join(f.name for f in registered() if f.read is not None)
    raise FormatError(f"{source}: {what}; expected one of: {known}")


def _recordings_in(directory: Path) -> str | None:
    """What a directory that is no recording says of those in it, such as one for each rank; None if there are none."""
    entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))[:_MOST_ENTRIES]
    inside = [entry for entry in entries if (entry.is_file() or entry.is_dir()) and is_trace(entry)]
    if not inside:
        return None
    if len(inside) == 1:
        return f"a directory with a recording; name it: {directory / inside[0].name}"
    told = ", ".join(f"{entry.name}{_rank_in(entry)}" for entry in inside[:_MOST_NAMES])
    more = f" and {len(inside) - _MOST_NAMES} more" if len(inside) > _MOST_NAMES else ""
    return (
        f"a directory with {len(inside)} recordings: {told}{more}; name one of them (compare takes the directory, to "
        "compare them all)"
    )


def _rank_in(path: Path) -> str:
    """The rank that a recording tells, if its name does not."""
    of = next((f.rank for f in registered() if f.read is not None and f.sniff(path)), None)
    rank = None if of is None or "rank" in path.name.lower() else of(path)
    return "" if rank is None else f" (rank {rank})"


def other_entries(source: Path) -> list[Path]:
    """The entries of a directory that do not belong to its recording, sorted; none for a file."""
    if not source.is_dir():
        return []
    is_part = next((f.is_part for f in registered() if f.is_part is not None and f.sniff(source)), _is_native_part)
    return sorted(path for path in source.iterdir() if not is_part(path))


def _native() -> Format:
    """The format that is written to a directory."""
    return next(f for f in registered() if f.write is not None and not f.suffix)


def _is_native_part(path: Path) -> bool:
    is_part = _native().is_part
    return is_part is not None and is_part(path)


def write(
    trace: Trace, path: str | Path, *, replace: bool = False, is_part: Callable[[Path], bool] | None = None,
    counters: Counters | None = None,
) -> list[str]:  # fmt: skip
    """Write a trace in the format that the path's suffix names (a directory without one); returns notes on what the
    file lacks or states differently.

    With `replace`, the old recording stays unchanged until the new one is complete. `is_part`: see `check_writable`.
    `counters` count what a step does, for formats that can show it (see `reporting.exports`).

    Raises:
        FormatError: see `check_writable`.
        TraceError: the disk is full, the directory is not writable, ...
    """
    target = Path(path)
    check_writable(target, replace=replace, is_part=is_part)
    with appearing(target, replace=replace) as new:
        return list(writer_of(target, counters)(trace, new) or ())


def check_writable(
    path: str | Path, *, replace: bool = False, advice: str = "choose another name",
    is_part: Callable[[Path], bool] | None = None,
) -> Writer:  # fmt: skip
    """Return the writer for a path. Call it before a long recording, to fail early.

    An existing recording may be overwritten with `replace`; without it the message gives the `advice`. `is_part`:
    whether a file in a directory is part of a recording, and is replaced with it; None: its format says.

    Raises:
        FormatError: no writable format has that suffix; the path exists, and `replace` is not given or anything
            other than a recording would be lost; or the path cannot be written.
    """
    target = Path(path)
    suffixes = [suffix for f in registered() if f.write is not None for suffix in f.suffixes]
    try:
        check_place(target, replace=replace, a_directory=not _suffix(target, suffixes), advice=advice)
    except TraceError as problem:
        raise FormatError(str(problem)) from None
    writer = writer_of(target)
    if target.is_dir() and not target.is_symlink():
        check_replaceable(target, is_part or _is_native_part)
    return writer


def writer_of(target: Path, counters: Counters | None = None) -> Writer:
    """The writer of the format that a path's suffix names, with the counters if it takes some; a parquetdir without a
    suffix. Raises FormatError if no writable format has that suffix."""
    writers = {suffix: (f.write, f.has_counters) for f in registered() if f.write is not None for suffix in f.suffixes}
    suffix = _suffix(target, writers)
    if suffix not in writers:
        known = ", ".join(f"{f.name} ({f.suffix or 'a directory'})" for f in registered() if f.write is not None)
        raise FormatError(f"{target}: cannot write {suffix}; supported formats: {known}")
    write, has_counters = writers[suffix]
    return partial(write, counters=counters) if has_counters else write


def _suffix(path: Path, known: Iterable[str]) -> str:
    """The longest known suffix of a path (two-part ones too), else its own; "" for none."""
    suffixes = [suffix for suffix in known if suffix and path.name.lower().endswith(suffix)]
    own = path.suffix.lower() if _SUFFIX.fullmatch(path.suffix) else ""
    return max(suffixes, key=len) if suffixes and path.suffix else own


def check_replaceable(directory: Path, is_part: Callable[[Path], bool]) -> None:
    """Raise FormatError if replacing a recording would lose files that are not `is_part` of it."""
    inside = [path for path in directory.iterdir() if not is_leftover(path)]
    if others := sorted(path.name for path in inside if not is_part(path)):
        raise FormatError(
            f"{directory}: not replaced, because it contains more than a recording: {', '.join(others[:3])}"
        )
    if inside and not _native().sniff(directory):
        raise FormatError(f"{directory}: not replaced, because it does not contain a recording")
