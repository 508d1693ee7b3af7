"""docs/reading.md: the files that it names exist, and hold what it says is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = re.sub(r"\s+", " ", (ROOT / "docs" / "reading.md").read_text(encoding="utf-8"))
NAMED = re.findall(r"`([\w/]+\.(?:py|cu|toml))`(?: \((`[^)]*`)\))?", TEXT)


def defined(path):
    """Functions, classes and constants of a module, and methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize(("path", "names"), NAMED, ids=[path for path, _ in NAMED])
def test_what_the_page_names_is_there(path, names):
    assert (ROOT / path).is_file()
    wanted = set(re.findall(r"`([\w.]+)`", names))
    assert not wanted or wanted <= defined(ROOT / path), wanted - defined(ROOT / path)


def test_the_page_says_where_to_look_in_most_files():
    assert len(NAMED) > 50
    assert sum(bool(names) for _, names in NAMED) > 40
