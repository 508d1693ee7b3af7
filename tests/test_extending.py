"""docs/extending.md, followed in a copy of the code: one engine, format, analysis, command and strategy are added."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tracer", "executor", "dashboard", "tests")

FORMAT = """
from typing import Final
from tracer.formats import Format
from tracer.formats.nsys_parquet import read, write

def sniff(path):
    return path.is_dir() and path.suffix == ".mine"

FORMAT: Final = Format("mine", ".mine", sniff, read, write)
"""

ANALYSIS = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Longest:
    kernel_ns: int

def longest(trace, steps):
    return Longest(int((trace["kernels"]["end"] - trace["kernels"]["start"]).max()))
"""

COMMAND = """'''The longest kernel.'''
import click
from tracer.command_options import emit, load, trace_options

@click.command()
@trace_options
def longest(path, within, bounds, as_json):
    from tracer.analysis.longest import longest as found
    recording = load(path, within, bounds)
    emit(as_json, {"kernel_ns": found(recording.trace, recording.steps).kernel_ns}, print, recording.notes)
"""

SCRIPT = """
import sys
from pathlib import Path
import pytest
suite = ["-q", "-p", "no:cacheprovider", "tests/sync_counts/test_cpu.py", "-k", "guided and cpu"]
assert pytest.main([*suite, "-c", sys.argv[2], "--rootdir", sys.argv[1]]) == 0
from click.testing import CliRunner
from dashboard.app import create_app
from dashboard.view import View
from executor.run.configuration import Configuration
from executor.run import execute
from tests.sync_counts.test_cpu import copies, syncs
from tests.tracer.handmade import Script
from tracer import read, write
from tracer.analysis.syncs import sync_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main

script = Script()
for at in range(0, 5000, 1000):
    script.range("my step 4 prefill 0 decode".replace("4", "0").replace("prefill 0", "prefill 4"), at, at + 900)
    script.launch((at + 10, at + 20), (at + 30, at + 100))
steps = find_steps(script.trace)
assert steps.tokens_per_step == 4, steps.tokens_per_step
out = Path(sys.argv[1]) / "x.mine"
write(script.trace, out)
assert len(read(out)["kernels"]) == 5
result = CliRunner().invoke(main, ["longest", str(out), "--json"])
assert "The longest kernel." in CliRunner().invoke(main, ["--help"]).output
assert result.exit_code == 0 and '"kernel_ns": 70' in result.output, result.output
(run,) = execute([Configuration("cpu", strategy="guided", tokens=4, repeats=1, warmup=1, fusion=False)])
report = sync_report(run.trace, find_steps(run.trace))
assert (report.syncs_per_token, report.strategy) == (syncs("guided", 6), "aaas"), report
assert copies("guided", 6) == 7
assert "guided" in CliRunner().invoke(main, ["run", "--help"]).output
write(script.trace, out.with_suffix(".sqlite"))
app = create_app([out.with_suffix(".sqlite")])
with app.server.test_client() as client:
    assert "Longest" in client.get("/longest/").text
    view = {"id": "view", "property": "data", "value": View(runs=("x",)).data()}
    given = {"inputs": [view], "output": "longest.children",
             "outputs": {"id": "longest", "property": "children"}, "changedPropIds": ["view.data"], "state": []}
    answer = client.post("/longest/_dash-update-component", json=given)
    assert "5 steps" in answer.text, answer.text
print("all found")
"""


def block(text: str, heading: str, number: int = 0) -> str:
    """A Python block below a heading of the guide."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    indent, found = re.findall(r"^( *)```python\n(.*?)^\1```", section, re.MULTILINE | re.DOTALL)[number]
    return re.sub(rf"^{indent}", "", found, flags=re.MULTILINE)


@pytest.fixture
def guided(tmp_path: Path) -> Path:
    """A copy with everything that the guide says, and nothing else."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data", "*.so"))
    guide = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    new = {
        "tracer/engines/my_engine.py": block(guide, "An engine"), "tracer/formats/mine.py": FORMAT,
        "tracer/analysis/longest.py": ANALYSIS, "tracer/commands/longest.py": COMMAND,
        "dashboard/pages/longest.py": block(guide, "An analysis", 1),
    }  # fmt: skip
    for path, text in new.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    strategy = block(guide, "A strategy").replace("AAAS", "GUIDED").replace('"aaas"', '"guided"')
    table = tmp_path / "executor" / "scheduling" / "strategies.py"
    text = table.read_text(encoding="utf-8").replace("AAAS, AAAG,", "AAAS, GUIDED, AAAG,")
    before, table_of, after = text.partition("STRATEGIES: Final")
    table.write_text(f"{before}{strategy}\n\n{table_of}{after}", encoding="utf-8")
    return tmp_path


def test_what_the_guide_adds_is_found_with_nothing_else_changed(guided: Path) -> None:
    """The suites over all strategies include it, too."""
    here = {"PYTHONPATH": str(guided), "INTERTOKEN_CACHE": "off"}
    command = [sys.executable, "-c", SCRIPT, str(guided), str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=guided, env=os.environ | here, capture_output=True, text=True)
    assert re.search(r"[1-9]\d* passed.*all found\n$", done.stdout, re.DOTALL), done.stdout + done.stderr
