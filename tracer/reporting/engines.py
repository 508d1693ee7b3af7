"""Figures of several engines in one recording: an object each in JSON, a column each in text, none over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from tracer.analysis.bounds import Owner
from tracer.errors import TraceError
from tracer.reporting import console as report
from tracer.reporting.console import number

if TYPE_CHECKING:
    import pandas as pd

    from tracer.analysis.recording import Recording

Facts = dict[str, Any]
Rows = Mapping[str, Callable[[Facts], str | None]]
"""Label of a row -> its cell for an engine, from the engine's facts."""

_PLACE: Final = ("process", "thread", "device")
_SHARED: Final = (
    "schema", "duration_ms", "events", "name", "source", "model", "configured", "concurrency", "backend", "gpu",
    "token_source", "traced", "graph_trace", "warning", "conditions", "notes",
)  # fmt: skip
"""What is true of the recording if it is of each of its engines."""
_CAVEATS: Final = ("warning", "left_out", "problem")


def side_by_side(recording: Recording, facts_of: Callable[[Recording], Facts]) -> Facts:
    """The facts of each engine under `engines`, with its process, thread and device, and why some are missing. Beside
    it stands what is true of the recording; every other key is None there."""
    each = [_facts(one, facts_of) for one in recording.engines]
    keys = list(dict.fromkeys(key for facts in each for key in facts))
    each = [{key: facts.get(key) for key in keys} for facts in each]
    shared = {key: each[0][key] if key in _SHARED and _alike(key, each) else None for key in keys}
    engines = [
        {name: getattr(owner, name) for name in _PLACE} | {key: facts[key] for key in keys if key != "schema"}
        for owner, facts in zip(recording.steps.owners, each, strict=True)
    ]
    return shared | {"engines": engines}


def _alike(key: str, each: Sequence[Facts]) -> bool:
    return all(facts.get(key) == each[0].get(key) for facts in each)


def _facts(recording: Recording, facts_of: Callable[[Recording], Facts]) -> Facts:
    try:
        return facts_of(recording)
    except TraceError as problem:
        return {"problem": str(problem)}


def notes_of(recording: Recording) -> list[str]:
    """Whose the steps are, and the notes of each engine."""
    notes = [note for one in recording.engines for note in one.notes]
    return list(dict.fromkeys([recording.steps.several_in_short, *notes]))


def joined_tables(recording: Recording, table_of: Callable[[Recording], pd.DataFrame]) -> pd.DataFrame:
    """The tables of all engines, one below the other, with process and thread."""
    import pandas as pd

    tables = []
    for owner, one in zip(recording.steps.owners, recording.engines, strict=True):
        try:
            table = table_of(one)
        except TraceError:
            continue
        tables.append(table if "thread" in table else _of_owner(table, owner))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _of_owner(table: pd.DataFrame, owner: Owner) -> pd.DataFrame:
    return table.assign(process=owner.process, thread=owner.thread)[["process", "thread", *table]]


def show_side_by_side(facts: Facts, rows: Rows) -> None:
    """Print a column for each engine, and the caveats that they share; rows without any cell are left out."""
    console, engines = report.new_console(), facts["engines"]
    heads = {str(at): str(Owner(*(one[name] for name in _PLACE))) for at, one in enumerate(engines)}
    shared = [name for name in _CAVEATS if engines[0].get(name) and _alike(name, engines)]
    caveats: Rows = {name.replace("_", " "): itemgetter(name) for name in _CAVEATS if name not in shared}
    table = []
    for label, cell in (*rows.items(), *caveats.items()):
        cells = {at: _cell(cell, one) for at, one in zip(heads, engines, strict=True)}
        if any(cells.values()):
            table.append({"": label} | {at: text or "–" for at, text in cells.items()})
    console.print(report.table_of(table, {"": ""} | heads))
    for name in shared:
        report.warn(console, engines[0][name])
    console.print(Text("a column for each engine; no figure is over all of them", "dim"))


def _cell(cell: Callable[[Facts], str | None], facts: Facts) -> str | None:
    try:
        return cell(facts)
    except (KeyError, TypeError):  # the engine lacks it
        return None


def in_us(value: float | None) -> str | None:
    """A time in a cell."""
    return None if value is None else f"{number(value)} µs"
