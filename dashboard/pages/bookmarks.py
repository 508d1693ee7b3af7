"""Bookmarks of a recording in a file next to it, NAME.bookmarks.json, if this server may write there.

The file is JSON: {"bookmarks": [{"low": ns, "high": ns, "note": text, "within": text}, ...]}, times from the start of
the first token's compute; `within` names the part of a recording that holds several runs. A file with other contents,
one that is too large, or anything but a regular file is ignored and never overwritten.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dashboard.reading.run import Run
from dashboard.view import MOST_BOOKMARKS, Bookmark, Time, Words, words_of
from tracer.errors import UsageError

SUFFIX: Final = ".bookmarks.json"
_MOST_BYTES: Final = 256 * 1024


class _Kept(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    low: Time
    high: Time
    note: Words = ""
    within: Annotated[str, Field(max_length=2_000)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    bookmarks: Annotated[list[_Kept], Field(max_length=MOST_BOOKMARKS)]


def file_of(run: Run) -> Path | None:
    """The bookmarks file of a run's recording; None for a run without one."""
    return None if run.path is None or run.predicted else run.path.with_name(run.path.name + SUFFIX)


def may_keep(run: Run) -> bool:
    """Whether this server may write the file: in an existing directory, replacing only a bookmarks file."""
    file = file_of(run)
    if file is None or run.tokens is None or not os.access(file.parent, os.W_OK):
        return False
    return not os.path.lexists(file) or _read(file) is not None


def kept(run: Run) -> list[Bookmark]:
    """The bookmarks of a run in the file."""
    file = file_of(run)
    found = None if file is None else _read(file)
    return [_shown(run, one) for one in found.bookmarks if one.within == run.within] if found else []


def keep(run: Run, bookmarks: Iterable[Bookmark]) -> None:
    """Write the bookmarks of a run; those of other parts of its recording are kept.

    Raises:
        UsageError: the server may not write there, or there are more than `MOST_BOOKMARKS`.
    """
    file = file_of(run)
    if file is None or not may_keep(run):
        raise UsageError("this server may not write next to the recording; the bookmarks are in the link")
    before = _read(file)
    others = [one for one in before.bookmarks if one.within != run.within] if before else []
    own = [_Kept(low=b.low, high=b.high, note=b.note, within=run.within) for b in dict.fromkeys(bookmarks)]
    if len(others) + len(own) > MOST_BOOKMARKS:
        raise UsageError(f"a recording can have at most {MOST_BOOKMARKS} bookmarks")
    try:
        _write(file, _File(bookmarks=[*others, *own]).model_dump())
    except OSError as problem:
        raise UsageError(f"the bookmarks cannot be written: {problem.strerror}") from None


def _shown(run: Run, one: _Kept) -> Bookmark:
    return Bookmark(run.key, min(one.low, one.high), max(one.low, one.high), words_of(one.note))


def _read(file: Path) -> _File | None:
    """The file's content; None if it is not a bookmarks file."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return None
        return _File.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(file: Path, content: Any) -> None:
    """Write atomically, also for concurrent readers."""
    handle, name = tempfile.mkstemp(prefix=".", suffix=SUFFIX, dir=file.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
