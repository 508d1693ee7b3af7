"""Saves what the commands answer for every bundled recording, to compare two versions of the code to the digit.

    python benchmarks/same_figures.py before.json              save them (three to eight minutes on two cores)
    python benchmarks/same_figures.py after.json before.json   save them, name what differs, exit code 1 if any

`before.json` comes from a copy of the earlier code: PYTHONPATH chooses it. Nothing is read from the cache.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

SAMPLES: Final = Path("sample_traces")
PLAIN: Final = ("info", "tokens", "syncs", "gaps", "streams", "path", "advise")
EDITS: Final = (
    "--sync=saaas,aaas,aaag,ggg", "--without-syncs", "--graph", "--graph --early-starts", "--eager-into-graph",
    "--launch-first", "--read-later", "--merge-copies",
)  # fmt: skip
RATED: Final = ("gaps", "advise", "whatif --without-syncs", "whatif --graph --early-starts")
COMPARED: Final = (
    ("llama1b-sccc-graph", "llama1b-saaas-graph"),
    ("llama-1.1b-sccc-sequential-cuda", "llama-1.1b-aaag-sequential-cuda"),
    ("llama-1.1b-sccc-sequential-cuda", "llama-1.1b-sccc-branches-cuda"),
    ("vllm-b1-graph", "vllm-b8-graph"),
    ("transformers-eager", "transformers-static"),
)


def commands() -> Iterator[str]:
    for path in sorted(p for p in SAMPLES.iterdir() if p.is_dir()):
        yield from (f"{name} {path}" for name in PLAIN)
        yield from (f"whatif {path} {edit}" for edit in EDITS)
        if path.name.startswith(("llama1b", "vllm")):
            yield from (f"{name} {path} --untraced-tokens-per-s 600" for name in RATED)
    yield from (f"compare {SAMPLES / base} {SAMPLES / other}" for base, other in COMPARED)


def answer(command: str) -> Any:
    from tracer.cli import main

    result = CliRunner().invoke(main, [*command.split(), "--json"])
    return [result.exit_code, result.output]


def run() -> int:
    os.environ["INTERTOKEN_CACHE"] = "off"
    asked = list(commands())
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(asked, pool.map(answer, asked, chunksize=4), strict=True))
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} answers, {sum(code == 0 for code, _ in found.values())} without an error")
    if len(sys.argv) < 3:
        return 0
    before = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    different = [command for command in {**before, **found} if before.get(command) != found.get(command)]
    print("\n".join(f"differs: {command}" for command in different) or "all the same, to the digit")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(run())
