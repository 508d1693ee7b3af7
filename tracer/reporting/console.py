"""Console output of the commands: tables and bars by rich, numbers, times in µs, and what several of them say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tracer import progress
from tracer.analysis.interval import words
from tracer.text import spelled

if TYPE_CHECKING:
    from tracer.analysis.gaps import Gaps
    from tracer.analysis.recording import Recording


CAUSE_STYLES: Final = {
    "communication": "color(89)", "sync": "color(166)", "copy": "color(32)", "launch": "color(36)",
    "host": "color(245)", "other process/thread": "color(175)",
}  # fmt: skip
_BAR_WIDTH: Final = 60


def new_console() -> Console:
    """A console as wide as the terminal, or 120 columns if the output is not a terminal."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 120)


@contextmanager
def working(task: str) -> Iterator[None]:
    """Show a progress bar on stderr during long work such as `writing a.sqlite`; it moves if the work reports."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(SpinnerColumn(), *shown, console=stderr, transient=True) as bar:
        work = bar.add_task(escape(spelled(task)), total=None)
        with progress.listening(lambda share: bar.update(work, total=1, completed=share)):
            yield


def reading(path: Path) -> AbstractContextManager[None]:
    """Show a progress bar on stderr while a recording is read."""
    return working(f"reading {path}")


def styled(text: str, style: str = "") -> Text:
    """Text for the terminal, without control characters from names in a recording."""
    return Text(spelled(text), style)


def number(value: float | None, digits: int = 1) -> str:
    """Format a figure for a table; an en dash if there is none."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}".removesuffix(".0") if digits == 1 else f"{value:,.{digits}f}"


def show(*parts: RenderableType) -> None:
    """Print on stdout."""
    console = new_console()
    for part in parts:
        console.print(part)


def grid(rows: dict[str, str]) -> Table:
    """Labels with their values."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for label, value in rows.items():
        grid.add_row(label, styled(value))
    return grid


def show_table(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print a table of records as returned by `table_of`."""
    new_console().print(table_of(rows, columns))


def table_of(rows: list[dict[str, Any]], columns: dict[str, str]) -> Table:
    """A table of records; `columns` maps keys to headings. Numbers are right-aligned."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for key, heading in columns.items():
        numeric = bool(rows) and isinstance(rows[0].get(key), int | float)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(styled(_cell(row.get(key))) for key in columns))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value, 2 if abs(value) < 10 and value != int(value) else 1)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def cause_bar(causes_us: dict[str, float]) -> Text:
    """The causes of a gap as one bar, with lengths proportional to their shares."""
    total = sum(causes_us.values())
    bar = Text()
    if total > 0:
        for name, us in causes_us.items():
            bar.append("█" * round(us / total * _BAR_WIDTH), style=CAUSE_STYLES.get(name, ""))
    return bar


def where_label(facts: dict[str, Any]) -> str:
    """The label of the main places of idle time: tracing may have lengthened some causes more than others."""
    return "mostly" if facts["distortion"] == 1.0 else "as recorded"


def followers(kind: str) -> str:
    """The unit that a class describes: input copies, or the steps if they have none."""
    from tracer.analysis.syncs import WITHOUT_COPIES

    return "steps" if kind in WITHOUT_COPIES else "input copies"


def estimated_row(estimate: dict[str, float | None] | None, mean_us: float | None) -> dict[str, str]:
    """The estimated gap, if there is one, with its mean if that is known."""
    mean = "" if mean_us is None else f"; mean {number(mean_us)} µs"
    return {"untraced": f"{words(**estimate)} (p50, estimated){mean}"} if estimate else {}


def distortion_words(value: float | None) -> str:
    """The tracing overhead of a period in words; "" if there is none."""
    return f"   (period {value:.2f} × the untraced one)" if value is not None and abs(value - 1) > 0.005 else ""


def waits_elsewhere_words(of: dict[str, Any]) -> str:
    """How the host waits for the results of its steps without a sync, in words.

    Example:
        >>> waits_elsewhere_words({"how": "host function", "lag": 0, "share": 0.998, "steps": 419})
        'by a host function: 100% of 419 steps are launched after the result of the one before'
    """
    how = {
        "host function": "by a host function", "no CUDA call": "without a CUDA call",
        "unknown": "without a CUDA call, or its own code takes so long",
    }[of["how"]]  # fmt: skip
    whose = "the one before" if of["lag"] == 0 else f"{of['lag'] + 1} before"
    return f"{how}: {of['share']:.0%} of {of['steps']} steps are launched after the result of {whose}"


def run_ahead_words(of: dict[str, dict[str, float]] | None, unknown: str | None) -> str:
    """How far the host is ahead of the device, in words.

    Example:
        >>> run_ahead_words({"time_us": {"p50": 1180.4, "p5": 4.1}, "launches": {"p50": 17.0, "p5": 0.0}}, None)
        'p50 1,180.4 µs and 17 launches, p5 4.1 µs and 0'
        >>> run_ahead_words(None, "the recording has no calls")
        '– (the recording has no calls)'
    """
    if of is None:
        return f"– ({unknown})" if unknown else "–"
    time, launches = of["time_us"], of["launches"]
    first = f"p50 {number(time['p50'])} µs and {number(launches['p50'])} launches"
    return f"{first}, p5 {number(time['p5'])} µs and {number(launches['p5'])}"


def warn(console: Console, warning: str | None) -> None:
    """Print a warning, if there is one."""
    if warning:
        console.print(styled(f"warning: {warning}", "yellow"))


def rank_facts(recording: Recording, gaps: Gaps | None = None) -> dict[str, Any]:
    """The JSON of `gaps` and `streams` about ranks, if there are several or any communication; adds to the notes."""
    from tracer.analysis.ranks import gaps_of, has_ranks, rank_report

    if not has_ranks(recording.trace, recording.steps):
        return {}
    report = rank_report(recording.trace, recording.steps)
    recording.notes.extend(report.notes)
    records = report.records(None if gaps is None else gaps_of(report.table, gaps, recording.steps))
    each = [row["communication_us"] for row in records["ranks"] if row["collectives_us"]]
    return records | ({"communication_us": sum(each) / len(each)} if each else {})


def show_ranks(console: Console, facts: dict[str, Any]) -> None:
    """Print a row per rank, if there are several or one communicates."""
    ranks = facts.get("ranks", [])
    if not ranks:
        return
    headings = {
        "device": "device", "process": "process", "thread": "thread", "steps": "steps", "gap_p50_us": "gap p50",
        "compute_us": "computes", "communication_us": "communicates", "others_us": "others compute",
        "idle_us": "idle", "waiting_us": "waits in collectives",
    }  # fmt: skip
    shown = {key: word for key, word in headings.items() if any(row.get(key) is not None for row in ranks)}
    console.print(Text("\neach rank, µs a step:"))
    console.print(table_of([row | {key: str(row[key]) for key in ("process", "thread")} for row in ranks], shown))
