"""Write a recording without data about the machine and its users."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tracer.command_options import emit
from tracer.errors import UsageError
from tracer.files.output import OR_FORCE, appearing
from tracer.reporting import console as report

if TYPE_CHECKING:
    from tracer.model.graph_json import RunGraph
    from tracer.model.trace import Trace

_SALT_BYTES: Final = 16
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
@click.option("--names", is_flag=True, help="Also hash names of kernels, NVTX ranges, threads and models.")
@click.option("--key", metavar="TEXT", help="Key of the hashes: recordings with the same key can be compared by name.")
@click.option("--word", "words", multiple=True, metavar="TEXT", help="Remove this text too, wherever it occurs.")
@click.option("--python-functions", is_flag=True, help="Keep Python functions and call chains, without directories.")
@click.option("--force", is_flag=True, help="Replace OUT once the new recording is complete.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def scrub(
    source: Path,
    target: Path,
    names: bool,
    key: str | None,
    words: tuple[str, ...],
    python_functions: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write a recording without data about the machine and its users, and list what was removed.

    \b
    Removed: environment, command lines, process names and output, messages, host and user names,
      paths, addresses, credentials, ids of GPUs, every unknown table, column or entry,
      Python functions (see --python-functions).
    Kept: times, sizes, ids of processes, threads and streams, API calls, GPU models, versions,
      the start in UTC, measurements; names of kernels, NVTX ranges and threads (see --names).
    In names, only text that looks like removed data is removed; the last line lists the names to review.
    With --names, an NVTX text that names a token step keeps its word for it and its numbers.

    OUT's suffix selects the format, as in `convert`; a run directory keeps its traced passes and graph
    if OUT is a directory.

    \b
    Examples:
      intertoken scrub rep.nsys-rep rep.sqlite
      intertoken scrub runs/llama-1.1b-sccc-sequential-cuda shared --names
    """
    from tracer import scrub as scrubbing
    from tracer.formats import check_writable
    from tracer.scrub import facts
    from tracer.stored.run_directory import is_part_of_run

    if key is not None and not names:
        raise UsageError("--key needs --names, which requests the hashes; give both")
    if key is not None and not 0 < len(key.encode()) <= _LONGEST_KEY:
        raise UsageError(f"--key has {len(key.encode())} bytes; the length must be 1 to {_LONGEST_KEY}")
    if any(not word.strip() for word in words):
        raise UsageError("--word is empty")
    check_writable(target, replace=force, advice=OR_FORCE, is_part=is_part_of_run)
    with report.reading(source):
        given, left_out = _read(source, in_full=_is_directory(target), python_functions=python_functions)
    texts = scrubbing.Texts((key.encode() if key else secrets.token_bytes(_SALT_BYTES)) if names else None, words)
    with report.working(f"scrubbing {source}"):
        traces = {"": given.trace} | given.passes
        for trace in traces.values():
            scrubbing.learn(trace, texts)
        graph = facts.graph(given.graph, texts) if given.graph else None
        scrubbed = {
            name: scrubbing.scrub(trace, texts, python_functions=python_functions) for name, trace in traces.items()
        }
    run = Parts(scrubbed.pop(""), scrubbed, graph)
    for name in left_out:
        texts.remove("left out", name)
    with report.working(f"writing {target}"):
        notes = _write(run, target, force)
    rows = [{"what": what, "where": where, "count": count} for (what, where), count in texts.removed.items()]
    facts_shown = {
        "schema": "intertoken.scrub/1",
        "target": str(target),
        "events": len(run.trace),
        "passes": list(run.passes),
        "names": "hashed" if names else "kept",
        "kept": [{"where": where, "count": len(kept)} for where, kept in sorted(texts.kept.items())],
        "removed": rows,
    }
    emit(as_json, facts_shown, _show, run.trace.notes + notes)
    if not as_json:
        _show_kept(facts_shown)


def _is_directory(target: Path) -> bool:
    from tracer.formats import nsys_parquet, writer_of

    return writer_of(target) is nsys_parquet.write


def _read(source: Path, *, in_full: bool, python_functions: bool) -> tuple[Parts, list[str]]:
    """Read the recording to scrub; also return the names of the files next to it that are left out."""
    from tracer.formats import format_of, is_trace, other_entries, read
    from tracer.model.graph_json import GRAPH_FILE, read_graph
    from tracer.stored.run_directory import PASSES

    asked = python_functions and "python_functions" in format_of(source).options  # other formats have no such option
    run, others = Parts(read(source, python_functions=asked), {}), other_entries(source)
    if in_full and others:
        run.passes = {path.name: read(path) for path in others if path.name in PASSES and is_trace(path)}
        run.graph = read_graph(source / GRAPH_FILE) if (source / GRAPH_FILE).is_file() else None
    kept = {*run.passes, *([GRAPH_FILE] if run.graph else [])}
    return run, [path.name for path in others if path.name not in kept]


def _write(run: Parts, target: Path, force: bool) -> list[str]:
    """Write the run; return notes about data that the format cannot hold."""
    from tracer.formats import nsys_parquet, writer_of
    from tracer.model.graph_json import GRAPH_FILE, write_graph

    with appearing(target, replace=force) as new:
        notes = list(writer_of(target)(run.trace, new) or ())
        for name, traced in run.passes.items():
            nsys_parquet.write(traced, new / name)
        if run.graph is not None:
            write_graph(run.graph, new / GRAPH_FILE)
    return notes


def _show(facts: dict[str, Any]) -> None:
    """Print `intertoken scrub`."""
    console = report.new_console()
    if facts["removed"]:
        console.print(report.table_of(facts["removed"], {"what": "removed", "where": "where", "count": "how many"}))
    console.print(report.styled(f"{facts['target']}: {facts['events']:,} events"))


def _show_kept(facts: dict[str, Any]) -> None:
    """Print the last line of `intertoken scrub`: where names were kept."""
    console = report.new_console()
    if facts["names"] == "hashed":
        console.print("names of kernels, NVTX ranges, threads and models are hashed")
    else:
        kept = ", ".join(f"{field['where']} ({field['count']:,})" for field in facts["kept"]) or "none"
        console.print(report.styled(f"names kept (review them, or hash them with --names): {kept}"), soft_wrap=True)
