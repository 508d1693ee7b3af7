"""The WSGI server, waitress, with limits on the time that connections may stall and on the memory that they may hold.

Waitress measures its timeout from the last byte, so one byte now and then keeps a connection open forever, and it
takes no more than 100 connections, whatever they do.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import waitress
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError

_LARGEST_REQUEST: Final = 16 << 20  # bytes: the table of runs goes along with some; uploads come in slices
_LARGEST_ANSWER: Final = 1 << 30  # bytes that wait on the disk, not in one of the threads, for a reader who takes none
_SMALL: Final = 1 << 20


@dataclass(frozen=True)
class Patience:
    """Limits on connections.

    Attributes:
        request: seconds for a request to arrive, and one more for every `rate` bytes of it.
        rate: bytes per second.
        answer: seconds that a client may leave a pending response unread.
        idle: seconds between two requests.
        most: maximum number of connections; beyond it, the one that has stalled longest is closed.
        unfinished: maximum bytes of incomplete requests; beyond it, that one is closed as well.
    """

    request: float = 10.0
    rate: float = 16_384.0
    answer: float = 30.0
    idle: int = 60
    most: int = 1_000
    unfinished: int = 256 << 20


def listen(
    app: Callable[..., Any], host: str, port: int, prefix: str = "", proxy: str | None = None,
    patience: Patience | None = None,
) -> Any:  # fmt: skip
    """A listening waitress server; call its `run` and `close`.

    Args:
        port: 0 for a free one, which is then its `effective_port`.
        prefix: removed from the path of each request that has it.
        proxy: address of the reverse proxy whose X-Forwarded-For, -Host and -Proto are trusted; from others, and
            without one, they are dropped.

    Raises:
        OSError: the address or port is not available.
        ValueError: invalid address.
    """
    patience = patience or Patience()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = min(patience.most, max(files // 4, 64)) if files > 0 else patience.most  # each may need three
    trust = {"trusted_proxy_headers": "x-forwarded-for x-forwarded-host x-forwarded-proto"} if proxy else {}
    server = waitress.create_server(
        app,
        host=host,
        port=port,
        threads=8,
        ident=None,
        url_prefix=prefix,
        trusted_proxy=proxy,
        clear_untrusted_proxy_headers=True,
        asyncore_use_poll=True,  # select knows no file beyond the 1024th
        connection_limit=2 * most,  # ours comes first
        channel_timeout=patience.idle,
        cleanup_interval=min(5, patience.idle),
        recv_bytes=1 << 16,
        inbuf_overflow=2 * _SMALL,  # a slice of an upload needs no file
        outbuf_high_watermark=_LARGEST_ANSWER,
        log_socket_errors=False,  # a traceback for each who hangs up
        max_request_header_size=1 << 16,
        max_request_body_size=_LARGEST_REQUEST,
        **trust,
    )
    for part in getattr(server, "map", {0: server}).values():  # a name can stand for several addresses
        if hasattr(part, "channel_class"):
            part.channel_class = type("Channel", (_Channel,), {"patience": patience, "most": most})
    return server


class _Request(HTTPRequestParser):  # type: ignore[misc]  # waitress has no types
    """A request; one whose length has more than the 4,300 digits that Python converts is refused, not only cut off."""

    def parse_header(self, header_plus: bytes) -> None:
        try:
            super().parse_header(header_plus)
        except ValueError:
            raise ParsingError("Content-Length is invalid") from None


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """A connection. Its methods are called only by the server's own thread."""

    parser_class = _Request
    patience: Patience
    most: int
    request: Any
    _began, _size = 0.0, 0  # when the request began that has not arrived whole, and its bytes
    _stuck: tuple[float, float] | None = None  # what was last taken of an answer, and since when nothing has been

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._make_room()

    def received(self, data: bytes) -> Any:
        before = self.request
        took = super().received(data)
        if self.request is not before:
            self._began, self._size = time.time(), 0
        self._size = self._size + len(data) if self.request is not None else 0
        if self._size > _SMALL:
            self._make_room()
        return took

    def readable(self) -> bool:
        """Whether to go on reading; asked at least once a second, which is when limits are checked."""
        if self._is_overdue(time.time()):
            self.handle_close()  # at once: whoever takes nothing would never let a last byte go
            return False
        return bool(super().readable())

    def handle_close(self) -> None:
        """Close the connection and immediately free the received part of a request."""
        super().handle_close()
        if self.request is not None:
            self.request.close()
            self.request, self._size = None, 0

    def _is_overdue(self, now: float) -> bool:
        patience = self.patience
        if self.request is not None and now > self._began + patience.request + self._size / patience.rate:
            return True
        if not self.total_outbufs_len:
            self._stuck = None
        elif self._stuck is None or self._stuck[0] != self.last_activity:
            self._stuck = self.last_activity, now
        return self._stuck is not None and now > self._stuck[1] + patience.answer

    def _make_room(self) -> None:
        """Close the connection that has stalled longest if there are too many or they hold too many bytes."""
        channels = [each for each in self.server.active_channels.values() if not each.will_close]
        waiting = [each for each in channels if not each.requests]
        if len(channels) > self.most and waiting:
            min(waiting, key=_Channel._since).will_close = True
        if sum(each._size for each in waiting) > self.patience.unfinished:
            min((each for each in waiting if each._size), key=_Channel._since).will_close = True

    def _since(self) -> float:
        return self._began if self.request is not None else float(self.last_activity)
