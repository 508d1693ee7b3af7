"""Watch programs that are being recorded: steps/s, idle time, gap.

The figures are those of the processes that are running under the light recorder, from their most recent calls; also as
metrics in Prometheus's text format, version 0.0.4, on the loopback address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final, cast

import click
import numpy as np
import pandas as pd
from rich.console import Console
from rich.live import Live as Screen
from rich.table import Table

from tracer.analysis.bounds import ALL_STEPS
from tracer.analysis.clocks import without_doubtful
from tracer.analysis.recording import Recording
from tracer.analysis.step_work import steps_per_s
from tracer.analysis.steps import Steps, regimes_of
from tracer.analysis.tokens import find_steps
from tracer.command_options import no_nan, say
from tracer.errors import EmptyTraceError, TraceError, UsageError
from tracer.model.trace import Trace
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import Ring, read_ring, running_rings
from tracer.reporting.console import styled

_COLUMNS = ("process", "program", "device", "steps/s", "idle p50", "p95 µs", "gap p50", "p95 µs", "syncs", "launches")

LAST_CALLS: Final = 20_000
"""Calls of each process that its figures are computed from."""

_STALE_S: Final = 30.0
"""After so long without a call, figures of the last ones are not what the process does now."""

_SILENT: Final = 0.1
"""A time without a call of at least this part of a kept window, at its end, is said."""

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "intertoken_calls_total": ("counter", "Calls of the CUDA driver recorded since the process began."),
    "intertoken_calls_overwritten_total": ("counter", "Recorded calls that were overwritten by newer ones."),
    "intertoken_steps_per_second": ("gauge", "Steps per second over the last calls."),
    "intertoken_step_idle_seconds": ("gauge", "Time of a step during which the device computes nothing."),
    "intertoken_step_gap_seconds": ("gauge", "Time between the compute of two steps."),
    "intertoken_step_syncs": ("gauge", "Host synchronisations per step."),
    "intertoken_step_launches": ("gauge", "Launches of kernels and graphs per step."),
    "intertoken_run_ahead_seconds": ("gauge", "How long ago a step was launched when the device starts it."),
    "intertoken_run_ahead_launches": ("gauge", "Launches made behind a step's first when the device starts it."),
}
_CALL: Final = ["process", "correlation"]


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

    Each row is a device of a process, or of each of several engines in it, from its last calls; idle time and gap are
    per step, in µs. The programs are not disturbed: only their rings are read.

    \b
    Examples:
      intertoken watch
      intertoken watch VLLM
      intertoken watch --prometheus 9400
      intertoken watch VLLM --keep slow --last 5
    """
    if seconds is not None and target is None:
        raise UsageError("--last needs --keep TRACE")
    if target is not None:
        from tracer.formats import check_writable
        from tracer.reporting.exports import write

        check_writable(target)
        trace = snapshot(chosen, seconds)
        write(trace, target)
        say(trace.notes, f"intertoken info {target} -v")
        click.echo(f"{target}: {len(trace)} events")
        return
    if port is not None:
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
            table.add_row(row.host, styled(row.program), "", styled(f"{row.calls:,} calls; {row.why}"))
            continue
        rate = "" if row.steps_per_s is None else f"{row.steps_per_s:,.1f}"
        idle = pairs if row.idle_us else ["", "", *pairs]
        table.add_row(
            row.host, styled(row.program), str(row.device), rate, *idle, f"{row.syncs:g}", f"{row.launches:g}"
        )
    return table


@dataclass(frozen=True)
class Live:
    """The figures of a device of a process, or a process without steps.

    Attributes:
        calls, overwritten: number of calls recorded since the process started, and how many were overwritten.
        device: device number, None without steps.
        steps_per_s: rate over the last calls.
        idle_us, gap_us: p50 and p95 per step.
        syncs, launches: per step, median.
        run_ahead: of the host (`RunAhead.figures`), on all devices.
        why: the reason if there are no figures.
        thread: that launches the steps, if those of the process are of several engines.
    """

    process: int
    program: str
    calls: int
    overwritten: int
    device: int | None = None
    steps_per_s: float | None = None
    idle_us: tuple[float, float] | None = None
    gap_us: tuple[float, float] | None = None
    syncs: float | None = None
    launches: float | None = None
    run_ahead: dict[str, dict[str, float]] | None = None
    why: str = ""
    thread: int | None = None

    @property
    def host(self) -> str:
        """The process, and the thread if it is known."""
        return str(self.process) if self.thread is None else f"{self.process} thread {self.thread}"


def live(chosen: str | None = None) -> list[Live]:
    """Compute the figures of all running processes, or of the one with the `chosen` id, or those with this text in the
    name of their program."""
    return [row for ring in _rings(chosen, LAST_CALLS) for row in _recent(ring)]


def _recent(ring: Ring) -> Iterator[Live]:
    """The figures of a process; none if its last call is long ago, which its figures do not show."""
    now, last = time.monotonic_ns(), int(ring.records["end"].max(initial=0))
    if len(ring.records) and now - last > _STALE_S * 1e9:
        why = f"no call for {(now - last) / 1e9:,.0f} s"
        return iter([Live(ring.process, ring.program, ring.written, ring.overwritten, why=why)])
    return figures(ring)


def snapshot(chosen: str | None = None, seconds: float | None = None) -> Trace:
    """Return the current content of the rings as a recording, or only the last seconds until now; the programs keep
    running. `chosen` is as in `live`.

    Raises:
        EmptyTraceError: no chosen process runs under the recorder, or none has made a call in that time.
    """
    now = time.monotonic_ns()
    rings = [ring for ring in _rings(chosen) if len(ring.records)]
    if not rings:
        named = "" if chosen is None else f" with id {chosen} or {chosen} in its name"
        raise EmptyTraceError(f"no process{named} runs under the light recorder and has called the CUDA driver")
    trace = light_trace(rings)
    return trace if seconds is None else _last(trace, seconds, now - trace.metadata["clock"]["origin_ns"])


def _rings(chosen: str | None, last: int | None = None) -> Iterator[Ring]:
    for path in running_rings():
        with suppress(TraceError):  # the ring is being created
            ring = read_ring(path, last)
            if chosen is None or chosen == str(ring.process) or chosen in ring.program:
                yield ring


def _last(trace: Trace, seconds: float, now: int) -> Trace:
    """The calls of the last seconds before now, and the device activity that they caused; a note if the last of these
    calls is long ago. Raises EmptyTraceError if there is none."""
    api = trace["api"]
    kept = api["start"] >= now - int(seconds * 1e9)
    silent = (now - int(api["end"].max())) / 1e9
    if not kept.any():
        raise EmptyTraceError(f"no call began in the last {seconds:g} s; the last one ended {silent:,.1f} s ago")
    if silent > _SILENT * seconds:
        trace.notes.append(f"the last call was {silent:,.1f} s before the end of the {seconds:g} s that were kept")
    calls = pd.MultiIndex.from_frame(api.loc[kept, _CALL])

    def of_calls(_: str, frame: pd.DataFrame) -> pd.DataFrame:
        made = set(_CALL) <= set(frame)
        return frame[pd.MultiIndex.from_frame(frame[_CALL]).isin(calls)].reset_index(drop=True) if made else frame

    return trace.map_tables(of_calls)


def figures(ring: Ring) -> Iterator[Live]:
    """Figures of a process, one row per device, of several engines in it per engine."""
    facts = (ring.process, ring.program, ring.written, ring.overwritten)
    try:
        trace = light_trace([ring])
        steps = find_steps(trace)
        if not steps.owners:
            yield from _of_engine(facts, trace, steps)
            return
    except TraceError as problem:
        yield Live(*facts, why=str(problem))
        return
    for owner in steps.owners:
        try:
            yield from _of_engine(facts, trace, find_steps(trace, of=ALL_STEPS.of(owner)), owner.thread)
        except TraceError as problem:
            yield Live(*facts, thread=owner.thread, why=str(problem))


def _of_engine(
    facts: tuple[int, str, int, int], trace: Trace, steps: Steps, thread: int | None = None
) -> Iterator[Live]:  # fmt: skip
    recording = Recording.of_steps(trace, _newest(trace, steps))
    gaps, syncs = recording.gaps, recording.syncs
    rate = steps_per_s(trace, recording.steps, recording.spans)
    for device, table in gaps.table.groupby("device"):
        idle = gaps.idle.steps
        of_steps = idle.loc[idle["device"] == device, "idle"].to_numpy() / 1e3
        idle_us = _quantiles(of_steps) if len(of_steps) else None
        gap_us = _quantiles(table["gap"].to_numpy() / 1e3)
        counts = (syncs.syncs_per_token, syncs.launches_per_token)
        ahead = recording.run_ahead.figures
        yield Live(*facts, cast("int", device), rate, idle_us, gap_us, *counts, run_ahead=ahead, thread=thread)


def _newest(trace: Trace, steps: Steps) -> Steps:
    """The steps of the last regime, if there are several: what the program does now, not what it did for longest. The
    last step is being launched."""
    whole = max(len(steps) - 1, 1)
    regimes = regimes_of(steps.rows[:whole])
    return without_doubtful(trace, steps.select(regimes[-1].first if regimes else 0, whole))


def _quantiles(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    p50, p95 = np.percentile(values, [50, 95])
    return float(p50), float(p95)


def metrics(rows: Sequence[Live]) -> str:
    """The rows in Prometheus's text format."""
    samples: dict[str, dict[str, float]] = {name: {} for name in _HELP}
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    for row in rows:
        for name, labels, value in _samples(row):
            text = ",".join(f'{key}="{each.translate(escapes)}"' for key, each in labels.items())
            samples[name][f"{{{text}}}"] = value
    lines: list[str] = []
    for name, (kind, words) in _HELP.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{labels} {value:.9g}" for labels, value in samples[name].items()]
    return "\n".join(lines) + "\n"


def _samples(row: Live) -> Iterator[tuple[str, dict[str, str], float]]:
    of_process = {"process": str(row.process), "program": row.program}
    yield "intertoken_calls_total", of_process, row.calls
    yield "intertoken_calls_overwritten_total", of_process, row.overwritten
    if row.device is None:
        return
    labels = of_process | ({} if row.thread is None else {"thread": str(row.thread)}) | {"device": str(row.device)}
    if row.steps_per_s is not None:
        yield "intertoken_steps_per_second", labels, row.steps_per_s
    for name, pair in (("idle", row.idle_us), ("gap", row.gap_us)):
        for quantile, us in zip(("0.5", "0.95"), pair or (), strict=False):
            yield f"intertoken_step_{name}_seconds", {**labels, "quantile": quantile}, us / 1e6
    if row.syncs is not None:
        yield "intertoken_step_syncs", labels, row.syncs
    if row.launches is not None:
        yield "intertoken_step_launches", labels, row.launches
    for name, unit, divisor in (("seconds", "time_us", 1e6), ("launches", "launches", 1)):
        for quantile, key in (("0.5", "p50"), ("0.05", "p5")):
            if row.run_ahead is not None:
                value = row.run_ahead[unit][key] / divisor
                yield f"intertoken_run_ahead_{name}", {**labels, "quantile": quantile}, value


def serve(port: int, look: Callable[[], Iterable[Live]], say: Callable[[str], object]) -> None:
    """Serve /metrics on the loopback address until interrupted; `say` is called with the address. Raises OSError if the
    port is in use."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = metrics(list(look())).encode() if self.path == "/metrics" else b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", _TEXT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Do not log requests."""

    with ThreadingHTTPServer(("127.0.0.1", port), Metrics) as server:
        say(f"127.0.0.1:{server.server_address[1]}")
        server.serve_forever()
