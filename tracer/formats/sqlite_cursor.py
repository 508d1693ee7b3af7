"""Cursors of ADBC that can be closed behind a query that failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def cursor_of(connection: Any) -> Iterator[Any]:
    """A cursor that is closed at the end.

    ADBC before 1.13, which is all that Python 3.10 has, reports the error of a query again when its statement is
    released, takes the cursor for open from then on, and says so on stderr when it goes.
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
