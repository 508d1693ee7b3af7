"""Recordings outside the repository, by their path below the folder that INTERTOKEN_RECORDINGS names.

Of each are kept the main figures of `info`, the reason where a command refuses it, and a digest of every answer.
`.xz` and `.tar.xz` are unpacked first.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.golden.answers import ASKED, answers
from tests.golden.form import digest
from tracer import formats

VARIABLE: Final = "INTERTOKEN_RECORDINGS"
COMMANDS: Final = (*(f"{command} {{}}" for command in ASKED["plain"]), "whatif {} --without-syncs")
FIGURES: Final = (
    "what", "steps", "token_source", "confidence", "strategy", "signature", "syncs_per_token", "copies_per_token",
    "launches_per_token", "gap_p50_us", "busy_us", "idle_share", "steps_per_s", "tokens_per_s", "distortion",
)  # fmt: skip
FOLDERS: Final = ("recordings", "traces")
"""The folders in it that are searched."""

LIST: Final = Path(__file__).parent / "shared.json"
"""The kept answers of all of them."""


def folder() -> Path | None:
    """The folder with the recordings, if it is told."""
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def kept() -> dict[str, Any]:
    """Relative path of each recording -> what is kept of its answers."""
    return json.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}


def found_in(root: Path) -> list[str]:
    """The relative paths of all recordings: files that may be one, and directories that are."""
    names: list[str] = []
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*")):
        name = path.relative_to(root).as_posix()
        is_inside = any(name.startswith(f"{other}/") for other in names)
        if not is_inside and (formats.is_trace(path) if path.is_dir() else path.suffix not in {".md", ".log", ".txt"}):
            names.append(name)
    return names


def told_of(root: Path, name: str) -> dict[str, Any]:
    """What is kept of the answers about a recording."""
    with tempfile.TemporaryDirectory() as scratch:
        path = _unpacked(root / name, Path(scratch))
        told = answers([command.replace("{}", path.name) for command in COMMANDS], path.parent)
    info = next(iter(told.values())).get("json", {})
    figures = {key: info[key] for key in FIGURES if info.get(key) is not None}
    return figures | {command.split()[0]: _in_short(answer) for command, answer in told.items()}


def _in_short(answer: dict[str, Any]) -> str:
    """An answer as its exit code and digests; a refusal as what it says."""
    if answer["exit"] == 2:
        return str(answer["stderr"]).strip()
    parts = [f"{key} {digest(answer[key])}" for key in ("json", "text", "stderr") if key in answer]
    return ", ".join([f"exit {answer['exit']}", *parts])


def _unpacked(path: Path, scratch: Path) -> Path:
    """A recording that the commands can read: itself, or what it holds packed."""
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path) as packed:
            packed.extractall(scratch, filter="data")
        return next(scratch.iterdir())
    if path.suffix == ".xz":
        with lzma.open(path) as packed, (scratch / path.stem).open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        return scratch / path.stem
    return path
