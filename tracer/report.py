"""What the commands print for people: tables and bars through rich, times in µs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tracer import progress
from tracer.analysis.holes import PLACES
from tracer.analysis.interval import Interval
from tracer.analysis.signature import MEANING, WITHOUT_COPIES
from tracer.text import spelled

CAUSE_STYLES: Final = {
    "communication": "color(89)",
    "sync": "color(166)",
    "copy": "color(32)",
    "launch": "color(36)",
    "host": "color(245)",
    "other process/thread": "color(175)",
}
_BAR_WIDTH: Final = 60


def new_console() -> Console:
    """Where to print: as wide as the terminal, 120 columns into a file."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@contextmanager
def working(task: str) -> Iterator[None]:
    """A bar on stderr while something long is done, such as `writing a.sqlite`; it moves where the work tells."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        yield
        return
    shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(SpinnerColumn(), *shown, console=stderr, transient=True) as bar:
        work = bar.add_task(escape(spelled(task)), total=None)
        with progress.listening(lambda share: bar.update(work, total=1, completed=share)):
            yield


def reading(path: Path) -> AbstractContextManager[None]:
    """A bar on stderr while a recording is read."""
    return working(f"reading {path}")


def said(text: str, style: str = "") -> Text:
    """Text for the terminal, in which names from a recording steer nothing."""
    return Text(spelled(text), style)


def number(value: float | None, digits: int = 1) -> str:
    """A figure for a table; an en dash where there is none."""
    if value is None:
        return "–"
    return f"{value:,.{digits}f}".removesuffix(".0") if digits == 1 else f"{value:,.{digits}f}"


def show(*parts: RenderableType) -> None:
    """Print on stdout, as every command does."""
    console = new_console()
    for part in parts:
        console.print(part)


def grid(rows: dict[str, str]) -> Table:
    """Labels and what they say, side by side."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for label, value in rows.items():
        grid.add_row(label, said(value))
    return grid


def show_table(rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print a table of records, see `table_of`."""
    new_console().print(table_of(rows, columns))


def table_of(rows: list[dict[str, Any]], columns: dict[str, str]) -> Table:
    """A table of records; `columns` maps keys to headings. Numbers are right-aligned."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for key, heading in columns.items():
        numeric = bool(rows) and isinstance(rows[0].get(key), int | float)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(said(_cell(row.get(key))) for key in columns))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value, 2 if abs(value) < 10 and value != int(value) else 1)
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def cause_bar(causes_us: dict[str, float]) -> Text:
    """The causes of a gap as one bar, each as long as its share."""
    total = sum(causes_us.values())
    bar = Text()
    if total > 0:
        for name, us in causes_us.items():
            bar.append("█" * round(us / total * _BAR_WIDTH), style=CAUSE_STYLES.get(name, ""))
    return bar


def show_info(facts: dict[str, Any]) -> None:
    """`intertoken info`."""
    console = new_console()
    events = ", ".join(f"{count:,} {name}" for name, count in facts["events"].items() if count)
    console.print(
        grid(
            {
                "recording": f"{facts['name']}  ({facts['source'] or 'no source'}, {facts['duration_ms']:,.1f} ms)",
                "device": facts["gpu"] or "–",
                "events": events or "none",
            }
        )
    )
    if facts["steps"] is None:
        console.print(said(f"no figures: {facts['problem']}"))
        return
    of = _followers(facts["strategy"]).removeprefix("input ")
    share = f" ({facts['strategy_share']:.0%} of {of})" if facts["strategy"] else ""
    gap = f"p50 {number(facts['gap_p50_us'])} µs, p90 {number(facts['gap_p90_us'])} µs"
    usual = f" (the median step takes {number(facts['period_us'])} µs)" if facts["period_us"] else ""
    rates = f"{number(facts['steps_per_s'])} as recorded, of the wall{usual}"
    untraced, traced = number(facts["tokens_per_s"]), number(facts["traced_tokens_per_s"])
    console.print(
        grid(
            {
                "holds": f"{facts['what']} (from {facts['token_source']}, confidence {facts['confidence']:.2f})",
                "idle": _idle(facts),
                **({where_label(facts): facts["idle_where"]} if facts["idle_where"] else {}),
                **({"class": f"{facts['strategy']}{share}"} if facts["strategy"] else {}),
                "signature": facts["signature"],
                "per step": f"{number(facts['syncs_per_token'])} syncs, {number(facts['copies_per_token'])} copies, "
                f"{number(facts['launches_per_token'])} launches{_waits(facts)}",
                "steps/s": rates,
                **({"tokens/s": f"{untraced} untraced, {traced} as recorded"} if facts["strategy"] else {}),
                "gap": gap + distortion_words(facts["distortion"]),
                **estimated_row(facts["estimated_untraced_gap_us"]),
            }
        )
    )
    warn(console, facts["warning"] or facts["problem"])


def _idle(facts: dict[str, Any]) -> str:
    """The idle time of a step, and where it lies."""
    idle = facts["idle_us"]
    if not idle:
        return "–"
    untraced = f"; {number(facts['untraced_idle_us'])} µs untraced" if facts["untraced_idle_us"] is not None else ""
    places = ", ".join(f"{name} {number(idle[place])}" for place, name in PLACES.items() if idle[place] >= 0.05)
    return f"p50 {number(idle['p50'])} µs a step, {facts['idle_share']:.0%} of the time{untraced} (mean µs: {places})"


def where_label(facts: dict[str, Any]) -> str:
    """What stands before the words on where the idle time lies: tracing may have added to some causes more than to
    others."""
    return "mostly" if facts["distortion"] == 1.0 else "as recorded"


def _waits(facts: dict[str, Any]) -> str:
    """The waits beside syncs, where there are some."""
    found = {"blocking copies": facts["blocking_copies_per_token"], "polls": facts["polls_per_token"]}
    return "".join(f", {number(count)} {what}" for what, count in found.items() if count)


def show_tokens(facts: dict[str, Any]) -> None:
    """`intertoken tokens`."""
    console = new_console()
    console.print(said(f"{facts['what']}, from {facts['detail']} (confidence {facts['confidence']:.2f})"))
    rows = [
        {
            "step": row["step"],
            "group": row["group"],
            "phase": row["phase"],
            "start_us": row["start"] / 1e3,
            "host_us": (row["end"] - row["start"]) / 1e3,
            "compute_us": (row["end_compute"] - row["start_compute"]) / 1e3 if row["end_compute"] is not None else None,
        }
        for row in facts["table"]
    ]
    headings = {
        "step": "step",
        "group": "group",
        "phase": "phase",
        "start_us": "start µs",
        "host_us": "host µs",
        "compute_us": "compute µs",
    }
    console.print(table_of(rows, headings))


def show_syncs(facts: dict[str, Any]) -> None:
    """`intertoken syncs`."""
    console = new_console()
    console.print(
        grid(
            {
                **(
                    {"class": f"{facts['class']}  ({facts['share']:.0%} of the {_followers(facts['class'])} follow it)"}
                    if facts["class"]
                    else {}
                ),
                "syncs per token": number(facts["syncs_per_token"]),
                **{
                    f"{kind} per token": number(facts[f"{kind.replace(' ', '_')}_per_token"])
                    for kind in ("blocking copies", "polls")
                    if facts[f"{kind.replace(' ', '_')}_per_token"]
                },
                "copies per token": number(facts["copies_per_token"]),
                "launches per token": number(facts["launches_per_token"]),
                "the host fetches": _fetched(facts["fetch_lag"]),
                "signature": f"{facts['signature']}  ({facts['signature_share']:.0%} of {facts['steps']} steps, "
                f"from {facts['token_source']})",
            }
        )
    )
    if facts["inventory"]:
        several = {"what": "wait"} if len({row["what"] for row in facts["inventory"]}) > 1 else {}
        headings = several | {
            "position": "#", "name": "call", "stream": "stream", "median_us": "median µs", "max_us": "max µs",
            "waiting_share": "waiting", "waits_for": "waits for",
        }  # fmt: skip
        shares = [row["waiting_share"] for row in facts["inventory"]]
        shown = [{"waiting_share": "–" if share is None else f"{share:.0%}"} for share in shares]
        rows = [row | share for row, share in zip(facts["inventory"], shown, strict=True)]
        console.print()
        console.print(table_of(rows, headings))
    letters = [f"{letter} {meaning}" for letter, meaning in MEANING.items() if letter in facts["signature"]]
    console.print(Text("  ".join(letters), "dim"))


def _followers(kind: str) -> str:
    return "steps" if kind in WITHOUT_COPIES else "input copies"


def _fetched(lag: dict[str, Any] | None) -> str:
    """Which step's result the host reads."""
    if lag is None:
        return "the recording does not tell which step's result"
    whose = {0.0: "the result of the step it launched last", 1.0: "the result of the step before, one step ahead"}
    ahead = f"a result of {number(lag['median'])} steps before"
    return f"{whose.get(lag['median'], ahead)}  ({lag['share']:.0%} of {lag['fetches']} fetches)"


def estimated_row(estimate: dict[str, float] | None) -> dict[str, str]:
    """The estimated gap, if there is one."""
    return {"untraced": f"{Interval(**estimate)} (p50, estimated)"} if estimate else {}


def show_streams(facts: dict[str, Any]) -> None:
    """`intertoken streams`."""
    console = new_console()
    headings = {
        "device": "device", "stream": "stream", "kernels": "kernels", "copies": "copies", "bytes": "bytes copied",
        "busy_us": "busy µs", "compute_us": "compute µs", "communication_us": "communication µs", "share": "busy",
    }  # fmt: skip
    if not any(row["communication_us"] for row in facts["streams"]):
        del headings["communication_us"]
    if len({row["process"] for row in facts["streams"]}) > 1:
        headings = {"process": "process"} | headings
    rows = [
        row
        | {"process": str(row["process"]), "share": f"{row['busy_share']:>4.0%} " + "█" * round(row["busy_share"] * 20)}
        for row in facts["streams"]
    ]
    console.print(table_of(rows, headings))
    for row in facts["devices"]:
        console.print(
            Text(
                f"device {row['device']}: busy {row['busy_share']:.1%} of {number(row['window_us'])} µs; "
                + (f"communicates for {number(row['communication_us'])} µs; " if row["communication_us"] else "")
                + f"streams overlap for {number(row['overlap_us'])} µs; "
                f"{row['concurrency']:.2f} streams compute at once"
            )
        )
    show_ranks(console, facts)


def show_events(facts: dict[str, Any]) -> None:
    """`intertoken events`."""
    console = new_console()
    console.print(said(f"{facts['rows']:,} rows of {facts['table']}: {facts['holds']}"))
    console.print(grid(facts["columns"]))


def show_check(rows: list[dict[str, Any]], remarks: list[str]) -> None:
    """`intertoken check`: a row per line of the budget, and what is said below them."""
    console = new_console()
    headings = {
        "mark": "",
        "scope": "where",
        "name": "budget",
        "found": "found",
        "allowed": "allowed",
        "by": "broken by",
    }
    shown = {key: word for key, word in headings.items() if key == "mark" or any(row[key] for row in rows)}
    console.print(table_of(rows, shown))
    for remark in remarks:
        console.print(said(remark))


def show_converted(facts: dict[str, Any]) -> None:
    """`intertoken convert`."""
    new_console().print(said(f"{facts['target']}: {facts['events']:,} events"))


def show_scrubbed(facts: dict[str, Any]) -> None:
    """`intertoken scrub`."""
    console = new_console()
    if facts["removed"]:
        console.print(table_of(facts["removed"], {"what": "removed", "where": "where", "count": "how many"}))
    console.print(said(f"{facts['target']}: {facts['events']:,} events"))


def show_kept(facts: dict[str, Any]) -> None:
    """The last line of `intertoken scrub`: where names still stand."""
    console = new_console()
    if facts["names"] == "hashed":
        console.print("names of kernels, NVTX ranges, threads and models are hashed")
    else:
        kept = ", ".join(f"{field['where']} ({field['count']:,})" for field in facts["kept"]) or "none"
        console.print(said(f"kept as names, look at them or hash them with --names: {kept}"), soft_wrap=True)


def show_ranks(console: Console, facts: dict[str, Any]) -> None:
    """A row per rank, where there are several, or any that communicates."""
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


def distortion_words(value: float | None) -> str:
    """What tracing adds to a period, where it adds anything."""
    return f"   (period {value:.2f} × the untraced one)" if value is not None and abs(value - 1) > 0.005 else ""


def warn(console: Console, warning: str | None) -> None:
    """A warning, if there is one."""
    if warning:
        console.print(said(f"warning: {warning}", "yellow"))
