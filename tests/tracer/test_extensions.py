"""What other distributions add through entry points: formats, engines, analyses and commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tracer
from tests.tracer.handmade import decode_loop
from tracer import engines, extensions, formats, scrub
from tracer.analysis.tokens import find_steps
from tracer.errors import ExtensionError

MODULE = """
import json
import re
from pathlib import Path

import click

from tracer import Trace
from tracer.engines.engine import Engine, Mark, batch
from tracer.formats import Format

def read(path: Path) -> Trace:
    return Trace.from_columns({"source": "tiny"}, kernels=json.loads(path.read_text()))

def write(trace: Trace, path: Path) -> list[str]:
    kernels = trace["kernels"]
    path.write_text(json.dumps({"start": kernels["start"].tolist(), "end": kernels["end"].tolist()}))
    return ["only kernels"]

FORMAT = Format("tiny kernels", ".tiny", lambda path: path.suffix == ".tiny", read, write, lossless=False)

ENGINE = Engine("tiny engine", (Mark(re.compile("^tiny turn of (\\\\d+)"), lambda found: batch(0, int(found[1]), 0)),))

def longest_step(trace, steps):
    return int((steps.table["end"] - steps.table["start"]).max())

@click.command()
def tiny():
    "Say hello."
    click.echo("hello")

def register(group):
    group.add_command(tiny)
"""
ENTRIES = """
[intertoken.formats]
tiny = tiny_extension:FORMAT

[intertoken.engines]
tiny = tiny_extension:ENGINE

[intertoken.analyses]
longest_step = tiny_extension:longest_step

[intertoken.commands]
tiny = tiny_extension:register
"""

Install = Callable[..., Path]


def forget() -> None:
    for known in (extensions.extensions, extensions._installed, engines.engines, scrub.vocabulary, scrub._of_mark):
        known.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution as pip does, for this test."""

    def installed(module: str = MODULE, entries: str = ENTRIES) -> Path:
        site = tmp_path / "site"
        meta = site / "tiny_extension-1.5.dist-info"
        meta.mkdir(parents=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-extension\nVersion: 1.5\n")
        (meta / "entry_points.txt").write_text(entries)
        (site / "tiny_extension.py").write_text(module)
        monkeypatch.syspath_prepend(site)
        forget()
        return site

    yield installed
    sys.modules.pop("tiny_extension", None)
    forget()


def test_a_format_is_read_written_and_listed(install: Install, tmp_path: Path) -> None:
    install()
    assert formats.write(decode_loop("ag", 2).trace, tmp_path / "a.tiny") == ["only kernels"]
    trace = tracer.read(tmp_path / "a.tiny")
    assert trace.metadata["source"] == "tiny"
    assert trace["kernels"]["start"].tolist() == [35, 1035]
    assert formats.registered()[0].name == "tiny kernels"
    (tmp_path / "b.txt").write_text("no trace")
    with pytest.raises(tracer.errors.FormatError, match="expected one of: tiny kernels, "):
        tracer.read(tmp_path / "b.txt")


def test_the_marks_of_an_engine_are_steps_and_survive_scrubbing(install: Install) -> None:
    install()
    script = decode_loop("agAs", 4)
    for step in range(4):
        script.range("tiny turn of 8", step * 1000, step * 1000 + 90)
    steps = find_steps(script.trace)
    assert (steps.what, steps.source) == ("4 decode steps", "nvtx")
    assert steps.table["sequences"].tolist() == [8] * 4
    assert re.fullmatch("tiny turn of 8 for x[a-z]{10}", scrub.Texts().range("tiny turn of 8 for ada", "nvtx"))


def test_an_analysis_gets_the_trace_and_the_steps_that_are_meant(install: Install) -> None:
    install()
    found = tracer.analyse(decode_loop("agAs", 4).trace, steps=slice(1, 3))
    assert found["longest_step"] == 1000
    with pytest.raises(KeyError, match="no analysis 'shortest' is installed; available: longest_step"):
        found["shortest"]


def started(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{root}"}
    command = (sys.executable, "-m", "tracer.cli", *arguments)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_commands_use_all_of_them(install: Install, tmp_path: Path) -> None:
    site = install()
    assert started(site, "tiny").stdout == "hello\n"
    assert re.search(r"^  tiny +Say hello\.$", started(site, "--help").stdout, re.MULTILINE)
    (tmp_path / "a.tiny").write_text('{"start": [1, 5], "end": [3, 9], "name": ["k", "k"]}')
    facts = json.loads(started(site, "info", str(tmp_path / "a.tiny"), "--json").stdout)
    assert (facts["source"], facts["events"]["kernels"]) == ("tiny", 2)


@pytest.mark.parametrize(
    ("module", "entries", "said"),
    [
        ("import no_such_module", ENTRIES, "entry point 'tiny' of intertoken.formats cannot be loaded: "
         "ModuleNotFoundError: No module named 'no_such_module'; update or uninstall the distribution"),
        (MODULE, "[intertoken.formats]\ntiny = tiny_extension:nothing\n", "cannot be loaded: AttributeError: "),
        (MODULE, "[intertoken.formats]\ntiny = tiny_extension:read\n", "is of type function, not Format; update"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded_is_said_with_its_distribution(
    install: Install, module: str, entries: str, said: str
) -> None:
    install(module, entries)
    with pytest.raises(ExtensionError, match=r"^tiny-extension 1\.5: entry point") as problem:
        formats.registered()
    assert said in str(problem.value)


def test_a_broken_command_is_one_line(install: Install) -> None:
    done = started(
        install("raise OSError('broken')", "[intertoken.commands]\ntiny = tiny_extension:register\n"), "--help"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "intertoken: tiny-extension 1.5: entry point 'tiny' of intertoken.commands cannot be loaded: "
        "OSError: broken; update or uninstall the distribution\n"
    )
