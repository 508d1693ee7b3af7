"""Writes docs/measurements.md: for each topic of `topics.toml` a paragraph, and a table of its files in `results/`.

Usage: python benchmarks/report.py          write the page
       python benchmarks/report.py --check  exit with 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import report_rows

from tracer.files.bounded import toml_of

HERE: Final = Path(__file__).parent
TARGET: Final = HERE.parent / "docs" / "measurements.md"


def made_on(found: dict[str, Any]) -> str:
    """Return machine, date and commit."""
    machine = found | found.get("machine", {})
    gpu, driver = machine.get("gpu"), machine.get("driver")
    where = f"{gpu}, driver {driver}" if gpu else f"{machine['cores']} cores of {machine['cpu']}"
    return ", ".join([where, found["date"], *([f"commit {found['commit']}"] if found.get("commit") else [])])


def section(topic: dict[str, Any]) -> str:
    """Return a topic's heading, paragraph and table."""
    found = {name: json.loads((HERE / "results" / f"{name}.json").read_text("utf-8")) for name in topic["files"]}
    places: dict[str, list[str]] = {}
    for name, each in found.items():
        places.setdefault(topic.get("measured") or made_on(each), []).append(f"`{name}.json`")
    sources = "; ".join(f"{', '.join(names)} ({place})" for place, names in places.items())
    scripts = ", ".join(f"`{name}.py`" for name in topic.get("scripts", topic["files"]))
    script = f" Script: {scripts}." if scripts else ""
    rows = getattr(report_rows, topic["rows"])(*found.values())
    table = [topic["columns"], ["---"] * len(topic["columns"]), *rows]
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    about = " ".join(topic["about"].split())
    return f"## {topic['title']}\n\n{about}{script} Results: {sources}.\n\n{lines}"


def report() -> str:
    """Return the whole page."""
    texts = toml_of(HERE / "topics.toml")
    return "\n\n".join([texts["head"].strip(), *map(section, texts["topic"])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        sys.exit(report() != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(report(), encoding="utf-8")


if __name__ == "__main__":
    main()
