"""Truths of traces made by hand, told in data/truths, and how they are looked up in a recording's reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from click.testing import CliRunner, Result

from tests.tracer.engines import Host
from tests.tracer.handmade import decode_loop
from tests.tracer.machine import recorded
from tracer import Trace, analyse
from tracer.analysis.causes import PART_COLUMNS, PARTS
from tracer.analysis.evidence import engine_of
from tracer.analysis.gaps import GapReport
from tracer.analysis.idle_sites import idle_by_site, idle_stacks
from tracer.analysis.path.graph import KINDS
from tracer.analysis.path.paths import Causality, PathReport
from tracer.analysis.ranks import rank_report
from tracer.analysis.recording import Recording
from tracer.analysis.streams import StreamReport, bubble_report, stream_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError, IntertokenError
from tracer.files.bounded import tomllib
from tracer.model.columns import Columns

DATA = Path(__file__).parent / "data" / "truths"


def run(*arguments: object) -> Result:
    """What the command line says."""
    return CliRunner().invoke(main, [*map(str, arguments)])


def facts_of(*arguments: object) -> dict[str, Any]:
    """The JSON of a command that succeeds."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def scene(told: Mapping[str, Any]) -> Trace:
    """A trace as data/truths tells it: `letters` of each step (`decode_loop`), or the `program` of an engine (`Host`),
    a `machine` under a strategy, or `events` once, those of `each` step again every `period` ns, for `steps`; with
    `metadata` and `notes`."""
    if "machine" in told:
        return recorded(**told["machine"])
    script = decode_loop(told.get("letters", ""), told.get("steps", 0))
    Host(script).play(told.get("program", ""), told.get("kernels", {}))
    script.play(told.get("events", ()))
    for table, given in told.get("rows", {}).items():
        script.rows[table] += given
    for step in range(told.get("steps", 0)):
        script.play(told.get("each", ()), step * told.get("period", 1000))
    trace = script.trace
    trace.notes += told.get("notes", ())
    trace.metadata |= told.get("metadata", {})
    return trace


def as_found(trace: Trace, **options: Any) -> Recording:
    """The recording with all the steps that are found, as if none were doubtful."""
    return Recording.of_steps(trace, find_steps(trace, **options))


def rows(table: Any, *names: str) -> list[Any]:
    """These columns of a table: the values of one, or a list of each row's."""
    table = table.frame() if isinstance(table, Columns) else pd.DataFrame(table) if isinstance(table, list) else table
    return list(table[names[0]].tolist() if len(names) == 1 else table[list(names)].to_numpy().tolist())


def parts(gaps: GapReport, at: int = 0) -> dict[str, int]:
    """The parts of a gap that are not 0; they add up to it and to their causes."""
    row = dict(zip(names := ["gap", *PARTS, *PART_COLUMNS], rows(gaps.table, *names)[at], strict=True))
    assert all(sum(row[part] for part in inner) == row[cause] for cause, inner in PARTS.items())
    found = {name: row[name] for name in PART_COLUMNS if row[name]}
    assert sum(found.values()) == row["gap"]
    return found


def pieces(path: PathReport) -> dict[str, list[list[Any]]]:
    """Kind, name and length (ns) of what is on the path of each step."""
    found: dict[str, list[list[Any]]] = {}
    for step, kind, name, start, end in rows(path.table, "step", "kind", "name", "start", "end"):
        found.setdefault(str(step), []).append([kind, name, end - start])
    return found


def edges(trace: Trace) -> dict[str, list[list[int]]]:
    """Recorded times of what waits, and for what, by kind; the recording comes out where nothing is changed."""
    dag = Causality.of(trace).dag
    assert (dag.replayed()[0] == dag.time).all()
    found: dict[str, list[list[int]]] = {}
    for kind, source, target in zip(dag.edges.kind, dag.edges.source, dag.edges.target, strict=True):
        found.setdefault(KINDS[kind], []).append([int(dag.time[source]), int(dag.time[target])])
    return {kind: sorted(times) for kind, times in found.items()}


def streams(recording: Recording) -> StreamReport:
    """Of the steps, or of the whole recording if it has none."""
    try:
        return stream_report(recording.trace, recording.steps)
    except EmptyTraceError:
        return stream_report(recording.trace)


BESIDE: dict[str, Callable[[Recording], Any]] = {
    "bubbles": lambda recording: bubble_report(recording.trace, recording.steps),
    "edges": lambda recording: edges(recording.trace),
    "engine": lambda recording: engine_of(recording.trace),
    "idle_sites": lambda recording: idle_by_site(recording.trace, recording.steps, recording.idle),
    "idle_stacks": lambda recording: idle_stacks(recording.trace, recording.steps, recording.idle),
    "parts": lambda recording: parts(recording.gaps),
    "pieces": lambda recording: pieces(recording.path),
    "ranks": lambda recording: rank_report(recording.trace, recording.steps),
    "streams": streams,
}
"""Analyses that are no property of a recording."""


def value(of: Any, path: str) -> Any:
    """What a path such as `gaps.table[step,gap]` leads to: attributes, keys, methods without arguments, columns."""
    for part in path.split("."):
        name, _, columns = part.removesuffix("]").partition("[")
        if isinstance(of, Recording) and name in BESIDE:
            of = BESIDE[name](of)
        elif isinstance(of, dict):
            of = of[name]
        else:
            of = getattr(of, name)
        of = of() if callable(of) else of
        of = rows(of, *columns.split(",")) if columns else of
    return of


def differs(found: Any, expected: Any) -> bool:
    """Whether it is something else; lists may be arrays, and figures are equal but for rounding."""
    if expected == "None":
        return found is not None
    if isinstance(expected, dict):
        return set(found) != set(expected) or any(differs(found[key], each) for key, each in expected.items())
    if isinstance(expected, list):
        found = list(found)
        return len(found) != len(expected) or any(map(differs, found, expected))
    if isinstance(expected, float):
        return not np.isclose(found, expected, rtol=1e-6, atol=1e-9, equal_nan=True)
    return bool(found != expected)


def unlike(of: Any, told: Mapping[str, Any]) -> list[str]:
    """What of it, by path, is not what `is`, `says` or `fails` tell."""
    wrong = []
    for how in ("is", "says", "fails"):
        for path, expected in told.get(how, {}).items():
            try:
                found, failed = value(of, path), False
            except IntertokenError as error:
                found, failed = str(error), True
            is_wrong = differs(found, expected) if how == "is" else expected not in str(found)
            if is_wrong or failed != (how == "fails"):
                wrong.append(f"{path} {how} {found}, not {expected}")
    return wrong


def untrue(file: str) -> list[str]:
    """What does not hold of the truths in a file of data/truths.

    A truth is a scene, which may begin with another one (`scene`), options of `analyse`, and what a path of the
    recording `is`, `says` (a part of the text of it) or `fails` with. With `as_found`, whose options they then are, no
    step is left out as doubtful.
    """
    told = tomllib.loads((DATA / file).read_text(encoding="utf-8"))
    wrong = []
    for name, truth in told["truth"].items():
        first = told["scene"][truth["scene"]] if "scene" in truth else {}
        both = {**first, **truth, "events": [*first.get("events", ()), *truth.get("events", ())]}
        trace = scene(both)
        recording = (as_found if "as_found" in both else analyse)(trace, **both.get("analyse", {}))
        wrong += [f"{name}: {each}" for each in unlike(recording, truth)]
    return wrong
