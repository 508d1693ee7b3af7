"""The sections of `report.py` on gaps and on recorded engines."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from report_tables import spread, table


def gaps(found: dict[str, Any]) -> Iterator[str]:
    rows, errors = [], []
    for run in found["runs"]:
        passes, untraced = run["passes"], 1e6 / run["tokens_per_s"]["median"]
        cells = [
            f"{passes[name]['gap_us']['p50']:.1f}" if name in passes else "–"
            for name in ("light", "graph", "node", "nsys graph", "nsys node")
        ]
        mean = passes["light"]["gap_us"]["mean"]
        for name in ("graph", "nsys graph"):
            each = passes.get(name)
            by_rate = untraced - (each["period_us"] - each["gap_us"]["p50"]) if each else None
            cells.append("–" if by_rate is None else f"{by_rate:.1f}")
            errors += [] if by_rate is None else [(abs(by_rate - mean), abs(by_rate / mean - 1))]
        rows.append([f"`{run['run']}`", spread(run["tokens_per_s"], 0), cells[0], f"{mean:.1f}", *cells[1:]])
    close, most = sum(share <= 0.05 for _, share in errors), max(us for us, _ in errors)
    yield (
        f"`{found['model']}`, batch 1, {found['tokens']} tokens. Gap p50 in µs of the light pass (no profiler), of our "
        "traced passes and of nsys over the same work; the light pass also with its mean. *Corrected* is the mean gap "
        "from the graph level and the untraced rate, 1 / rate − the time of the graphs: "
        f"{close} of {len(errors)} are within 5 % of the mean of the light pass, all within {most:.1f} µs. The passes "
        "are separate processes, and the stamps (2 µs) are part of the rate but not of the graphs."
    )
    yield table(
        ["run", "tokens/s", "light", "light, mean", "our graph", "our node", "nsys graph", "nsys node",
         "our graph, corrected", "nsys graph, corrected"], rows,
    )  # fmt: skip


def gaps_by_rate(found: dict[str, Any]) -> Iterator[str]:
    rows, apart, close = [], [], 0
    for run in found["runs"]:
        true, by_rate = run["true_us"], run["by_rate_us"]
        apart.append(by_rate - true["median"])
        close += abs(run["error"]) <= 0.05
        rows.append([
            f"`{run['run']}`", f"{run['recorded_us']:.1f}",
            f"{true['median']:.1f} [{true['low']:.1f}, {true['high']:.1f}]", f"{by_rate:.1f}",
            f"{100 * run['error']:+.1f} %",
        ])  # fmt: skip
    yield (
        "Mean gap in µs of our own loop from the device's own stamps, compared with a graph-level recording corrected "
        "by the untraced rate of the same instance of the loop. Recording and pausing alternate within one process, "
        "because two processes differ by more than the effect measured. "
        f"{close} of {len(rows)} are within 5 %, all within {max(map(abs, apart)):.1f} µs. Brackets give the lowest "
        "and highest repeat. *Recorded* is the gap of the recording before correction; stamps are part of both rates. "
        "The stamps were the executor's own, which the light recorder has replaced; the script is in that commit."
    )
    yield table(["run", "recorded", "from stamps", "corrected", "difference"], rows)


def executor_light(found: dict[str, Any]) -> Iterator[str]:
    yield (
        "The light pass of our own runs is the light recorder's. *Gap* is what it records; next to it is the period of "
        "the same instance while recording is off, minus the busy time of the device, µs. Brackets give the lowest and "
        f"highest repeat. Logits with and without it are {'bitwise equal' if found['logits_equal'] else 'not equal'}."
    )
    rows = [
        [f"`{run['run']}`", _repeats(run["gap_p50_us"]), f"{run['period_less_busy_us']:.1f}",
         _repeats(run["untraced_period_us"]), f"{100 * run['slower']:+.2f} %"]
        for run in found["runs"]
    ]  # fmt: skip
    yield table(["run", "gap, p50", "period − busy", "period, recording off", "slower while recording"], rows)


def _repeats(us: dict[str, float]) -> str:
    return f"{us['median']:.1f} [{us['low']:.1f}, {us['high']:.1f}]"


def gap_estimate(found: dict[str, Any]) -> Iterator[str]:
    yield (
        "Programs run alternately with and without a profiler. *Left* is the idle time without the profiler, "
        "1 / rate − the device's busy time (from the graph-level recording), as a share of the recorded idle time; in "
        "brackets for the fastest and the slowest repeat."
    )
    rows = []
    for row in found["rows"]:
        share = [us / row["idle_us"] for us in row["truth_us"]]
        rows.append([
            f"`{row['recording']}`", row["program"], row["by"], row["level"], f"{row['busy_us']:,.0f}",
            f"{row['idle_us']:,.1f}", f"{row['truth_us'][0]:,.1f}", "{:.2f} [{:.2f}, {:.2f}]".format(*share),
        ])  # fmt: skip
    yield table(["recording", "program", "recorder", "level", "busy, µs", "idle, µs", "untraced, µs", "left"], rows)
    yield (
        "Does a recording alone reveal this? Models are fitted to all programs except one and tested on that one. The "
        "table counts intervals that contain the true value, those that do not, and cases without two other programs "
        "(withheld), and gives the median width of the intervals as a share of the recorded idle time. Intervals that "
        "contain it are nearly as wide as the recorded idle time itself, so no figure is estimated without a rate."
    )
    names: Sequence[str] = ("by", "level", "model", "programs", "inside", "outside", "withheld", "width")
    cells = [[str(row[name]) if row[name] is not None else "–" for name in names] for row in found["coverage"]]
    yield table(["recorder", *names[1:]], cells)
    constants = found["stretch"]["constants"]
    yield (
        "How much node-level tracing stretches a CUDA graph, compared with the same graph at graph level: "
        f"{constants['per_kernel']:.0f} ns per kernel and {constants['share']:.2%} of the kernels' time, ± "
        f"{constants['error']:.0f} ns per kernel for a program that was not fitted. The union of the kernels was at "
        f"least {constants['union']:.0%} of their summed durations. If more of them overlap, through early starts or "
        "branches as in our own loop, tracing adds between nothing and all of that, and the gap is withheld."
    )
    names = ("recording", "program", "kernels", "kernel_us", "ns_per_kernel")
    cells = [[f"{row[name]:,.1f}" if not isinstance(row[name], str) else row[name] for name in names]
             for row in found["stretch"]["pairs"]]  # fmt: skip
    yield table(["graph of", "program", "kernels", "µs each", "ns per kernel"], cells)
    yield (
        "The causes of the gap of our own loop, recorded and corrected by its untraced rate, compared with its light "
        "pass: the largest error of a cause, µs, with `distortion.untraced_causes` and with constant proportions."
    )
    names = ("run", "level", "gap_us", "corrected", "proportional")
    cells = [[f"`{row['run']}`", row["level"], *(f"{row[name]:,.1f}" for name in names[2:])] for row in found["causes"]]
    yield table(["run", "level", "gap untraced, µs", "corrected", "proportional"], cells)


def engines(found: dict[str, Any]) -> Iterator[str]:
    yield (
        "A Llama with 1.1 B parameters in bf16; decode steps/s, median [lowest, highest] of the repeats outside a "
        "recording window, and of the one repeat inside it. *Attached*: under nsys, but outside its windows, which the "
        "program opens. Processes of vLLM differ by more than the overhead of most recorders."
    )
    rows = []
    for name, process in found["processes"].items():
        for case, measured in process["cases"].items():
            rates = sorted(run["decode_steps_per_s"] for run in measured["repeats"])
            middle = f"{statistics.median(rates):,.0f} [{rates[0]:,.0f}, {rates[-1]:,.0f}]"
            attached = process["window"] == "cuda"
            inside = f"{measured['window']['decode_steps_per_s']:,.0f}" if "window" in measured else "–"
            engine = f"{process['engine']} {process['versions'][process['engine']]}"
            rows.append([f"`{name}`", engine, case, *(("–", middle) if attached else (middle, "–")), inside])
    yield table(["process", "engine", "case", "untraced", "attached", "recorded"], rows)
