"""Write a recording in which only known texts can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracer.command_options import emit, verbose_option
from tracer.errors import UsageError
from tracer.files.output import OR_FORCE, appearing
from tracer.reporting import console as report

if TYPE_CHECKING:
    from tracer.model.graph_json import RunGraph
    from tracer.model.trace import Trace

_LONGEST_KEY: Final = 64  # of BLAKE2b


@dataclass
class Parts:
    """A recording; for a run directory, also its traced passes and the executed graph."""

    trace: Trace
    passes: dict[str, Trace]
    graph: RunGraph | None = None


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--keep", multiple=True, metavar="PATTERN", help="Keep texts that match this regular expression as a whole."
)
@click.option("--key", metavar="TEXT", help="Key of the hashes: recordings with the same key can be compared by name.")
@click.option("--force", is_flag=True, help="Replace OUT once the new recording is complete.")
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def scrub(source: Path, target: Path, keep: tuple[str, ...], key: str | None, force: bool, as_json: bool) -> None:
    """Write a recording in which only known texts can be read, and list what was kept, hashed and removed.

    \b
    Kept: times, sizes, ids of processes, threads and streams, measurements; names of known words: CUDA,
      HIP and NCCL calls, kernels, operators, functions and threads of known libraries, engines' marks of
      steps with their numbers, GPU models, versions, the start in UTC.
    Hashed: every other text, as a whole or word by word. Equal texts have equal hashes.
    Removed: environment, command lines, output, messages, ids of GPUs, every unknown table, column or entry.

    Nobody can find a hashed text by guessing it, unless you choose a --key that others can guess.
    OUT's suffix selects the format, as in `convert`; a run directory keeps its traced passes and graph
    if OUT is a directory.

    \b
    Examples:
      intertoken scrub rep.nsys-rep rep.sqlite
      intertoken scrub runs/llama-1.1b-sccc-sequential-cuda shared --keep 'my_kernel_.*'
    """
    from tracer import scrub as scrubbing
    from tracer.formats import check_writable, nsys_parquet
    from tracer.stored import is_part_of_run

    if key is not None and not 0 < len(key.encode()) <= _LONGEST_KEY:
        raise UsageError(f"--key has {len(key.encode())} bytes; the length must be 1 to {_LONGEST_KEY}")
    for pattern in keep:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise UsageError(f"--keep {pattern!r} is no regular expression: {problem}") from None
    texts = scrubbing.Texts(key.encode() if key else None, keep)
    writer = check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part_of_run)
    with report.reading(source):
        given, left_out = _read(source, in_full=writer is nsys_parquet.write)
    with report.working(f"scrubbing {source}"):
        traces = {"": given.trace} | given.passes
        for trace in traces.values():
            scrubbing.learn(trace, texts)
        graph = scrubbing.scrub_graph(given.graph, texts) if given.graph else None
        scrubbed = {name: scrubbing.scrub(trace, texts) for name, trace in traces.items()}
    run = Parts(scrubbed.pop(""), scrubbed, graph)
    for name in left_out:
        texts.remove(f"file {name}")
    with report.working(f"writing {target}"):
        notes = _write(run, target, force)
    shown = {
        "schema": "intertoken.scrub/1",
        "target": str(target),
        "events": len(run.trace),
        "passes": list(run.passes),
        "texts": texts.counts(),
        "removed": [{"where": where, "count": count} for where, count in texts.removed.items()],
    }
    emit(as_json, shown, _show, run.trace.notes + notes)


def _read(source: Path, *, in_full: bool) -> tuple[Parts, list[str]]:
    """Read the recording to scrub; also return the names of the files next to it that are left out."""
    from tracer.formats import is_trace, other_entries, read
    from tracer.model.graph_json import GRAPH_FILE, read_graph
    from tracer.model.run_json import PASSES

    run, others = Parts(read(source), {}), other_entries(source)
    if in_full and others:
        run.passes = {path.name: read(path) for path in others if path.name in PASSES and is_trace(path)}
        run.graph = read_graph(source / GRAPH_FILE) if (source / GRAPH_FILE).is_file() else None
    kept = {*run.passes, *([GRAPH_FILE] if run.graph else [])}
    return run, [path.name for path in others if path.name not in kept]


def _write(run: Parts, target: Path, force: bool) -> list[str]:
    """Write the run; return notes about data that the format cannot hold."""
    from tracer.formats import nsys_parquet, writer_of
    from tracer.model.graph_json import GRAPH_FILE, write_graph
    from tracer.reporting.exports import step_counts

    with appearing(target, replace=force) as new:
        notes = list(writer_of(target, step_counts)(run.trace, new) or ())
        for name, traced in run.passes.items():
            nsys_parquet.write(traced, new / name)
        if run.graph is not None:
            write_graph(run.graph, new / GRAPH_FILE)
    return notes


def _show(facts: dict[str, Any]) -> None:
    hashed = [row for row in facts["texts"] if row["hashed"]]
    titles = ({"where": "texts of", "hashed": "hashed", "kept": "kept"}, {"where": "removed", "count": "how many"})
    tables = [report.table_of(*each) for each in zip((hashed, facts["removed"]), titles, strict=True) if each[0]]
    report.show(*tables, report.styled(f"{facts['target']}: {facts['events']:,} events"))
