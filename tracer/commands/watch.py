"""Watch programs that are being recorded: steps/s, idle time, gap."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from tracer.command_options import no_nan, say
from tracer.errors import UsageError
from tracer.reporting.console import styled

if TYPE_CHECKING:
    from tracer.recorders.live import Live

_COLUMNS = ("process", "program", "device", "steps/s", "idle p50", "p95 µs", "gap p50", "p95 µs", "syncs", "launches")


@click.command()
@click.argument("chosen", required=False, metavar="[PID|NAME]")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--once", is_flag=True, help="Print the figures once and exit.")
@click.option("--prometheus", "port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Instead serve the figures as metrics on 127.0.0.1:PORT/metrics (0: any free port).")  # fmt: skip
@click.option("--keep", "target", type=click.Path(path_type=Path), metavar="TRACE",
              help="Write the contents of the rings as a recording and exit; programs keep running.")  # fmt: skip
@click.option("--last", "seconds", type=click.FloatRange(0, 86_400, min_open=True), callback=no_nan, metavar="SECONDS",
              help="With --keep: only the last seconds until now.")  # fmt: skip
def watch(
    chosen: str | None, every: float, once: bool, port: int | None, target: Path | None, seconds: float | None
) -> None:
    """Show steps/s, idle time, gap, syncs and launches of programs that are running under `intertoken record`.

    Each row is a device of a process, from its last calls; idle time and gap are per step, in µs. The programs are not
    disturbed: only their rings are read.

    \b
    Examples:
      intertoken watch
      intertoken watch VLLM
      intertoken watch --prometheus 9400
      intertoken watch VLLM --keep slow --last 5
    """
    from rich.console import Console
    from rich.live import Live as Screen

    from tracer.recorders.live import live, snapshot

    if seconds is not None and target is None:
        raise UsageError("--last needs --keep TRACE")
    if target is not None:
        from tracer.formats import check_writable, write

        check_writable(target)
        trace = snapshot(chosen, seconds)
        write(trace, target)
        say(trace.notes)
        click.echo(f"{target}: {len(trace)} events")
        return
    if port is not None:
        from tracer.recorders.live import serve

        serve(port, lambda: live(chosen), lambda address: click.echo(f"metrics on http://{address}/metrics"))
        return
    if once:
        Console().print(table_of(live(chosen)))
        return
    with Screen(table_of(live(chosen)), auto_refresh=False) as screen:
        while True:
            time.sleep(every)
            screen.update(table_of(live(chosen)), refresh=True)


def table_of(rows: list[Live]) -> Table:
    """The rows as a table; a process without figures shows the reason."""
    table = Table(*_COLUMNS, box=None, caption=None if rows else "no program is running under the light recorder")
    for row in rows:
        pairs = [f"{value:,.1f}" for pair in (row.idle_us, row.gap_us) for value in pair or ()]
        if row.device is None:
            table.add_row(str(row.process), styled(row.program), "", styled(f"{row.calls:,} calls; {row.why}"))
            continue
        rate = "" if row.steps_per_s is None else f"{row.steps_per_s:,.1f}"
        idle = pairs if row.idle_us else ["", "", *pairs]
        table.add_row(
            str(row.process), styled(row.program), str(row.device), rate, *idle, f"{row.syncs:g}", f"{row.launches:g}"
        )
    return table
