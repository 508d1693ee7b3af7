"""Backends by name, imported only when asked for: a machine without a GPU never imports CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from executor.backends.interface import Backend
from executor.names import lookup

BACKENDS: Final[Mapping[str, str]] = {"cpu": "executor.backends.cpu:CpuBackend"}
"""Name -> module:class."""


def open_backend(name: str) -> Backend:
    """Import and start a backend; close it when done.

    Raises:
        UsageError: no backend of that name.
    """
    module, _, cls = lookup("backend", name, BACKENDS).partition(":")
    backend: Backend = getattr(import_module(module), cls)()
    return backend
