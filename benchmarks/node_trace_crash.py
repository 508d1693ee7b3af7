"""Whose fault is it that a program crashes in the node pass: CUPTI's, or ours?

A command runs alone, under the light recorder, under a CUPTI injection of a hundred lines with nothing of ours
(`plain_injection.c`) that records kernels alone, then all kinds that the node pass records, then in the graph and the
node pass itself. A program that ends by the same signal under the plain injection crashes by CUPTI.

Usage: python benchmarks/node_trace_crash.py [--rounds N] -- COMMAND...
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracer.recorders import cupti_library
from tracer.recorders.cupti_records import KERNEL, KINDS
from tracer.recorders.cupti_run import KINDS as RECORDED

HERE = Path(__file__).parent
LIMIT = 400  # s per run


def injection(folder: Path) -> Path:
    """Compile the plain injection."""
    library, compiler = folder / "libplain.so", shutil.which("cc") or shutil.which("gcc") or "cc"
    source = HERE / "plain_injection.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def ways(command: Sequence[str], plain: Path, folder: Path) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and the added environment of each way to run it."""
    every = ",".join(str(kind) for name in RECORDED for kind in KINDS[name])
    injected = {cupti_library.PROFILER: str(plain), "PLAIN_CUPTI": cupti_library.find()}

    def ours(level: str) -> tuple[list[str], dict[str, str]]:
        record = [sys.executable, "-m", "intertoken", "record", "--force", "--passes", level, "-o", str(folder / level)]
        return [*record, "--", *command], {}

    return {
        "alone": ([*command], {}),
        "ours, light": ours("light"),
        "theirs, kernels": ([*command], injected | {"PLAIN_KINDS": str(KERNEL)}),
        "theirs, all kinds": ([*command], injected | {"PLAIN_KINDS": every}),
        "ours, graph": ours("graph"),
        "ours, node": ours("node"),
    }


def ended(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code, 128 + N for signal N as of a shell, and what was said of conditional nodes or CUPTI."""
    try:
        done = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, "no end"
    told = re.findall(r"plain injection: .*|\d+ with conditional nodes|intertoken: .*", done.stderr)
    return (128 - done.returncode if done.returncode < 0 else done.returncode), "; ".join(dict.fromkeys(told))[:120]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    codes: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as made:
        chosen = ways(options.command, injection(Path(made)), Path(made))
        for _ in range(options.rounds):
            for name, (command, variables) in chosen.items():
                code, said = ended(command, variables)
                codes.setdefault(name, []).append(code)
                print(f"{name:18} rc {code:3}  {said}", flush=True)
    theirs, ours = ([max(codes[n]) for n in codes if n.startswith(who)] for who in ("theirs", "ours, node"))
    print(f"theirs rc {max(theirs)} / ours rc {max(ours)}")


if __name__ == "__main__":
    main()
