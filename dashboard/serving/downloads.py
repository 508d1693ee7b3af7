"""Downloads: tables, the report of a comparison, and recordings. Streamed, under safe names."""

from __future__ import annotations

import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from flask import Flask, Response, abort, request, send_file

from dashboard.reading.read import write_copy
from dashboard.reading.readers import Readers
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.report import report_page
from dashboard.report.tables import FORMS, TABLES
from dashboard.text import plain, safe_name
from dashboard.view import MOST_RUNS, View
from tracer.errors import TraceError
from tracer.model.graph_json import GRAPH_FILE


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
    runs = store.chosen(map(store.key_of, keys), _requested_view().rates) if len(keys) <= MOST_RUNS else []
    if not runs:
        abort(Response(f"Name one to {MOST_RUNS} existing runs: ?run=NAME\n", 404, mimetype="text/plain"))
    return runs
