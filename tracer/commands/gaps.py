"""How long the device idles within and between steps, and why."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.text import Text

from tracer.analysis.call_sites import host_steps, without_site
from tracer.analysis.causes import CAUSES, PART_NAMES, present
from tracer.analysis.distortion import UNUSED_RATE
from tracer.analysis.gaps import GapReport
from tracer.analysis.idle import PLACES
from tracer.analysis.idle_sites import Sampled, idle_by_site, idle_stacks, sampled_functions
from tracer.analysis.streams import WAITS, bubble_report
from tracer.analysis.summary import Summary
from tracer.analysis.waited_for import named
from tracer.command_options import Bounds, Save, emit, load, table_option, trace_options, untraced_option
from tracer.files.output import check_output, write_output
from tracer.model.collectives import shown_name
from tracer.reporting import console as report
from tracer.reporting.console import number
from tracer.reporting.engines import Rows, in_us, joined_tables, notes_of, show_side_by_side, side_by_side
from tracer.reporting.exports import STACKS, write_stacks
from tracer.stored import node_kernels
from tracer.text import counted, spelled

if TYPE_CHECKING:
    from tracer.analysis.recording import Recording

_MOST_HOLES: Final = 20
"""Kinds of holes in JSON; the text shows those with at least `_LEAST` of the idle time."""
_LEAST: Final = 0.05
_WORTH: Final = 0.002  # of the idle time: threads that are waited for less are shown in JSON alone
_MOST_SITES: Final = 25


@click.command()
@trace_options
@untraced_option
@table_option(
    "one row per gap, as recorded: the preceding step, device, and in ns start, end, gap, the causes communication, "
    "sync, copy, launch, host and other (process or thread), which add up to gap, and the parts of each (sync_wait, "
    "...); calls is the number of CUDA calls in the gap, graph_launch is 1 if a CUDA graph ends it"
)
@click.option("--bubbles", "inside", is_flag=True, help="Also show the idle time inside steps, and of each stream.")
@click.option(
    "--call-sites", "with_sites", is_flag=True,
    help="Also show where in the program the host is while the device idles: the Python function (torch.profiler's "
    "with_stack=True), else the enclosing range or operator; and the functions in nsys's samples of the CPU.",
)  # fmt: skip
@click.option(
    "--stacks", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the host's activity while the device idles as collapsed stacks in ns (.folded or .txt), for speedscope "
    "or flamegraph.pl.",
)  # fmt: skip
@click.option(
    "--host-stacks", metavar="FILE", type=click.Path(path_type=Path),
    help="Write the host's time in the median step and in a slow one as stacks: .json for speedscope, .folded or .txt "
    "as collapsed stacks in ns.",
)  # fmt: skip
def gaps(
    path: Path, within: str | None, bounds: Bounds, as_json: bool, untraced_steps_per_s: float | None, save: Save,
    inside: bool, with_sites: bool, stacks: Path | None, host_stacks: Path | None,
) -> None:  # fmt: skip
    """Show how long the device idles within and between steps, and why.

    A profiler slows what it records. The engine's own rate, measured without a profiler, corrects the idle time and
    the gap; a traced recording alone cannot show them.

    \b
    Examples:
      intertoken gaps llama1b-sccc-graph.sqlite --untraced-tokens-per-s 748.7
      intertoken gaps llama1b-sccc-node.sqlite --bubbles
    """
    if stacks is not None:
        check_output(stacks, "a file of stacks", [".folded", ".txt"], replace=False)
    if host_stacks is not None:
        check_output(host_stacks, "a file of stacks", STACKS, replace=False)
    with_functions = with_sites or stacks is not None or host_stacks is not None
    recording = load(path, within, bounds, untraced_steps_per_s, python_functions=with_functions)
    if with_functions or inside or untraced_steps_per_s:
        recording.steps.of_one_engine()
    if recording.engines:
        save(joined_tables(recording, lambda one: one.gaps_at_rate.table))
        emit(as_json, side_by_side(recording, _facts), _show_engines, notes_of(recording))
        return
    trace, steps, at_rate = recording.trace, recording.steps, recording.gaps_at_rate
    facts = _facts(recording)
    save(at_rate.table)
    facts |= {"bubbles": bubble_report(trace, steps).records()} if inside else {}
    if stacks is not None:
        lines = [f"{stack or '(nothing)'} {ns}\n" for stack, ns in idle_stacks(trace, steps, at_rate.idle).items()]
        write_output(stacks, lambda partial: partial.write_text("".join(lines), encoding="utf-8"), replace=False)
    sampled = sampled_functions(trace, steps, at_rate.idle) if with_functions else None
    if host_stacks is not None:
        hosts = [*host_steps(trace, steps), *([sampled.host_step()] if sampled else [])]
        write = partial(write_stacks, hosts, suffix=host_stacks.suffix.lower())
        write_output(host_stacks, write, replace=False)
    if with_sites:
        sites = idle_by_site(trace, steps, at_rate.idle)
        facts["idle_sites"] = sites.frame().to_dict("records")
        facts |= _sampled_facts(sampled)
        recording.notes.extend(without_site(sites.unknown))
    facts |= report.rank_facts(recording, at_rate.gaps)
    unused = [UNUSED_RATE] if untraced_steps_per_s and at_rate.warning is None else []
    placed = node_kernels(path, trace, steps)
    emit(as_json, facts, _show_gaps, [*recording.notes, *unused, *([placed.note] if placed else [])])


def _facts(recording: Recording) -> dict[str, Any]:
    summary, at_rate = recording.figures("steps", "gaps"), recording.gaps_at_rate
    is_open = bool(recording.rates) and at_rate.is_undetermined
    shown = at_rate.corrected() if recording.rates and not is_open else at_rate
    return {
        "schema": "intertoken.gaps/1",
        **_idle_facts(summary, at_rate),
        "gap_us": None if is_open else {name: shown.gap_us.get(name) for name in at_rate.gap_us},
        "causes_us": present(shown.causes_us),
        "parts_us": {cause: shown.parts_us[cause] for cause in present(shown.causes_us)},
        "steps": summary.steps,
        "gaps": len(at_rate.table),
        "steps_per_s": summary.steps_per_s,
        "graph_trace": summary.graph_trace,
        "distortion": summary.distortion,
        "period_us": summary.period_us,
        "compute_us": summary.compute_us,
        "traced_gap_us": at_rate.gap_us,
        "untraced_gap_us": at_rate.untraced_gap_us,
        "estimated_untraced_gap_us": summary.estimated_untraced_gap_us and summary.estimated_untraced_gap_us.facts,
        "token_source": summary.token_source,
        "warning": shown.warning,
        "left_out": at_rate.left_out,
    }


def _idle_facts(summary: Summary, report: GapReport) -> dict[str, Any]:
    """The idle time in the JSON of `intertoken gaps`."""
    return {
        "idle_us": summary.idle_us,
        "idle_share": summary.idle_share,
        "busy_us": summary.busy_us,
        "idle_where": summary.idle_where,
        "idle_causes_us": {place: present(causes) for place, causes in report.idle.causes_us.items()},
        "idle_parts_us": report.idle.parts_us,
        "untraced_idle_us": report.untraced_idle_us,
        **_by_rate(report),
        **({"estimated_untraced_idle_us": wide.facts} if (wide := report.estimated_idle) else {}),
        "idle_threads": [asdict(thread) for thread in report.idle.threads],
        "holes": report.idle.holes.head(_MOST_HOLES).to_dict("records"),
    }


def _by_rate(report: GapReport) -> dict[str, Any]:
    """The intervals of what an untraced rate tells; nothing without one."""
    if not report.between:
        return {}
    intervals = {name: {"low": of.low, "high": of.high} for name, of in report.between.items()}
    return {"untraced_intervals_us": intervals, "always_busy": report.always_busy}


def _sampled_facts(sampled: Sampled | None) -> dict[str, Any]:
    """What samples show of the idle time, in the JSON of `intertoken gaps --call-sites`; nothing without samples."""
    if sampled is None:
        return {}
    figures = {"samples": sampled.samples, "idle_us": sampled.idle_us, "unresolved_share": sampled.unresolved}
    return {"sampled": figures | {"functions": sampled.functions.frame().to_dict("records"), "note": sampled.note}}


def _show_engines(facts: dict[str, Any]) -> None:
    """Print `intertoken gaps` of several engines."""
    causes = dict.fromkeys(name for one in facts["engines"] for name in one["causes_us"] or ())
    rows: Rows = {
        "idle p50 a step": lambda one: f"{in_us(one['idle_us']['p50'])}, {one['idle_share']:.0%} of the time",
        "mostly": lambda one: one["idle_where"],
        "gap p50": lambda one: in_us(one["gap_us"]["p50"]),
        "gap p90": lambda one: in_us(one["gap_us"]["p90"]),
        "gap mean": lambda one: in_us(one["gap_us"]["mean"]),
        **{f"  {name}": partial(_cause, name) for name in causes},
        "over": lambda one: (
            f"{counted(one['gaps'], 'gap')} between {counted(one['steps'], 'step')} (from {one['token_source']})"
        ),
    }
    show_side_by_side(facts, rows)


def _over(one: dict[str, Any]) -> str:
    return f"{counted(one['gaps'], 'gap')} between {counted(one['steps'], 'step')} (from {one['token_source']})"


def _cause(name: str, one: dict[str, Any]) -> str | None:
    return in_us(one["causes_us"].get(name))


def _show_gaps(facts: dict[str, Any]) -> None:
    """Print `intertoken gaps`."""
    console = report.new_console()
    _show_idle(console, facts)
    gap, causes = facts["gap_us"] or facts["traced_gap_us"], facts["causes_us"]
    corrected = gap != facts["traced_gap_us"]
    how = "   (untraced, corrected)" if corrected else report.distortion_words(facts["distortion"])
    over = f"{_over(facts)}, "
    over += f"CUDA graphs traced: {facts['graph_trace']}"
    estimated = report.estimated_row(facts["estimated_untraced_gap_us"], (facts["untraced_gap_us"] or {}).get("mean"))
    console.print(report.grid({"gap": _statistics(gap) + how, **estimated, "over": over}))
    console.print(report.cause_bar(causes))
    total = sum(causes.values()) or 1.0
    for name, us in causes.items():
        line = Text("█ ", style=report.CAUSE_STYLES.get(name, ""))
        line.append(f"{name:<50}{number(us):>8} µs  {us / total:>4.0%}", style="default")
        console.print(line)
        for part, part_us in facts["parts_us"][name].items():
            if part_us:  # with enough digits that it does not appear as 0
                shown = number(part_us) if part_us >= 0.05 else f"{part_us:.3f}"
                console.print(Text(f"    {PART_NAMES[part]:<48}{shown:>8} µs  {part_us / total:>4.0%}", "dim"))
    if corrected:
        recorded = f"{number(facts['traced_gap_us']['p50'])} µs{report.distortion_words(facts['distortion'])}"
        console.print(Text(f"as recorded: p50 {recorded}; the places keep their recorded proportions", "dim"))
    report.warn(console, facts["warning"])
    report.warn(console, facts["left_out"])
    report.show_ranks(console, facts)
    if facts.get("idle_sites"):
        headings = {
            "where": "host, while the device idles (as recorded)", "idle_us": "µs a step", "of": "",
            "calls_us": "of it in CUDA calls",
        }  # fmt: skip
        rows = [row | {"where": row["site"] or "–", "of": f"{row['share']:.0%}"} for row in facts["idle_sites"]]
        console.print()
        console.print(report.table_of(rows[:_MOST_SITES], headings))
        if len(rows) > _MOST_SITES:
            rest = sum(row["idle_us"] for row in rows[_MOST_SITES:])
            more = f"and {len(rows) - _MOST_SITES} others, {number(rest)} µs a step (--json shows all)"
            console.print(Text(more, "dim"))
    if "sampled" in facts:
        _show_sampled(console, facts["sampled"])
    if "bubbles" in facts:
        _show_bubbles(console, facts["bubbles"])


def _show_sampled(console: Console, facts: dict[str, Any]) -> None:
    headings = {
        "function": "function, in samples", "self_us": "µs a step", "of": "of samples", "total_us": "callees included",
    }  # fmt: skip
    rows = [
        row | {"of": f"{row['self_share']:.1%} [{row['self_low']:.1%}, {row['self_high']:.1%}]"}
        for row in facts["functions"][:_MOST_SITES]
    ]
    console.print()
    console.print(report.table_of(rows, headings))
    console.print(Text(facts["note"], "dim"))


def _show_idle(console: Console, facts: dict[str, Any]) -> None:
    idle = facts["idle_us"]
    if not idle:
        return
    share = f"{facts['idle_share']:.0%} of the time; busy {number(facts['busy_us'])} µs"
    rows = {"idle": f"{_statistics(idle)} a step   ({share})"}
    if facts["untraced_idle_us"]:
        rows["untraced"] = _untraced(facts)
    if facts["idle_where"]:
        rows[report.where_label(facts)] = facts["idle_where"]
    console.print(report.grid(rows))
    whole = idle["mean"] or 1.0
    for place, name in PLACES.items():
        console.print(Text(f"  {name:<50}{number(idle[place]):>8} µs  {idle[place] / whole:>4.0%}"))
        parts = {part: us for inner in facts["idle_parts_us"][place].values() for part, us in inner.items()}
        for part, us in sorted(parts.items(), key=lambda each: -each[1]):
            if us >= _LEAST * whole:
                console.print(Text(f"      {PART_NAMES[part]:<46}{number(us):>8} µs  {us / whole:>4.0%}", "dim"))
    threads = [{**row, "who": named(row)} for row in facts["idle_threads"] if row["idle_us"] >= _WORTH * whole]
    if threads:
        console.print(report.table_of(threads, {"who": "the host waits for", "idle_us": "µs a step", "how": "which"}))
    holes = [
        {
            **hole, "place": PLACES[hole["place"]], "next": spelled(shown_name(hole["next"]))[:70],
            "part": PART_NAMES[hole["part"]],
        }
        for hole in facts["holes"] if hole["idle_us"] >= _LEAST * whole
    ]  # fmt: skip
    if holes and any(idle[place] for place in PLACES if place != "between_steps"):
        headings = {
            "next": "idle before", "place": "where", "count": "times a step", "idle_us": "µs a step", "part": "mostly",
        }  # fmt: skip
        console.print(report.table_of(holes, headings))
    console.print()


def _untraced(facts: dict[str, Any]) -> str:
    """The idle time by the rate, p50 and mean with their intervals."""
    intervals, figures = facts["untraced_intervals_us"], facts["untraced_idle_us"]
    if facts["always_busy"]:
        return f"0 to {number(intervals['idle_us mean']['high'])} µs: the device is always busy"
    each = (f"{name} {_with_bounds(figures[name], **intervals[f'idle_us {name}'])}" for name in ("p50", "mean"))
    return f"{'   '.join(each)}: 1 / rate - busy"


def _with_bounds(us: float | None, low: float, high: float) -> str:
    """A time with its interval; the interval alone if there is no figure."""
    if us is None:
        return f"{number(low)} to {number(high)} µs"
    return f"{number(us)} µs [{number(low)}, {number(high)}]"


def _statistics(us: dict[str, float | None]) -> str:
    """Format the known statistics."""
    return "   ".join(f"{name} {number(us[name])} µs" for name in ("p50", "p90", "mean") if us[name] is not None)


def _show_bubbles(console: Console, facts: dict[str, Any]) -> None:
    headings = {
        "device": "device", "count": "bubbles a step", "total_us": "µs a step", "longest_us": "longest µs",
        **{f"{cause}_us": cause for cause in CAUSES},
    }  # fmt: skip
    if not any(row["communication_us"] for row in facts["devices"]):
        del headings["communication_us"]
    console.print(Text("\nbubbles: idle time inside the steps (causes in µs a step):"))
    console.print(report.table_of(facts["devices"], headings))
    console.print(Text("\nstreams: idle time inside a step (µs a step), and what they wait for:"))
    waits = {f"{wait}_us": name for wait, name in WAITS.items()}
    rows = [row | {"waits_on": None if row["waits_on"] < 0 else row["waits_on"]} for row in facts["streams"]]
    headings = {"device": "device", "stream": "stream", "idle_us": "idle", **waits, "waits_on": "mostly on stream"}
    console.print(report.table_of(rows, headings))
