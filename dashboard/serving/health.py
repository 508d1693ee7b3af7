"""Health of the server, for load balancers and for pages that wait for new recordings."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from flask import Flask

from dashboard.store import RunStore


def add_health(server: Flask, store: RunStore) -> None:
    """Answer /healthz: the version and how many recordings have been read, of how many. Reads none, names none."""

    @server.get("/healthz")
    def healthz() -> dict[str, Any]:
        progress = store.progress()
        return {
            "status": "ok",
            "version": version("intertoken"),
            "runs": {"read": progress.read, "total": progress.total},
        }
