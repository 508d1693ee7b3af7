"""Backends by name, imported on first use: a machine without a GPU never imports CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from executor.backends.cpu.host import HostBackend
from executor.backends.interface import Backend
from executor.names import lookup
from executor.planning.devices import Device

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
    """Import and start a backend. The caller closes it.

    Args:
        device: the device, or the name of a backend for its first device.

    Raises:
        UsageError: no backend of that name, or it takes no cost profile.
        ExecutionError: this machine lacks something the backend needs.
    """
    device = Device(device) if isinstance(device, str) else device
    if not device.is_host:
        return backend_class(device.backend).start(device)
    if device.profile is None:
        return HostBackend.start(device)
    from executor.backends.sim.host import SimHostBackend

    return SimHostBackend.start(device)
