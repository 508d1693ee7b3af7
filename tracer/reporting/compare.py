"""The output of `intertoken compare`: JSON facts, table rows and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

import pandas as pd
from rich.table import Table
from rich.text import Text

from tracer.analysis.causes import CAUSES, present
from tracer.analysis.compare import Basis, Comparison, Side
from tracer.analysis.interval import Interval
from tracer.analysis.recorded import COUNTS
from tracer.reporting import console as report
from tracer.reporting.compare_words import (
    BUSY,
    DISTORTION,
    GAP,
    RATES,
    cause_row,
    count_row,
    difference,
    needed_row,
    percent,
    sentence,
)
from tracer.text import signed

_MOST_KERNELS: Final = 10
_BESIDE: Final = 2  # most other runs for which figure and change fit on one line
_BASIS: Final[dict[Basis, str]] = {
    "untraced": "without a profiler",
    "light": "of the recorded steps, without a profiler",
    "traced": "of the recorded steps, traced (tracing does not slow all runs equally)",
}
_NOTHING: Final[dict[str, float | None]] = {"estimate": None, "low": None, "high": None}
_COLOURS: Final = {"faster": "green", "slower": "red"}


def run_facts(run: Side) -> dict[str, Any]:
    """A run's own figures, with its rates on the best basis available; null if unknown."""
    first, rates = run.recordings[0], run.rates(run.basis)
    return {
        "name": run.name,
        "basis": run.basis,
        "tokens_per_s": rates.get("tokens/s"),
        "steps_per_s": rates.get("steps/s"),
        "gap_us": run.gap_us,
        "causes_us": run.causes_us,
        "busy_us": float(run.steps["busy"].mean()),
        **{f"{kind}_per_token": run.counts.get(kind) for kind in COUNTS},
        "class": first.strategy,
        "signature": first.signature,
        "steps": len(run.steps),
        "recordings": len(run.recordings),
        "graph_trace": first.graph_trace,
        "distortion": first.distortion,
        "gap_corrected": first.corrected,
    }


def comparison_facts(comparison: Comparison) -> dict[str, Any]:
    """The figures that the comparison adds to the other run's; null if the recordings lack the data."""
    return {
        "speedup": _facts(comparison.speedup),
        "verdict": comparison.verdict,
        "why": None if comparison.refusal is None else comparison.refusal.why,
        "instead": None if comparison.refusal is None else comparison.refusal.instead,
        "sentence": sentence(comparison),
        "method": comparison.method,
        "paired": comparison.paired,
        "total_speedup": comparison.total_speedup,
        "needed": comparison.needed,
        "unit": comparison.unit,
        "difference": {
            "gap_us": _facts(comparison.gap_us),
            "mean_gap_us": _facts(comparison.mean_gap_us),
            "causes_us": {name: _facts(comparison.causes_us.get(name)) for name in CAUSES.values()},
            "busy_us": _facts(comparison.busy_us),
            **{f"{kind}_per_token": comparison.counts.get(kind) for kind in comparison.base.counts},
        },
        "kernels": comparison.kernels.astype(object).where(comparison.kernels.notna(), None).to_dict("records"),
        "cautions": comparison.cautions,
    }


def _facts(change: Interval | None) -> dict[str, float | None]:
    return dict(_NOTHING) if change is None else asdict(change)


def compare_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """One row per other run and figure: run, figure, base, other, estimate (ratio or difference), low, high.

    Rows of the distortion and of the required sample size (`needed UNIT`, in `other`) have no change; nor do figures
    that the recordings lack.
    """
    return pd.DataFrame(chain.from_iterable(_rows(comparison) for comparison in comparisons))


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    def row(figure: str, base: float | None, other: float | None, change: Interval | None) -> dict[str, Any]:
        return {"run": comparison.other.name, "figure": figure, "base": base, "other": other, **_facts(change)}

    runs = comparison.base, comparison.other
    base, other = map(run_facts, runs)
    rates = [run.rates(run.basis).get(comparison.rate) for run in runs]
    yield row(RATES[comparison.rate], rates[0], rates[1], comparison.speedup)
    yield row(GAP, base["gap_us"]["p50"], other["gap_us"]["p50"], comparison.gap_us)
    yield row("gap_us mean", base["gap_us"]["mean"], other["gap_us"]["mean"], comparison.mean_gap_us)
    for cause in CAUSES.values():
        if cause in present(base["causes_us"]) | present(other["causes_us"]):
            own = base["causes_us"][cause], other["causes_us"][cause]
            yield row(cause_row(cause), *own, comparison.causes_us.get(cause))
    yield row(BUSY, base["busy_us"], other["busy_us"], comparison.busy_us)
    for kind in COUNTS:
        own = base[f"{kind}_per_token"], other[f"{kind}_per_token"]
        if own != (None, None):
            yield row(count_row(kind), *own, Interval(comparison.counts[kind]) if kind in comparison.counts else None)
    distortions = base["distortion"], other["distortion"]
    yield {"run": comparison.other.name, "figure": DISTORTION, "base": distortions[0], "other": distortions[1]}
    if comparison.needed is not None:
        yield {"run": comparison.other.name, "figure": needed_row(comparison.unit), "other": comparison.needed}
    for kernel in comparison.kernels.to_dict("records"):
        change = Interval(*(kernel[f"difference_{part}"] for part in ("us", "low", "high")))
        yield row(
            f"kernel_us {kernel['name']} of {kernel['blocks']} blocks", kernel["base_us"], kernel["other_us"], change
        )


def show_comparison(base: Side, comparisons: Sequence[Comparison]) -> None:
    """Print the cautions, then the sentences, the runs side by side, and the kernels that changed."""
    for caution in dict.fromkeys(text for comparison in comparisons for text in comparison.cautions):
        report.show(report.styled(f"warning: {caution}", "yellow"))
    for comparison in comparisons:
        report.show(report.styled(sentence(comparison), _COLOURS.get(comparison.verdict, "")))
    report.show(Text(), _side_by_side(base, comparisons), Text())
    for comparison in comparisons:
        kernels = comparison.kernels[comparison.kernels["verdict"] != ""].head(_MOST_KERNELS)
        if len(kernels):
            report.show(_kernel_table(kernels))
    report.show(report.styled(_about(base, comparisons), "dim"))


def _about(base: Side, comparisons: Sequence[Comparison]) -> str:
    """The origin of the rates and of the intervals."""
    runs: dict[Basis, list[str]] = {}
    for run in (base, *(comparison.other for comparison in comparisons)):
        runs.setdefault(run.basis, []).append(run.name)
    of = {basis: "" if len(runs) == 1 else f"of {', '.join(names)} " for basis, names in runs.items()}
    rates = [f"{names}{_BASIS[basis]}" for basis, names in of.items()]
    methods = ", ".join(
        dict.fromkeys(comparison.method for comparison in comparisons if comparison.speedup is not None)
    )
    return f"rates {'; '.join(rates)}; {f'95 % intervals: {methods}; ' if methods else ''}times in µs"


def _side_by_side(base: Side, comparisons: Sequence[Comparison]) -> Table:
    facts = [run_facts(run) for run in (base, *(comparison.other for comparison in comparisons))]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("per token")
    for fact in facts:
        table.add_column(report.styled(fact["name"]), justify="right", overflow="fold")

    between = "\n" if len(comparisons) > _BESIDE else "  "

    def add(label: str, own: Sequence[str], changes: Sequence[str]) -> None:
        table.add_row(
            label,
            *(
                Text(f"{a}{between}{b if between == '  ' else b.replace(' [', between + '[')}".rstrip())
                for a, b in zip(own, ("", *changes), strict=True)
            ),
        )

    for unit, key in (("tokens/s", "tokens_per_s"), ("steps/s", "steps_per_s")):
        of = [percent(c.speedup) if c.rate == unit else "" for c in comparisons]
        if any(of) or (unit == "tokens/s" and any(f[key] for f in facts)):
            add(unit, [report.number(f[key]) for f in facts], of)
    for name in ("p50", "mean"):
        changes = [c.gap_us if name == "p50" else c.mean_gap_us for c in comparisons]
        add(f"gap {name}", [f"{f['gap_us'][name]:,.1f}" for f in facts], [difference(c) for c in changes])
    for cause in CAUSES.values():
        if any(f["causes_us"][cause] for f in facts):
            changes = [c.causes_us.get(cause) for c in comparisons]
            add(f"  {cause}", [f"{f['causes_us'][cause]:,.1f}" for f in facts], [difference(c) for c in changes])
    add("GPU busy", [f"{f['busy_us']:,.1f}" for f in facts], [difference(c.busy_us) for c in comparisons])
    for kind in COUNTS:
        changed = [c.counts.get(kind) for c in comparisons]
        add(kind, [report.number(f[f"{kind}_per_token"]) for f in facts], [signed(c) if c else "" for c in changed])
    add("tracing overhead, ×", [report.number(f["distortion"], 2) for f in facts], [""] * len(comparisons))
    add("class", [f["class"] or "–" for f in facts], [""] * len(comparisons))
    return table


def _kernel_table(kernels: pd.DataFrame) -> Table:
    rows = [
        {
            "name": row["name"], "blocks": row["blocks"], "verdict": row["verdict"],
            "calls": row["other_calls"] or row["base_calls"], "difference": signed(row["difference_us"], 2),
            "ratio": f"{row['per_call_ratio']:.3f} [{row['per_call_low']:.3f}, {row['per_call_high']:.3f}]"
            if pd.notna(row["per_call_ratio"]) else "–",
        }
        for row in kernels.to_dict("records")
    ]  # fmt: skip
    headings = {
        "name": "kernel", "blocks": "blocks ≤", "calls": "calls", "difference": "µs per token",
        "ratio": "time per call, ratio", "verdict": "",
    }  # fmt: skip
    return report.table_of(rows, headings)
