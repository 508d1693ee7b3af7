"""The `intertoken` command, if its packages are whole.

`tracer`, `executor` and `dashboard` are also names of other distributions on the package index. Whichever is installed
last overwrites the other's files, and uninstalling it takes them away, so this package imports nothing of them before
it has looked.
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
