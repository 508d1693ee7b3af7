"""Health of the server, for load balancers and for pages that wait for new recordings."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from flask import Flask

from dashboard.reading.store import RunStore


def add_health(server: Flask, store: RunStore) -> None:
    """Answer /healthz with the version and the numbers of recordings read and found; it reads and names none."""

    @server.get("/healthz")
    def healthz() -> dict[str, Any]:
        progress = store.progress()
        return {
            "status": "ok",
            "version": version("intertoken"),
            "runs": {"read": progress.read, "total": progress.total},
        }
