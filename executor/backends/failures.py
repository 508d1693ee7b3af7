"""What a device's library raises, in one line: the device, the call and what the library said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb

from executor.backends.interface import Backend
from executor.devices import Device
from tracer.errors import ExecutionError


@contextmanager
def device_errors(backends: Mapping[Device, Backend]) -> Iterator[None]:
    """Turn what these backends declare as their devices' exceptions (`Backend.errors`) into ExecutionError.

    The device and the call are read from the traceback, so that calls that succeed cost nothing more.

    Args:
        backends: device -> backend; it may grow inside.

    Raises:
        ExecutionError: one of those exceptions was raised inside; it is the cause.
    """
    try:
        yield
    except Exception as last:
        kinds = tuple(kind for backend in backends.values() for kind in backend.errors)
        error = _first(last, (*kinds, ExecutionError))
        if isinstance(error, kinds):
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ExecutionError(f"{_place(error, backends)} failed: {said}") from error
        if error is last:
            raise
        raise error from error.__cause__


def _first(last: Exception, kinds: tuple[type[Exception], ...]) -> Exception:
    """What failed first, if `last` came on the way out of it, as when a backend that failed cannot be closed either.

    What an exception was made of counts as one with it.
    """
    first: Exception = last
    after: BaseException = last
    error = last.__context__
    while error is not None and isinstance(last, kinds):
        if isinstance(error, kinds) and after.__cause__ is not error:
            first = error
        after, error = error, error.__context__
    return first


def _place(error: BaseException, backends: Mapping[Device, Backend]) -> str:
    """The innermost call of a backend that the exception came through."""
    place = "a device"  # one that could not be opened beside others
    for frame, _ in walk_tb(error.__traceback__):
        call, own = frame.f_code.co_name, frame.f_locals.get("self")
        for device, backend in backends.items():
            if backend is own and not call.startswith("_"):
                place = f"backend {device.backend!r}, device {device.index}: {call}"
    return place
