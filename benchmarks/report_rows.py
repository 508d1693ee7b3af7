"""The rows of the tables of docs/measurements.md: a function for each topic of `topics.toml`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

Found = dict[str, Any]
"""A file of results."""
Rows = Iterator[list[str]]
PROGRAMS: Final = {
    "llama-dense": "llama.cpp, 1.1 B", "llama-moe": "llama.cpp, 7.8 B mixture of experts", "vllm": "vLLM 0.23",
    "vllm in process": "vLLM 0.23 in one process", "transformers": "transformers 5.17", "executor": "our executor",
    "torch-eager": "PyTorch",
}  # fmt: skip
CASES: Final = {"b1": ", batch 1", "b8": ", batch 8", "static": ", static cache", "torch-eager": ", eager launches"}
NUMPY: Final = "numpy f32, token by token"


def spread(value: dict[str, Any], digits: int = 3) -> str:
    """Format a median and its interval; a baseline of 1 by definition has no interval."""
    if value["low"] == value["high"] == 1:
        return "1"
    return f"{value['median']:,.{digits}f} [{value['low']:,.{digits}f}, {value['high']:,.{digits}f}]"


def rate(value: dict[str, Any]) -> str:
    """Format a rate with significant digits only."""
    return f"{value['median']:,.{1 if value['median'] < 200 else 0}f}"


def extent(values: Iterable[float], digits: int = 2) -> str:
    """Format the least and the largest of some values."""
    ordered = sorted(values)
    least, most = (f"{ordered[place]:,.{digits}f}" for place in (0, -1))
    return least if least == most else f"{least} to {most}"


def groups(rows: Iterable[Found], *keys: str) -> Iterator[tuple[list[str], list[Found]]]:
    """Rows that agree in these keys, in the order of their first."""
    by: dict[tuple[str, ...], list[Found]] = {}
    for row in rows:
        by.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    return ((list(names), members) for names, members in by.items())


def gaps(found: Found) -> Rows:
    for run in found["runs"]:
        us = [run["passes"].get(name, {}).get("gap_us", {}).get("p50") for name in (
            "light", "graph", "node", "nsys graph", "nsys node"
        )]  # fmt: skip
        yield [f"`{run['run']}`", rate(run["tokens_per_s"]), *("–" if p50 is None else f"{p50:.1f}" for p50 in us)]


def gaps_by_light(found: Found) -> Rows:
    for run in found["runs"]:
        yield [f"`{run['run']}`", spread(run["gap_p50_us"], 1), f"{run['period_less_busy_us']:.1f}",
               f"{100 * run['slower']:+.2f}"]  # fmt: skip


def gaps_by_rate(found: Found) -> Rows:
    for run in found["runs"]:
        yield [f"`{run['run']}`", f"{run['recorded_us']:.1f}", spread(run["true_us"], 1), f"{run['by_rate_us']:.1f}"]


def left_of_idle(found: Found) -> Rows:
    for names, rows in groups(found["rows"], "program", "by", "level"):
        left = [[us / row["idle_us"] for us in row["truth_us"]] for row in rows]
        middle, every = (each[0] for each in left), (share for each in left for share in each)
        yield [*names, str(len(rows)), extent(middle), extent(every)]


def causes_by_rate(found: Found) -> Rows:
    for (level,), rows in groups(found["causes"], "level"):
        errors = [[row[way] for row in rows] for way in ("corrected", "proportional")]
        yield [level, str(len(rows)), *(f"{each:.1f}" for us in errors for each in (statistics.median(us), max(us)))]


def whatifs(found: Found) -> Rows:
    kinds = [*groups(found["rows"], "kind"), (["all"], found["rows"])]
    kinds.append((["of these never measured before"], [row for row in found["rows"] if row.get("unseen")]))
    for (kind,), rows in kinds:
        yield [kind, str(len(rows)), *_errors(rows), *(
            str(sum(row["holds"] is held for row in rows)) for held in (True, False, None)
        )]  # fmt: skip


def verdicts(found: Found) -> Rows:
    for name, after in found["after"]["scenarios"].items():
        cells = []
        for of in (found["before"]["scenarios"][name], after):
            held, pairs = (sum(each[key] for each in of.values()) for key in ("holds_truth", "pairs"))
            cells += [f"{of['0']['faster'] + of['0']['slower']} of {of['0']['pairs']}", f"{held / pairs:.0%}"]
        shown = [f"{after[effect]['faster']} of {after[effect]['pairs']}" for effect in ("0.01", "0.02", "0.05")]
        yield [name, *cells, f"{after['0']['half_width_percent']} %", *shown]


def campaigns(found: Found) -> Rows:
    for host, effects in found["hosts"].items():
        for effect, of in effects.items():
            told = f"{100 * float(effect):+g} %".replace("-", "−").replace("+0 %", "none")
            cells = [of["wrong"], of["undecided"], f"{of['runs_each']:g}", of["t_test"]["wrong"]]
            yield [host, told, *map(str, cells), str(of["t_test"]["missed"]) if float(effect) else "–"]


def searches(found: Found) -> Rows:
    for host, effects in found["hosts"].items():
        for effect, of in effects.items():
            cells = (str(of[name]) for name in ("right", "several", "wrong", "builds", "runs"))
            yield [host, f"{100 * float(effect):g} %", *cells]


def changes_made(found: Found) -> Rows:
    engines = {"dynamic-cache": "transformers", "llama.cpp": "llama.cpp", "vllm": "vLLM"}
    rows = [row | {"program": engines.get(row["group"], "loops of PyTorch")} for row in found["rows"]]
    for (program,), members in [*groups(rows, "program"), (["all"], rows)]:
        held = [row for row in members if row["predicted"]["low"] is not None]
        inside = sum(row["predicted"]["low"] <= row["measured"]["median"] <= row["predicted"]["high"] for row in held)
        yield [program, str(len(members)), *_errors(members), str(inside), str(len(members) - len(held))]


def _errors(rows: list[Found]) -> list[str]:
    errors = [abs(row["error_percent"]) for row in rows]
    return [f"{statistics.median(errors):.2f}", f"{max(errors):.2f}"]


def light_cost(found: Found) -> Rows:
    """Of the runs with the share of samples that the recorder has now."""
    runs = [run for run in found["runs"] if "budget_percent_after_4_ms_of_samples" in run]
    for (engine, case, gpu), rows in sorted(groups(runs, "engine", "case", "gpu"), key=lambda group: group[0]):
        known = [row for row in rows if "truth" in row]
        ratios = ([row["truth"]["told_over_same_block"][0] for row in known if ("truth_by" in row) is by_events]
                  for by_events in (False, True))  # fmt: skip
        slower, ends = ([100 * (row["slowdown"][place] - 1) for row in rows] for place in (0, 2))
        yield [PROGRAMS[engine] + CASES.get(case, f", {case}"), gpu.split()[1], str(len(rows)), extent(slower),
               extent(ends), *(extent(each) if each else "–" for each in ratios)]  # fmt: skip


def light_calls(found: Found) -> Rows:
    ns = found["ns_per_call"]
    for call in (call for call in ns if not call.endswith("_cold")):
        cold = ns.get(f"{call}_cold")
        yield [call.replace("_", " "), f"{ns[call]:.0f}", "–" if cold is None else f"{cold:.0f}"]


def traced_passes(found: Found) -> Rows:
    names = {"none": "none", "graph": "`--passes graph`", "node": "`--passes node`",
             "nsys-graph": "nsys, graph level", "nsys-node": "nsys, node level"}  # fmt: skip
    for name, rates in found["steps_per_s"].items():
        shown = found["shown"].get(name)
        gap, events = (f"{shown['gap_us']:.0f}", f"{shown['events']:,}") if shown else ("–", "–")
        yield [names[name], f"{statistics.median(rates):.0f}", gap, events]


def leftovers(found: Found) -> Rows:
    for model, stages in found["models"].items():
        for stage, row in stages.items():
            yield [f"`{model}`", stage, rate(row["launch_us"]), rate(row["tokens_per_s"])]


def branches(found: Found) -> Rows:
    for (model, batch), cells in groups(found["rows"], "model", "batch"):
        by = {(cell["mode"], cell["allocator"]): cell for cell in cells}
        one, several, graphs = (by[key] for key in (
            ("sequential", "sequential"), ("branches", "stream_aware"), ("subgraphs", "stream_aware")
        ))  # fmt: skip
        subgraphs = f"{graphs['speedup']['median']:.3f}"
        yield [f"`{model}`", batch, rate(one["tokens_per_s"]), spread(several["speedup"]), subgraphs]


def on_the_host(*found: Found) -> Rows:
    for each in found:
        for place, cells in groupby(each["rows"], key=lambda row: row["placement"]):
            by = {row["strategy"]: row for row in cells if row["policy"] == "graph"}
            base, us = by["sccc"], {state: value["median"] for state, value in by["sccc"]["us"].items()}
            model = f"`{each['model']}`" + (f", prompts of {each['prompt']}" if each["prompt"] else "")
            yield [model, place, rate(base["tokens_per_s"]), *(
                spread(by[name]["over_sccc"]) for name in ("saaas", "aaag")
            ), spread(base["over_eager"]), f"{100 * (us['host'] + us['both']) / sum(us.values()):.0f}"]  # fmt: skip


def host_products(*found: Found) -> Rows:
    for each in found:
        for (kind, threads), rows in groups(each["rows"], "format", "threads"):
            yield [kind, threads, extent((row["gb_per_s"]["median"] for row in rows), 0), extent(
                row["over_copy"]["median"] for row in rows
            ), extent(row["over_others"][NUMPY]["median"] for row in rows)]  # fmt: skip


def host_decode(found: Found) -> Rows:
    for row in found["rows"]:
        ours, theirs = (spread(row[name], 1) for name in ("tokens_per_s", "llama_cpp_tokens_per_s"))
        yield [str(row["threads"]), ours, theirs, spread(row["over_llama_cpp"], 2)]


def pipeline(found: Found) -> Rows:
    for row in found["rows"]:
        figures = [text for kind in (row["prompt"], row["decode"]) for text in (
            rate(kind["tokens_per_s"]), spread(kind["speedup"]), spread(kind["over_one"])
        )]  # fmt: skip
        yield [str(row["devices"]), f"`{row['strategy']}`", *figures]


def kv_streams(found: Found) -> Rows:
    for row in found["rows"]:
        prompt = f"{row['prompt']}, shared" if row["shared"] else str(row["prompt"])
        rates = [rate(row[kind]["tokens_per_s"]) for kind in ("unified", "streams")]
        yield [str(row["sequences"]), prompt, *rates, spread(row["streams_over_unified"])]


def engines(found: Found) -> Rows:
    runs = [
        {"engine": f"{each['engine']} {each['versions'][each['engine']]}", "case": case, **measured,
         "attached": {"cuda": "nsys"}.get(each["window"], "nothing"),
         "inside": {"cuda": "nsys", "torch": "PyTorch"}.get(each["window"], "–")}
        for each in found["processes"].values() for case, measured in each["cases"].items()
    ]  # fmt: skip
    for names, rows in groups(runs, "engine", "case", "attached", "inside"):
        middles = (statistics.median(run["decode_steps_per_s"] for run in row["repeats"]) for row in rows)
        inside = [row["window"]["decode_steps_per_s"] for row in rows if "window" in row]
        yield [*names[:3], str(len(rows)), extent(middles, 0), names[3], extent(inside, 0) if inside else "–"]


def formats(sqlite: Found, written: Found, chrome: Found, exports: Found, ten: Found) -> Rows:
    def line(what: str, events: int, rates: dict[str, float], ratio: float) -> list[str]:
        (_, ours), (rival, theirs) = rates.items()
        return [what, f"{events:,}", f"{ours:,.0f}", f"{theirs:,.0f}", rival, f"{ratio:.2f}"]

    yield line("read nsys's SQLite", sqlite["kernels"], sqlite["rows_per_s"], sqlite["ratio"])
    read = {name: ten["rows_per_s"][name] for name in ("read SQLite", "pandas.read_sql")}
    yield line("read nsys's SQLite", ten["events"], read, ten["read_sql_ratio"])
    yield line("read Chrome JSON", chrome["events"], chrome["events_per_s"], chrome["speed_ratio"])
    yield line("write nsys's SQLite", written["rows"], written["rows_per_s"], written["ratio"])
    for name, kind in exports["formats"].items():
        yield line(f"write `{name}`", exports["events"], kind["events_per_s"], kind["ratio"])


def installs(found: Found) -> Rows:
    for (name,), rows in groups(found["rows"], "environment"):
        commands = sum(row["commands"] for row in rows)
        ended = f"{commands - sum(len(row['failed']) for row in rows)} of {commands}"
        changed = sorted({package for row in rows for package in row["changed"]})
        yield [name, ", ".join(row["python"] for row in rows), ", ".join(changed) or "nothing", ended]


def gestures(found: Found) -> Rows:
    def frames(measured: Found) -> list[str]:
        return [*(f"{measured['painted_ms'][name]:g}" for name in ("p50", "p95")), str(measured["frames_per_s"])]

    for name, result in found["results"].items():
        if name == "floor":
            yield ["a plain rectangle", "–", *frames(result)]
            continue
        ways = {"the page": "ours", "Plotly's relayout": "relayout", "nsys-ai": "nsys_ai"}
        yield from ([way, f"{result['events']:,}", *frames(result[key])] for way, key in ways.items() if key in result)


def folders(found: Found) -> Rows:
    for kind, repeats in found["seconds"].items():
        yield [kind, *(extent((each[key] for each in repeats), 1) for key in ("pair_s", "all_s"))]
