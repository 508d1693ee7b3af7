"""The figures of `live` as metrics in Prometheus's text format, version 0.0.4, on the loopback address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from tracer.recorders.live import Live

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HELP: Final = {
    "intertoken_calls_total": ("counter", "Calls of the CUDA driver recorded since the process began."),
    "intertoken_calls_overwritten_total": ("counter", "Recorded calls that were overwritten by newer ones."),
    "intertoken_steps_per_second": ("gauge", "Steps per second over the last calls."),
    "intertoken_step_idle_seconds": ("gauge", "Time of a step during which the device computes nothing."),
    "intertoken_step_gap_seconds": ("gauge", "Time between the compute of two steps."),
    "intertoken_step_syncs": ("gauge", "Host synchronisations per step."),
    "intertoken_step_launches": ("gauge", "Launches of kernels and graphs per step."),
}


def metrics(rows: Sequence[Live]) -> str:
    """The rows in Prometheus's text format."""
    samples: dict[str, dict[str, float]] = {name: {} for name in _HELP}
    for row in rows:
        for name, labels, value in _samples(row):
            samples[name]["{" + ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items()) + "}"] = value
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
    labels = {**of_process, "device": str(row.device)}
    if row.steps_per_s is not None:
        yield "intertoken_steps_per_second", labels, row.steps_per_s
    for name, pair in (("idle", row.idle_us), ("gap", row.gap_us)):
        for quantile, us in zip(("0.5", "0.95"), pair or (), strict=False):
            yield f"intertoken_step_{name}_seconds", {**labels, "quantile": quantile}, us / 1e6
    if row.syncs is not None:
        yield "intertoken_step_syncs", labels, row.syncs
    if row.launches is not None:
        yield "intertoken_step_launches", labels, row.launches


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def serve(port: int, look: Callable[[], Iterable[Live]], say: Callable[[str], object]) -> None:
    """Serve /metrics on the loopback address until interrupted; `say` is called with the address.

    Raises:
        OSError: the port is in use.
    """

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
