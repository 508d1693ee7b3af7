"""Decode wholly on the host compared with llama.cpp on the CPU, interleaved in one call.

Ours runs `llama-1.1b` in q8_0 with `--gpu-layers 0`, llama-bench with `-ngl 0 -p 0 -n TOKENS -t THREADS` and without
any visible GPU. Each repeat of either is a process of its own, which warms up before it measures. A ratio is our rate
over that of llama-bench in the same round.
Usage: python benchmarks/host_decode.py --llama-bench PATH --gguf FILE [--threads N[,N]] [--tokens 64] [--json FILE]
       python benchmarks/host_decode.py --model tiny --context 256        (ours alone)
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_machine import commit, interval
from read_nsys_sqlite import machine

from executor.backends.cpu.compiled import default_threads
from executor.run.configuration import Configuration
from executor.run.passes import unrecorded_pass

WARMUP = 8


def decode(order: str) -> None:
    """Print the tokens/s of one repeat, in a process of its own."""
    configuration = Configuration(**json.loads(order))
    (seconds,) = unrecorded_pass(configuration)
    print(configuration.tokens / seconds)


def ours(options: argparse.Namespace, threads: int) -> float:
    """Return our tokens/s."""
    configuration = Configuration(
        model=options.model, weights=options.weights, gpu_layers=0, tokens=options.tokens,
        repeats=1, warmup=WARMUP, threads=threads, pinned=options.pinned, context=options.context,
    )  # fmt: skip
    return float(output([sys.executable, __file__, "--order", json.dumps(asdict(configuration))]).split()[-1])


def theirs(options: argparse.Namespace, threads: int) -> dict[str, str]:
    """Return the row of llama-bench: `avg_ts` is its tokens/s, `model_size` the bytes of its weights."""
    arguments = ["-m", str(options.gguf), "-ngl", "0", "-p", "0", "-n", str(options.tokens), "-r", "1"]
    text = output([str(options.llama_bench), *arguments, "-t", str(threads), "-o", "csv"])
    (row,) = csv.DictReader(io.StringIO(text[text.index("build_commit") :]))
    return row


def output(command: list[str]) -> str:
    on_cpu = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, text=True, capture_output=True, check=False, env=on_cpu)
    if done.returncode:
        sys.exit(f"{command[0]} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout


def row(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    rates, rivals, size = [], [], 0
    for _ in range(options.rounds):
        rates.append(ours(options, threads))
        if options.llama_bench:
            rival = theirs(options, threads)
            rivals.append(float(rival["avg_ts"]))
            size = int(rival["model_size"])
    found = {"threads": threads, "tokens_per_s": interval(rates)}
    if rivals:
        ratios = interval([one / other for one, other in zip(rates, rivals, strict=True)], digits=3)
        found |= {"llama_cpp_tokens_per_s": interval(rivals), "llama_cpp_bytes": size, "over_llama_cpp": ratios}
    return found


def show(found: dict[str, Any]) -> None:
    def said(name: str) -> str:
        return f"{found[name]['median']:.2f} [{found[name]['low']:.2f} {found[name]['high']:.2f}]"

    rivals = {"llama.cpp": "llama_cpp_tokens_per_s", "over it": "over_llama_cpp"}
    text = "".join(f"  {what} {said(name)}" for what, name in rivals.items() if name in found)
    print(f"{found['threads']:3} threads {said('tokens_per_s')} tokens/s{text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--gguf", type=Path, help="the model of llama-bench, of the same shape and format")
    parser.add_argument("--model", default="llama-1.1b")
    parser.add_argument("--weights", default="q8_0")
    parser.add_argument("--context", type=int)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", help="numbers of threads [default: ours]")
    parser.add_argument("--pinned", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.order:
        decode(options.order)
        return
    if bool(options.llama_bench) != bool(options.gguf):
        parser.error("--llama-bench and --gguf belong together")
    rows = []
    for threads in map(int, str(options.threads or default_threads()).split(",")):
        rows.append(row(options, threads))
        show(rows[-1])
    if options.json:
        facts = {
            "benchmark": "host_decode", "date": datetime.date.today().isoformat(), "commit": options.commit,
            "model": options.model, "weights": options.weights, "tokens": options.tokens, "rounds": options.rounds,
            "pinned": options.pinned, "machine": machine() | {"usable_cores": len(os.sched_getaffinity(0))},
            "rows": rows,
        }  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
