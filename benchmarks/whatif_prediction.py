"""What `intertoken whatif` predicts from one recording, beside what was measured.

1. llama.cpp (sample_traces): saaas from the recordings of sccc at both tracing levels.
2. Our ladder (sample_traces): every strategy from the recording of sccc alone, and branches on several streams from
   the recording of one.
3. What `whatif_record.py` measured in one call: the same for other models and batch sizes, and one graph launch from
   recordings of eager ones. What kernels on several streams lose and hide is learned from the other configurations,
   and for a second figure from the other models only. Rows that are `unseen` are of configurations that were never
   measured before the model was made.
4. What `gpu_idle_sync.py` measured: a sync beside the critical path, and one on it, taken away.

No GPU is needed. Usage: python benchmarks/whatif_prediction.py RECORDINGS [--json FILE], RECORDINGS being what the
scripts named above wrote: whatif/ and idle/ below it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from tracer import read
from tracer.analysis.causality.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import Edit, OneGraph, Strategy, WithoutSyncs
from tracer.analysis.whatif.learning import H200, Learned, Pair, learned
from tracer.analysis.whatif.prediction import UNLIKE, UNMEASURED, Prediction, predict
from tracer.analysis.whatif.streams import Concurrent
from tracer.graph_json import GRAPH_FILE, read_graph
from tracer.stream_pairs import NODE_PASS, compute_ns, pair_of, read_pair
from tracer.trace import Trace

ROOT = Path(__file__).parent
SAMPLES = ROOT.parent / "sample_traces"
LADDER = ("saaas", "aaas", "aaag", "ggg")
LLAMA_CPP = {"saaas": 759.5 / 748.7, "aaag": 766.2 / 748.7}
"""Tokens/s over sccc's, without a profiler."""
BRANCHES, BOTH = "branches", "both"
STREAMS = 4  # that a recording with branches had, where it was not kept

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
    return predict(Causality.of(trace), find_steps(trace), edits, rate)


def concurrent(run: Path, learned: Learned = H200) -> Concurrent:
    node = read(run / NODE_PASS)
    return Concurrent(read_graph(run / GRAPH_FILE), node, find_steps(node), learned=learned)


def llama_cpp() -> Iterator[Row]:
    for level in ("graph", "node"):
        trace = read(SAMPLES / f"llama1b-sccc-{level}")
        for strategy, measured in LLAMA_CPP.items():
            found = predicted(trace, [Strategy(strategy)], 748.7)
            yield row("llama.cpp", f"llama1b-sccc-{level}", strategy, found, {"median": measured})


def samples() -> Iterator[Row]:
    def rate(name: str) -> float:
        return float(json.loads((SAMPLES / name / "run.json").read_text())["measured"]["tokens_per_s"]["median"])

    base = "llama-1.1b-sccc-sequential-cuda"
    trace = read(SAMPLES / base)
    for strategy in LADDER:
        measured = rate(base.replace("sccc", strategy)) / rate(base)
        yield row("sample ladder", base, strategy, predicted(trace, [Strategy(strategy)]), {"median": measured})
    for strategy in ("sccc", *LADDER):
        name = base.replace("sccc", strategy)
        found = predicted(read(SAMPLES / name), [concurrent(SAMPLES / name)])
        measured = rate(name.replace("sequential", "branches")) / rate(name)
        yield row("sample branches", name, "branches", found, {"median": measured})


def measured_in(directory: Path) -> list[Row]:
    found: list[Row] = json.loads((directory / "measured.json").read_text())["rows"]
    return found


def recorded(directory: Path) -> Iterator[Row]:
    """Rows of the kinds ladder and eager."""
    for entry in measured_in(directory):
        if entry["kind"] in (BRANCHES, BOTH):
            continue
        run, of = directory / entry["run"], f"{entry['model']} b{entry['batch']}"
        for what, measured in entry["measured"].items():
            strategy, launch, _ = what.split()
            if entry["kind"] == "eager":
                steps_per_s = entry["tokens_per_s"]["median"] / entry["batch"]
                found = predicted(read(run / NODE_PASS), [OneGraph(early=True)], steps_per_s)
                made = row("eager", of, launch, found, measured)
            else:
                made = row("ladder", of, strategy, predicted(read(run), [Strategy(strategy)]), measured)
            yield made | {"unseen": entry.get("unseen", False)}


def pair(directory: Path, entry: Row) -> Pair:
    """Of one case of branches; the relative compute from both recordings, else from the rates, were the gap the same.

    period - compute + relative x compute = period / speed-up
    """
    one = directory / entry["run"]
    if entry.get("run_changed"):
        return read_pair(one, directory / entry["run_changed"])
    (measured,) = entry["measured"].values()
    period = 1e9 * entry["batch"] / entry["tokens_per_s"]["median"]
    return pair_of(one, STREAMS, 1 - period / compute_ns(read(one)) * (1 - 1 / measured["median"]))


def branches(directory: Path, unlike: Callable[[Row, Row], bool]) -> Iterator[Row]:
    """Rows of branches, also under another strategy, each predicted with what those teach that are unlike it."""
    entries = [entry for entry in measured_in(directory) if entry["kind"] in (BRANCHES, BOTH)]
    teachers = [(entry, pair(directory, entry)) for entry in entries if entry["kind"] == BRANCHES]
    for entry in entries:
        run = directory / entry["run"]
        taught = learned([p for other, p in teachers if unlike(entry, other)])
        ((what, measured),) = entry["measured"].items()
        strategy = [Strategy(what.split()[0])] if entry["kind"] == BOTH else []
        found = predicted(read(run), [*strategy, concurrent(run, taught)])
        name = " ".join([*(edit.name for edit in strategy), BRANCHES])
        made = row(entry["kind"], f"{entry['model']} b{entry['batch']}", name, found, measured)
        yield made | {"unseen": entry.get("unseen", False)}


def other_configuration(one: Row, other: Row) -> bool:
    return bool((one["model"], one["batch"]) != (other["model"], other["batch"]))


def other_model(one: Row, other: Row) -> bool:
    return bool(one["model"] != other["model"])


def idle_syncs(directory: Path) -> Iterator[Row]:
    facts = json.loads((directory / "measured.json").read_text())
    for variant, position in (("beside", 1), ("idle", 2)):
        rate = 1e6 / facts["us_per_token"][variant]["median"]
        found = predicted(read(directory / variant), [WithoutSyncs((position,))], rate)
        yield row("sync", variant, f"without sync {position}", found, facts["speedup_without"][variant])


def wrong_order(rows: list[Row]) -> Iterator[str]:
    """Two what-ifs of one recording that differ by measurement, and are predicted the other way round."""
    for one, two in combinations(rows, 2):
        if (one["kind"], one["run"]) == (two["kind"], two["run"]) and "low" in one["measured"]:
            slow, fast = sorted((one, two), key=lambda r: float(r["measured"]["median"]))
            differ = slow["measured"]["high"] < fast["measured"]["low"]
            if differ and slow["predicted"]["estimate"] > fast["predicted"]["estimate"]:
                yield f"{slow['run']} {slow['what']} before {fast['what']}"


def summary(rows: list[Row]) -> Row:
    errors = np.abs([r["error_percent"] for r in rows])
    wrong = [r for r in rows if (r["predicted"]["estimate"] - 1) * (r["measured"]["median"] - 1) < 0]
    claimed = [r for r in wrong if not r["predicted"]["low"] < 1 < r["predicted"]["high"]]
    return {
        "predictions": len(rows),
        "median_error_percent": round(float(np.median(errors)), 2),
        "largest_error_percent": round(float(errors.max()), 2),
        "wrong_sign": [f"{r['run']} {r['what']}" for r in wrong],
        "wrong_sign_claimed": [f"{r['run']} {r['what']}" for r in claimed],
        "wrong_order": list(wrong_order(rows)),
        "inside_interval": sum(r["holds"] for r in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--json", type=Path, help="save the result here")
    options = parser.parse_args()
    rows = [
        *llama_cpp(),
        *samples(),
        *recorded(options.recordings / "whatif"),
        *branches(options.recordings / "whatif", other_configuration),
        *idle_syncs(options.recordings / "idle"),
    ]
    for r in rows:
        p, m = r["predicted"], r["measured"]
        print(
            f"{r['kind']:16} {r['run']:36} {r['what']:15} {p['estimate']:.4f} [{p['low']:.3f}, {p['high']:.3f}]  "
            f"measured {m['median']:.4f}  {r['error_percent']:+6.2f} %{'' if r['holds'] else '  outside'}"
        )
    kinds = {kind: summary([r for r in rows if r["kind"] == kind]) for kind in dict.fromkeys(r["kind"] for r in rows)}
    total = summary(rows)
    new = [r for r in rows if r.get("unseen")]
    fresh = {kind: summary([r for r in new if r["kind"] == kind]) for kind in dict.fromkeys(r["kind"] for r in new)}
    unseen = summary(list(branches(options.recordings / "whatif", other_model)))
    print(json.dumps({"all": total, **kinds, "branches, learned from other models": unseen, "unseen": fresh}, indent=1))
    if options.json:
        measured = json.loads((options.recordings / "whatif" / "measured.json").read_text())
        facts = {
            "benchmark": "whatif_prediction", "date": date.today().isoformat(), "commit": measured["commit"],
            "summary": total, "by_kind": kinds, "branches_of_unseen_models": unseen, "unseen": fresh,
            "unseen_summary": summary(new), "rows": rows,
            "machine": measured["machine"],
        }  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
