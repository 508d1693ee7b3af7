"""Writes docs/measurements.md from benchmarks/results, where every table has a file with its figures.

Usage: python benchmarks/report.py          write the page
       python benchmarks/report.py --check  exit with 1 if the page is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from report_dashboard import components, folders, gestures, walked
from report_gaps import engines, executor_light, gap_estimate, gaps, gaps_by_rate
from report_hybrid import host_decode, host_products, hybrid
from report_tables import logits, rate, spread, table

RESULTS: Final = Path(__file__).parent / "results"
TARGET: Final = Path(__file__).parents[1] / "docs" / "measurements.md"
HEAD: Final = """# Measurements

`benchmarks/report.py` writes this page from `benchmarks/results/`. Each section names its file, and the script of the
same name produced it. Compared runs were interleaved in one process. Figures are medians with bootstrap 95 % intervals
in brackets. Models have random weights in f16 unless a section states otherwise.
"""


def concurrency(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"Strategy `{found['strategy']}`, allocator `stream_aware`; speed-up over `sequential` with the same batch. "
        f"{logits(found['rows'])}"
    )
    rows = []
    for (model, batch), cells in groupby(found["rows"], key=lambda row: (row["model"], row["batch"])):
        by = {(c["mode"], c["allocator"]): c for c in cells}
        base = by["sequential", "sequential"]
        branches, graphs = by["branches", "stream_aware"], by["subgraphs", "stream_aware"]
        rows.append([
            f"`{model}`", str(batch), rate(base["tokens_per_s"]), rate(branches["tokens_per_s"]),
            spread(branches["speedup"]), spread(graphs["speedup"]), f"{branches['peak_bytes'] / 1024:,.0f} KiB",
            f"{branches['streams']}, {branches['events']}",
        ])  # fmt: skip
    yield table(
        ["model", "batch", "sequential, tokens/s", "branches, tokens/s", "branches", "subgraphs", "arena",
         "streams, events"], rows,
    )  # fmt: skip


def pipeline(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"`{found['model']}`, a prompt of {found['prompt']} tokens in micro-batches of {found['micro_batch']}, then "
        f"{found['tokens']} tokens. Speed-ups over `sccc` on as many GPUs, and over one GPU with the same strategy. "
        f"`aaeg` runs without staging. {logits(found['rows'])}"
    )
    yield table(
        ["GPUs", "strategy", "prompt, tokens/s", "over `sccc`", "over one GPU", "decode, tokens/s", "over `sccc`",
         "over one GPU"],
        [
            [str(row["devices"]), f"`{row['strategy']}`"] + [
                text for kind in ("prompt", "decode")
                for text in (
                    rate(row[kind]["tokens_per_s"]), spread(row[kind]["speedup"]), spread(row[kind]["over_one"])
                )
            ]
            for row in found["rows"]
        ],
    )  # fmt: skip


def kv_streams(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"`{found['model']}`, {found['tokens']} tokens after the prompts with `{found['strategy']}`, sampled on the "
        "device. Upstream's ratios at 32 sequences: 1.05 without prompts, 1.37 at 512 and 2.29 at 2048 tokens (ggml PR "
        "14363, another GPU and model)."
    )
    rows = []
    for row in found["rows"]:
        prompt = f"{row['prompt']}, shared" if row["shared"] else str(row["prompt"])
        kinds = [f"{rate(row[k]['tokens_per_s'])} ({row[k]['cells']:,})" for k in ("unified", "streams")]
        rows.append([str(row["sequences"]), prompt, *kinds, spread(row["streams_over_unified"])])
    yield table(["sequences", "prompt", "`unified`, tokens/s (cells)", "`streams`", "streams / unified"], rows)


def predictions(found: dict[str, Any]) -> Iterator[str]:
    total, kinds, new = found["summary"], found["by_kind"], found["unseen_summary"]
    wrong = ", ".join(total["wrong_sign"]) or "none"
    claimed = ", ".join(total["wrong_sign_claimed"]) or "none"
    order = ", ".join(total["wrong_order"]) or "none"
    yield (
        f"Predictions of `intertoken whatif` from one recording, compared with measurements: {total['predictions']} "
        f"speed-ups, median error {total['median_error_percent']} %; wrong in sign: {wrong}; wrong in sign with a "
        f"margin that excludes 1: {claimed}; distinct what-ifs of one recording predicted in the wrong order: {order}. "
        "*ladder*: other strategies from a recording of one with more host calls; *eager*: one graph launch with early "
        "starts from a recording of eager launches. llama.cpp, the CuPy loop, *eager* and *sample traced* are "
        "recordings made under a profiler, with the engine's own rate; all others are light passes. *sample*, "
        "llama.cpp and the CuPy loop are recordings in `sample_traces/`; *ladder* and *eager* were measured in one "
        f"call ({found['ladder_and_eager']['date']}, {found['ladder_and_eager']['machine']['gpu']}). "
        "All are predicted by the current code."
    )
    yield (
        "**Coverage of the model margin.** Brackets are margins, the error of the model on other programs. Every case "
        "is tested with the margin of the *other* programs' cases, with whole programs (all batches, modes and levels "
        "of a model) left out one at a time. Widths are in % of the recorded rate. *Withheld*: gaps that are mostly "
        "work of the host or of another GPU have no margin, and a recording made under a profiler shows nothing about "
        "the engine without its rate. No case was measured for faster or slower kernels, host code or syncs, or for a "
        "graph without early starts, so these have no margin. Cases of 3 to 8 programs do not prove 95 % coverage, and "
        "some of them were in view when the model was chosen (below), so the margin is not called a 95 % interval."
    )
    yield table(
        ["kind of recording and what-if", "programs", "cases", "held inside", "outside", "withheld", "median width, %"],
        [
            [line["recordings"],
             *(str(line[key]) for key in ("programs", "cases", "inside", "outside", "withheld")),
             "–" if line["median_width_percent"] is None else str(line["median_width_percent"])]
            for line in found["coverage"]
        ],
    )  # fmt: skip
    yield (
        "**Independence**: rows marked *new* are of configurations that had never been measured before the model was "
        f"made: {new['predictions']}, median error {new['median_error_percent']} %, largest "
        f"{new['largest_error_percent']} %, wrong in sign: {', '.join(new['wrong_sign']) or 'none'}. All *ladder* rows "
        "were measured after it. The following was chosen with rows of the other configurations in view, which were "
        "measured again: for *eager* its constants; for *sample ladder* from `sccc` how "
        "much host code is removed with a call; for llama.cpp, the CuPy loop and *sample traced* that the profiler's "
        "part of a graph launch is removed first and kernels keep their durations."
    )
    yield table(
        ["kind", "predictions", "median error, %", "largest, %", "inside the margin"],
        [
            [kind, *(str(k[name]) for name in ("predictions", "median_error_percent", "largest_error_percent")),
             str(k["inside_margin"])]
            for kind, k in kinds.items()
        ],
    )  # fmt: skip
    rows = []
    for row in found["rows"]:
        margin = " [{low:.3f}, {high:.3f}]".format(**row["predicted"]) if row["holds"] is not None else ""
        predicted = f"{row['predicted']['estimate']:.3f}{margin}"
        measured = row["measured"]
        shown = spread(measured) if "low" in measured else f"{measured['median']:.3f}"
        mark = " *new*" if row.get("unseen") else ""
        rows.append(
            [row["kind"], f"`{row['run']}`{mark}", row["what"], predicted, shown, f"{row['error_percent']:+.2f}"]
        )
    yield table(["kind", "recording", "what if", "predicted speed-up", "measured", "error, %"], rows)


def leftovers(found: dict[str, Any]) -> Iterator[str]:
    yield (
        'Runs of `aaag` before, during and after recordings with `tracer.record("cupti")`, in one process; medians, '
        "minima and maxima over several processes. *disabled*: CUPTI's activities are disabled, but CUPTI stays in the "
        "process; *stopped*: the recorder has stopped, which detaches CUPTI. Launch is the time of the host's call."
    )
    rows = [
        [
            f"`{model}`",
            f"{row['nodes']['median']:.0f}",
            stage,
            spread(row["launch_us"], 1),
            spread(row["tokens_per_s"], 0),
        ]
        for model, stages in found["models"].items()
        for stage, row in stages.items()
    ]
    yield table(["model", "kernels", "stage", "launch, µs", "tokens/s"], rows)


def installs(found: dict[str, Any]) -> Iterator[str]:
    shown = ("intertoken", "numpy", "pandas", "pyarrow", "click", "rich", "plotly", "dash")
    yield (
        "A wheel installed into environments with the lowest versions that `pyproject.toml` allows (and that have "
        "wheels for that Python), with the newest ones, and with what pip installs for vLLM and SGLang, whose "
        "distributions that intertoken does not use are present by name and version only. *Changed* lists those "
        "that pip installed in a different version than before; *commands* counts those that ended without an error."
    )
    yield table(
        ["Python", "environment", "changed", "commands", *shown],
        [
            [
                row["python"], row["environment"], ", ".join(row["changed"]) or "nothing",
                f"{row['commands'] - len(row['failed'])} of {row['commands']}",
                *(row["versions"].get(name, "–") for name in shown),
            ]
            for row in found["rows"]
        ],
    )  # fmt: skip


SECTIONS: Final[Sequence[tuple[str, str, Callable[[dict[str, Any]], Iterator[str]]]]] = (
    ("The gap under each strategy", "gpu_gaps", gaps),
    ("The gap by the light recorder", "executor_light", executor_light),
    ("The gap corrected by the untraced rate", "gap_by_rate", gaps_by_rate),
    ("What a profiler adds", "gap_estimate", gap_estimate),
    ("What-ifs, predicted and measured", "whatif_prediction", predictions),
    ("Branches of a token on several streams", "gpu_concurrency", concurrency),
    ("What a recording leaves behind", "gpu_after_cupti", leftovers),
    ("Layers on the host", "gpu_hybrid_llama-1.1b", hybrid),
    ("A quarter of the layers, or all, on the GPU", "gpu_hybrid_llama-1.1b_25", hybrid),
    ("Layers of a larger model on the host", "gpu_hybrid_llama-8b", hybrid),
    ("Prompts with layers on the host", "gpu_hybrid_llama-1.1b_prompt", hybrid),
    ("Experts on the host", "gpu_hybrid_moe-7b", hybrid),
    ("Experts copied to the GPU", "gpu_hybrid_moe-7b_copy", hybrid),
    ("Products on the host", "host_products_16", host_products),
    ("Products on two cores", "host_products_2", host_products),
    ("Decode on the host", "host_decode", host_decode),
    ("Two GPUs", "gpu_pipeline", pipeline),
    ("Many sequences", "gpu_kv_streams", kv_streams),
    ("vLLM and transformers, recorded", "engine_samples", engines),
    ("Installed next to other packages", "install_matrix", installs),
    ("Zooming and panning the timeline", "timeline_gesture", gestures),
    ("A folder of many recordings", "many_recordings", folders),
    ("A walk through the page", "walk", walked),
    ("What the browser works for an answer", "page_components", components),
)
"""Title, file and writer of each section; a section whose file is not there is left out."""


def made_on(found: dict[str, Any]) -> str:
    """Return machine, commit and date."""
    machine = found["machine"]
    if "gpu" in machine:
        where = f"{machine['gpu']}, driver {machine['driver']}"
    else:
        where = (
            f"{machine['cores']} cores ({machine['cpu']})" if "cores" in machine else f"{machine['cpu']}, no GPU used"
        )
    return ", ".join([where, *([f"commit {found['commit']}"] if "commit" in found else []), found["date"]])


def report() -> str:
    """Return the whole page."""
    parts = [HEAD.strip()]
    for title, name, section in SECTIONS:
        path = RESULTS / f"{name}.json"
        if not path.is_file():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## {title}", f"`{name}.json`: {made_on(found)}.", *section(found)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    text = report()
    if parser.parse_args().check:
        sys.exit(text != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
