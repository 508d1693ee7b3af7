"""Gzip data, unpacked as it is read, with a limit on the number of its members.

A gzip file may consist of any number of members, each with a header and a sum of its own, and one of 20 bytes may hold
nothing. Whoever unpacks them works for each of them, so a small file of many would take much more time than its size
says.
"""

from __future__ import annotations

import zlib
from typing import Final, Protocol

from tracer.errors import FormatError

MOST_MEMBERS: Final = 1_000
"""Members of any size; programs that write traces write one, whoever appends to a file one more each time."""
LEAST_BYTES: Final = 16 << 10
"""Unpacked bytes on average of more members than that; those of bgzip, which writes the smallest, hold 64 KiB."""
_READ: Final = 1 << 16  # packed bytes
_GZIP: Final = zlib.MAX_WBITS | 16


class Source(Protocol):
    """What the packed bytes come from."""

    def read(self, size: int, /) -> bytes:
        """At most this many bytes, none only at the end."""
        ...


class Gunzip:
    """The unpacked data of a gzip file.

    Args:
        file: at its beginning.
    """

    def __init__(self, file: Source) -> None:
        self._file = file
        self._member = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._members, self._size = 1, 0

    def read1(self, size: int) -> bytes:
        """The next bytes, at most `size` and none only at the end.

        Raises:
            EOFError: the file ends within a member.
            zlib.error: it is damaged.
            FormatError: it has too many members; without the name of the file.
        """
        found = b""
        while not found and self._has_more():
            found = self._member.decompress(self._packed, size)
            self._packed = self._member.unused_data or self._member.unconsumed_tail
            self._size += len(found)
        return found

    def _has_more(self) -> bool:
        """Whether anything follows; the next member is begun where one has ended."""
        ended = self._member.eof
        if ended:
            self._packed = self._packed.lstrip(b"\0")  # some programs pad
        while not self._packed:
            self._packed = self._file.read(_READ)
            if not self._packed:
                if ended:
                    return False
                raise EOFError
            if ended:
                self._packed = self._packed.lstrip(b"\0")
        if ended:
            self._begin()
        return True

    def _begin(self) -> None:
        self._members += 1
        if self._members > MOST_MEMBERS and (self._members - 1) * LEAST_BYTES > self._size:
            raise FormatError(
                f"has more than {MOST_MEMBERS:,} gzip members that hold less than {LEAST_BYTES >> 10} KiB on average; "
                "it is not read further"
            )
        self._member = zlib.decompressobj(_GZIP)
