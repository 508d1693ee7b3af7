"""Comparisons with a base as JSON facts, as table rows, as text, and as a matrix of figures and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan, log
from typing import Any, Final

import pandas as pd
from rich.table import Table
from rich.text import Text

from tracer.analysis.causes import CAUSES
from tracer.analysis.compare import DISTORTION, LABELS, Basis, Comparison, Line, Side, figure_of_cause
from tracer.analysis.interval import Interval
from tracer.analysis.kernel_changes import KernelChanges
from tracer.analysis.recorded import COUNTS
from tracer.reporting import console as report
from tracer.reporting.compare_words import RATE_BASIS, difference, gap_of, is_shown, percent, sentence
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
        "gap_us": dict(run.gap_us),
        "causes_us": dict(run.causes_us),
        "busy_us": run.busy_us,
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
        "seconds": comparison.seconds,
        "difference": {
            "gap_us": _facts(comparison.gap_us),
            "mean_gap_us": _facts(comparison.mean_gap_us),
            "causes_us": {name: _facts(comparison.causes_us.get(name)) for name in CAUSES.values()},
            "busy_us": _facts(comparison.busy_us),
            **{f"{kind}_per_token": comparison.counts.get(kind) for kind in comparison.base.counts},
        },
        "kernels": [
            {key: None if value != value else value for key, value in kernel.items()}
            for kernel in comparison.kernels.records()
        ],
        "cautions": comparison.cautions,
    }


def _facts(change: Interval | None) -> dict[str, float | None]:
    return dict(_NOTHING) if change is None else asdict(change)


def compare_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """One row per other run and figure: run, figure, base, other, estimate (ratio or difference), low, high.

    Rows of the distortion and of the required sample size (`needed UNIT`, in `other`) have no change; nor do figures
    that the recordings lack.
    """
    rows = [
        {"run": one.other.name, "figure": line.figure, "base": line.base, "other": line.other, **_facts(line.change)}
        for one in comparisons
        for line in (*one.lines(), *_of_kernels(one))
    ]
    return pd.DataFrame(rows, columns=["run", "figure", "base", "other", *_NOTHING])


def _of_kernels(comparison: Comparison) -> Iterator[Line]:
    for kernel in comparison.kernels.records():
        change = Interval(*(kernel[f"difference_{part}"] for part in ("us", "low", "high")))
        figure = f"kernel_us {kernel['name']} of {kernel['blocks']} blocks"
        yield Line(figure, kernel["base_us"], kernel["other_us"], change)


def show_comparison(base: Side, comparisons: Sequence[Comparison], most_cautions: int | None = None) -> None:
    """Print the sentences, the runs side by side, and the kernels that changed; then the first cautions."""
    for comparison in comparisons:
        report.show(report.styled(sentence(comparison), _COLOURS.get(comparison.verdict, "")))
    report.show(Text(), _side_by_side(base, comparisons), Text())
    for comparison in comparisons:
        kernels = comparison.kernels[comparison.kernels.verdict != ""][:_MOST_KERNELS]
        if len(kernels):
            report.show(_kernel_table(kernels))
    report.show(report.styled(_about(base, comparisons), "dim"))
    cautions = list(dict.fromkeys(text for comparison in comparisons for text in comparison.cautions))
    for caution in cautions[:most_cautions]:
        report.show(report.styled(f"warning: {caution}", "yellow"))
    if most_cautions is not None and (more := len(cautions[most_cautions:])):
        report.show(report.styled(f"{more} more warning{'s' * (more > 1)}: -v", "dim"))


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
    runs = [base, *(comparison.other for comparison in comparisons)]
    facts = [run_facts(run) for run in runs]
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
        own = [gap_of(run, name) for run in runs]
        add(f"gap {name}", own, [difference(c) for c in changes])
    for cause in CAUSES.values():
        if any(f["causes_us"][cause] for f in facts):
            changes = [c.causes_us.get(cause) for c in comparisons]
            add(f"  {cause}", [_fixed(f["causes_us"][cause]) for f in facts], [difference(c) for c in changes])
    add("GPU busy", [f"{f['busy_us']:,.1f}" for f in facts], [difference(c.busy_us) for c in comparisons])
    for kind in COUNTS:
        changed = [c.counts.get(kind) for c in comparisons]
        add(kind, [report.number(f[f"{kind}_per_token"]) for f in facts], [signed(c) if c else "" for c in changed])
    add("tracing overhead, ×", [report.number(f["distortion"], 2) for f in facts], [""] * len(comparisons))
    add("class", [f["class"] or "–" for f in facts], [""] * len(comparisons))
    return table


def _fixed(us: float | None) -> str:
    return "–" if us is None else f"{us:,.1f}"


def _kernel_table(kernels: KernelChanges) -> Table:
    rows = [
        {
            "name": row["name"], "blocks": row["blocks"], "verdict": row["verdict"],
            "calls": row["other_calls"] or row["base_calls"], "difference": signed(row["difference_us"], 2),
            "ratio": f"{row['per_call_ratio']:.3f} [{row['per_call_low']:.3f}, {row['per_call_high']:.3f}]"
            if row["per_call_ratio"] == row["per_call_ratio"] else "–",
        }
        for row in kernels.records()
    ]  # fmt: skip
    headings = {
        "name": "kernel", "blocks": "blocks ≤", "calls": "calls", "difference": "µs per token",
        "ratio": "time per call, ratio", "verdict": "",
    }  # fmt: skip
    return report.table_of(rows, headings)


# --- the matrix: figures as rows, runs as columns, the largest difference of a row marked ---

_OF_CAUSES: Final = {figure_of_cause(cause) for cause in CAUSES.values()}


@dataclass(frozen=True)
class Cell:
    """A run's own figure, and its difference from the base with the interval; "" if there is none.

    `is_largest` marks the largest difference of the line that excludes 0 (`is_shown`); if only one run
    is compared, the cause that changes most.
    """

    text: str
    change: str = ""
    is_largest: bool = False


@dataclass(frozen=True)
class Row:
    """A figure: its name, its label, its value in the base, and a cell for each other run."""

    figure: str
    label: str
    base: str
    cells: list[Cell]


def matrix(comparisons: Sequence[Comparison]) -> list[Row]:
    """The matrix of comparisons with one base."""
    bases = {(one.rate, one.basis) for one in comparisons}
    tables = [dict(_named(one, several=len(bases) > 1)) for one in comparisons]
    names = dict.fromkeys(name for table in tables for name in table)
    ordered = sorted(names, key=lambda name: list(LABELS).index(name[0]))
    sizes = {
        name: [_size(one, table.get(name)) for one, table in zip(comparisons, tables, strict=True)] for name in ordered
    }
    lit = _largest(sizes)
    return [
        Row(
            name[0], f"{LABELS[name[0]]}{name[1]}",
            next(number_of(name[0], table[name].base) for table in tables if name in table),
            [replace(_cell(table.get(name)), is_largest=(name, at) in lit) for at, table in enumerate(tables)],
        )
        for name in ordered
    ]  # fmt: skip


_Name = tuple[str, str]
"""A line: its figure, and the suffix of its label if several lines have that figure."""


def _named(comparison: Comparison, several: bool) -> Iterator[tuple[_Name, Line]]:
    """The lines of a comparison; rates on different bases have separate lines."""
    for line in comparison.lines():
        yield (line.figure, f", {RATE_BASIS[comparison.basis]}" if several and line.is_rate else ""), line


def _cell(line: Line | None) -> Cell:
    if line is None:
        return Cell("–")
    return Cell(number_of(line.figure, line.other), (percent if line.is_rate else difference)(line.change))


def _size(comparison: Comparison, line: Line | None) -> float:
    """The size of a difference, 0 if its interval includes 0."""
    if line is None or line.change is None:
        return 0.0
    if line.is_rate:
        return abs(log(line.change.estimate)) if comparison.verdict in ("faster", "slower") else 0.0
    return abs(line.change.estimate) if is_shown(line.change) else 0.0


def _largest(sizes: dict[_Name, list[float]]) -> set[tuple[_Name, int]]:
    """The marked cells, as line and index in it."""
    if all(len(line) > 1 for line in sizes.values()):
        groups = [{(name, at): size for at, size in enumerate(line)} for name, line in sizes.items()]
    else:
        groups = [{(name, 0): line[0] for name, line in sizes.items() if name[0] in _OF_CAUSES}]
    return {max(group, key=lambda place: group[place]) for group in groups if any(group.values())}


def number_of(figure: str, value: float | None) -> str:
    """Format a run's own figure."""
    if value is None or isnan(value):
        return "–"
    return f"{value:,.{2 if figure == DISTORTION else 1}f}".removesuffix(".0")
