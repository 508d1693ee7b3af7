"""Sections of the page of measurements about layers and experts on the host."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from report_tables import Rows, logits, rate, spread, table

NUMPY: Final = "numpy f32, token by token"


def placements(found: dict[str, Any]) -> Iterator[str]:
    told = "us" in found["rows"][0]
    prompt = f", prompts of {found['prompt']} tokens" if found.get("prompt") else ""
    yield (
        f"`{found['model']}`, batch 1, {found['tokens']} tokens × {found['repeats']}{prompt}. {on_host(found)} "
        "*placement* is the percentage of layers on the GPU, or the place of the experts. Each cell gives "
        "tokens/s and the speed-up over `sccc` with the same policy; *over eager* is the speed-up of reused graphs. "
        f"{logits(found['rows'])}"
    )
    yield speedups(found["rows"], told)
    if told:
        yield from hidden("a token", found["rows"])
    if found.get("prompt") and told:
        prompts = [row | row["prompt"] for row in found["rows"]]
        yield "The prompts, in tokens/s:"
        yield speedups(prompts, told)
        yield from hidden("a prompt", prompts)


def speedups(rows: Rows, told: bool) -> str:
    lines = []
    for place, cells in groupby(rows, key=lambda row: row["placement"]):
        by = {(c["strategy"], c["policy"]): c for c in cells}
        for strategy in dict.fromkeys(s for s, _ in by):
            row = [by[strategy, policy] for policy in dict.fromkeys(policy for _, policy in by)]
            texts = [f"{rate(c['tokens_per_s'])}, {spread(c['over_sccc'])}" for c in row]
            kept = by[strategy, "graph"]
            shares = [where(kept["us"])] if told else []
            lines.append([place, str(row[0]["splits"]), f"`{strategy}`", *texts, spread(kept["over_eager"]), *shares])
    policies = dict.fromkeys(row["policy"] for row in rows)
    columns = ["placement", "splits", "strategy", *(f"`{p}`" for p in policies), "over eager"]
    return table([*columns, *(["host, GPU, neither"] if told else [])], lines)


def on_host(found: dict[str, Any]) -> str:
    if "threads" not in found:
        return "The host computes in float32 with NumPy."
    weights = f" ({found['weights']})" if found.get("weights") else ""
    return (
        f"The host computes on {found['threads']} threads in the weights' format{weights}. *host, GPU, neither* is the "
        "share of the time, with `graph`, in which the host computes products or attention, in which the GPU alone is "
        "between head and tail of a split, and the rest, of which strategies can save a part."
    )


def where(us: dict[str, dict[str, float]]) -> str:
    took = {state: value["median"] for state, value in us.items()}
    whole, host = sum(took.values()), took["host"] + took["both"]
    return f"{host / whole:.1%}, {took['gpu'] / whole:.1%}, {(whole - host - took['gpu']) / whole:.1%}"


def hidden(step: str, rows: Rows) -> Iterator[str]:
    """Why intervals of speed-ups contain 1: what the change saves, and what it cannot change."""
    bases = {"over_sccc": ("strategy", "sccc"), "over_eager": ("policy", "eager")}
    lines = []
    for row in rows:
        for name, (column, base) in bases.items():
            if row[column] == base or (name == "over_eager" and row["policy"] != "graph"):
                continue
            if row[name]["low"] <= 1 <= row[name]["high"]:
                lines.append([row["placement"], f"`{row['strategy']}`", f"`{row['policy']}`", name.replace("_", " "),
                              spread(row[name]), *why(row, name)])  # fmt: skip
    if not lines:
        return
    yield (
        f"Why no difference is shown where the interval of a speed-up contains 1, in µs of {step}, from the same "
        "repeats: *saved* is the time outside of the host's compute that the change removes, *host* how much less the "
        "host computed, which the change does not affect."
    )
    yield table(["placement", "strategy", "policy", "speed-up", "", "whole", "saved", "host", "because"], lines)


def why(row: dict[str, Any], name: str) -> list[str]:
    """Return the time of a step, what a change saves in it, how the host's own time differs, and what follows."""
    whole = sum(value["median"] for value in row["us"].values())
    saved, host = row[f"saved_us_{name}"], row[f"host_saved_us_{name}"]
    scatter = max(abs(host["low"]), abs(host["high"]))
    if saved["low"] <= 0 <= saved["high"]:
        because = "the saving cannot be distinguished from zero"
    elif saved["high"] < 0:
        because = "it adds time outside of the host's compute, and the host computed for less time"
    elif abs(saved["median"]) <= scatter:
        because = f"{saved['median'] / whole:.2%} is saved; the host's own time differs by up to {scatter / whole:.1%}"
    else:
        because = f"{saved['median'] / whole:.2%} is saved, less than the variation between repeats"
    return [f"{whole:,.0f}", spread(saved, 0), spread(host, 0), because]


def upstream(found: dict[str, Any]) -> Iterator[str]:
    """What upstream measured of hybrid runs, compared with this machine."""
    rows = [row for row in found["rows"] if row["placement"] not in ("0", "100", "all")]
    claims = {
        "graphs in hybrid runs (ggml PR 16548: up to 1.30)": (
            "over_eager",
            [r for r in rows if r["policy"] == "graph"],
        ),
        "`saaas` with partial offload": ("over_sccc", [r for r in rows if r["strategy"] == "saaas"]),
        "`aaag` with partial offload": ("over_sccc", [r for r in rows if r["strategy"] == "aaag"]),
    }
    lines = []
    for claim, (name, cells) in claims.items():
        best = max(cells, key=lambda row: row[name]["low"], default=None)
        if best is None:
            continue
        gains = sum(row[name]["low"] > 1 for row in cells)
        losses = sum(row[name]["high"] < 1 for row in cells)
        said = "gains in most" if gains * 2 > len(cells) else "gains in some" if gains else "no gain shown"
        place = f"{best['placement']}, `{best['strategy']}`, `{best['policy']}`"
        lines.append([claim, said, f"{gains}, {losses} of {len(cells)}", f"{spread(best[name])} ({place})"])
    yield (
        "Upstream's claims on this machine: how many cells have an interval above 1 and below 1, and the one whose "
        "interval has the highest lower bound."
    )
    yield table(["claim", "here", "gain, loss", "best cell"], lines)


def hybrid(found: dict[str, Any]) -> Iterator[str]:
    yield from placements(found)
    if "threads" in found:
        yield from upstream(found)


def host_decode(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"`{found['model']}` in {found['weights']}, entirely on the host, {found['tokens']} tokens, compared with "
        "llama-bench with `-ngl 0` on as many threads, in turn."
    )
    yield table(
        ["threads", "tokens/s", "llama.cpp, tokens/s", "ratio"],
        [[str(row["threads"]), spread(row["tokens_per_s"], 1), spread(row["llama_cpp_tokens_per_s"], 1),
          spread(row["over_llama_cpp"], 2)] for row in found["rows"]],
    )  # fmt: skip


def host_products(found: dict[str, Any]) -> Iterator[str]:
    yield (
        "The weights' bytes over the time of a product, compared with a plain copy of the same bytes on as many "
        "threads in turn, which counts what is read and written. Brackets contain the middle 80 % of the rounds. "
        "*fast*: the rate that 10 % of the rounds exceed, over that of the copy. *slow*: rounds with less than a third "
        "of that rate, of the product and of the copy, as when two threads share a core. *over NumPy's*: the median "
        "rate over that of NumPy's product of as many float32 values, where it alternates with both. Load average "
        "when it ended: "
        f"{found['machine']['load_average_1_min']}."
    )
    yield table(
        ["weights", "matrix", "tokens", "threads", "GB/s", "copy, GB/s", "over the copy", "fast", "slow, of",
         "over NumPy's"],
        [[row["format"], f"{row['outputs']} × {row['inputs']}", str(row["tokens"]),
          f"{row['threads']}, {row['threading_layer']}",
          _rounds(row["gb_per_s"], 1), _rounds(row["copy_gb_per_s"], 1),
          _rounds(row["over_copy"], 2), f"{row['fast_over_copy']:.2f}",
          f"{row['slow_rounds']} and {row['slow_copies']}, {len(row['gb_per_s']['rounds'])}",
          f"{row['over_others'][NUMPY]['median']:.2f}" if row["over_others"] else ""] for row in found["rows"]],
    )  # fmt: skip


def _rounds(value: dict[str, Any], digits: int) -> str:
    return f"{value['median']:,.{digits}f} [{value['p10']:,.{digits}f}, {value['p90']:,.{digits}f}]"
