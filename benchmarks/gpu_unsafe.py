"""What the refused combinations do to the logits when they are forced, beside the safe ones.

Every combination computes the same prompt in micro-batches and the same tokens as the reference, which waits for every
copy. A combination is *wrong* in a repeat if any of its logits differ bitwise. Safe ones must never be wrong; forced
ones may be right by luck, on an idle device most of the time, so the table says in how many repeats they were wrong.
Usage: python benchmarks/gpu_unsafe.py [--model llama-1.1b] [--prompt 2048] [--micro-batch 32] [--repeats 5]
       python benchmarks/gpu_unsafe.py --backend cpu --model tiny --prompt 96 --micro-batch 16   (a dry run)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from executor.run import Result, execute
from executor.run.configuration import Configuration


def combinations(base: Configuration) -> Iterator[tuple[Configuration, Configuration]]:
    """Yield each combination with its reference."""
    one = replace(base, strategy="sccc")
    for strategy, staging in (("aaag", False), ("aga", False), ("aaag", True), ("saaas", False), ("aaeg", False)):
        yield replace(base, strategy=strategy, staging=staging), one
    branches = replace(base, batch=4, prompt=0)
    for mode in ("branches", "subgraphs"):
        for allocator in ("sequential", "interleaved", "no_alloc_free", "stream_aware"):
            yield replace(branches, strategy="aaag", concurrency=mode, allocator=allocator), replace(branches)


def wrong_repeats(result: Result, reference: Result) -> int:
    """The number of repeats in which any of the logits differ."""
    assert result.logits is not None
    assert reference.logits is not None
    expected = reference.logits[0]
    return sum(not np.array_equal(logits, expected, equal_nan=True) for logits in result.logits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    base = Configuration(
        backend=options.backend, model=options.model, tokens=options.tokens, repeats=options.repeats, warmup=1,
        prompt=options.prompt, micro_batch=options.micro_batch, context=options.prompt + options.tokens + 16,
        allow_hazards=True,
    )  # fmt: skip
    pairs = [*combinations(base)]
    wanted = list(dict.fromkeys(configuration for pair in pairs for configuration in reversed(pair)))
    results = dict(zip(wanted, execute(wanted, keep_logits=True), strict=True))
    bad = sum(wrong_repeats(results[reference], results[reference]) for _, reference in pairs)
    print(f"{'combination':58} {'wrong in':>9}  refused because")
    for configuration, reference in pairs:
        result = results[configuration]
        wrong, reasons = wrong_repeats(result, results[reference]), result.planned.races
        bad += wrong if not reasons else 0
        print(f"{configuration.name:58} {wrong:>3} of {options.repeats}  {reasons[-1][:90] if reasons else '- (safe)'}")
    print(f"safe combinations and references with wrong logits: {bad} (must be 0)")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
