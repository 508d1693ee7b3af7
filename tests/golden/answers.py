"""What the commands say of a recording: exit code, JSON, text and stderr, from the command line itself.

A command is run once for both its outputs as long as it prints through `emit`, and else twice.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner

from tests.recordings import KINDS, SAMPLES, SIX
from tracer import command_options
from tracer.cli import main
from tracer.files.bounded import tomllib
from tracer.notes import AT_ONCE

ROOT: Final = SAMPLES.parent
ASKED: Final = tomllib.loads(Path(__file__).with_name("asked.toml").read_text(encoding="utf-8"))

BY_FLAG: Final = ("events",)
"""Commands that find other facts for `--json`."""

SAME: Final = "the notes"
"""In place of a stderr that holds the first notes of the JSON, each in a line, and the number of the others."""


def recordings() -> list[str]:
    """The names of the bundled recordings."""
    return sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def commands_of(name: str) -> list[str]:
    """The commands that are asked of a bundled recording, as one types them in the repository's root."""
    path = f"{SAMPLES.name}/{name}"
    asked = [f"{command} {{}}" for command in ASKED["plain"]] + [f"whatif {{}} {edit}" for edit in ASKED["edits"]]
    if (SAMPLES / name / "node").exists():
        asked += [f"{command} {{}}/node" for command in ASKED["of-node-pass"]]
    if name in ASKED["edited"]:
        asked += [f"whatif {{}} {edit}" for edit in ASKED["more-edits"]]
    if rate := ASKED["rates"].get(name):
        asked += [f"{command} {{}} --untraced-tokens-per-s {rate}" for command in ASKED["rated"]]
    asked += ASKED["more"] if name in KINDS else ()
    asked += ASKED["more-of-edited"] if name in ASKED["edited"] else ()
    asked += ASKED["special"].get(name, ())
    if name == SIX.name:
        asked += [f"syncs {{}} --range '{text}'" for text in ASKED["of-six"]]
        asked += [
            f"gaps {{}} --range '{text}' --untraced-tokens-per-s {rate}" for text, rate in ASKED["of-six"].items()
        ]
    return [command.replace("{}", path) for command in dict.fromkeys(asked)]


def comparisons() -> list[str]:
    """The comparisons of bundled recordings."""
    found = []
    for pair in ASKED["together"]["compared"]:
        words = [f"{SAMPLES.name}/{word}" if (SAMPLES / word).is_dir() else word for word in shlex.split(pair)]
        found.append(shlex.join(["compare", *words]))
    return found


def answers(commands: list[str], folder: Path = ROOT) -> dict[str, Any]:
    """The answers to commands that are typed in this folder."""
    with _inside(folder), _of_both() as printed:
        return {command: _answer(command, printed) for command in commands}


def _answer(command: str, printed: list[str]) -> dict[str, Any]:
    """One answer: exit code, JSON, text, stderr; without what is empty."""
    printed.clear()
    runner, words = CliRunner(), shlex.split(command)
    said = runner.invoke(main, words)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        raise said.exception
    if words[0] in BY_FLAG:
        printed.clear()
    if not printed and said.exit_code < 2:
        printed.append(runner.invoke(main, [*words, "--json"]).stdout)
    facts = json.loads(printed[0]) if printed and "--markdown" not in words else {}
    notes = facts.get("notes", [])
    first = [f"note: {note}\n" for note in notes[:AT_ONCE]]
    more = f"note: {len(notes) - AT_ONCE} more note{'s' * (len(notes) > AT_ONCE + 1)}: -v\n" * (len(notes) > AT_ONCE)
    is_same = bool(notes) and said.stderr == "".join(first) + more
    parts = {"json": facts, "text": said.stdout, "stderr": SAME if is_same else said.stderr}
    return {"exit": said.exit_code} | {key: part for key, part in parts.items() if part}


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder, so that paths are said as they are typed."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _of_both() -> Iterator[list[str]]:
    """Have commands print their JSON as well, into this list, when they print their text: analysing takes all the time.

    Every module's reference to `emit` is replaced meanwhile. Where there is no such function nothing is done.
    """
    printed: list[str] = []
    emit = getattr(command_options, "emit", None)
    if emit is None:
        yield printed
        return

    def twice(as_json: bool, *rest: Any) -> None:
        json_text = io.StringIO()
        with redirect_stdout(json_text), redirect_stderr(io.StringIO()):
            emit(True, *rest)
        printed.append(json_text.getvalue())
        emit(as_json, *rest)

    for name in main.list_commands(click.Context(main)):
        main.get_command(click.Context(main), name)
    import_module("tracer.commands")
    held = [module for module in list(sys.modules.values()) if getattr(module, "emit", None) is emit]
    for module in held:
        module.emit = twice  # type: ignore[attr-defined]
    try:
        yield printed
    finally:
        for module in held:
            module.emit = emit  # type: ignore[attr-defined]
