"""ADBC cursors that can be closed after a failed query."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def cursor_of(connection: Any) -> Iterator[Any]:
    """A cursor that is closed when the block exits.

    ADBC before 1.13, the last for Python 3.10, reports the error of a query again when its statement is released, then
    considers the cursor open, and prints a message on stderr when it is collected.
    """
    from adbc_driver_manager import dbapi  # only here: other formats start faster without it

    cursor = connection.cursor()
    try:
        yield cursor
    except BaseException:
        with suppress(dbapi.Error):
            cursor.close()
        cursor._closed = True
        raise
    cursor.close()
