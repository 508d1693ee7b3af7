"""The report: its figures against the analyses, its words, its file; how it looks is tested in a browser."""

import json
import re
import shutil
from functools import cache
from html import unescape

import pytest
from click.testing import CliRunner

from dashboard.cli import report
from dashboard.reading.store import runs_to_compare
from dashboard.report import advice_for, cards, groups_of_facts, report_page
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, SAMPLES, SIX
from tracer import formats
from tracer.cli import main
from tracer.errors import TraceError, UsageError

HOSTILE = '</script><img src=x onerror="window.hacked=1"><b>'
OURS = [SAMPLES / f"llama-1.1b-{strategy}-sequential-cuda" for strategy in ("sccc", "saaas")]


@cache
def read(path):
    return runs_to_compare([path])


def runs_at(paths):
    """The runs to compare, each read and analysed once for all tests."""
    return [run for path in paths for run in read(path)]


@pytest.fixture(autouse=True, scope="module")
def advice_is_found_once():
    """What to change in a run does not depend on the report that says it."""
    found = {}

    def once(run):
        if id(run) not in found:
            found[id(run)] = advice_for(run), run  # which keeps the id the run's own
        return found[id(run)][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dashboard.report.advice_for", once)
        yield


@pytest.fixture(scope="module")
def hand_made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand-made")
    paths = [folder / "base", folder / "wide"]
    for path, gap in zip(paths, (GAP, 2 * GAP), strict=True):
        formats.write(decode(tokens=12, gap=gap, kernel=HOSTILE), path)
    return paths


def facts_of(paths):
    groups = groups_of_facts(runs_at(paths))
    return {fact.label: [(c.text, c.change) for c in fact.cells] for facts in groups.values() for fact in facts}


def as_json(*arguments):
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_differences_are_from_the_base(hand_made):
    facts = facts_of(hand_made)
    assert facts["p50"] == [("100 µs", ""), ("200 µs", "+100 µs (+100 %)")]
    assert facts["Host syncs"] == [("2", ""), ("2", "±0")]
    assert facts["Compute"] == [("900 µs", ""), ("800 µs", "−100 µs (−11 %)")]
    assert facts["Steps/s as recorded"] == [("1,000.1", ""), ("1,000.1", "±0.0 %")]
    assert not [label for label in facts if label.startswith("Tokens/s")]  # nothing tells the batch
    assert "Model" not in facts


def test_a_run_that_cannot_be_compared_says_why(hand_made, tmp_path):
    formats.write(decode(tokens=1), tmp_path / "one")
    page = report_page(runs_at([hand_made[0], tmp_path / "one"]))
    assert '<p class="answer">one: ' in page


def test_no_difference_is_stated_that_tracing_may_have_made(tmp_path):
    for strategy in ("sccc", "saaas"):
        shutil.copytree(LLAMA[strategy, "node"], tmp_path / strategy)
        (tmp_path / strategy / "run.json").unlink()
    paths = [tmp_path / "sccc", tmp_path / "saaas"]
    facts = facts_of(paths)
    for label in ("p50", "p90", "mean", "sync", "Compute", "GPU busy", "Steps/s as recorded"):
        assert [change for _, change in facts[label]] == ["", ""], label
    assert facts["Host syncs"][1] == ("5", "−9")
    assert [card.gap.change for card in cards(runs_at(paths))] == ["", ""]
    assert "saaas against sccc: no verdict: " in unescape(report_page(runs_at(paths)))


def cautions_in(page):
    return page.split('<ul class="cautions">')[1].split("</ul>")[0]


def test_cautions_are_those_of_the_command_and_stand_before_every_difference():
    paths = [LLAMA["sccc", "node"], LLAMA["saaas", "graph"]]
    page = unescape(report_page(runs_at(paths)))
    said = re.findall("<li>(.*?)</li>", cautions_in(page))
    assert said == as_json("compare", *paths)["runs"][1]["cautions"]
    assert len(said) >= 3
    assert page.index("Before you compare") < page.index("At a glance") < page.index('<p class="answer">')
    alone = unescape(report_page(runs_at(paths[:1])))
    assert "Before you read on" in alone
    assert "include what the profiler adds" in cautions_in(alone)


def test_the_page_asks_for_nothing_and_shows_names_as_text(hand_made):
    page = report_page(runs_at(hand_made))
    head = page[: page.index("<style>")]
    assert "default-src 'none'" in head
    assert not re.search(r"<(link|iframe|img|object|base)\b|\ssrc=", page[: page.index('<script type="application')])
    assert page.count("</script>") == 3
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert set(figures) == {"gap", "token", "causes"}
    assert set(figures["gap"]["themes"]) == {"light", "dark"}
    kernels = [t for t in figures["gap"]["themes"]["light"]["data"] if t["name"] == "kernel"]
    hovers = [h for t in kernels for h in (t["hovertemplate"], *t.get("hovertext", []))]
    assert any("&lt;img" in hover for hover in hovers)
    assert all("<img" not in hover for hover in hovers)


def test_a_hostile_name_of_a_run_is_escaped(tmp_path):
    path = tmp_path / '<img src=x onerror="window.hacked=1">'
    formats.write(decode(tokens=5), path)
    page = report_page(runs_at([path]))
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page


def test_a_run_directory_is_one_run_and_a_recording_of_several_is_several(tmp_path):
    assert [run.key for run in runs_to_compare(OURS)] == [path.name for path in OURS]
    assert [run.name for run in runs_at([OURS[0] / "node"])] == [f"{OURS[0].name} · node"]
    with pytest.raises(UsageError, match=r"^7 runs .*: six-strategies · run sccc sequential, .* one to 6"):
        runs_to_compare([SIX])
    formats.write(decode(tokens=1), tmp_path / "short")
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\x00 but not really")
    with pytest.raises(TraceError, match=r"broken\.sqlite"):
        runs_to_compare([OURS[0], tmp_path / "broken.sqlite"])


def test_the_command_writes_one_file_and_replaces_none(hand_made, tmp_path):
    target = tmp_path / "out" / "report.html"
    written = CliRunner().invoke(report, [*map(str, hand_made), "-o", str(target)])
    assert written.exit_code == 0, written.output
    assert f"{target}: {target.stat().st_size / 1e6:.1f} MB" in written.stdout
    assert target.stat().st_size < 6e6
    again = CliRunner().invoke(main, ["report", *map(str, hand_made), "-o", str(target)])
    assert again.exit_code == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize(
    ("command", "output", "says"),
    [("report", "a.pdf", "a report must end with .html or .htm"), ("timeline", "a.pdf", "must end with .svg or .png"),
     ("report", "a.html", "no such file")],
)  # fmt: skip
def test_bad_input_is_one_line(command, output, says, tmp_path):
    result = CliRunner().invoke(main, [command, str(tmp_path / "nothing"), "-o", str(tmp_path / output)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_kaleido_the_command_says_what_to_install(hand_made, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kaleido", None)
    result = CliRunner().invoke(main, ["timeline", str(hand_made[0]), "-o", str(tmp_path / "a.svg")])
    assert (result.exit_code, result.stderr.strip()) == (
        2, "intertoken: images need kaleido: pip install 'intertoken[image]'",
    )  # fmt: skip


def test_advice_in_the_report_escapes_names_and_says_what_is_missing(hand_made):
    run = runs_at(hand_made)[0]
    found = advice_for(run)
    ((edit, *_, place),) = found.changes
    assert (edit, place) == ("ggg", "token N")
    assert HOSTILE not in report_page([run])
