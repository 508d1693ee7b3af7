"""What readers take away: tables in three forms, recordings to be read again, and the report as a file."""

import csv
import io
import json
import re
import shutil
import sys
import zipfile
from html import unescape

import pandas as pd
import pytest
from click.testing import CliRunner

from dashboard.app import create_app
from dashboard.downloads import TABLES, csv_of, json_of, parquet_of
from dashboard.reading.store import RunStore, runs_to_compare
from dashboard.report import advice_for, cards, groups_of_facts, report_page
from dashboard.serving import Serving
from tests.dashboard.conftest import client_of, upload
from tests.dashboard.filled import TINY, write_runs
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, SAMPLES, SIX, untold
from tracer import formats
from tracer.cli import main
from tracer.errors import TraceError, UsageError

TROUBLE = '<img src=x onerror="hacked()">,"\n\u202e😀'


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    formats.write(decode(kernel=TROUBLE), directory / "a")
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
    assert upload(other, "again.zip", data).get_json()["run"] == "again"
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


HOSTILE = '<|script><img src=x onerror="window.hacked=1"><b>'.replace("|", "/")
OURS = [SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda" for strategy in ("sccc", "saaas")]


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand-made")
    paths = [folder / HOSTILE.replace("/", ""), folder / "wide"]
    for path, gap in zip(paths, (GAP, 2 * GAP), strict=True):
        formats.write(decode(tokens=12, gap=gap, kernel=HOSTILE), path)
    return paths


def facts_of(paths):
    groups = groups_of_facts(runs_to_compare(paths))
    return {fact.label: [(c.text, c.change) for c in fact.cells] for facts in groups.values() for fact in facts}


def test_differences_are_from_the_base_and_none_is_stated_that_tracing_may_have_made(hand_made, tmp_path):
    facts = facts_of(hand_made)
    assert facts["p50"] == [("100 µs", ""), ("200 µs", "+100 µs (+100 %)")]
    assert not [label for label in facts if label.startswith(("Tokens/s", "Model"))], "nothing tells batch and model"
    paths = [untold(LLAMA[strategy, "node"], tmp_path / strategy) for strategy in ("sccc", "saaas")]
    facts = facts_of(paths)
    for label in ("p50", "p90", "mean", "sync", "Compute", "GPU busy", "Steps/s as recorded"):
        assert [change for _, change in facts[label]] == ["", ""], label
    assert facts["Host syncs"][1] == ("5", "−9")
    runs = runs_to_compare(paths)
    assert [card.gap.change for card in cards(runs)] == ["", ""]
    assert "saaas against sccc: no verdict: " in unescape(report_page(runs))


def test_the_page_asks_for_nothing_and_shows_names_as_text(hand_made):
    runs = runs_to_compare(hand_made)
    page = report_page(runs)
    head = page[: page.index("<style>")]
    assert "default-src 'none'" in head
    assert not re.search(
        r"<(link|iframe|img|object|base)\b|<[^>]*\ssrc=", page[: page.index('<script type="application')]
    )
    assert page.count("</script>") == 3
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert set(figures) == {"gap", "token", "causes"}
    kernels = [t for t in figures["gap"]["themes"]["light"]["data"] if t["name"] == "kernel"]
    hovers = [h for t in kernels for h in (t["hovertemplate"], *t.get("hovertext", []))]
    assert any("&lt;img" in hover for hover in hovers)
    assert all("<img" not in hover for hover in hovers)
    assert "<img src=x" not in page.split('id="figures">')[0]
    assert HOSTILE not in page
    ((edit, *_, place),) = advice_for(runs[0]).changes
    assert (edit, place) == ("ggg", "token N")


def test_a_run_directory_is_one_run_and_what_cannot_be_compared_is_said(hand_made, tmp_path):
    assert [run.key for run in runs_to_compare(OURS)] == [path.name for path in OURS]
    assert [run.name for run in runs_to_compare([OURS[0] / "node"])] == [f"{OURS[0].name} · node"]
    with pytest.raises(UsageError, match=r"^7 runs .*: six-strategies · run sccc sequential, .* one to 6"):
        runs_to_compare([SIX])
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\x00 but not really")
    with pytest.raises(TraceError, match=r"broken\.sqlite"):
        runs_to_compare([OURS[0], tmp_path / "broken.sqlite"])
    formats.write(decode(tokens=1), tmp_path / "one")
    assert '<p class="answer">one: ' in report_page(runs_to_compare([hand_made[1], tmp_path / "one"]))


def test_the_command_writes_one_file_replaces_none_and_refuses_in_one_line(hand_made, tmp_path, monkeypatch):
    target = tmp_path / "out" / "report.html"
    monkeypatch.setitem(sys.modules, "kaleido", None)
    for arguments, code, said in (
        (["report", *hand_made, "-o", target], 0, ": "),
        (["report", *hand_made, "-o", target], 2, "already exists"),
        (["report", hand_made[0], "-o", tmp_path / "a.pdf"], 2, "a report must end with .html or .htm"),
        (["timeline", hand_made[0], "-o", tmp_path / "a.pdf"], 2, "must end with .svg or .png"),
        (["report", tmp_path / "nothing", "-o", tmp_path / "a.html"], 2, "no such file"),
        (["timeline", hand_made[0], "-o", tmp_path / "a.svg"], 2, "kaleido: pip install 'intertoken[image]'"),
    ):  # fmt: skip
        result = CliRunner().invoke(main, [*map(str, arguments)])
        assert result.exit_code == code, result.output
        assert said in (result.stderr if code else result.stdout)
        assert not code or (len(result.stderr.splitlines()), result.stdout) == (1, "")
    assert [*tmp_path.rglob("*.*")] == [target]
    assert target.stat().st_size < 6e6
