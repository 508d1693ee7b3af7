"""Predictions of `intertoken whatif` from one recording, compared with measurements.

1. llama.cpp and a CuPy loop (sample_traces): strategies from recordings made under a profiler, with the rate.
2. Our ladder (sample_traces): every strategy from all that make more host calls, from light and from node passes.
3. Measurements of `whatif_record.py` in one call: the same for other models and batch sizes, and one graph launch from
   recordings of eager ones. Rows with `unseen` are of configurations that had never been measured before the model was
   made.

Then the number inside their model margin, with whole programs left out (`whatif_coverage.py`).

No GPU is needed. Usage: python benchmarks/whatif_prediction.py RECORDINGS [--json FILE], where RECORDINGS contains
whatif/ as written by `whatif_record.py`. `--again FILE` takes these predictions from an earlier result instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
from whatif_coverage import coverage, with_margins

from tracer import read
from tracer.analysis.path.paths import Causality
from tracer.analysis.recording import Recording
from tracer.analysis.tokens import find_steps
from tracer.model.run_json import NODE
from tracer.model.trace import Trace
from tracer.whatif.base import Base
from tracer.whatif.changes import Edit
from tracer.whatif.edits import FollowStrategy, WithoutSyncs
from tracer.whatif.graph_edits import OneGraph
from tracer.whatif.prediction import UNLIKE, UNMEASURED, Prediction, predict

ROOT = Path(__file__).parent
SAMPLES = ROOT.parent / "sample_traces"
LADDER = ("saaas", "aaas", "aaag", "ggg")
LLAMA_CPP = {"sccc": 748.7, "saaas": 759.5, "aaag": 766.2}
"""Tokens/s, without a profiler."""
BESIDE = {"median": 0.9996, "low": 0.9989, "high": 1.0006}
"""Without the sync of sample_traces/sync-beside, from gpu_idle_sync.py."""
NOT_KEPT = ("ladder", "eager")
FACTS = ("commit", "machine", "ladder_and_eager")
"""About the measurement of recordings that were not kept; the last says when and where it was made."""

NO_MARGIN = {UNLIKE, UNMEASURED}

Row = dict[str, Any]


def row(kind: str, run: str, what: str, found: Prediction, measured: dict[str, float]) -> Row:
    return {
        "kind": kind,
        "run": run,
        "what": what,
        "predicted": {"estimate": round(found.speedup.estimate, 4)},
        "of_steps": [round(float(np.log(end / found.of_steps.estimate)), 5) for end in found.of_steps.bounds or (1, 1)],
        "measured": {k: round(measured[k], 4) for k in ("median", "low", "high") if k in measured},
        "error_percent": round((found.speedup.estimate / measured["median"] - 1) * 100, 2),
        "checked": NO_MARGIN.isdisjoint(found.notes),
    }


def predicted(trace: Trace, edits: Sequence[Edit], rate: float | None = None) -> Prediction:
    return predict(base_of(trace, rate), edits)


def base_of(trace: Trace, *rates: float | None, within: str | None = None) -> Base:
    given = tuple(rate for rate in rates if rate is not None)
    steps = find_steps(trace, within=within)
    return Base.of(Causality.of(trace), Recording.of_steps(trace, steps, within=within, rates=given))


def llama_cpp() -> Iterator[Row]:
    for level, (at, strategy) in product(("graph", "node"), enumerate(("sccc", "saaas"))):
        trace = read(SAMPLES / f"llama1b-{strategy}-{level}")
        for other in ("saaas", "aaag")[at:]:
            found = predicted(trace, [FollowStrategy(other)], LLAMA_CPP[strategy])
            measured = {"median": LLAMA_CPP[other] / LLAMA_CPP[strategy]}
            yield row(f"llama.cpp {level}", f"llama1b-{strategy}-{level}", other, found, measured)


def rate_of(name: str) -> float:
    return float(json.loads((SAMPLES / name / "run.json").read_text())["measured"]["tokens_per_s"]["median"])


def samples() -> Iterator[Row]:
    """Predict every strategy from all with more host calls, in light and node passes."""
    for mode, (at, strategy) in product(("sequential", "branches"), enumerate(("sccc", *LADDER[:-1]))):
        yield from sample(f"llama-1.1b-{strategy}-{mode}-cuda", strategy, LADDER[at:])
    for suffix in ("-c4096-p2048-x2", "-ngl13"):
        yield from sample(f"llama-1.1b-sccc-sequential-cuda{suffix}", "sccc", ("aaag",))


def sample(name: str, strategy: str, others: Sequence[str]) -> Iterator[Row]:
    for kind, at in (("sample ladder", ""), ("sample traced", NODE)):
        trace = read(SAMPLES / name / at)
        base = base_of(trace, rate_of(name))
        for other in others:
            measured = rate_of(name.replace(strategy, other)) / rate_of(name)
            found = predict(base, [FollowStrategy(other)])
            yield row(kind, f"{name} {at}".strip(), other, found, {"median": measured})


def cupy_loop() -> Iterator[Row]:
    """Predict three strategies in two modes from node level, and the removal of a sync off the critical path."""
    trace = read(SAMPLES / "six-strategies")
    rates = {name: told["tokens_per_s"] for name, told in trace.metadata["run"]["ranges"].items()}
    for mode, (one, other) in product(("sequential", "concurrent"), combinations(("sccc", "saaas", "aaag"), 2)):
        name = f"run {one} {mode}"
        found = predict(base_of(trace, rates[name], within=name), [FollowStrategy(other)])
        measured = rates[f"run {other} {mode}"] / rates[name]
        yield row("CuPy loop", f"six-strategies, {name}", other, found, {"median": measured})
    beside = predicted(read(SAMPLES / "sync-beside"), [WithoutSyncs((1,))])
    yield row("CuPy loop", "sync-beside", "without sync 1", beside, BESIDE)


def changed() -> Iterator[Row]:
    """Yield what `advice_check.py` found of syncs and strategies by applying them, before and after in one process."""
    rows = json.loads((ROOT / "results" / "advice_check.json").read_text())["rows"]
    for each in rows:
        if each["edit"] in ("without syncs", *LADDER) and each["predicted"]:
            found = {name: round(each["measured"][name], 4) for name in ("median", "low", "high")}
            yield {
                "kind": f"changed, {each['pass']}", "run": f"{each['group']} {each['before']}", "what": each["edit"],
                "predicted": {"estimate": round(each["predicted"]["estimate"], 4)}, "measured": found,
                "error_percent": round(each["error_percent"], 2), "checked": each["predicted"]["low"] is not None,
            }  # fmt: skip


def measured_in(directory: Path) -> list[Row]:
    found: list[Row] = json.loads((directory / "measured.json").read_text())["rows"]
    return found


def recorded(directory: Path) -> Iterator[Row]:
    """Yield rows of the kinds ladder and eager."""
    for entry in measured_in(directory):
        run, of = directory / entry["run"], f"{entry['model']} b{entry['batch']}"
        for what, measured in entry["measured"].items():
            strategy, launch, _ = what.split()
            if entry["kind"] == "eager":
                steps_per_s = entry["tokens_per_s"]["median"] / entry["batch"]
                found = predicted(read(run / NODE), [OneGraph(early=True)], steps_per_s)
                made = row("eager", of, launch, found, measured)
            else:
                made = row("ladder", of, strategy, predicted(read(run), [FollowStrategy(strategy)]), measured)
            yield made | {"unseen": entry.get("unseen", False)}


def wrong_order(rows: list[Row]) -> Iterator[str]:
    """Yield pairs of what-ifs of one recording whose measured difference has the opposite sign of the prediction."""
    for one, two in combinations(rows, 2):
        if (one["kind"], one["run"]) == (two["kind"], two["run"]) and "low" in one["measured"]:
            slow, fast = sorted((one, two), key=lambda r: float(r["measured"]["median"]))
            differ = slow["measured"]["high"] < fast["measured"]["low"]
            if differ and slow["predicted"]["estimate"] > fast["predicted"]["estimate"]:
                yield f"{slow['run']} {slow['what']} before {fast['what']}"


def summary(rows: list[Row]) -> Row:
    errors = np.abs([r["error_percent"] for r in rows])
    wrong = [r for r in rows if (r["predicted"]["estimate"] - 1) * (r["measured"]["median"] - 1) < 0]
    claimed = [r for r in wrong if "low" in r["predicted"] and not r["predicted"]["low"] < 1 < r["predicted"]["high"]]
    return {
        "predictions": len(rows),
        "median_error_percent": round(float(np.median(errors)), 2),
        "largest_error_percent": round(float(errors.max()), 2),
        "wrong_sign": [f"{r['run']} {r['what']}" for r in wrong],
        "wrong_sign_claimed": [f"{r['run']} {r['what']}" for r in claimed],
        "wrong_order": list(wrong_order(rows)),
        "inside_margin": sum(r["holds"] is True for r in rows),
    }


def not_kept(options: argparse.Namespace) -> tuple[list[Row], Row]:
    """Return the rows of recordings that are not in sample_traces, and the facts about their measurement."""
    if options.again:
        earlier = json.loads(options.again.read_text())
        kept = [r for r in earlier["rows"] if r["kind"] in NOT_KEPT]
        return kept, {key: earlier[key] for key in FACTS}
    directory = options.recordings / "whatif"
    measured = json.loads((directory / "measured.json").read_text())
    rows = list(recorded(directory))
    where = {"date": date.today().isoformat(), "machine": measured["machine"]}
    return rows, dict(zip(FACTS, (measured["commit"], measured["machine"], where), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("recordings", type=Path, nargs="?")
    source.add_argument("--again", type=Path, help="take the rows of recordings that were not kept from this result")
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    earlier, facts = not_kept(options)
    rows = with_margins([*llama_cpp(), *cupy_loop(), *samples(), *changed(), *earlier])
    for r in rows:
        p, m = r["predicted"], r["measured"]
        margin = f"[{p['low']:.3f}, {p['high']:.3f}]" if "low" in p else "no margin"
        print(
            f"{r['kind']:16} {r['run']:50} {r['what']:15} {p['estimate']:.4f} {margin}  "
            f"measured {m['median']:.4f}  {r['error_percent']:+6.2f} %{'  outside' if r['holds'] is False else ''}"
        )
    kinds = {kind: summary([r for r in rows if r["kind"] == kind]) for kind in dict.fromkeys(r["kind"] for r in rows)}
    new = [r for r in rows if r.get("unseen")]
    facts |= {
        "benchmark": "whatif_prediction", "date": date.today().isoformat(), "summary": summary(rows),
        "coverage": coverage(rows), "by_kind": kinds, "unseen_summary": summary(new), "rows": rows,
    }  # fmt: skip
    print(json.dumps({key: value for key, value in facts.items() if key != "rows"}, indent=1))
    if options.json:
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
