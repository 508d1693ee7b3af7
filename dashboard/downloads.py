"""Downloads: tables (runs -> DataFrame, and the forms in which they are written), the report of a comparison, and
recordings; streamed, under safe names.

Times are ns on the recording's clock unless a name says µs; -1 means none. Names are those of the recordings,
unescaped: escape them before showing them.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from flask import Flask, Response, abort, request, send_file

from dashboard.figures import causes_of
from dashboard.reading.answers import comparison_table
from dashboard.reading.readers import Readers
from dashboard.reading.run import Run, told, write_copy
from dashboard.reading.store import RunStore
from dashboard.report import report_page
from dashboard.text import plain, safe_name
from dashboard.view import MOST_RUNS, View
from tracer.errors import TraceError
from tracer.model.graph_json import GRAPH_FILE
from tracer.text import without_formulas

_ROWS: Final = 20_000
_LINE: Final = "\r\n"  # as RFC 4180


@dataclass(frozen=True)
class Download:
    """A table: its description, the function that makes it from the selected runs, and whether it needs a graph."""

    words: str
    make: Callable[[Sequence[Run]], pd.DataFrame]
    of_graph: bool = False


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: its figures, as `tracer.analysis.summary.Summary` names them; causes as
    `cause_NAME_us`, idle time as `idle_NAME_us`, the lag of fetches as `fetch_lag_NAME`, run-ahead as
    `run_ahead_time_us_NAME` and `run_ahead_launches_NAME`, waits without a sync as `waits_elsewhere_NAME`.

    The spread of the repeats is in tokens_per_s_low and tokens_per_s_high.
    """
    return pd.DataFrame([_figures(run) for run in runs])


def causes_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run and cause: run, cause, mean_us as recorded, untraced_us from the untraced rate (NaN if that
    cannot give it), and a note."""
    rows = [
        (causes.name, cause, mean, causes.untraced_us.get(cause, nan), causes.note)
        for causes in causes_of(runs)
        for cause, mean in causes.causes_us.items()
    ]
    return pd.DataFrame(rows, columns=["run", "cause", "mean_us", "untraced_us", "note"])


def _nodes(run: Run) -> pd.DataFrame | None:
    """The nodes of the graph, if the run has one, with the median time of their kernels if known."""
    if run.graph_file is None:
        return None
    columns = ("name", "op", "shape", "dtype", "nbytes", "weight_bytes", "stream")
    nodes = pd.DataFrame([{name: getattr(node, name) for name in columns} for node in run.graph.nodes])
    nodes["shape"] = [" × ".join(map(str, shape)) for shape in nodes["shape"]]
    return nodes.astype({"stream": "Int64"}).join(run.executions.durations["median"].rename("kernel_median_ns"))


def _memory(run: Run) -> pd.DataFrame | None:
    """Arena and live bytes at the peak of each allocator, if the run has a graph."""
    return None if run.graph_file is None else pd.DataFrame([asdict(memory) for memory in run.graph.memory])


def _of_each(table_of: Callable[[Run], pd.DataFrame | None]) -> Callable[[Sequence[Run]], pd.DataFrame]:
    """What makes one table of those of the runs that have one, with the run in front."""

    def joined(runs: Sequence[Run]) -> pd.DataFrame:
        tables = [(run.key, table) for run in runs if (table := table_of(run)) is not None]
        if not tables:
            return pd.DataFrame({"run": []})
        return pd.concat([table.assign(run=key)[["run", *table.columns]] for key, table in tables], ignore_index=True)

    return joined


TABLES: Final = {
    "runs": Download("All runs: their figures", runs_table),
    "comparison": Download("Comparison with the first run: every figure, with 95 % intervals", comparison_table),
    "gaps": Download("Gaps: one row per gap, with its causes, ns", _of_each(lambda run: run.gaps and run.gaps.table)),
    "causes": Download("Causes of the gap: mean per run, µs", causes_table),
    "syncs": Download(
        "Syncs of a token: what they wait for, µs", _of_each(lambda run: run.syncs and run.syncs.inventory().frame())
    ),
    "calls": Download("Host calls of every token, ns", _of_each(lambda run: run.syncs and run.syncs.calls)),
    "tokens": Download(
        "Tokens: start and end, ns", _of_each(lambda run: None if run.steps is None else run.steps.table)
    ),
    "nodes": Download("Nodes of the graph: streams, sizes, times, ns", _of_each(_nodes), of_graph=True),
    "memory": Download("Memory of the graph: peaks per allocator, bytes", _of_each(_memory), of_graph=True),
}
"""Name -> table; `runs` covers all runs, the others cover the selected ones."""


def _figures(run: Run) -> dict[str, Any]:
    figures = {"run": run.key, **run.summary.facts}
    causes, estimate = figures.pop("causes_us"), figures.pop("estimated_untraced_gap_us")
    figures.pop("parts_us")  # the gaps' own table has them
    figures["tokens_per_s_low"], figures["tokens_per_s_high"] = figures.pop("tokens_per_s_spread") or (None, None)
    figures["conditions"] = ", ".join(f"{name} {value}" for name, value in figures["conditions"].items())
    figures |= {f"idle_{name}_us": value for name, value in figures.pop("idle_us").items()}
    figures |= {f"cause_{name}_us": value for name, value in causes.items()}
    figures |= {f"cause_{name}_untraced_us": us for name, us in figures.pop("untraced_causes_us").items()}
    figures |= {f"estimated_untraced_gap_us_{name}": value for name, value in (estimate or {}).items()}
    wide = figures.pop("estimated_untraced_idle_us", None)
    figures |= {f"estimated_untraced_idle_us_{name}": value for name, value in (wide or {}).items()}
    figures |= {f"fetch_lag_{name}": value for name, value in (figures.pop("fetch_lag") or {}).items()}
    figures |= {f"waits_elsewhere_{name}": value for name, value in (figures.pop("waits_elsewhere") or {}).items()}
    for name, quantiles in (figures.pop("run_ahead") or {}).items():
        figures |= {f"run_ahead_{name}_{quantile}": value for quantile, value in quantiles.items()}
    figures["notes"] = "; ".join(figures["notes"])
    return figures


def csv_of(table: pd.DataFrame) -> Iterator[str]:
    """The table as CSV, in pieces.

    Texts are escaped (`without_formulas`); Parquet and JSON hold every text as recorded.
    """
    yield table.head(0).to_csv(index=False, lineterminator=_LINE)
    for start in range(0, len(table), _ROWS):
        yield without_formulas(table.iloc[start : start + _ROWS]).to_csv(
            index=False, header=False, lineterminator=_LINE
        )


def json_of(table: pd.DataFrame) -> Iterator[str]:
    """The table as one JSON list of objects, in pieces."""
    for start in range(0, len(table), _ROWS):
        piece = table.iloc[start : start + _ROWS].to_json(orient="records", double_precision=15)
        yield ("," if start else "[") + piece[1:-1]
    yield "]" if len(table) else "[]"


def parquet_of(table: pd.DataFrame) -> Iterator[bytes]:
    """The table as Parquet, in pieces."""
    with TemporaryFile() as file:
        pq.write_table(pa.Table.from_pandas(table, preserve_index=False), file)
        file.seek(0)
        while piece := file.read(1 << 20):
            yield piece


FORMS: Final[dict[str, tuple[str, Callable[[pd.DataFrame], Iterator[str] | Iterator[bytes]]]]] = {
    "csv": ("text/csv; charset=utf-8", csv_of),
    "parquet": ("application/vnd.apache.parquet", parquet_of),
    "json": ("application/json", json_of),
}
"""Suffix -> media type, and the function that writes a table."""


def add_downloads(server: Flask, store: RunStore) -> None:
    """Answer /download/TABLE.SUFFIX, /download/report.html and /download/recording.zip, all with ?run=KEY&run=KEY."""

    @server.get("/download/<name>.<suffix>")
    def table(name: str, suffix: str) -> Response:
        if name not in TABLES or suffix not in FORMS:
            abort(404)
        media_type, make = FORMS[suffix]
        try:
            made = TABLES[name].make(store.runs(_requested_view().rates) if name == "runs" else _chosen(store))
        except TraceError as problem:
            abort(_unreadable(problem))
        answer = Response(make(made), mimetype=media_type)
        answer.headers.set("Content-Disposition", "attachment", filename=f"intertoken-{name}.{suffix}")
        return answer

    @server.get("/download/report.html")
    def report() -> Response:
        runs, token = _chosen(store), _requested_view().token
        answer = Response(report_page(runs, token), mimetype="text/html")
        answer.headers.set("Content-Disposition", "attachment", filename="intertoken-report.html")
        return answer

    @server.get("/download/recording.zip")
    def recording() -> Response:
        run = _chosen(store)[0]
        try:
            file = zip_of(run, store.readers)
        except TraceError as problem:
            abort(_unreadable(problem))
        name = safe_name(run.key.replace("/", "-"))
        return send_file(file, "application/zip", as_attachment=True, download_name=f"{name}.zip")


def zip_of(run: Run, readers: Readers | None = None) -> IO[bytes]:
    """The recording of a run as a zip of its parquetdir, with its graph; as recorded, not scrubbed.

    Raises:
        TraceError: it cannot be read any more.
    """
    if run.path is None:
        raise TraceError(f"{run.name}: not a recording on disk")
    with TemporaryDirectory() as folder:
        place = Path(folder) / "recording"
        if readers is None:
            write_copy(run.path, place)
        else:
            readers.do(run.path, write_copy, place)
        file = TemporaryFile()  # noqa: SIM115  # whoever sends it closes it
        with zipfile.ZipFile(file, "w") as archive:  # Parquet is compressed already
            for part in sorted(place.iterdir()):
                archive.write(part, part.name)
            if run.graph_file is not None:
                archive.write(run.graph_file, GRAPH_FILE)
    file.seek(0)
    return file


def _unreadable(problem: TraceError) -> Response:
    return Response(f"{plain(str(problem))}\n", 422, mimetype="text/plain")


def _requested_view() -> View:
    return View.parse(request.query_string.decode())


def _chosen(store: RunStore) -> list[Run]:
    """The runs named by the address; aborts the request if there are none or too many."""
    keys = request.args.getlist("run")
    view = _requested_view()
    runs = told(store.chosen(map(store.key_of, keys), view.rates), view.basis) if len(keys) <= MOST_RUNS else []
    if not runs:
        abort(Response(f"Name one to {MOST_RUNS} existing runs: ?run=NAME\n", 404, mimetype="text/plain"))
    return runs
