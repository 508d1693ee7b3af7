"""What readers take away: tables in three forms, the report, and recordings that can be read again."""

import csv
import io
import json
import zipfile

import pandas as pd
import pytest

from dashboard.app import create_app
from dashboard.downloads import TABLES, csv_of, json_of, parquet_of
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from tests.dashboard.graph_runs import write_runs
from tests.dashboard.traces import GAP, decode
from tracer import formats

HOSTILE = '<img src=x onerror="hacked()">,"\n\u202e😀'


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(kernel=HOSTILE), directory / "a")
    formats.write(decode(gap=2 * GAP), directory / "b.json")
    (directory / "broken.sqlite").write_bytes(b"SQLite format 3\0 not")
    return directory


@pytest.fixture(scope="module")
def client(runs):
    return create_app([runs]).server.test_client()


PLAIN = [name for name, table in TABLES.items() if not table.of_graph]


@pytest.mark.parametrize("name", [name for name in PLAIN if name != "comparison"])
def test_a_table_says_the_same_in_every_form(client, name):
    answers = {form: client.get(f"/download/{name}.{form}?run=a&run=b") for form in ("csv", "json", "parquet")}
    for form, answer in answers.items():
        assert answer.status_code == 200
        assert answer.headers["Content-Disposition"] == f"attachment; filename=intertoken-{name}.{form}"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    frame = pd.read_parquet(io.BytesIO(answers["parquet"].data))
    assert len(frame) >= 2
    assert set(frame["run"]) == ({"a", "b", "broken"} if name == "runs" else {"a", "b"})
    assert json.loads(answers["json"].text) == json.loads(frame.to_json(orient="records", double_precision=15))
    lines = list(csv.reader(io.StringIO(answers["csv"].text)))
    assert lines[0] == list(frame.columns)
    assert len(lines) == len(frame) + 1


def test_figures_of_the_page_are_in_the_tables(client):
    gaps = pd.DataFrame(client.get("/download/gaps.json?run=b").get_json())
    assert gaps["gap"].median() == 2 * GAP
    assert (gaps[["sync", "copy", "launch", "host", "other"]].sum(axis=1) == gaps["gap"]).all()
    causes = pd.DataFrame(client.get("/download/causes.json?run=a&run=b").get_json())
    assert causes.groupby("run")["mean_us"].sum().to_dict() == pytest.approx({"a": 100, "b": 200})
    table = {row["run"]: row for row in client.get("/download/runs.json").get_json()}
    assert table["a"]["gap_p50_us"] == pytest.approx(100)
    assert "broken.sqlite" in table["broken"]["problem"]


@pytest.fixture(scope="module")
def with_graphs(tmp_path_factory):
    return write_runs(tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize("length", [0, 1, 20_000, 20_001, 50_000])
def test_large_tables_come_in_pieces_and_whole(length):
    frame = pd.DataFrame({"a": range(length), "b": ['x,\n"' + str(i) for i in range(length)]})
    pieces = list(csv_of(frame))
    assert len(pieces) == 1 + -(-length // 20_000)
    assert "".join(pieces) == frame.to_csv(index=False, lineterminator="\r\n")
    assert json.loads("".join(json_of(frame))) == frame.to_dict("records")
    assert pd.read_parquet(io.BytesIO(b"".join(parquet_of(frame)))).equals(frame.astype({"b": "str"})) or length == 0


def test_a_recording_comes_back_by_upload_as_it_was(with_graphs, tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    client = create_app([with_graphs]).server.test_client()
    with client.get("/download/recording.zip?run=tiny-sccc-branches") as answer:
        assert answer.headers["Content-Disposition"] == "attachment; filename=tiny-sccc-branches.zip"
        data = answer.data
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {"run.json", "graph.json"} <= set(names)
    assert all("/" not in name for name in names)

    other = create_app([], Serving(uploads=inbox)).server.test_client()
    key = other.post("/upload", query_string={"name": "again.zip", "size": len(data)}).get_json()["id"]
    assert other.put(f"/upload/{key}?at=0", data=data).get_json()["run"] == "again"
    before, after = RunStore([with_graphs]).chosen(["tiny-sccc-branches"])[0], RunStore([inbox]).runs()[0]
    assert after.summary.gap_p50_us == before.summary.gap_p50_us
    assert len(after.graph.nodes) == len(before.graph.nodes)
    for name, table in before.trace.tables.items():
        assert len(after.trace[name]) == len(table)


@pytest.mark.parametrize(
    "address",
    ["nothing.csv", "gaps.exe?run=a", "gaps.csv", "gaps.csv?run=nobody", "recording.zip?run=broken", "report.html",
     "gaps.csv?" + "&".join(["run=a"] * 7), "..%2f..%2fetc%2fpasswd.csv", "recording.zip?run=../../etc/passwd"],
)  # fmt: skip
def test_what_is_not_there_cannot_be_taken(client, address):
    answer = client.get(f"/download/{address}")
    assert answer.status_code == 404
    assert "Content-Disposition" not in answer.headers


def test_a_recording_that_is_gone_is_said_in_a_line(tmp_path):
    formats.write(decode(), tmp_path / "a.json")
    client = create_app([tmp_path]).server.test_client()
    assert client.get("/download/runs.csv").status_code == 200
    (tmp_path / "a.json").unlink()
    answer = client.get("/download/recording.zip?run=a")
    assert answer.status_code == 422
    assert "no such file" in answer.text


@pytest.mark.browser
def test_figures_are_saved_by_the_browser_and_links_download(browser, runs, tmp_path):
    from selenium.webdriver.common.by import By

    from tests.dashboard.conftest import faults, served, until

    browser.get("about:blank")
    faults(browser)
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    with served(runs) as address:
        browser.get(f"{address}?run=a&run=b&theme=dark")
        until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#timeline .barlayer path"), "a timeline")
        until(browser, lambda: len(browser.find_elements(By.CSS_SELECTOR, "#downloads-of-runs tr")) == 10, "links")
        for key in ("timeline-svg", "timeline-png", "causes-svg", "causes-png"):
            browser.execute_script("arguments[0].click()", browser.find_element(By.ID, f"save-{key}"))
        for link in browser.find_elements(By.CSS_SELECTOR, "#downloads-of-runs tr:first-child a"):
            browser.execute_script("arguments[0].click()", link)
        figures = {f"{name}.{form}" for name in ("timeline", "causes") for form in ("svg", "png")}
        wanted = {f"intertoken-{name}" for name in figures | {"runs.csv", "runs.parquet", "runs.json"}}
        until(browser, lambda: wanted == {path.name for path in tmp_path.iterdir()}, "seven files")
        drawing = (tmp_path / "intertoken-timeline.svg").read_text()
        assert "barlayer" in drawing
        assert "rgb(22, 27, 34)" in drawing  # dark ground below light words
        assert (tmp_path / "intertoken-timeline.png").read_bytes().startswith(b"\x89PNG")
        assert faults(browser) == []
        browser.get("about:blank")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@sum(a1)", "\t=1", "\r=1"])
def test_no_text_in_a_csv_file_is_a_formula_and_numbers_stay(name):
    table = pd.DataFrame({"name": [name, f"k{name}"], "slack": [-1.5, 2.0], "stream": pd.array([-1, None], "Int64")})
    table = table.assign(kind=table["name"].astype("category"))
    lines = list(csv.reader(io.StringIO("".join(csv_of(table)), newline="")))
    shown = name.replace("\t", r"\x09").replace("\r", r"\x0d")
    guarded = f"'{shown}" if shown == name else shown
    assert lines[1:] == [[guarded, "-1.5", "-1", guarded], [f"k{shown}", "2.0", "", f"k{shown}"]]
    assert json.loads("".join(json_of(table)))[0]["name"] == name
    assert pd.read_parquet(io.BytesIO(b"".join(parquet_of(table))))["name"].tolist() == [name, f"k{name}"]
