"""The recordings bundled in sample_traces/, for tests that need real ones."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

SAMPLES = Path(__file__).parent.parent / "sample_traces"
LLAMA = {(s, level): SAMPLES / f"llama1b-{s}-{level}" for s in ("sccc", "saaas") for level in ("node", "graph")}
SIX = SAMPLES / "six-strategies"
KINDS = [
    "llama1b-saaas-graph", "llama1b-sccc-node", "six-strategies", "sync-beside", "llama-1.1b-ggg-branches-cuda",
    "llama-1.1b-aaag-sequential-cuda-ngl13", "vllm-b8-torch", "vllm-b1-node-nvtx", "vllm-joining-graph",
]  # fmt: skip
"""One bundled recording of every recorder, level and engine."""
LADDER = [
    "llama-1.1b-aaag-sequential-cuda-c4096-p2048-x2", "llama-1.1b-aaas-branches-cuda", "llama-1.1b-aaeg-branches-cuda",
    "llama-1.1b-aga-branches-cuda", "llama-1.1b-ggg-branches-cuda", "llama-1.1b-saaas-branches-cuda",
    "llama-1.1b-sccc-sequential-cuda-ngl13",
]  # fmt: skip
"""Of our executor: every strategy, mode and option once; each has a node pass."""
CUPY_RUNS = [(s, mode) for mode in ("sequential", "concurrent") for s in ("sccc", "saaas", "aaag")]


class Calls(NamedTuple):
    """Host calls of a decode step, median over steps."""

    graphs: int
    launches: int
    copies: int
    syncs: int


class Engine(NamedTuple):
    """What is true of a recording of an engine: steps as it counted them itself, and its calls from the raw tables."""

    decode: int
    prefill: int
    mixed: int
    sequences: int | None
    calls: Calls


_ENGINES = json.loads((Path(__file__).parent / "tracer" / "data" / "recorded-engines.json").read_text(encoding="utf-8"))
ENGINES = {name: Engine(*steps, Calls(*calls)) for name, (*steps, calls) in _ENGINES.items()}
"""Of vLLM and transformers; `sequences` of a decode step, None where requests come and go."""


def untold(source: Path, target: Path) -> Path:
    """A copy of a recording as its profiler left it, without what run.json says."""
    shutil.copytree(source, target)
    (target / "run.json").unlink()
    return target


def unrated(source: Path, target: Path) -> Path:
    """A copy of a recording whose run.json tells no rate of its engine."""
    told = json.loads((source / "run.json").read_text(encoding="utf-8"))
    del told["measured"]
    (untold(source, target) / "run.json").write_text(json.dumps(told))
    return target
