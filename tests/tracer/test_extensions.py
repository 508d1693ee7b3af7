"""What other distributions add through entry points: formats, engines, analyses and commands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracer
from tests.programs import texts
from tests.tracer.handmade import decode_loop
from tracer import analyse, engines, extensions, formats, scrub
from tracer.errors import ExtensionError

MODULE, ENTRIES = texts("tiny_extension.txt").values()


def forget():
    for known in (extensions.extensions, extensions._installed, engines.engines, scrub.vocabulary, scrub._of_mark):
        known.cache_clear()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution as pip does, for this test."""

    def installed(module=MODULE, entries=ENTRIES):
        site = tmp_path / "site"
        meta = site / "tiny_extension-1.5.dist-info"
        meta.mkdir(parents=True, exist_ok=True)
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-extension\nVersion: 1.5\n")
        (meta / "entry_points.txt").write_text(entries)
        (site / "tiny_extension.py").write_text(module)
        monkeypatch.syspath_prepend(site)
        sys.modules.pop("tiny_extension", None)
        forget()
        return site

    yield installed
    sys.modules.pop("tiny_extension", None)
    forget()


def started(site, *arguments):
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{Path(__file__).parents[2]}"}
    command = (sys.executable, "-m", "tracer.cli", *map(str, arguments))
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_format_an_engine_and_an_analysis_are_used(install, tmp_path):
    install()
    assert formats.write(decode_loop("ag", 2).trace, tmp_path / "a.tiny") == ["only kernels"]
    trace = tracer.read(tmp_path / "a.tiny")
    assert (trace.metadata["source"], trace["kernels"]["start"].tolist()) == ("tiny", [35, 1035])
    assert next(formats.registered()).name == "tiny kernels"
    (tmp_path / "b.txt").write_text("no trace")
    with pytest.raises(tracer.errors.FormatError, match="expected one of: tiny kernels, "):
        tracer.read(tmp_path / "b.txt")
    script = decode_loop("agAs", 4)
    for step in range(4):
        script.range("tiny turn of 8", step * 1000, step * 1000 + 90)
    found = analyse(script.trace, steps=slice(1, 3))
    assert (found.steps.source, found.steps.table["sequences"].tolist()) == ("nvtx", [8] * 2)
    assert found["longest_step"] == 1000  # of the steps that are meant
    with pytest.raises(KeyError, match="no analysis 'shortest' is installed; available: longest_step"):
        found["shortest"]
    assert re.fullmatch("tiny turn of 8 for x[a-z]{10}", scrub.Texts().range("tiny turn of 8 for ada", "nvtx"))


def test_commands_use_all_of_them_and_a_broken_one_is_one_line(install, tmp_path):
    site = install()
    assert started(site, "tiny").stdout == "hello\n"
    (tmp_path / "a.tiny").write_text('{"start": [1, 5], "end": [3, 9], "name": ["k", "k"]}')
    facts = json.loads(started(site, "info", tmp_path / "a.tiny", "--json").stdout)
    assert (facts["source"], facts["events"]["kernels"]) == ("tiny", 2)
    install("raise OSError('broken')", "[intertoken.commands]\ntiny = tiny_extension:register\n")
    done = started(site, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", (
        "intertoken: tiny-extension 1.5: entry point 'tiny' of intertoken.commands cannot be loaded: "
        "OSError: broken; update or uninstall the distribution\n"
    ))  # fmt: skip


def test_what_cannot_be_loaded_is_said_with_its_distribution(install):
    for module, what, said in (
        ("import no_such_module", "FORMAT", "entry point 'tiny' of intertoken.formats cannot be loaded: "
         "ModuleNotFoundError: No module named 'no_such_module'; update or uninstall the distribution"),
        (MODULE, "nothing", "cannot be loaded: AttributeError: "),
        (MODULE, "read", "is of type function, not Format; update"),
    ):  # fmt: skip
        install(module, f"[intertoken.formats]\ntiny = tiny_extension:{what}\n")
        with pytest.raises(ExtensionError, match=r"^tiny-extension 1\.5: entry point") as problem:
            next(formats.registered())
        assert said in str(problem.value)
