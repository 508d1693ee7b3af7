"""What is on disk beside a recording's own file: a cache of what was read from it, and the parts of a run directory.

1. `read`, `Cache`: the next command or page does not parse a recording again. The key of an entry is the recording's
   path, the sizes and times of its files, and this code. Entries are stored in the cache's own directory, never next to
   the recording, and only their user can read them. Damaged entries are deleted, and the least recently used make room
   for new ones. A cache that cannot be read or written costs only time.
2. `is_part_of_run`, `node_kernels`: a run directory: its parts (the recording, its traced passes and its graph), and
   what its passes share, which is the rate of the light pass, and the kernels of the node pass. The analyses for it
   are imported when used.
3. `save_value`, `load_value`: values on disk with memory-mapped arrays: a tree as JSON, and one file with all arrays.
   Nothing in the files is executed: a value consists of JSON's types, tuples, arrays, frames, and the dataclasses that
   the caller names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer import formats
from tracer.errors import TraceError, UsageError
from tracer.files.output import is_leftover, write_output
from tracer.model.columns import Columns
from tracer.model.fits import own_file
from tracer.model.run_json import NODE, PASSES, SCHEMA
from tracer.model.trace import LIGHT, Trace

if TYPE_CHECKING:
    from tracer.analysis.node_kernels import PlacedKernels
    from tracer.analysis.steps import Steps


VARIABLE: Final = "INTERTOKEN_CACHE"
"""Environment variable: the cache's directory, or `OFF`."""

OFF: Final = "off"
MOST_BYTES: Final = 8 << 30
TRACE: Final = "trace"
"""Prefix of the name of a part that is the trace itself; its arrays are as in a trace just read."""

FUNCTIONS: Final = f"{TRACE} with Python functions"
"""The part that holds a trace with the functions that its format leaves out by default."""

LEAST: Final = 4 << 20
"""Recordings of at least this many bytes are cached; smaller ones are parsed about as fast as they are loaded."""

_NEW: Final = "new-"  # followed by the id of the writing process: an incomplete entry
_DAY: Final = 86_400.0  # s; no entry takes that long to write
_CODE: Final = ("dashboard", "tracer")  # packages whose classes are in entries
Value = TypeVar("Value")
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # messages appear in a server's log, not on a command's stderr


def directory_of_user() -> Path | None:
    """The directory that `VARIABLE` names (UsageError if that is not an absolute path), else the user's cache
    directory; None if the cache is off."""
    value = os.environ.get(VARIABLE, "")
    if value.lower() == OFF:
        return None
    if value and not Path(value).is_absolute():
        raise UsageError(f"{VARIABLE}={value}: neither an absolute path nor {OFF!r}")
    if value:
        return Path(value)
    import platformdirs

    return platformdirs.user_cache_path("intertoken", appauthor=False) / "recordings"


class Cache:
    """Entries in a directory, which is created on first use; at most `most_bytes` in total."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES) -> None:
        self.directory, self.most_bytes = directory, most_bytes

    def load(
        self, recording: Path, classes: tuple[type, ...], restored: Callable[[Any], Value], part: str = "runs"
    ) -> Value | None:
        """Load a part of a recording, which may contain these dataclasses, and pass it through `restored`; None if
        there is no intact entry."""
        try:
            entry = self.entry(recording, part)
            value = restored(load_value(entry, classes, own=part.startswith(TRACE)))
            os.utime(entry)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            _log.warning("a cached recording is damaged and will be read again: %s", problem)
            shutil.rmtree(entry, ignore_errors=True)
            return None
        return value

    def save(self, recording: Path, value: Any, part: str = "runs", entry: Path | None = None) -> bool:
        """Save a part of a recording; False if it cannot be written, or if the part alone exceeds `most_bytes`.

        Given the `entry` from before the recording was read, nothing is saved if the recording has changed since.
        """
        try:
            now = self.entry(recording, part)
            if entry not in (None, now):
                return False
            entry = now
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f"{_NEW}{os.getpid()}-", dir=self.directory))
        except OSError as problem:
            _log.warning("cannot cache in %s: %s", self.directory, problem)
            return False
        try:
            save_value(value, scratch)
            needed = sum(size for _, size in _files(scratch))
            if needed > self.most_bytes:
                return False
            self._make_room(needed)
            shutil.rmtree(entry, ignore_errors=True)
            scratch.rename(entry)
        except OSError as problem:
            _log.warning("cannot cache %s: %s", recording, problem)
            return False
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return True

    def remove_unfinished(self, process: int) -> None:
        """Remove the incomplete entries of a process that ended while saving."""
        for scratch in self.directory.glob(f"{_NEW}{process}-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    def entry(self, recording: Path, part: str = "runs") -> Path:
        """The directory of a part of a recording in its present state."""
        facts = [part, str(recording.absolute()), fingerprint(recording), _code(), own_file()]
        return self.directory / hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _make_room(self, needed: int) -> None:
        """Remove the least recently used entries until `needed` more bytes fit, and incomplete ones over a day old."""
        entries = []
        for entry in self.directory.iterdir():
            with suppress(OSError):
                if entry.name.startswith(_NEW):
                    if entry.stat().st_mtime < time.time() - _DAY:
                        shutil.rmtree(entry, ignore_errors=True)
                elif entry.is_dir():
                    entries.append((entry.stat().st_mtime_ns, sum(size for _, size in _files(entry)), entry))
        held = needed + sum(size for _, size, _ in entries)
        for _, size, entry in sorted(entries):
            if held <= self.most_bytes:
                return
            shutil.rmtree(entry, ignore_errors=True)
            held -= size


def _files(directory: Path) -> Iterator[tuple[Path, int]]:
    return ((path, path.stat().st_size) for path in directory.iterdir() if path.is_file())


def fingerprint(recording: Path) -> list[list[Any]]:
    """Name, size and times of the recording's files, including SQLite's journal and write-ahead log, the files beside a
    CSV, and of the node pass in a run directory, which is shown with it."""
    beside = [recording.with_name(f"{recording.name}-{kind}") for kind in ("journal", "wal")]
    if recording.suffix == ".csv":
        beside += sorted(recording.parent.glob("*.csv"))
    files = sorted(recording.iterdir()) if recording.is_dir() else [recording, *(p for p in beside if p.exists())]
    stats = [(path.name, path.stat()) for path in files if not path.is_dir() or path.name == NODE]
    return [[name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns] for name, stat in stats]


@cache
def _code() -> list[Any]:
    """The version and, for development, the time of the last change of the code."""
    root = Path(__file__).parents[1]
    files = (path for name in _CODE for kind in ("py", "toml") for path in (root / name).rglob(f"*.{kind}"))
    changed = max(path.stat().st_mtime_ns for path in files)
    return [version("intertoken"), changed]


def read(path: Path, *, python_functions: bool = False) -> Trace:
    """Read a recording without the data that no analysis uses (see `formats.read`): from the user's cache, or else from
    the file, which is then cached. `python_functions`: keep the functions that its format leaves out by default.

    Raises:
        FormatError: see `formats.read`.
        UsageError: the environment variable for the cache has an invalid value.
    """
    directory = directory_of_user()
    asked = formats.functions_of(path) if python_functions else {}
    if directory is None or _size(path) < LEAST:
        return formats.read(path, whole=False, **asked)
    cache, part = Cache(directory), FUNCTIONS if asked else TRACE
    if (kept := kept_trace(path, cache, part)) is not None:
        return kept
    try:
        entry = cache.entry(path, part)
    except OSError:  # reading it says why
        entry = None
    trace = formats.read(path, whole=False, **asked)
    if entry is not None:
        cache.save(path, trace, part, entry)
    return trace


def kept_trace(path: Path, cache: Cache, part: str = TRACE) -> Trace | None:
    """The cached trace of a recording."""
    return cache.load(path, (Trace,), _whole, part)


def _whole(kept: object) -> Trace:
    if not isinstance(kept, Trace):
        raise TypeError(f"{type(kept).__name__} is not a trace")
    return kept


def _size(path: Path) -> int:
    try:
        files = list(path.iterdir()) if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except OSError:  # reading it says why
        return 0


def is_part_of_run(path: Path) -> bool:
    """Whether replacing a run removes this entry of its directory."""
    from tracer.formats import nsys_parquet
    from tracer.model.graph_json import GRAPH_FILE

    if path.name in PASSES and path.is_dir():
        return all(nsys_parquet.is_part(part) or is_leftover(part) for part in path.iterdir())
    return nsys_parquet.is_part(path) or (path.name == GRAPH_FILE and path.is_file())


def run_of(light: Trace) -> dict[str, Any]:
    """The run.json of a light pass: the rate of its decode steps from their median period, if it has any."""
    from tracer.analysis.recording import Recording

    measured: dict[str, Any] = {"pass": "light", "traced": False}
    try:
        recording = Recording(light)
        steps = recording.steps
        if steps.decode_alone:
            rate = 1e6 / recording.gaps.period_us
            measured["steps_per_s"] = {"median": rate}
            if steps.tokens_per_step is not None:
                measured["tokens_per_s"] = {"median": rate * steps.tokens_per_step}
    except TraceError:
        """Without steps there is no rate; code that needs one reports it."""
    return {"schema": SCHEMA, "measured": measured}


def hand_on(directory: Path, level: str) -> None:
    """Write the measurements of a run directory's light pass into the run.json of the pass in its folder `level`."""
    from tracer.formats.nsys_parquet import RUN_FILE, read_run

    run = read_run(directory / RUN_FILE)
    text = json.dumps({**run, "measured": {**run["measured"], "pass": level}}, indent=2) + "\n"
    write_output(directory / level / RUN_FILE, lambda partial: partial.write_text(text, encoding="utf-8"), replace=True)


def node_kernels(path: Path, trace: Trace, steps: Steps | None) -> PlacedKernels | None:
    """The node pass of a run directory, placed in its light recording, which has these steps; None if there is none, or
    nothing matches."""
    if steps is None or trace.metadata.get("source") != LIGHT or not (path / NODE).is_dir():
        return None
    from tracer.analysis.node_kernels import place_kernels
    from tracer.analysis.stream_order import in_order

    try:
        return place_kernels(trace, steps, in_order(read(path / NODE)))
    except TraceError:
        """Opening the node pass itself reports what is wrong with it."""
        return None


_TREE, _ARRAYS = "value.json", "arrays"
_ALIGNED: Final = 64  # bytes


def save_value(value: Any, directory: Path) -> None:
    """Write a value into an empty directory."""
    private = partial(os.open, mode=0o600)
    with open(directory / _ARRAYS, "wb", opener=private) as arrays:
        tree = _tree(value, arrays)
        size = arrays.tell()
    with open(directory / _TREE, "w", encoding="utf-8", opener=private) as file:
        json.dump({"bytes": size, "value": tree}, file)


def load_value(directory: Path, classes: Sequence[type], *, own: bool = False) -> Any:
    """Load a value written by `save_value`, which may contain these dataclasses. If `own`, arrays are ordinary
    contiguous ones, writable in memory but not on disk; otherwise they are read-only, and an array of equal values
    stores only one.

    Raises:
        OSError: there is no value, or it cannot be read.
        ValueError, KeyError, TypeError: the tree or the length of the arrays shows that it is damaged.
    """
    tree = json.loads((directory / _TREE).read_text(encoding="utf-8"))
    size = (directory / _ARRAYS).stat().st_size
    if size != tree["bytes"]:
        raise ValueError(f"{directory}: {size} bytes of arrays, not {tree['bytes']}")
    mapped = np.memmap(directory / _ARRAYS, np.uint8, "c" if own else "r") if size else np.zeros(0, np.uint8)
    return _value(tree["value"], mapped, {known.__name__: known for known in classes})


def _tree(value: Any, arrays: IO[bytes]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return value.item()
        case list():
            return [_tree(v, arrays) for v in value]
        case tuple():
            return {"tuple": [_tree(v, arrays) for v in value]}
        case dict():
            return {"dict": {k: _tree(v, arrays) for k, v in value.items()}}
        case np.ndarray() if value.dtype == object:
            codes, words = pd.factorize(value)
            return {"texts": [str(word) for word in words], "codes": _written(codes, arrays)}
        case np.ndarray() if value.ndim > 1:
            return {"rows": _written(value.reshape(-1), arrays), "shape": list(value.shape)}
        case np.ndarray():
            return _written(value, arrays)
        case pd.DataFrame():
            return {"frame": {name: _column(column, arrays) for name, column in value.items()}, "length": len(value)}
        case Columns():
            members = {name: _tree(getattr(value, name), arrays) for name in value.column_names()}
            return {"class": type(value).__name__, "fields": members}
        case _ if is_dataclass(value):
            members = {f.name: _tree(getattr(value, f.name), arrays) for f in fields(value) if f.init}
            return {"class": type(value).__name__, "fields": members}
    raise TypeError(f"cannot be saved: {type(value).__name__}")


def _written(array: NDArray[Any], arrays: IO[bytes]) -> dict[str, Any]:
    """Write an array and return its place in the file; an array of equal values is stored as one value."""
    if len(array) > 1 and (array[0] == array[-1]) and (array == array[0]).all():
        return {"array": array.dtype.str, "at": _put(array[:1], arrays), "of": 1, "length": len(array)}
    return {"array": array.dtype.str, "at": _put(array, arrays), "of": len(array), "length": len(array)}


def _put(array: NDArray[Any], arrays: IO[bytes]) -> int:
    arrays.write(b"\0" * (-arrays.tell() % _ALIGNED))
    at = arrays.tell()
    arrays.write(np.ascontiguousarray(array).data)
    return at


def _column(column: pd.Series, arrays: IO[bytes]) -> dict[str, Any]:
    if column.dtype.kind in "biuf":
        return _written(column.to_numpy(), arrays)
    words = column.array if isinstance(column.dtype, pd.CategoricalDtype) else pd.Categorical(column.astype("str"))
    codes = _written(np.asarray(words.codes), arrays)
    plain = None if isinstance(column.dtype, pd.CategoricalDtype) else str(column.dtype)
    return {"words": [str(word) for word in words.categories], "codes": codes, "plain": plain}


def _value(tree: Any, mapped: NDArray[np.uint8], classes: dict[str, type]) -> Any:
    match tree:
        case list():
            return [_value(v, mapped, classes) for v in tree]
        case {"tuple": members}:
            return tuple(_value(v, mapped, classes) for v in members)
        case {"dict": members}:
            return {k: _value(v, mapped, classes) for k, v in members.items()}
        case {"array": _}:
            return _array(tree, mapped)
        case {"texts": words, "codes": codes}:
            return np.array([*words, ""], dtype=object)[_array(codes, mapped)]
        case {"rows": values, "shape": shape}:
            return _array(values, mapped).reshape(shape)
        case {"frame": columns, "length": length}:
            made = {name: _series(column, mapped) for name, column in columns.items()}
            return pd.DataFrame(made, index=pd.RangeIndex(length), copy=False)
        case {"class": name, "fields": members}:
            return classes[name](**{k: _value(v, mapped, classes) for k, v in members.items()})
        case dict():
            raise ValueError(f"unknown kind of value: {', '.join(tree)}")
    return tree


def _array(tree: dict[str, Any], mapped: NDArray[np.uint8]) -> NDArray[Any]:
    dtype = np.dtype(tree["array"])
    array = np.frombuffer(mapped, dtype, tree["of"], tree["at"]) if tree["of"] else np.zeros(0, dtype)
    if tree["of"] == tree["length"]:
        return array
    repeated = np.broadcast_to(array, (tree["length"],))
    return repeated.copy() if mapped.flags.writeable else repeated


def _series(column: dict[str, Any], mapped: NDArray[np.uint8]) -> Any:
    if "words" not in column:
        return _array(column, mapped)
    words = pd.Categorical.from_codes(_array(column["codes"], mapped), pd.Index(column["words"], dtype="str"))
    return words if column["plain"] is None else pd.Series(words).astype(column["plain"])


def set_options() -> None:
    """Keep names of columns as Python's strings: pandas 3 makes an Arrow array of them for every selection of columns,
    which costs the analyses a quarter of their time."""
    pd.set_option("mode.string_storage", "python")
