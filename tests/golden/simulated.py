"""What `run --backend sim` writes and prints, and what the commands then say of it: it is deterministic."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.golden.answers import answers
from tests.golden.form import digest

OF_EACH: Final = ("syncs", "gaps", "path")
"""Commands of whose answers about a run digests are kept; `info` is kept as it is."""

VOLATILE: Final = ("machine", "versions", "created")
"""Members of run.json that tell of the machine and the time."""

THREAD: Final = re.compile(r"\b(thread|process) \d+")
"""The thread of a simulated run is that of the process that simulates it."""


def simulated(options: str) -> dict[str, Any]:
    """The printed JSON and table, each run.json, and the answers about each run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = answers([f"run --backend sim {options} --force -o runs"], folder)
        for path in sorted(folder.glob("runs/*")):
            told = json.loads((path / "run.json").read_text(encoding="utf-8"))
            told = {key: told[key] for key in told if key not in VOLATILE}
            found[f"runs/{path.name}/run.json"] = {"measured": told["measured"], "all": digest(told)}
            found |= _without_threads(answers([f"info runs/{path.name}"], folder))
            more = _without_threads(answers([f"{command} runs/{path.name}" for command in OF_EACH], folder))
            found |= {command: digest(answer) for command, answer in more.items()}
    return found


def _without_threads(found: dict[str, Any]) -> dict[str, Any]:
    """Answers without the numbers of threads."""
    without: dict[str, Any] = json.loads(THREAD.sub(r"\1 N", json.dumps(found)))
    return without
