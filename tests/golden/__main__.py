"""Compares the answers with the data, or writes the data: see the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.golden import kept, shared
from tests.golden.form import differences, written


@click.command()
@click.argument("names", nargs=-1)
@click.option("--write", is_flag=True, help="Write the data.")
@click.option("--full", is_flag=True, help="Print the answers as they are before anything is shortened.")
def main(names: tuple[str, ...], write: bool, full: bool) -> None:
    """Compare the product's answers with the golden ones, of all or of these files (such as recordings/sync-beside).

    "shared" is the file of the recordings below the folder that INTERTOKEN_RECORDINGS names; it is left out otherwise.
    """
    os.environ["INTERTOKEN_CACHE"] = "off"
    files = kept.files()
    if (root := shared.folder()) is not None:
        files["shared"] = lambda: {name: shared.told_of(root, name) for name in shared.found_in(root)}
    is_different = False
    for name in names or files:
        found = files[name]()
        if full:
            click.echo(written(found))
        elif write:
            kept.write(name, kept.of(found))
        else:
            changed = differences(kept.read(name), kept.of(found))
            is_different = is_different or bool(changed)
            click.echo("\n".join([f"{name}: {'differs' if changed else 'the same'}", *changed]))
    sys.exit(int(is_different))


if __name__ == "__main__":
    main()
