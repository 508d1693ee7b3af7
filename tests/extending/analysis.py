"""An analysis: the longest kernel."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Longest:
    kernel_ns: int


def longest(trace, steps):
    return Longest(int((trace["kernels"]["end"] - trace["kernels"]["start"]).max()))
