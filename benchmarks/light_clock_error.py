"""How exactly the light recorder knows the device's clock, and what reading it costs.

A loop of CUDA graphs (`light_clock_error.cu`) waits for the device in one of several ways: each step, rarely, late, by
polling, by a host function, on another stream, never; or its kernels fill the device. It is recorded on an idle host
and while busy processes take all of its cores. A thread of the loop reads the device's clock every 50 ms, by a kernel
and memory of its own: a row tells how far the recording's times are off there, beside the error that it states.

The cost is the rate with the recorder over that without, in turns; once with the recorder as it is, once as if all
hardware queues were one, where it reads the clock only at both ends.

Reading the rings needs the packages of intertoken; without them (`--keep FOLDER`) they are kept, to be read elsewhere
(`--read FOLDER`). Usage: python benchmarks/light_clock_error.py -o FILE [--seconds S] [--rounds N] [--modes ...]
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent
MODES: Final = ("each", "rarely", "late", "polls", "function", "other", "never", "full")
BUSY: Final = "while True: pass"


def built(folder: Path) -> tuple[Path, Path]:
    """Compile the loop and the recorder's library."""
    program = folder / "loop"
    command = ["nvcc", "-O2", "-std=c++17", "-arch=native", "-o", str(program), str(HERE / "light_clock_error.cu")]
    subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location("native", ROOT / "tracer" / "recorders" / "native" / "__init__.py")
    assert spec
    assert spec.loader
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    native.compile_library(folder / "light.so", native.compiler() or "cc")
    return program, folder / "light.so"


def ran(program: Path, mode: str, seconds: float, *, witnesses: bool, **extra: str) -> tuple[list[list[int]], float]:
    """Run the loop; what its witnesses told, and its rate."""
    command = [str(program), mode, str(seconds), str(int(witnesses))]
    environment = {**os.environ, **extra}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    told = [[int(word) for word in words[1:]] for words in lines if words[0] == "WITNESS"]
    (rate,) = (float(words[1]) for words in lines if words[0] == "RATE")
    return told, rate


def recorder(library: Path, rings: Path) -> dict[str, str]:
    """The environment that records into a new folder."""
    shutil.rmtree(rings, ignore_errors=True)
    rings.mkdir(mode=0o700, parents=True)
    return {"LD_PRELOAD": str(library), "INTERTOKEN_LIGHT": str(rings)}


def recorded(program: Path, library: Path, seconds: float, kept: Path, modes: list[str]) -> None:
    """Record every mode on an idle and on a busy host; the rings and what the witnesses told go to a folder."""
    for load in ("idle", "busy"):
        others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1) if load == "busy"]
        try:
            for mode in modes:
                rings = Path(tempfile.mkdtemp(dir="/dev/shm")) / "rings"
                given = recorder(library, rings)
                told, rate = ran(program, mode, seconds, witnesses=True, **given)
                target = kept / f"{load}-{mode}"
                target.mkdir(parents=True, exist_ok=True)
                (ring,) = rings.glob("*.ring")
                subprocess.run(["cp", "--sparse=always", ring, target / "1-0.ring"], check=True)
                (target / "told.json").write_text(json.dumps({"witnesses": told, "rate": rate}))
                shutil.rmtree(rings.parent)
        finally:
            for each in others:
                each.kill()
                each.wait()


def costs(program: Path, library: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """The rates without the recorder, with it, and with a clock that is read at both ends alone."""
    ways: dict[str, list[float]] = {"without": [], "with": [], "ends": []}
    rings = Path(tempfile.mkdtemp(dir="/dev/shm")) / "rings"
    for _ in range(rounds):
        for way, rates in ways.items():
            given = {} if way == "without" else recorder(library, rings)
            if way == "ends":
                given["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"  # taken for a shared device, which it is not
            rates.append(ran(program, "each", seconds, witnesses=False, **given)[1])
    shutil.rmtree(rings.parent, ignore_errors=True)
    more = [100 * (ends / both - 1) for both, ends in zip(ways["with"], ways["ends"], strict=True)]
    return {**ways, "brackets_cost_percent": statistics.median(more)}


def told_of(folder: Path) -> dict[str, Any]:
    """What a kept ring says of the clock, and how far that is off where the witnesses looked."""
    import numpy as np

    from tracer.recorders.light_ring import read_ring
    from tracer.recorders.light_work import stamped_work

    ring, told = read_ring(folder / "1-0.ring"), json.loads((folder / "told.json").read_text())
    (clock,) = (clock for clock in stamped_work(ring).alignments if clock is not None)
    before, after, device = np.array(told["witnesses"], np.int64).reshape(-1, 3).T
    off = np.abs(clock.to_host(device) - (before + after) // 2)
    sure = (after - before) <= 4 * np.median(after - before)  # those that found a processor
    half = (ring.brackets[0]["after"] - ring.brackets[0]["before"]) / 2e3
    counters = {name: count for name, count in ring.counters.items() if name.startswith("brackets")}
    return {
        "loop": folder.name, "rate": told["rate"], "brackets": clock.brackets, "counters": counters,
        "half_width_us": [round(float(each), 2) for each in (np.median(half), half.max())] if len(half) else None,
        "stated_error_us": None if clock.error_ns is None else clock.error_ns / 1e3, "witnesses": int(sure.sum()),
        "witness_half_width_us": round(float(np.median(after - before)) / 2e3, 2),
        "off_us": [round(float(each) / 1e3, 2) for each in (np.median(off[sure]), off[sure].max())],
        "contradictions": clock.contradictions,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--read", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as made:
        kept = options.read or options.keep or Path(made) / "kept"
        if not options.read:
            program, library = built(Path(made))
            recorded(program, library, options.seconds, kept, options.modes)
            (kept / "costs.json").write_text(json.dumps(costs(program, library, options.seconds, options.rounds)))
        cost = json.loads((kept / "costs.json").read_text())
        print(f"reading the clock costs {cost['brackets_cost_percent']:.4f} % (median of {len(cost['with'])} turns)")
        if options.keep:
            return
        rows = [told_of(each) for each in sorted(kept.iterdir()) if each.is_dir()]
        for row in rows:
            print(
                f"{row['loop']:14s} {row['brackets']:3d} brackets, half width {row['half_width_us']} µs; "
                f"stated {row['stated_error_us']} µs; off {row['off_us']} µs at {row['witnesses']} witnesses "
                f"(± {row['witness_half_width_us']}); late {row['counters'].get('brackets_late')}"
            )
    if options.output:
        facts = {"date": datetime.date.today().isoformat(), "loops": rows, "cost": cost}
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
