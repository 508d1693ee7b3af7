"""The light recorder where it is hard: every program must end as it would without it, and nothing be lost unsaid.

A PyTorch program (a CUDA graph and eager kernels per step, in a seeded model) prints a checksum of its results. It runs
without the recorder, then under it once per hardship: with a library of its own preloaded, under torch.profiler, around
and inside nsys, with its descriptors closed, with a limit on the size of files, with a late fork, in a child that is
killed, with too small a ring, with shared memory or disk full (which needs root), with the recorder itself killed. Two
programs of their own: one that loads the driver, unloads it and loads it again, and, with two GPUs, eight processes in
the 64 MiB of shared memory of a container: two ranks of NCCL with three workers of a data loader each, all of which use
the GPU. Each row tells the exit codes, if the checksums are the same bit for bit, how many calls were recorded, and
what was said.

Usage: python benchmarks/light_hardships.py -o FILE [--preload LIBRARY] [--nsys] [--gpus N]
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from record_engines import machine

from tracer.formats import read

FOLDERS: Final = re.compile(r"(?<![\w.])(?!/dev/shm)(?:/[\w.+-]+)+/(?=[\w.+-])")  # of this machine: not kept
LIMIT: Final = 120  # s per run
RECORD: Final = (sys.executable, "-m", "intertoken", "record", "--force")
Row = dict[str, Any]


def program(hardship: str, steps: int) -> None:
    """The program that is recorded."""
    if hardship == "closed descriptors":
        os.closerange(3, 4096)
    if hardship == "driver reloaded":
        reloads()
        return
    if hardship == "rank":
        rank()
        return
    import torch

    torch.manual_seed(0)
    weights = [torch.randn(256, 256, device="cuda") * 0.06 for _ in range(8)]
    state = torch.randn(4, 256, device="cuda")

    def forward() -> None:
        hidden = state
        for weight in weights:
            hidden = torch.tanh(hidden @ weight)
        state.copy_(hidden)

    forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    if hardship == "late fork" and not os.fork():
        os._exit(0)
    if hardship == "child":
        child = subprocess.Popen([sys.executable, __file__, "--program", "endless"], stdout=subprocess.DEVNULL)
        time.sleep(12)
        child.kill()
        child.wait()
    digest = hashlib.sha256()
    with torch.profiler.profile() if hardship == "torch.profiler" else open(os.devnull):
        step = 0
        while step < steps or hardship == "endless":
            graph.replay()
            state.mul_(1.01).add_(0.001)
            digest.update(state.cpu().numpy().tobytes())
            step += 1
    print(f"checksum {digest.hexdigest()[:16]}", flush=True)


def reloads() -> None:
    """Load the driver, copy to the GPU and back, and unload it, three times."""
    import _ctypes

    digest = hashlib.sha256()
    for turn in range(3):
        driver = ctypes.CDLL("libcuda.so.1")
        context, place, back = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(4096)
        steps = [
            driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
            driver.cuCtxSetCurrent(context), driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4096)),
            driver.cuMemcpyHtoD_v2(place, bytes([turn + 1]) * 4096, ctypes.c_size_t(4096)),
            driver.cuMemcpyDtoH_v2(back, place, ctypes.c_size_t(4096)), driver.cuMemFree_v2(place),
            driver.cuDevicePrimaryCtxRelease_v2(0),
        ]  # fmt: skip
        digest.update(bytes(back) + str(steps).encode())
        _ctypes.dlclose(driver._handle)
    print(f"checksum {digest.hexdigest()[:16]}", flush=True)


class Batches:
    """A data set whose items a worker makes on its GPU."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, item: int) -> Any:
        import torch

        made = torch.arange(32768, device="cuda", dtype=torch.float32).mul_(item % 7 + 1).remainder_(1013)
        return made.cpu()


def rank() -> None:
    """One rank: batches from three workers, through shared memory, summed over the ranks by NCCL."""
    import torch
    import torch.distributed as distributed

    number = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(number)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", number))
    loader = torch.utils.data.DataLoader(
        Batches(), batch_size=4, num_workers=3, multiprocessing_context="spawn", prefetch_factor=2
    )
    digest, least = hashlib.sha256(), os.statvfs("/dev/shm").f_bavail
    for batch in loader:
        total = batch.cuda() * (number + 1)
        distributed.all_reduce(total)
        digest.update(total.cpu().numpy().tobytes())
        least = min(least, os.statvfs("/dev/shm").f_bavail)
    free = least * os.statvfs("/dev/shm").f_frsize >> 20
    print(f"rank {number} checksum {digest.hexdigest()[:16]} free {free} MiB\n", end="", flush=True)
    distributed.destroy_process_group()


def run(*command: str, **variables: str) -> tuple[int, str, str]:
    """Run a command; return exit code, checksum and what was written to stderr."""
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    found = sorted(re.findall(r"checksum (\w+)", done.stdout))
    return done.returncode, " ".join(found), done.stderr + "".join(re.findall(r"rank .*\n", done.stdout))


def itself(hardship: str = "none", steps: int = 400) -> tuple[str, ...]:
    return sys.executable, __file__, "--program", hardship, "--steps", str(steps)


def calls(trace: Path) -> int:
    """The number of calls in a recording; 0 if there is none."""
    return len(read(trace)["api"]) if trace.exists() else 0


@contextmanager
def shared_memory(size: str) -> Iterator[None]:
    """Leave so much shared memory."""
    room = os.statvfs("/dev/shm")
    limit = ["mount", "-o", f"remount,size={size}", "/dev/shm"]
    subprocess.run(limit, check=True)
    try:
        yield
    finally:
        subprocess.run([*limit[:2], f"remount,size={room.f_blocks * room.f_frsize}", limit[3]], check=True)


@contextmanager
def small_disk(work: Path) -> Iterator[Path]:
    """A file system of 32 KiB."""
    mount = work / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


class Hardships:
    """One method per hardship; each returns a row."""

    def __init__(self, work: Path, preload: str, checksum: str, only: list[str]) -> None:
        self.work, self.preload, self.checksum = work, preload, checksum
        self.only, self.rows = only, list[Row]()

    def each(self, name: str, attempt: Callable[[Path], Row]) -> None:
        """Make an attempt and print its row."""
        if self.only and name not in self.only:
            return
        target = self.work / re.sub(r"\W", "-", name)
        try:
            row = attempt(target)
        except Exception as problem:  # the others are tried all the same, and the row says it
            row = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
        said = {key: FOLDERS.sub("", value) for key, value in row.items() if isinstance(value, str)}
        row = {"hardship": name, "calls": calls(target), **row, **said}
        self.rows.append(row)
        print({key: (value[:160] if isinstance(value, str) else value) for key, value in row.items()}, flush=True)

    def under(self, target: Path, *command: str, **variables: str) -> Row:
        """Record a command."""
        code, checksum, said = run(*RECORD, "-o", str(target), "--", *command, **variables)
        return {"code": code, "same": checksum == self.checksum, "said": said.strip()}

    def itself_under(self, hardship: str, target: Path) -> Row:
        """Record the program with a hardship of its own."""
        return self.under(target, *itself(hardship))

    def overrun(self, target: Path) -> Row:
        """Make more calls than the smallest ring holds."""
        much = itself(steps=4000)
        _, checksum, _ = run(*much)
        code, found, said = run(*RECORD, "-o", str(target), "--", *much, INTERTOKEN_LIGHT_RECORDS="4096")
        return {"code": code, "same": found == checksum, "said": said.strip()}

    def killed(self, target: Path) -> Row:
        """Kill the recorder (not the program), then recover the recording."""
        before = set(Path("/dev/shm").glob("intertoken-light-*"))
        started = subprocess.Popen(
            [*RECORD, "-o", str(target), "--", *itself(steps=60000)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(10)
        started.send_signal(signal.SIGKILL)
        started.wait()
        time.sleep(8)  # the program goes on
        left = sorted(set(Path("/dev/shm").glob("intertoken-light-*")) - before)
        code, _, said = run(sys.executable, "-m", "intertoken", "record", "-o", str(target), "--recover", str(left[-1]))
        subprocess.run(["pkill", "-f", "light_hardships.py --program"], check=False)
        return {"code": code, "said": said.strip(), "left": len(left)}

    def full_memory(self, target: Path) -> Row:
        """There is no room for a ring."""
        with shared_memory("64k"):
            return self.under(target, *itself())

    def reloaded(self, target: Path) -> Row:
        """The driver is unloaded and loaded again; or would be without us."""
        _, checksum, _ = run(*itself("driver reloaded"))
        code, found, said = run(*RECORD, "-o", str(target), "--", *itself("driver reloaded"))
        return {"code": code, "same": bool(found) and found == checksum, "said": said.strip()}

    def container(self, target: Path) -> Row:
        """Eight processes in 64 MiB of shared memory."""
        ranks = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *itself("rank")[1:])
        small = {"NCCL_P2P_DISABLE": "1", "NCCL_MAX_NCHANNELS": "2", "OMP_NUM_THREADS": "1"}  # by shared memory
        with shared_memory("64m"):
            bare, checksum, before = run(*ranks, **small)
            code, found, said = run(*RECORD, "-o", str(target), "--", *ranks, **small)
        free = [re.findall(r"free (\d+) MiB", text) for text in (before, said)]
        rings = len(read(target)["processes"]) if target.exists() else 0
        return {
            "code": code, "code without": bare, "same": len(found.split()) == 2 and found == checksum,
            "processes recorded": rings, "least MiB free without, with": free, "said": said.strip()[-1500:],
        }  # fmt: skip

    def full_disk(self, target: Path) -> Row:
        """The recording does not fit on its disk, and is recovered onto another."""
        with small_disk(self.work) as disk:
            row = self.under(disk / "recording", *itself())
            found = re.search(r"--recover (/\S+?)[`,]", row["said"])
            assert found, row
            code, _, said = run(sys.executable, "-m", "intertoken", "record", "-o", str(target), "--recover", found[1])
        return {**row, "recovered": code, "said then": said.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--program")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--preload", default="")
    parser.add_argument("--nsys", action="store_true")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="these hardships")
    options = parser.parse_args()
    if options.program:
        program(options.program, options.steps)
        return
    code, checksum, said = run(*itself())
    if code or not checksum:
        raise SystemExit(f"the program fails without the recorder: {said[-500:]}")
    with tempfile.TemporaryDirectory() as folder:
        tried = Hardships(Path(folder), options.preload, checksum, options.only)
        tried.each("none", lambda target: tried.under(target, *itself()))
        if options.preload:
            tried.each("own preload", lambda target: tried.under(target, *itself(), LD_PRELOAD=options.preload))
        for hardship in ("torch.profiler", "closed descriptors", "late fork", "child"):
            tried.each(hardship, partial(tried.itself_under, hardship))
        tried.each("files limited", lambda target: tried.under(
            target, "sh", "-c", 'ulimit -f 40000; exec "$@"', "sh", *itself()))  # fmt: skip
        tried.each("driver reloaded", tried.reloaded)
        tried.each("ring overrun", tried.overrun)
        tried.each(
            "program killed", lambda target: tried.under(target, "timeout", "-s", "KILL", "9", *itself("endless"))
        )
        tried.each("recorder killed", tried.killed)
        tried.each("disk full", tried.full_disk)
        tried.each("shared memory full", tried.full_memory)
        if options.gpus > 1:
            tried.each("container", tried.container)
        if options.nsys and shutil.which("nsys"):
            profile = ("nsys", "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none", "-o", f"{folder}/report")
            tried.each("nsys inside", lambda target: tried.under(target, *profile, *itself()))
            tried.each("nsys around", lambda target: {
                "code": run(*profile, "--force-overwrite=true", *RECORD, "-o", str(target), "--", *itself())[0],
            })  # fmt: skip
    facts = {
        "benchmark": "light_hardships", "date": datetime.date.today().isoformat(), **machine(), "checksum": checksum,
        "rows": tried.rows,
    }  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
