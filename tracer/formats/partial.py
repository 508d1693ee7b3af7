"""Recordings and other files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracer.errors import TraceError


@contextmanager
def appearing(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A place beside `path`, for a file or a directory that becomes `path` when the block ends; gone if it fails.

    `replace` lets it take the place of a file.

    Raises:
        TraceError: the path exists and is not to be replaced, or it cannot be written.
    """
    if path.exists() and not replace:
        raise TraceError(f"{path}: exists already; choose another name")
    partial = path.with_name(f".{uuid.uuid4().hex[:8]}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            partial.unlink()
