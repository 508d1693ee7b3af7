"""The report as a file: what it states and what not, its names, its command; how it looks is tested in a browser."""

import json
import re
import shutil
import sys
from html import unescape

import pytest
from click.testing import CliRunner

from dashboard.reading.store import runs_to_compare
from dashboard.report import advice_for, cards, groups_of_facts, report_page
from tests.dashboard.conftest import as_json
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, SAMPLES, SIX
from tracer import formats
from tracer.cli import main
from tracer.errors import TraceError, UsageError

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
    assert facts["Host syncs"] == [("2", ""), ("2", "±0")]
    assert facts["Compute"] == [("900 µs", ""), ("800 µs", "−100 µs (−11 %)")]
    assert not [label for label in facts if label.startswith(("Tokens/s", "Model"))], "nothing tells batch and model"
    for strategy in ("sccc", "saaas"):
        shutil.copytree(LLAMA[strategy, "node"], tmp_path / strategy)
        (tmp_path / strategy / "run.json").unlink()
    paths = [tmp_path / "sccc", tmp_path / "saaas"]
    facts = facts_of(paths)
    for label in ("p50", "p90", "mean", "sync", "Compute", "GPU busy", "Steps/s as recorded"):
        assert [change for _, change in facts[label]] == ["", ""], label
    assert facts["Host syncs"][1] == ("5", "−9")
    runs = runs_to_compare(paths)
    assert [card.gap.change for card in cards(runs)] == ["", ""]
    assert "saaas against sccc: no verdict: " in unescape(report_page(runs))


def test_cautions_are_those_of_the_command_and_stand_before_every_difference():
    paths = [LLAMA["sccc", "node"], LLAMA["saaas", "graph"]]

    def cautions_in(page):
        return page.split('<ul class="cautions">')[1].split("</ul>")[0]

    page = unescape(report_page(runs_to_compare(paths)))
    said = re.findall("<li>(.*?)</li>", cautions_in(page))
    assert said == as_json("compare", *paths)["runs"][1]["cautions"]
    assert len(said) >= 3
    assert page.index("Before you compare") < page.index("At a glance") < page.index('<p class="answer">')
    alone = unescape(report_page(runs_to_compare(paths[:1])))
    assert "include what the profiler adds" in cautions_in(alone)


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
