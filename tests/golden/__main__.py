"""Compares the answers with the data, or writes the data: see the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.golden import kept
from tests.golden.form import differences, written


@click.command()
@click.argument("names", nargs=-1)
@click.option("--write", is_flag=True, help="Write the data.")
@click.option("--full", is_flag=True, help="Print the answers as they are before anything is shortened.")
def main(names: tuple[str, ...], write: bool, full: bool) -> None:
    """Compare the product's answers with the golden ones, of all or of these files (such as recordings/sync-beside)."""
    os.environ["INTERTOKEN_CACHE"] = "off"
    asked = kept.files()
    is_different = False
    for name in names or asked:
        if full:
            click.echo(written(asked[name]()))
            continue
        found = kept.of(asked[name]())
        if write:
            kept.write(name, found)
            continue
        changed = differences(kept.read(name), found)
        is_different = is_different or bool(changed)
        click.echo("\n".join([f"{name}: {'differs' if changed else 'the same'}", *changed]))
    sys.exit(int(is_different))


if __name__ == "__main__":
    main()
