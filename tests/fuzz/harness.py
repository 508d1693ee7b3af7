"""What the atheris harnesses share: seeds, a place to work in, and the promise that is checked.

    python tests/fuzz/sqlite.py -max_total_time=60

An input that breaks the promise is left as `crash-...`; `python tests/fuzz/sqlite.py crash-...` runs it again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["tracer.formats", "tracer.model.graph_json", "tracer.files.bounded"]):
    import tracer.formats
    import tracer.model.graph_json  # noqa: F401


def fuzz(seeds: Iterable[bytes], check: Callable[[bytes, Path], None]) -> None:
    """Run atheris on `check`, which gets an input and an empty directory, with the options of the command line."""
    with tempfile.TemporaryDirectory(prefix="intertoken-fuzz-") as place:
        corpus, work = Path(place) / "corpus", Path(place) / "work"
        for directory in (corpus, work, work / "out"):
            directory.mkdir()
        for i, seed in enumerate(seeds):
            (corpus / f"seed{i}").write_bytes(seed)
        given = sys.argv[1:]
        inputs = [] if any(not option.startswith("-") for option in given) else [str(corpus)]
        defaults = ["-max_len=262144", "-timeout=60", "-rss_limit_mb=4096", f"-artifact_prefix={Path.cwd()}/"]
        atheris.Setup([sys.argv[0], *defaults, *given, *inputs], lambda data: check(data, work))
        atheris.Fuzz()
