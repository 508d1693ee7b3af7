"""How long the device idles within and between steps, and why."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from tracer.command_options import Bounds, emit, load, trace_options, untraced_option
from tracer.files.output import check_output, write_output
from tracer.files.tables import Save, table_option
from tracer.reporting.ranks import rank_facts


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
    path: Path,
    within: str | None,
    bounds: Bounds,
    as_json: bool,
    untraced_tokens_per_s: float | None,
    save: Save,
    inside: bool,
    with_sites: bool,
    stacks: Path | None,
    host_stacks: Path | None,
) -> None:
    """Show how long the device idles within and between steps, and why.

    A profiler slows what it records. The engine's own rate, measured without a profiler, corrects the idle time and
    the gap; a traced recording alone cannot show them.

    \b
    Examples:
      intertoken gaps llama1b-sccc-graph.sqlite --untraced-tokens-per-s 748.7
      intertoken gaps llama1b-sccc-node.sqlite --bubbles
    """
    from tracer.analysis.bubbles import bubble_report
    from tracer.analysis.call_sites import without_site
    from tracer.analysis.causes import present
    from tracer.analysis.distortion import UNUSED_RATE
    from tracer.analysis.gaps import gap_report, measured_rate
    from tracer.analysis.idle_sites import idle_by_site, idle_stacks
    from tracer.analysis.sampled import sampled_functions
    from tracer.analysis.step_stacks import host_steps
    from tracer.analysis.summary import figures
    from tracer.reporting.gaps import idle_facts, sampled_facts, show_gaps
    from tracer.reporting.stacks import SUFFIXES, write_stacks
    from tracer.stored.run_passes import node_kernels

    if stacks is not None:
        check_output(stacks, "a file of stacks", [".folded", ".txt"], replace=False)
    if host_stacks is not None:
        check_output(host_stacks, "a file of stacks", SUFFIXES, replace=False)
    with_functions = with_sites or stacks is not None or host_stacks is not None
    trace, steps = load(path, within, bounds, python_functions=with_functions)
    report = gap_report(trace, steps, untraced_tokens_per_s or measured_rate(trace, steps, within))
    gives_gap = report.untraced_gap_us is not None or report.untraced_idle_us is None
    shown = report.corrected() if untraced_tokens_per_s and gives_gap else report
    save(report.table)
    summary = figures(trace, path.name, steps, gaps=report, within=within)
    facts = {
        "schema": "intertoken.gaps/1",
        **idle_facts(summary, report),
        "gap_us": {name: shown.gap_us.get(name) for name in report.gap_us},
        "causes_us": present(shown.causes_us),
        "parts_us": {cause: shown.parts_us[cause] for cause in present(shown.causes_us)},
        "steps": summary.steps,
        "gaps": len(report.table),
        "steps_per_s": summary.steps_per_s,
        "graph_trace": summary.graph_trace,
        "distortion": summary.distortion,
        "period_us": summary.period_us,
        "compute_us": summary.compute_us,
        "traced_gap_us": report.gap_us,
        "untraced_gap_us": report.untraced_gap_us,
        "estimated_untraced_gap_us": asdict(summary.estimated_untraced_gap_us)
        if summary.estimated_untraced_gap_us
        else None,
        "token_source": summary.token_source,
        "warning": shown.warning,
    }
    facts |= {"bubbles": bubble_report(trace, steps).records()} if inside else {}
    if stacks is not None:
        lines = [f"{stack or '(nothing)'} {ns}\n" for stack, ns in idle_stacks(trace, steps, report.idle).items()]
        write_output(stacks, lambda partial: partial.write_text("".join(lines), encoding="utf-8"), replace=False)
    sampled = sampled_functions(trace, steps, report.idle) if with_functions else None
    if host_stacks is not None:
        hosts = [*host_steps(trace, steps), *([sampled.host_step()] if sampled else [])]
        write = partial(write_stacks, hosts, suffix=host_stacks.suffix.lower())
        write_output(host_stacks, write, replace=False)
    if with_sites:
        sites = idle_by_site(trace, steps, report.idle)
        facts["idle_sites"] = sites.to_dict("records")
        facts |= sampled_facts(sampled)
        trace.notes += without_site(float(sites.loc[sites["source"] == "", "share"].sum()))
    facts |= rank_facts(trace, steps, report.table)
    unused = [UNUSED_RATE] if untraced_tokens_per_s and not summary.traced else []
    placed = node_kernels(path, trace, steps)
    emit(as_json, facts, show_gaps, [*trace.notes, *unused, *([placed.note] if placed else [])])
