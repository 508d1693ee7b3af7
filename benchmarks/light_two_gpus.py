"""The light recorder and the graph pass on two GPUs: tensor parallel, two engines, one process with two devices.

Each program is recorded as a new user would do it, without options, and then through CUPTI. A row tells, per device of
the recording, its processes, steps, gap and idle time, and the program's own rate with and without the recorder. The
tensor-parallel program is its own check: it prints a checksum of its result, which must be the same in all runs.

Needs two GPUs and PyTorch. Usage: python benchmarks/light_two_gpus.py -o FILE [--bench LLAMA_BENCH --model GGUF]
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from record_engines import machine

LIMIT: Final = 40  # s per run
STEPS: Final = 300
RECORD: Final = (sys.executable, "-m", "intertoken", "record", "--force")


def tensor_parallel() -> None:
    """One rank: layers split over the ranks, their sums exchanged by NCCL, all in one CUDA graph per step."""
    import torch
    import torch.distributed as distributed

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(rank)
    width, share = 2048, 4096 // distributed.get_world_size()
    draw = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [(torch.randn(width, share, **draw) / 64, torch.randn(share, width, **draw) / 64) for _ in range(16)]
    token = torch.ones(1, width, **draw)
    given = torch.ones(1, width, dtype=torch.bfloat16).pin_memory()

    def forward() -> torch.Tensor:
        hidden = token
        for up, down in layers:
            part = torch.tanh(hidden @ up) @ down
            distributed.all_reduce(part)
            hidden = torch.tanh(hidden + part)
        return hidden

    for _ in range(3):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = forward()
    digest = hashlib.sha256()
    begun = time.perf_counter()
    for _ in range(STEPS):
        token.copy_(given, non_blocking=True)
        graph.replay()
        given.copy_(result)
        digest.update(given.view(torch.int16).numpy().tobytes())
    rate = STEPS / (time.perf_counter() - begun)
    print(f"rank {rank} checksum {digest.hexdigest()[:12]} rate {rate:.1f} steps/s", flush=True)
    graph.reset()  # NCCL waits for the graphs that contain its kernels
    distributed.destroy_process_group()


def run(*command: str) -> tuple[int, str]:
    """Run a command in a session of its own; return exit code and output."""
    command = ("timeout", "-k", "5", str(LIMIT), *command)
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    return done.returncode, done.stdout + done.stderr


def ask(command: str, trace: Path, *arguments: str) -> Any:
    """Return the JSON of a command about a recording, or its message."""
    done = subprocess.run(
        [sys.executable, "-m", "intertoken", command, str(trace), *arguments, "--json"],
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()


def facts_of(trace: Path) -> dict[str, Any]:
    """Return what a recording holds, per device."""
    from tracer import read

    if not trace.exists():
        return {}
    found = read(trace)
    work = found["graph_launches"]
    info, gaps = ask("info", trace), ask("gaps", trace)
    return {
        "devices": found["devices"]["device"].tolist(),
        "graphs_by_device": work[work["graph"] != -1].groupby("device").size().to_dict(),
        "processes_by_device": work.groupby("device")["process"].nunique().to_dict(),
        "calls": len(found["api"]),
        "notes": [note for note in found.notes if "number the devices" in note],
        "info": info if isinstance(info, str) else {k: info.get(k) for k in ("steps", "period_us", "busy_us")},
        "gaps": gaps if isinstance(gaps, str) else {k: gaps.get(k) for k in ("idle_us", "gap_us", "notes")},
    }


def rates(text: str) -> list[str]:
    """Return checksums and rates, as printed."""
    printed = re.findall(r"checksum \w+ rate [\d.]+", text)
    bench = re.findall(r'"?([\d.]+)"?,"?[\d.]+"?\s*$', text, re.MULTILINE)
    return sorted(printed) or bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--bench", default="")
    parser.add_argument("--model", default="")
    options = parser.parse_args()
    if options.rank:
        tensor_parallel()
        return
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", __file__, "--rank")
    programs: dict[str, tuple[str, ...]] = {}
    if options.bench:
        bench = f"{options.bench} -m {options.model} -p 0 -n 128 -r 3 -ngl 99 -o csv"
        both = " & ".join(f"CUDA_VISIBLE_DEVICES={gpu} {bench}" for gpu in (0, 1))
        programs |= {"two engines": ("sh", "-c", f"{both} & wait"), "one engine, two devices": tuple(bench.split())}
    programs |= {"tensor parallel": torchrun}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, program in programs.items():
            row: dict[str, Any] = {"program": name, "unrecorded": rates(run(*program)[1])}
            for level in ("light", "graph"):
                trace = Path(folder, f"{name.replace(' ', '-').replace(',', '')}-{level}")
                flags = [] if level == "light" else ["--passes", level]
                code, said = run(*RECORD, "-o", str(trace), *flags, "--", *program)
                row[level] = {"code": code, "rates": rates(said), **facts_of(trace)}
                if code:
                    row[level]["said"] = said[-600:]
            rows.append(row)
            print(json.dumps(row)[:1500], flush=True)
    if options.output:
        date = datetime.date.today().isoformat()
        facts = {"benchmark": "light_two_gpus", "date": date, **machine(), "rows": rows}
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
