"""README and docs: commands that exist, keys as printed, links that lead somewhere, a site without warnings."""

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.recordings import SAMPLES
from tracer.analysis.budget import parse
from tracer.cli import main
from tracer.files.bounded import tomllib

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TYPES = {
    bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object", type(None): "null"
}  # fmt: skip
X2 = "llama-1.1b-aaag-sequential-cuda-c4096-p2048-x2"
PRINTED = {
    "info": ["info llama1b-saaas-graph", "info six-strategies"],
    "tokens": ["tokens vllm-b8-graph-nvtx"],
    "syncs": ["syncs llama1b-saaas-graph", "syncs vllm-b8-torch --call-sites"],
    "gaps": ["gaps llama1b-saaas-graph --bubbles", "gaps vllm-b8-torch --call-sites", f"gaps {X2}"],
    "streams": ["streams llama1b-saaas-graph", f"streams {X2}"],
    "path": ["path sync-beside"],
    "whatif": ["whatif sync-beside --without-sync 1"],
    "advise": ["advise llama1b-sccc-graph"],
    "compare": ["compare llama1b-sccc-graph llama1b-saaas-graph"],
    "ab": ["ab --rounds 2 --no-recorder -- true --- true"],
    "check": ["check llama1b-saaas-graph --budget llama1b-saaas.toml"],
    "events": ["events llama1b-saaas-graph memcpys"],
    "scrub": ["scrub llama1b-saaas-graph {}/scrubbed.sqlite"],
    "runs": ["run --backend sim --sync sccc --tokens 4 --repeats 1 -o {}"],
    "plan": ["run --dry-run --sync sccc -o {}"],
}
"""Schema -> commands that print it; {} is an empty directory."""
ELSEWHERE = {"bisect"}
"""Schemas that `tests/tracer/test_bisect.py` compares: a command that prints it needs a repository."""


def documented():
    """Schema's name -> key -> (types, meaning)."""
    text = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    return {
        name: {
            key: (types.split(" or "), meaning)
            for key, types, meaning in re.findall(r"^\| `(\w+)` \| ([\w ]+?) \| (.*)\|$", section, re.MULTILINE)
        }
        for name, section in re.findall(r"^## `intertoken\.(\w+)/1`\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    }


def commands_shown():
    """Each `intertoken …` in the code blocks and the sentences of README and docs."""
    for page in (README, *PAGES):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```\n.*?^```$", text, re.MULTILINE | re.DOTALL)
        lines = re.findall(r"^(?:\$ )?(intertoken .+)$", "\n".join(blocks), re.MULTILINE)
        lines += re.findall(r"`(intertoken [^`\n]+)`", text)
        yield from (line.split("   #")[0].strip() for line in lines if "…" not in line)


def test_every_schema_of_the_page_is_tried():
    assert documented().keys() == PRINTED.keys() | ELSEWHERE


@pytest.mark.parametrize(("schema", "line"), [(s, line) for s, lines in PRINTED.items() for line in lines])
def test_commands_print_the_documented_keys(schema, line, tmp_path, monkeypatch):
    monkeypatch.chdir(SAMPLES)
    command, *arguments = line.format(tmp_path).split()
    printed = json.loads(CliRunner().invoke(main, [command, "--json", *arguments]).stdout)
    keys = documented()[schema]
    assert printed["schema"] == f"intertoken.{schema}/1"
    assert printed.keys() <= keys.keys()
    assert {key for key, (_, meaning) in keys.items() if not meaning.startswith("*optional*")} <= printed.keys()
    for key, value in printed.items():
        types, meaning = keys[key]
        assert TYPES[type(value)] in types, key
        inside = {name for row in value if isinstance(row, dict) for name in row} if isinstance(value, list) else set()
        assert schema == "events" or inside <= set(re.findall(r"\w+", meaning)), key


def test_commands_in_the_docs_can_be_given():
    """Only that the command and its options exist: nothing is read or run."""
    for line in commands_shown():
        name, *arguments = shlex.split(line.split(" -- ")[0])[1:]
        if name.isupper() or name.startswith("-"):
            continue
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        given = {argument.split("=")[0] for argument in arguments if argument.startswith("-")}
        assert given <= known | {"--help"}, line


def answers_shown():
    """Commands on the samples, and the lines that README and tutorial show of their answers."""
    for page in (README, ROOT / "docs" / "tutorial.md"):
        text = page.read_text(encoding="utf-8")
        bold = r"^\*\*[^`]*`(intertoken [^`]+)`[^`]*(?:`[^`]+`[^`]*)?\n\n```\n(.*?)^```$"
        blocks = re.findall(bold, text, re.MULTILINE | re.DOTALL)
        for block in re.findall(r"^```\n(\$ .*?)^```$", text, re.MULTILINE | re.DOTALL):
            blocks += [each.partition("\n")[::2] for each in block.removeprefix("$ ").split("\n$ ")]
        for command, shown in blocks:
            command = command.split("   #")[0].strip()
            if "sample_traces" in command and shown.strip() and " report " not in command:
                yield pytest.param(command, shown, id=f"{page.stem}: {command}")


@pytest.mark.parametrize(("line", "shown"), list(answers_shown()))
def test_answers_in_the_docs_are_given(line, shown, monkeypatch):
    """Each line that is shown is part of the answer; lines may be left out, and be broken elsewhere."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "120")
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    answer = " ".join(done.output.split())
    lines = [" ".join(each.split()) for each in shown.splitlines() if each.strip(" …")]
    assert [each for each in lines if each not in answer] == []


def test_the_python_of_the_page_runs(monkeypatch, capsys):
    text = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    monkeypatch.chdir(ROOT)
    exec(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0], {})
    assert capsys.readouterr().out.startswith("{'p50': 149.2")


def test_budgets_of_the_page_are_budgets():
    text = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    whole, against_base, of_a_site = (
        parse(tomllib.loads(t), "ci.md") for t in re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    )
    assert len(whole.lines) == 10
    assert against_base.base is not None
    assert [line.scope.site for line in of_a_site.lines] == ["async_utils.py get_output"]


def test_the_readme_is_short_and_its_links_lead_somewhere():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert [to for to in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in to and not (ROOT / to).exists()] == []


@pytest.mark.skipif(find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="needs intertoken[docs]")
def test_the_site_builds_without_a_warning(tmp_path):
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path))
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr[-4000:]
