"""Backends by name, imported on first use: a machine without a GPU never imports CuPy; and their errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from traceback import walk_tb
from typing import Final

from executor.backends.cpu.backend import HostBackend
from executor.backends.interface import Backend
from executor.names import lookup
from executor.planning.devices import Device
from tracer.errors import ExecutionError

BACKENDS: Final[Mapping[str, str]] = {
    "cpu": "executor.backends.cpu.backend:CpuBackend",
    "cuda": "executor.backends.cuda.backend:CudaBackend",
    "sim": "executor.backends.sim.backend:SimBackend",
}
"""Maps a name to `module:class`."""


def backend_class(name: str) -> type[Backend]:
    """Import a backend without starting it.

    Raises:
        UsageError: no backend of that name.
    """
    module, _, cls = lookup("backend", name, BACKENDS).partition(":")
    backend: type[Backend] = getattr(import_module(module), cls)
    return backend


def open_backend(device: Device | str) -> Backend:
    """Import and start a backend; its name stands for its first device. The caller closes it.

    Raises:
        UsageError: no backend of that name, or it takes no cost profile.
        ExecutionError: this machine lacks something the backend needs.
    """
    device = Device(device) if isinstance(device, str) else device
    if not device.is_host:
        return backend_class(device.backend).start(device)
    if device.profile is None:
        return HostBackend.start(device)
    from executor.backends.sim.backend import SimHostBackend

    return SimHostBackend.start(device)


@contextmanager
def device_errors(backends: Mapping[Device, Backend]) -> Iterator[None]:
    """Convert the exceptions that these backends declare (`Backend.errors`) to ExecutionError.

    The device and the call are read from the traceback, so that successful calls cost nothing extra. More backends may
    be added inside the context.
    """
    try:
        yield
    except Exception as last:  # which kinds are meant is known only now; any other is raised again
        kinds = tuple(kind for backend in backends.values() for kind in backend.errors)
        error = _first(last, (*kinds, ExecutionError))
        if isinstance(error, kinds):
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ExecutionError(f"{_failed_call(error, backends)} failed: {said}") from error
        if error is last:
            raise
        raise error from error.__cause__


def _first(last: Exception, kinds: tuple[type[Exception], ...]) -> Exception:
    """Return the first failure, if `last` was raised while handling it, as when a failed backend cannot be closed.

    An exception and its explicit cause count as one.
    """
    first: Exception = last
    after: BaseException = last
    error = last.__context__
    while error is not None and isinstance(last, kinds):
        if isinstance(error, kinds) and after.__cause__ is not error:
            first = error
        after, error = error, error.__context__
    return first


def _failed_call(error: BaseException, backends: Mapping[Device, Backend]) -> str:
    """Return the innermost backend call that the exception passed through."""
    place = "a device"  # if it could not be opened
    for frame, _ in walk_tb(error.__traceback__):
        call, own = frame.f_code.co_name, frame.f_locals.get("self")
        for device, backend in backends.items():
            if backend is own and not call.startswith("_"):
                place = f"backend {device.backend!r}, device {device.index}: {call}"
    return place
