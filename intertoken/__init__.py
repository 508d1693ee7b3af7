"""The `intertoken` command, unless one of its packages was overwritten.

`tracer`, `executor` and `dashboard` are also names of other distributions on the package index. The one installed last
overwrites the files of the other, and uninstalling it removes them. This package checks that before it imports them.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say in one line which of its packages another distribution has overwritten."""
    from intertoken.installation import fault

    problem = fault()
    if problem is not None:
        print(f"intertoken: {problem}", file=sys.stderr)
        sys.exit(2)
    from tracer.cli import main as run

    run()
