"""Shared by the GPU benchmarks: the machine, device time, copy bandwidth, and intervals."""

from __future__ import annotations

import datetime
import json
import platform
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from executor.backends.cuda.library import Cuda
from executor.run import Result


def device_us(cuda: Cuda, stream: int, work: Callable[[], None], times: int) -> float:
    """Return the device time of `work` between two events, averaged over `times` calls on a stream."""
    runtime = cuda.runtime
    first, last = runtime.eventCreate(), runtime.eventCreate()
    work()
    runtime.streamSynchronize(stream)
    runtime.eventRecord(first, stream)
    for _ in range(times):
        work()
    runtime.eventRecord(last, stream)
    runtime.eventSynchronize(last)
    return float(runtime.eventElapsedTime(first, last)) * 1e3 / times


def copy_bandwidth(cuda: Cuda, stream: int, nbytes: int = 4 << 30) -> float:
    """Return the bytes read plus written per second by a device-to-device copy, median of 7."""
    source, target = cuda.cupy.cuda.alloc(nbytes), cuda.cupy.cuda.alloc(nbytes)

    def copy() -> None:
        cuda.runtime.memcpyAsync(target.ptr, source.ptr, nbytes, 3, stream)

    return float(np.median([2 * nbytes / device_us(cuda, stream, copy, 4) * 1e6 for _ in range(7)]))


def interval(values: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Return the median and its 95 % bootstrap interval."""
    samples = np.random.default_rng(0).choice(np.asarray(values), (10_000, len(values)))
    low, high = np.quantile(np.median(samples, axis=1), (0.025, 0.975))
    return {
        "median": round(float(np.median(values)), digits), "low": round(float(low), digits),
        "high": round(float(high), digits), "repeats": [round(float(v), digits) for v in values],
    }  # fmt: skip


def logits_differ(results: Sequence[Result]) -> list[float]:
    """Return the largest difference between the kept logits of each result and those of the first."""
    logits = [result.logits for result in results if result.logits is not None]
    return [float(np.abs(each - logits[0]).max()) for each in logits]


def machine(cuda: Cuda) -> dict[str, Any]:
    """Return GPU, driver and versions, without a host name."""
    return {
        "gpu": cuda.gpu,
        "driver": driver(),
        "cuda_runtime": cuda.runtime.runtimeGetVersion(),
        "cupy": cuda.cupy.__version__,
        "cuda-bindings": version("cuda-bindings"),
        "numpy": version("numpy"),
        "python": platform.python_version(),
    }


def driver() -> str:
    """Return the version of the kernel driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, text=True, capture_output=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def save(path: Path, name: str, cuda: Cuda, commit: str, result: dict[str, Any]) -> None:
    """Write a result with date, commit and machine."""
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = {"benchmark": name, "date": date, "commit": commit, **result, "machine": machine(cuda)}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def commit(checkout: Path | None = None) -> str:
    """Return the checked-out commit, of the current folder if none is given, with + if the tree has changes."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], text=True, capture_output=True, check=True, cwd=checkout
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return text.strip()
