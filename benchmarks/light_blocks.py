"""Overhead of the light recorder in an engine, and accuracy of its idle time: recording on and off in one process.

Engines vary more between processes than a recorder costs, so one process records and pauses in alternating blocks of
the same work. Stamps in CUDA graphs remain while it pauses; their cost is reported separately (two per graph, measured
on a chain of stamps). The idle time of each recorded block is compared with the true one: the period of the paused
block beside it, minus the stamps of its graphs, minus the device's busy time, which a second process of the same kind
tells under CUPTI (whole graphs; --no-truth leaves it out). CUPTI lengthens graphs; with --events, llama.cpp's are
measured in a third process without any profiler (`graph_events.c`), and the busy time has theirs in place of CUPTI's.
With --turns the overhead comes from turns of milliseconds
within the generations instead (`light_turns.py`).

Engines: torch-eager (330 kernels per step), torch-graph, vllm (in its child; with VLLM_ENABLE_V1_MULTIPROCESSING=0 in
the process), sglang, jax, transformers (static cache, compiled), executor (our own), llama (--bench llama-bench
--model GGUF).
Usage: python benchmarks/light_blocks.py ENGINE -o FILE [--pairs N] [--steps N] [--cases CASE,...] [--turns SECONDS]
           [--trace FOLDER] [--rings FOLDER] [--call-sites] [--no-truth] [--events LIBRARY]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import graph_events
import numpy as np
import pandas as pd
import record_engines
from light_recorder import interval
from light_told import keep, part_of, stamps_us, told
from light_turns import in_turns, now
from record_engines import Generate, Step, figures, machine

from tracer.errors import RecordError, TraceError
from tracer.formats import write
from tracer.model.trace import Trace
from tracer.recorders import cupti_run
from tracer.recorders.light import FOLDER, SITES, environment, library, read_folder, read_rings
from tracer.recorders.light_ring import folder, switch_recording

LIMIT = 540  # s
ROLE = "LIGHT_BLOCKS"  # of the process that runs the engine: "blocks", or "truth" under CUPTI
WRITTEN_S = 1.5  # until what CUPTI reported is written, in case the engine kills its child


def switch(*, on: bool) -> None:
    """Start or pause recording in every process of this recording."""
    for ring in Path(os.environ[FOLDER]).glob("*.ring"):
        with suppress(OSError, ValueError):
            switch_recording(ring, on=on)


def order(pairs: int) -> list[bool]:
    """Return which blocks are recorded: one of each pair, in alternating order."""
    return [on for pair in range(pairs) for on in ((True, False) if pair % 2 else (False, True))]


def blocks(generate: Generate, options: argparse.Namespace, window: Any, tokens: int) -> dict[str, Any]:
    """Return decode steps/s of alternating recorded and paused blocks, and when the recorded ones ran; for the truth,
    when one longer block ran."""
    del window
    found: dict[str, Any] = {"recorded": [], "paused": [], "spans": []}
    for _ in range(3):
        generate(tokens)
    if options.turns and os.environ[ROLE] == "blocks":
        found["turns"] = in_turns(generate, tokens, options.turns, switch)
    for on in order(options.pairs) if os.environ[ROLE] == "blocks" else [True]:
        switch(on=on)
        since = now()
        rate = figures(generate, tokens)["decode_steps_per_s"]
        found["recorded" if on else "paused"].append(rate)
        found["spans"] += [[since, now()]] if on else []
    if os.environ[ROLE] == "truth":
        time.sleep(WRITTEN_S)
    return found


def llama(options: argparse.Namespace) -> dict[str, Any]:
    """Run llama-bench with each strategy (`LCPP_SYNC`, of a build that has several)."""
    return {case: repetitions(options, case) for case in options.cases or ["sccc", "saaas", "aaag"]}


def repetitions(options: argparse.Namespace, strategy: str) -> dict[str, Any]:
    """Run llama-bench, whose repetitions are the blocks; it says when one starts."""
    runs = [True, *order(options.pairs)] if os.environ[ROLE] == "blocks" else [True, True]
    command = [options.bench, "-m", options.model, "-ngl", "99", "-p", "0", "-n", options.steps, "-r", len(runs)]
    command = [*map(str, command), "-o", "json", "--progress"]
    found: dict[str, Any] = {"recorded": [], "paused": [], "spans": []}
    times: list[dict[str, int]] = []
    lines: list[str] = []
    given = {**os.environ, "LCPP_SYNC": strategy}
    if options.events and os.environ[ROLE] == "events":
        given |= {"LD_PRELOAD": str(options.events), "GRAPH_EVENTS": str(events_of(options, strategy))}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout
        assert bench.stderr
        for line in bench.stderr:
            lines.append(line)
            if "generation run" in line and "warmup" not in line and len(times) < len(runs):
                switch(on=runs[len(times)])
                times.append(now())
        said = bench.stdout.read()
    if bench.returncode:
        raise SystemExit(f"{options.bench} ended with {bench.returncode}: {''.join(lines[-5:])}")
    (told,) = json.loads(said)
    for number, (on, ns, since) in enumerate(zip(runs, told["samples_ns"], times, strict=True)):
        until = {name: at + ns for name, at in since.items()}
        if number:  # the first repetition warms up
            found["recorded" if on else "paused"].append(1e9 * options.steps / ns)
            found["spans"] += [[since, until]] if on else []
    return found


def torch_loop(options: argparse.Namespace) -> dict[str, Any]:
    """Run products and elementwise kernels, launched one by one or as a graph, after an input and before a result."""
    import torch

    torch.manual_seed(0)
    given = torch.zeros(16, dtype=torch.int64).pin_memory()
    taken = torch.zeros(16, dtype=torch.int64, device="cuda")
    start = torch.randn(256, 256, device="cuda")
    weights = [torch.randn(256, 256, device="cuda") * 0.04 for _ in range(110)]

    def forward() -> Any:
        hidden = start
        for weight in weights:
            hidden = torch.tanh(hidden @ weight) + start
        return hidden

    for _ in range(3):
        forward().sum().item()
    graph = torch.cuda.CUDAGraph() if options.engine == "torch-graph" else None
    if graph:
        with torch.cuda.graph(graph):
            result = forward()

    def generate(tokens: int) -> list[Step]:
        steps = []
        for token in range(tokens):
            taken.copy_(given, non_blocking=True)
            if graph:
                graph.replay()
            (result if graph else forward()).sum().item()
            steps.append(Step(time.perf_counter(), int(not token), int(bool(token))))
        return steps

    return {options.engine: blocks(generate, options, None, options.steps)}


def executor(options: argparse.Namespace) -> dict[str, Any]:
    """Run our own decode loop."""
    from executor.run import execute
    from executor.run.configuration import Configuration

    found = {}
    for strategy in options.cases or ["sccc", "saaas", "aaag"]:
        chosen = Configuration(
            backend="cuda", model="llama-1.1b", strategy=strategy, tokens=options.steps, repeats=1, warmup=10
        )

        def generate(tokens: int, chosen: Configuration = chosen) -> list[Step]:
            (result,) = execute([chosen], make_recorder=lambda: None)
            each = result.seconds[0] / tokens
            return [Step(i * each, int(not i), int(bool(i))) for i in range(tokens)]

        found[strategy] = blocks(generate, options, None, options.steps)
    return found


def engine(options: argparse.Namespace) -> dict[str, Any]:
    """Run an engine of record_engines.py, with blocks in place of its repeats."""
    record_engines.measured = blocks
    return record_engines.ENGINES[options.engine](options)


ENGINES = {
    "torch-eager": torch_loop, "torch-graph": torch_loop, "vllm": engine, "transformers": engine, "sglang": engine,
    "jax": engine, "executor": executor, "llama": llama,
}  # fmt: skip


def truth_of(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the busy time per step and the usual graph's duration of each case, µs, in a process of its own under
    CUPTI."""
    os.environ[ROLE] = "truth"
    try:
        with folder() as rings:
            outcome = cupti_run.record([sys.executable, *sys.argv], "graph", rings)
        if outcome.trace is None or outcome.code:
            raise RecordError(f"exit code {outcome.code}, {outcome.why}")
        cases = json.loads(cases_of(options).read_text(encoding="utf-8"))
        each = {name: told(outcome.trace, found["spans"]) for name, found in cases.items()}
        return {name: {"busy": found["busy_us"][0], "graph": found["graph_us"]} for name, found in each.items()}
    except TraceError as problem:
        print(f"no truth: {problem}", flush=True)
        return {}


def events_of(options: argparse.Namespace, case: str) -> Path:
    """Return the file with the durations of a case's graphs by events."""
    output: Path = options.output
    return output.with_suffix(f".{case}.events")


def with_events(options: argparse.Namespace, busy: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Replace the graphs' part of the busy times by what events tell of them, in processes of their own."""
    given = {**os.environ, ROLE: "events", FOLDER: os.devnull}
    for case, each in busy.items():
        path = events_of(options, case)
        found = graph_events.measured([sys.executable, *sys.argv, "--cases", case], given, path, LIMIT)
        if found:
            each |= {"busy_cupti": each["busy"], **found}
            each["busy"] += statistics.mean(found["graph_events"]) - each["graph"]
        print(f"{case}: {each}", flush=True)
    return busy


def same_block(rates: list[float], idle_us: list[float | None], busy_us: float) -> list[float]:
    """Return the idle time told of recorded blocks over their own period, by the engine's count, minus the busy time:
    for engines whose rate changes from block to block. The recorder's slowdown is in both."""
    return interval([told / (1e6 / rate - busy_us) for rate, told in zip(rates, idle_us, strict=True) if told])


def beside_paused(trace: Trace, turns: dict[str, Any], busy_us: float) -> dict[str, Any]:
    """Return the idle time told of recorded turns, and the period of the paused turns beside them minus the busy time,
    µs; and the one over the other: 1 plus the median difference over the median of the paused turns' idle time."""
    light = [np.nan if each is None else each for each in told(trace, turns["spans"])["idle_us"]]
    pairs = pd.DataFrame({"told": light, "true": np.array(turns["paused_us"]) - busy_us}).dropna()
    if pairs.empty:
        return {"turns": 0}
    idle = float(pairs["true"].median())
    over = [1 + each / idle for each in interval((pairs["told"] - pairs["true"]).tolist())]
    return {
        "turns_told_us": interval(pairs["told"].tolist()), "turns_idle_us": interval(pairs["true"].tolist()),
        "told_over_paused": [round(each, 4) for each in over], "turns": len(pairs),
    }  # fmt: skip


def summary(name: str, found: dict[str, Any], trace: Trace, own_us: float, busy_us: float | None) -> dict[str, Any]:
    """Return slowdown, period, and idle time beside the true one, of a case."""
    slowdown = interval([off / on for off, on in zip(found["paused"], found["recorded"], strict=True)])
    turns = found.get("turns", {})
    if turns:
        slowdown = interval([on / off for on, off in zip(turns["recorded_us"], turns["paused_us"], strict=True)])
    period = 1e6 / statistics.median(found["paused"])
    percent = [round(100 * (value - 1), 2) for value in slowdown]
    print(f"{name}: slowdown {percent[0]} % {percent[1:]}, untraced period {period:.1f} µs", flush=True)
    said: dict[str, Any] = {"slowdown": slowdown, "untraced_period_us": round(period, 2), "stamps_us": own_us,
                            "rates": {kind: found[kind] for kind in ("recorded", "paused")},
                            "spans": found["spans"]}  # fmt: skip
    if turns:
        said["turns"] = {name: each for name, each in turns.items() if name != "spans"}
    try:
        light = told(trace, found["spans"])
    except TraceError as problem:
        print(f"{name}: the recording tells nothing: {problem}", flush=True)
        return said
    said |= {"told": light}
    if not light["steps"]:
        print(f"{name}: idle time unknown; gap {light['gap_us']}", flush=True)
    elif busy_us:
        truth = [1e6 / rate - own_us * bool(light["graph_launches"]) - busy_us for rate in found["paused"]]
        known = [(told_us, true) for told_us, true in zip(light["idle_us"], truth, strict=True) if told_us is not None]
        ratio = interval([told_us / true for told_us, true in known])
        said |= {"truth": {"busy_us": busy_us, "idle_us": interval(truth), "told_over_true": ratio}}
        same = same_block(found["recorded"], light["idle_us"], own_us * bool(light["graph_launches"]) + busy_us)
        said["truth"]["told_over_same_block"] = same
        if turns:
            said["truth"] |= beside_paused(trace, turns, own_us * bool(light["graph_launches"]) + busy_us)
            print(
                f"{name}: idle of recorded turns over the paused ones' {said['truth'].get('told_over_paused')}",
                flush=True,
            )
        print(f"{name}: idle over the recorded blocks' own period - busy: {same}", flush=True)
        idle, busy = (float(np.nanmedian(np.array(light[each], float))) for each in ("idle_us", "busy_us"))
        print(
            f"{name}: idle {idle:.1f} µs, true {statistics.median(truth):.1f}, ratio {ratio}; busy {busy:.1f}, "
            f"under CUPTI {busy_us:.1f}; gap {light['gap_us']['p50']:.1f}",
            flush=True,
        )
    return said


def cases_of(options: argparse.Namespace) -> Path:
    """Return the file in which the engine's process leaves what it ran."""
    output: Path = options.output
    return output.with_suffix(".cases")


def run_engine(options: argparse.Namespace) -> None:
    """Run the engine's blocks in this process."""
    fixed = {"window": "none", "name": "", "repeats": 0, "tokens": 0, "device": "cuda"}
    for name, value in fixed.items():
        setattr(options, name, value)
    if options.engine == "transformers":
        options.model = {}
    cases_of(options).write_text(json.dumps(ENGINES[options.engine](options)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[])
    parser.add_argument("--turns", type=float, default=0, help="seconds; not for executor and llama")
    parser.add_argument("--trace", type=Path, help="keep the recording of the last recorded block in this folder")
    parser.add_argument("--rings", type=Path, help="keep the rings in this folder, compressed")
    parser.add_argument("--call-sites", action="store_true", help="record with call sites")
    parser.add_argument("--no-truth", action="store_true")
    parser.add_argument("--events", type=Path, help="graph_events.c, compiled")
    parser.add_argument("--bench", default="llama-bench", help="of llama.cpp")
    parser.add_argument("--model", help="of llama.cpp, a GGUF file")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="of vLLM, see record_engines.py")
    options = parser.parse_args()
    if ROLE in os.environ:
        return run_engine(options)
    with folder() as rings:
        given = environment(library(), rings, {**os.environ, ROLE: "blocks"})
        given |= {SITES: "1"} if options.call_sites else {}
        given |= (
            {"INTERTOKEN_LIGHT_RECORDS": str(1 << 22)} if options.turns else {}
        )  # which the blocks of a case outlive
        done = subprocess.run([sys.executable, *sys.argv], env=given, timeout=LIMIT, check=False)
        if done.returncode:
            raise SystemExit(f"{options.engine} ended with {done.returncode}")
        cases = json.loads(cases_of(options).read_text(encoding="utf-8"))
        trace, own_us = read_folder(rings), stamps_us(rings)
        if options.rings:
            keep(rings, options.rings)
        counters = [{name: count for name, count in ring.counters.items() if count} for ring in read_rings(rings)]
    if trace is None:
        raise SystemExit(f"nothing of {options.engine} was recorded")
    if options.trace:
        write(part_of(trace, list(cases.values())[-1]["spans"][-1:]), options.trace)

    def save(busy: dict[str, dict[str, float]]) -> None:
        found = {
            name: summary(name, case, trace, own_us, busy.get(name, {}).get("busy")) for name, case in cases.items()
        }
        for name, each in busy.items():
            found[name].setdefault("truth", {})["devices_us"] = each
        facts = {
            "date": datetime.date.today().isoformat(),
            **machine(),
            "engine": options.engine,
            "call_sites": options.call_sites,
            "cases": found,
            "notes": trace.notes,
            "counters": counters,
        }
        options.output.write_text(json.dumps(facts, indent=1, default=float) + "\n", encoding="utf-8")

    save({})  # in case the truth takes too long
    for note in trace.notes:
        print("note:", note[:300])
    if not options.no_truth:
        busy = truth_of(options)
        save(busy)
        if options.events and busy:
            save(with_events(options, busy))
    cases_of(options).unlink()
    return None


if __name__ == "__main__":
    main()
