"""Connections that keep the server waiting: the others are answered; and what proxies say of them."""

import json
import resource
import socket
import threading
import time
import urllib.request
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from dashboard.serving.patience import Patience, listen

SOON = 8.0
"""Seconds in which a normal reader is answered, whoever else is there: 0.01 on an idle machine."""
HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n"
ASK = b"GET /small HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def app(environ, start):
    start("200 OK", [])
    if environ["PATH_INFO"] == "/large":
        return (bytes(1 << 20) for _ in range(20))
    told = [environ.get(name) for name in ("REMOTE_ADDR", "wsgi.url_scheme", "HTTP_HOST", "HTTP_FORWARDED")]
    return [json.dumps(told).encode()]


@contextmanager
def listening(patience=None, **options):
    server = listen(app, "127.0.0.1", 0, patience=patience, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.task_dispatcher.shutdown()
        server.close()
        for channel in list(server.active_channels.values()):
            channel.handle_close()
        thread.join(5)


def connect(server, data=b""):
    connection = socket.create_connection(("127.0.0.1", server.effective_port), SOON)
    connection.sendall(data)
    return connection


def answered(server):
    """How long a normal reader waits (s)."""
    start = time.monotonic()
    with connect(server, ASK) as reader:
        assert b"200 OK" in b"".join(iter(lambda: reader.recv(100), b""))
    return time.monotonic() - start


def is_ended(connection, seconds):
    """Whether the server ends a connection within these seconds."""
    connection.settimeout(seconds)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def test_half_open_connections_and_slow_bodies_hold_up_nobody():
    with listening() as server, ExitStack() as open_ones:
        slow = []
        for number in range(300):
            slow.append(open_ones.enter_context(connect(server, BODY if number % 3 else HEAD)))
            if number % 30 == 0:
                assert answered(server) < SOON
        for _ in range(10):
            for connection in slow:
                try:
                    connection.sendall(b"x")
                except ConnectionError:
                    continue  # it has been ended, which is as good
            assert answered(server) < SOON


def test_requests_that_come_byte_by_byte_are_ended_and_others_are_not():
    patience = Patience(request=0.3, rate=10_000, answer=30, idle=30)
    with listening(patience) as server, closing(connect(server)) as idle, closing(connect(server)) as body:
        with connect(server, HEAD) as dripping:
            for _ in range(40):
                try:
                    dripping.sendall(b"X-A: b\r\n")
                except ConnectionError:
                    break
                time.sleep(0.1)
            else:
                pytest.fail("it is still listened to")
        body.sendall(BODY + b"x" * 500_000)  # over which 50 s may go
        assert not is_ended(body, 0.5)
        body.sendall(b"x" * 500_000)
        assert b"200 OK" in body.recv(100)
        idle.sendall(ASK)
        assert b"200 OK" in idle.recv(100)


def test_one_too_many_ends_the_one_that_waited_longest():
    with listening(Patience(most=5)) as server, ExitStack() as open_ones:
        held = []
        for _ in range(7):
            held.append(open_ones.enter_context(connect(server, HEAD)))
            assert answered(server) < SOON
        assert all(is_ended(connection, SOON) for connection in held[:3])
        assert not any(is_ended(connection, 0.2) for connection in held[3:])


def test_no_more_files_are_taken_than_the_process_may_open(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400, 4_000))
    with listening() as server:
        assert server.channel_class.most == 100
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with listening(replace(Patience(), most=70)) as server:
        assert server.channel_class.most == 70


def test_bodies_on_their_way_have_room_for_so_much_together():
    with listening(Patience(unfinished=6 << 20)) as server, ExitStack() as open_ones:
        head = BODY.replace(b"1000000", b"9000000")
        held = [open_ones.enter_context(connect(server, head + bytes(2 << 20))) for _ in range(5)]
        assert all(is_ended(connection, SOON) for connection in held[:3])
        assert not any(is_ended(connection, 0.5) for connection in held[3:])
        assert answered(server) < SOON


def test_readers_who_take_nothing_hold_no_thread_and_not_for_ever():
    ask = b"GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with listening(Patience(answer=4.0)) as server, ExitStack() as open_ones:  # others take theirs within that
        lazy = [open_ones.enter_context(connect(server, ask)) for _ in range(10)]
        for _ in range(5):
            assert answered(server) < SOON
        deadline = time.monotonic() + 20
        while server.active_channels and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.active_channels
        assert all(is_ended(connection, 5) for connection in lazy)


def test_only_the_proxy_that_was_named_is_believed():
    said = {"Host": "here", "X-Forwarded-For": "10.0.0.1, 10.0.0.2", "X-Forwarded-Proto": "https",
            "X-Forwarded-Host": "tool.example", "Forwarded": "for=10.0.0.9"}  # fmt: skip
    believed, not_believed = ["10.0.0.2", "https", "tool.example", None], ["127.0.0.1", "http", "here", None]
    for trusted, seen in (("127.0.0.1", believed), (None, not_believed), ("127.0.0.2", not_believed)):
        with listening(proxy=trusted) as server:
            there = urllib.request.Request(f"http://127.0.0.1:{server.effective_port}/", headers=said)
            with urllib.request.urlopen(there) as answer:
                assert json.load(answer) == seen
