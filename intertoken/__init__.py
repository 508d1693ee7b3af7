"""The `intertoken` command, unless one of its packages was overwritten.

`tracer`, `executor` and `dashboard` are also names of other distributions on the package index. The one installed last
overwrites the files of the other, and uninstalling it removes them. This package checks that before it imports them.
"""

from __future__ import annotations

import csv
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("tracer", "executor", "dashboard")

_REPAIR: Final = "install intertoken again (pip install --force-reinstall --no-deps)"


def fault() -> str | None:
    """What is wrong with the installation, and what to do, in one line; None if nothing is."""
    return _shadowed() or _overwritten()


def _shadowed() -> str | None:
    """A package with one of our names that Python finds first; the search imports nothing."""
    home = Path(__file__).parents[1]
    for name in PACKAGES:
        if not (home / name / "__init__.py").is_file():
            return (
                f"its package {name} is incomplete; another package of that name may have been uninstalled; {_REPAIR}"
            )
        spec = find_spec(name)
        path = Path(spec.origin) if spec is not None and spec.origin is not None else home / name / "__init__.py"
        if path.parent.parent != home:
            return (
                f"{path}, {_whose(path, name)}, hides its own package {name}; remove it, or install intertoken into "
                "a separate environment"
            )
    return None


def _overwritten() -> str | None:
    """One of our files that is missing, or that another distribution has replaced (its size differs).

    Files edited by hand are accepted. An editable installation records no files.
    """
    try:
        ours = distribution("intertoken")
    except PackageNotFoundError:
        return None
    for name, size in _recorded(ours):
        path = Path(str(ours.locate_file(name)))
        try:
            changed = path.stat().st_size != size
        except OSError:
            return f"{path} is missing; another package of that name may have been uninstalled; {_REPAIR}"
        if changed and (owner := _owner(name, ours)) is not None:
            return (
                f"{path} was overwritten by {_named(owner)}, which has a package of the same name: "
                f"pip uninstall {owner.metadata['Name']}, then {_REPAIR}"
            )
    return None


def _recorded(ours: Distribution) -> list[tuple[str, int]]:
    """Our modules and their sizes, as installed."""
    rows = csv.reader((ours.read_text("RECORD") or "").splitlines())
    return [(row[0], int(row[2])) for row in rows if row[0].endswith(".py") and row[0].partition("/")[0] in PACKAGES]


def _owner(name: str, ours: Distribution) -> Distribution | None:
    """The other distribution that installed a file."""
    own_name = ours.metadata["Name"]
    return next(
        (d for d in distributions() if d.metadata["Name"] != own_name and name in map(str, d.files or ())), None
    )


def _whose(path: Path, name: str) -> str:
    """The distribution that a package belongs to, as text for a message."""
    for each in distributions(path=[str(path.parents[1])]):
        if each.metadata["Name"] != "intertoken" and any(file.parts[0] == name for file in each.files or ()):
            return f"of {_named(each)}"
    return "of no distribution"


def _named(owner: Distribution) -> str:
    return f"{owner.metadata['Name']} {owner.version}"


def main() -> None:
    """Run the command line, or say in one line which of its packages another distribution has overwritten."""
    from intertoken import fault

    problem = fault()
    if problem is not None:
        print(f"intertoken: {problem}", file=sys.stderr)
        sys.exit(2)
    from tracer.cli import main as run

    run()
