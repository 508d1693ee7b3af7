"""The recordings bundled in sample_traces/, for tests that need real ones."""

from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "sample_traces"
LLAMA = {(s, level): SAMPLES / f"llama1b-{s}-{level}" for s in ("sccc", "saaas") for level in ("node", "graph")}
SIX = SAMPLES / "six-strategies"
CUPY_RUNS = [(s, mode) for mode in ("sequential", "concurrent") for s in ("sccc", "saaas", "aaag")]
