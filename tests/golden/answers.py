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

from tests.recordings import KINDS, SAMPLES
from tracer import command_options
from tracer.cli import main

ROOT: Final = SAMPLES.parent
PLAIN: Final = ("info", "tokens", "syncs", "gaps", "streams", "path", "advise")
EDITS: Final = ("--sync=saaas,aaas,aaag,ggg", "--without-syncs")
"""What-ifs of every recording."""

MORE_EDITS: Final = (
    "--without-sync 1", "--graph --early-starts", "--eager-into-graph", "--launch-first", "--read-later",
    "--copies-behind", "--merge-copies", "--scale-kernels .*=0.5", "--scale-host 0.5", "--scale-host-compute 0.5",
    "--sync-latency-us 10",
)  # fmt: skip
EDITED: Final = (
    "llama1b-saaas-graph", "vllm-b1-node-nvtx", "transformers-static", "llama-1.1b-aaag-sequential-cuda-ngl13",
)  # fmt: skip
"""Recordings of which all these what-ifs are asked, and `MORE_OF_EDITED`."""

MORE: Final = ("syncs {} --call-sites", "tokens {} --phase all", "gaps {} --phase prefill")
"""Of one recording of every recorder, level and engine."""

MORE_OF_EDITED: Final = ("gaps {} --bubbles --call-sites", "path {} --steps 3:9", "info {} --range no", "events {} api")

RATES: Final = {
    "llama1b-sccc-graph": 748.7, "llama1b-saaas-node": 759.5, "vllm-b1-graph": 615, "vllm-joining-graph": 451,
    "transformers-eager": 50,
}  # fmt: skip
"""Steps per second without a profiler, as `sample_traces/README.md` says, of recordings that are asked with it, too."""

RATED: Final = ("gaps", "advise", "whatif --without-syncs")

OF_NODE_PASS: Final = ("info",)

OF_SIX: Final = {
    "run sccc sequential": 2179, "run saaas sequential": 2304, "run aaag sequential": 2331,
    "run sccc concurrent": 3448, "run saaas concurrent": 3795, "run aaag concurrent": 3883,
}  # fmt: skip
"""The ranges of six-strategies and their tokens per second without a profiler."""

SPECIAL: Final = {
    "llama1b-saaas-graph": ["check {} --budget sample_traces/llama1b-saaas.toml"],
    "llama1b-sccc-graph": ["check {} --budget sample_traces/llama1b-saaas.toml", "advise {} --markdown"],
    "vllm-b8-torch": ["advise {} --markdown"],
    "six-strategies": [
        "check {} --budget sample_traces/six-strategies.toml",
        *(f"syncs {{}} --range '{text}'" for text in OF_SIX),
        *(f"gaps {{}} --range '{text}' --untraced-tokens-per-s {rate}" for text, rate in OF_SIX.items()),
    ],
}

BY_FLAG: Final = ("events",)
"""Commands that find other facts for `--json`."""

SAME: Final = "the notes"
"""In place of a stderr that holds the notes of the JSON, each in a line."""

COMPARED: Final = (
    "llama1b-sccc-graph llama1b-saaas-graph",
    "llama1b-sccc-node llama1b-saaas-node",
    "llama1b-sccc-graph llama1b-sccc-node",
    "llama1b-sccc-graph llama1b-saaas-graph --untraced-tokens-per-s 748.7,745.7,751.7 "
    "--untraced-tokens-per-s 759.5,756.5,762.5",
    "llama-1.1b-sccc-sequential-cuda llama-1.1b-saaas-sequential-cuda llama-1.1b-aaag-sequential-cuda "
    "llama-1.1b-ggg-sequential-cuda",
    "llama-1.1b-sccc-sequential-cuda llama-1.1b-sccc-branches-cuda",
    "llama-1.1b-sccc-sequential-cuda-ngl13 llama-1.1b-aaag-sequential-cuda-ngl13",
    "llama-1.1b-sccc-sequential-cuda-c4096-p2048-x2 llama-1.1b-aaag-sequential-cuda-c4096-p2048-x2",
    "llama-1.1b-sccc-sequential-cuda llama-1.1b-sccc-sequential-cuda-ngl13",
    "vllm-b1-graph vllm-b8-graph",
    "vllm-b1-graph vllm-b1-graph-nvtx",
    "vllm-b1-graph vllm-b1-graph-nvtx --force",
    "vllm-b8-node vllm-b8-torch",
    "transformers-eager transformers-static",
    "six-strategies six-strategies --range 'run sccc sequential' --range 'run aaag sequential'",
    "six-strategies six-strategies --range 'run sccc sequential' --range 'run sccc concurrent' "
    "--untraced-tokens-per-s 2179 --untraced-tokens-per-s 3448",
    "sync-beside",
)


def recordings() -> list[str]:
    """The names of the bundled recordings."""
    return sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())


def commands_of(name: str) -> list[str]:
    """The commands that are asked of a bundled recording, as one types them in the repository's root."""
    path = f"{SAMPLES.name}/{name}"
    asked = [*(f"{command} {{}}" for command in PLAIN), *(f"whatif {{}} {edit}" for edit in EDITS)]
    if (SAMPLES / name / "node").exists():
        asked += [f"{command} {{}}/node" for command in OF_NODE_PASS]
    asked += [f"whatif {{}} {edit}" for edit in MORE_EDITS if name in EDITED]
    asked += [f"{command} {{}} --untraced-tokens-per-s {RATES[name]}" for command in RATED if name in RATES]
    asked += MORE if name in KINDS else ()
    asked += MORE_OF_EDITED if name in EDITED else ()
    return [command.replace("{}", path) for command in dict.fromkeys((*asked, *SPECIAL.get(name, ())))]


def comparisons() -> list[str]:
    """The comparisons of bundled recordings."""
    found = []
    for pair in COMPARED:
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
    notes = "".join(f"note: {note}\n" for note in facts.get("notes", []))
    parts = {"json": facts, "text": said.stdout, "stderr": SAME if notes and said.stderr == notes else said.stderr}
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
