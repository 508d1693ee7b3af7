"""Backends by name, imported only when asked for: a machine without a GPU never imports CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from executor.backends.host import HostBackend
from executor.backends.interface import Backend
from executor.devices import HOST
from executor.names import lookup

BACKENDS: Final[Mapping[str, str]] = {
    "cpu": "executor.backends.cpu:CpuBackend",
    "cuda": "executor.backends.cuda:CudaBackend",
}
"""Name -> module:class."""


def backend_class(name: str) -> type[Backend]:
    """Import a backend, without starting it.

    Raises:
        UsageError: no backend of that name.
    """
    module, _, cls = lookup("backend", name, BACKENDS).partition(":")
    found: type[Backend] = getattr(import_module(module), cls)
    return found


def open_backend(name: str, device: int = 0, staged: bool = True) -> Backend:
    """Import and start a backend; close it when done.

    Args:
        name: of the backend, or "host".
        device: which of its devices.
        staged: see `Backend`.

    Raises:
        UsageError: no backend of that name.
        ExecutionError: this machine lacks what it needs.
    """
    cls: Any = HostBackend if name == HOST.backend else backend_class(name)
    backend: Backend = cls(device, staged)
    return backend
