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
ADDED = ROOT / "tests" / "extending"


def block(text, heading, number=0):
    """A Python block below a heading of the guide."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    indent, found = re.findall(r"^( *)```python\n(.*?)^\1```", section, re.MULTILINE | re.DOTALL)[number]
    return re.sub(rf"^{indent}", "", found, flags=re.MULTILINE)


@pytest.fixture
def guided(tmp_path):
    """A copy with everything that the guide says, and nothing else."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data", "*.so"))
    guide = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    new = {
        "tracer/engines/my_engine.py": block(guide, "An engine"),
        "dashboard/pages/longest.py": block(guide, "An analysis", 1),
        "tracer/formats/mine.py": (ADDED / "mine.py").read_text(encoding="utf-8"),
        "tracer/analysis/longest.py": (ADDED / "analysis.py").read_text(encoding="utf-8"),
        "tracer/commands/longest.py": (ADDED / "command.py").read_text(encoding="utf-8"),
    }
    for path, text in new.items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    strategy = block(guide, "A strategy").replace("AAAS", "GUIDED").replace('"aaas"', '"guided"')
    table = tmp_path / "executor" / "scheduling" / "strategies.py"
    text = table.read_text(encoding="utf-8").replace("AAAS, AAAG,", "AAAS, GUIDED, AAAG,")
    before, table_of, after = text.partition("STRATEGIES: Final")
    table.write_text(f"{before}{strategy}\n\n{table_of}{after}", encoding="utf-8")
    formats = tmp_path / "tracer" / "formats" / "__init__.py"
    text = formats.read_text(encoding="utf-8").replace('("nsys_parquet",', '("nsys_parquet", "mine",')
    formats.write_text(text, encoding="utf-8")
    return tmp_path


def test_what_the_guide_adds_is_found_with_nothing_else_changed(guided):
    """The suites over all strategies include it, too."""
    here = {"PYTHONPATH": str(guided), "INTERTOKEN_CACHE": "off"}
    command = [sys.executable, str(ADDED / "check.py"), str(guided), str(ROOT / "pyproject.toml")]
    done = subprocess.run(command, cwd=guided, env=os.environ | here, capture_output=True, text=True)
    assert re.search(r"[1-9]\d* passed.*all found\n$", done.stdout, re.DOTALL), done.stdout + done.stderr
