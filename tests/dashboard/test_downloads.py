"""What readers take away: tables in three forms, with the figures of the commands, and recordings to be read again."""

import csv
import io
import json
import shutil
import zipfile

import pandas as pd
import pytest

from dashboard.app import create_app
from dashboard.downloads import TABLES, csv_of, json_of, parquet_of
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from tests.dashboard.conftest import client_of
from tests.dashboard.filled import TINY, write_runs
from tests.dashboard.traces import GAP, decode
from tracer import formats

HOSTILE = '<img src=x onerror="hacked()">,"\n\u202e😀'


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(kernel=HOSTILE), directory / "a")
    formats.write(decode(gap=2 * GAP), directory / "b.json")
    (directory / "broken.sqlite").write_bytes(b"SQLite format 3\0 not")
    return client_of(directory)


def test_a_table_says_the_same_in_every_form_with_the_figures_of_the_page(client):
    for name in (name for name, table in TABLES.items() if not table.of_graph and name != "comparison"):
        answers = {form: client.get(f"/download/{name}.{form}?run=a&run=b") for form in ("csv", "json", "parquet")}
        for form, answer in answers.items():
            assert answer.status_code == 200
            assert answer.headers["Content-Disposition"] == f"attachment; filename=intertoken-{name}.{form}"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        frame = pd.read_parquet(io.BytesIO(answers["parquet"].data))
        assert set(frame["run"]) == ({"a", "b", "broken"} if name == "runs" else {"a", "b"})
        assert json.loads(answers["json"].text) == json.loads(frame.to_json(orient="records", double_precision=15))
        lines = list(csv.reader(io.StringIO(answers["csv"].text)))
        assert (lines[0], len(lines)) == (list(frame.columns), len(frame) + 1)
    gaps = pd.DataFrame(client.get("/download/gaps.json?run=b").get_json())
    assert gaps["gap"].median() == 2 * GAP
    assert (gaps[["sync", "copy", "launch", "host", "other"]].sum(axis=1) == gaps["gap"]).all()
    causes = pd.DataFrame(client.get("/download/causes.json?run=a&run=b").get_json())
    assert causes.groupby("run")["mean_us"].sum().to_dict() == pytest.approx({"a": 100, "b": 200})
    table = {row["run"]: row for row in client.get("/download/runs.json").get_json()}
    assert "broken.sqlite" in table["broken"]["problem"]


def test_large_tables_come_in_pieces_and_whole():
    for length in (0, 1, 20_000, 20_001):
        frame = pd.DataFrame({"a": range(length), "b": ['x,\n"' + str(i) for i in range(length)]})
        pieces = list(csv_of(frame))
        assert len(pieces) == 1 + -(-length // 20_000)
        assert "".join(pieces) == frame.to_csv(index=False, lineterminator="\r\n")
        assert json.loads("".join(json_of(frame))) == frame.to_dict("records")
        assert pd.read_parquet(io.BytesIO(b"".join(parquet_of(frame)))).equals(frame.astype({"b": "str"})) or not length


def test_no_text_in_a_csv_file_is_a_formula_and_numbers_stay():
    for name in ("=1+1", "+1", "-1", "@sum(a1)", "\t=1", "\r=1"):
        numbers = {"slack": [-1.5, 2.0], "stream": pd.array([-1, None], "Int64")}
        table = pd.DataFrame({"name": [name, f"k{name}"], **numbers})
        table = table.assign(kind=table["name"].astype("category"))
        lines = list(csv.reader(io.StringIO("".join(csv_of(table)), newline="")))
        shown = name.replace("\t", r"\x09").replace("\r", r"\x0d")
        guarded = f"'{shown}" if shown == name else shown
        assert lines[1:] == [[guarded, "-1.5", "-1", guarded], [f"k{shown}", "2.0", "", f"k{shown}"]]
        assert json.loads("".join(json_of(table)))[0]["name"] == name


def test_a_recording_comes_back_by_upload_as_it_was(tmp_path):
    (tmp_path / "inbox").mkdir()
    runs = write_runs(tmp_path / "runs")
    with client_of(runs).get(f"/download/recording.zip?run={TINY}") as answer:
        assert answer.headers["Content-Disposition"] == f"attachment; filename={TINY}.zip"
        data = answer.data
    members = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"run.json", "graph.json"} <= set(members)
    assert all("/" not in name for name in members)
    other = create_app([], Serving(uploads=tmp_path / "inbox")).server.test_client()
    key = other.post("/upload", query_string={"name": "again.zip", "size": len(data)}).get_json()["id"]
    assert other.put(f"/upload/{key}?at=0", data=data).get_json()["run"] == "again"
    before, after = RunStore([runs]).chosen([TINY])[0], RunStore([tmp_path / "inbox"]).runs()[0]
    assert after.summary.gap_p50_us == before.summary.gap_p50_us
    assert len(after.graph.nodes) == len(before.graph.nodes)
    assert {name: len(after.trace[name]) for name in before.trace.tables} == {
        name: len(table) for name, table in before.trace.tables.items()
    }


def test_what_is_not_there_cannot_be_taken(client, tmp_path):
    for address in (
        "nothing.csv", "gaps.exe?run=a", "gaps.csv", "gaps.csv?run=nobody", "recording.zip?run=broken", "report.html",
        "gaps.csv?" + "&".join(["run=a"] * 7), "..%2f..%2fetc%2fpasswd.csv", "recording.zip?run=../../etc/passwd",
    ):  # fmt: skip
        answer = client.get(f"/download/{address}")
        assert answer.status_code == 404, address
        assert "Content-Disposition" not in answer.headers
    formats.write(decode(), tmp_path / "a")
    gone = client_of(tmp_path)
    assert gone.get("/download/runs.csv").status_code == 200
    shutil.rmtree(tmp_path / "a")
    answer = gone.get("/download/recording.zip?run=a")
    assert (answer.status_code, "no such file" in answer.text) == (422, True)
