"""Print a random sample of the messages and docstrings of the three packages, to be read by a person.

A message is any string of at least four words that is not a docstring: errors, help texts, notes, labels of pages.
`{...}` stands for a value. The same seed and sources give the same sample.
Usage: python benchmarks/text_sample.py [--count 100] [--seed 1] [--all] [DIRECTORY ...]
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("intertoken", "tracer", "executor", "dashboard")
LEAST_WORDS = 4
WORD = re.compile(r"[A-Za-z]{2,}")


def text_of(node: ast.expr) -> str | None:
    """Return the text of a string or f-string, or None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{...}" for part in node.values)
    return None


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring and message of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or id(node) in parts:
            continue
        text = text_of(node)
        if text is not None and len(WORD.findall(text.replace("{...}", ""))) >= LEAST_WORDS and " " in text.strip():
            yield node.lineno, text


def all_texts(directories: list[Path]) -> list[tuple[str, int, str]]:
    """Return path, line and text of every docstring and message, in the order of the files."""
    files = [path for directory in directories for path in sorted(directory.rglob("*.py"))]
    return [(str(path.relative_to(ROOT)), line, text) for path in files for line, text in texts(path)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="*", type=Path, default=[ROOT / name for name in PACKAGES])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="print every text instead of a sample")
    options = parser.parse_args()
    found = all_texts([directory.absolute() for directory in options.directories])
    chosen = found if options.all else random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(chosen)} of {len(found):,} texts")
    for path, line, text in chosen:
        print(f"\n{path}:{line}\n{text.strip()}")


if __name__ == "__main__":
    main()
