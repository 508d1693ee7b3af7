"""Backends by name, imported only when asked for: a machine without a GPU never imports CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from executor.backends.interface import Backend
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


def open_backend(name: str) -> Backend:
    """Import and start a backend; close it when done.

    Raises:
        UsageError: no backend of that name.
        ExecutionError: this machine lacks what it needs.
    """
    return backend_class(name)()
