"""The machine and the versions below a table of measurements."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from tracer.errors import printable

_CPUINFO: Final = Path("/proc/cpuinfo")
_PATIENCE_S: Final = 20.0


@cache
def machine() -> dict[str, Any]:
    """GPU and driver where nvidia-smi tells them, CPU, cores, operating system; nothing that identifies a host."""
    release = re.match(r"[\d.]*\d", platform.release())
    return {
        **_gpu(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {release[0] if release else ''}".strip(),
    }


def versions() -> dict[str, str]:
    """Those of intertoken and Python."""
    return {"intertoken": version("intertoken"), "python": platform.python_version()}


def _gpu() -> dict[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [line.rpartition(", ") for line in done.stdout.splitlines() if ", " in line] if not done.returncode else []
    names = [printable(name, 80) for name, _, _ in rows]
    told = [f"{names.count(name)} × {name}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    return {"gpu": ", ".join(told), "driver": printable(rows[0][2], 40)} if rows else {}


def _cpu() -> str:
    if _CPUINFO.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", _CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
        if model:
            return model[1].strip()
    return platform.processor() or platform.machine()
