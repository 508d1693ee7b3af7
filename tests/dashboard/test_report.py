"""The report: its figures against the analyses, its words, its file; how it looks is tested in a browser."""

import json
import re
import shutil
from functools import cache
from html import unescape

import pytest
from click.testing import CliRunner

from dashboard.cli import report, timeline
from dashboard.reading.store import runs_to_compare
from dashboard.report import advice_for, cards, groups_of_facts, report_page
from tests.dashboard.traces import GAP, PERIOD, decode
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


def test_the_figures_are_those_that_the_commands_print():
    facts = facts_of(OURS)
    for column, path in enumerate(OURS):
        gaps, syncs = as_json("gaps", path), as_json("syncs", path)
        assert facts["p50"][column][0] == f"{gaps['gap_us']['p50']:.1f} µs"
        assert facts["sync"][column][0] == f"{gaps['causes_us']['sync']:.1f} µs"
        assert facts["Host syncs"][column][0] == f"{syncs['syncs_per_token']:g}"
        assert facts["Signature"][column][0] == syncs["signature"]
        measured = json.loads((path / "run.json").read_text())["measured"]["tokens_per_s"]
        assert facts["Tokens/s"][column][0] == f"{measured['median']:,.1f}"
        spread = f"{min(measured['repeats']):,.1f} – {max(measured['repeats']):,.1f}"
        assert facts["lowest – highest"][column][0] == spread
    assert facts["Host syncs"] == [("8", ""), ("3", "−5")]
    assert facts["Tokens/s"][1][1] == "+3.0 %"


def test_the_answer_is_the_sentence_of_the_command():
    runs = [SAMPLES / "llama1b-sccc-graph", SAMPLES / "llama1b-saaas-graph"]
    said = unescape(report_page(runs_at(runs))).split('<p class="answer">')[1].split("</p>")[0]
    assert said.startswith("llama1b-saaas-graph is faster than llama1b-sccc-graph: gap from ")
    printed = " ".join(CliRunner().invoke(main, ["compare", *map(str, runs)]).stdout.split())
    assert said.removesuffix(".") in printed
    assert 'class="answer"' not in report_page(runs_at(runs[:1]))


def test_a_run_that_cannot_be_compared_says_why(hand_made, tmp_path):
    formats.write(decode(tokens=1), tmp_path / "one")
    page = report_page(runs_at([hand_made[0], tmp_path / "one"]))
    assert '<p class="answer">one: ' in page


def test_a_gap_is_quoted_untraced_where_that_is_known():
    base, other = cards(runs_at([LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]]))
    assert (base.gap.text, base.gap_note) == ("78.1 µs", "gap (median, untraced)")
    assert other.gap.change == "−19.6 µs (−25 %)"
    assert other.calls == "5 syncs, 7 copies, 1 launch"
    assert base.rate_note == "tokens/s (745.7 – 751.7)"


def test_times_of_unlike_recordings_are_not_set_against_each_other():
    paths = [LLAMA["sccc", "node"], LLAMA["saaas", "graph"], OURS[0]]
    facts = facts_of(paths)
    for label in ("p50", "p90", "mean", "sync", "Compute", "Tokens/s as recorded"):
        assert [change for _, change in facts[label]] == ["", "", ""], label
    assert facts["Host syncs"][1] == ("5", "−9")
    assert facts["Tokens/s"][1] == ("759.5", "+1.4 %")
    shown = cards(runs_at(paths))
    assert shown[0].gap_note == "gap (median, untraced, about)"
    assert shown[1].gap_note == "gap (median, untraced)"
    assert [card.gap.change for card in shown] == ["", "", ""]
    assert facts["Tokens/s"][2][1] == ""  # of another model
    page = unescape(report_page(runs_at(paths)))
    assert "recorded differently" in cautions_in(page)
    assert "are not comparable: model llama 1.1B Q8_0 against llama-1.1b" in page


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


def test_a_run_of_one_token_has_no_gap_and_still_a_page(tmp_path):
    formats.write(decode(tokens=1, kernel="nul\x00byte"), tmp_path / "one")
    page = report_page(runs_at([tmp_path / "one"]))
    page.encode()
    assert 'id="causes"' not in page
    assert "no gap: 1 token step" in page


def test_the_time_axis_is_about_the_gap_and_about_the_token(hand_made):
    page = report_page(runs_at(hand_made), token=3)
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    ranges = {name: figures[name]["themes"]["dark"]["layout"]["xaxis"]["range"] for name in ("gap", "token")}
    assert ranges["gap"][0] < 0 < 2 * GAP / 1e9 < ranges["gap"][1] < 4 * GAP / 1e9
    assert ranges["token"][1] - ranges["token"][0] > PERIOD / 1e9
    assert "end of token 3’s compute" in page


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


def test_what_the_picture_is_made_of_is_chosen_by_options(hand_made, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "dashboard.figures.timeline.image", lambda figure, *sizes: asked.append((figure, *sizes)) or b"drawn"
    )
    target = tmp_path / "a.png"
    options = ["--token", "4", "--show", "gap", "--align", "start", "--theme", "dark", "--width", "900", "--scale", "3"]
    result = CliRunner().invoke(timeline, [str(hand_made[0]), "-o", str(target), *options])
    assert result.exit_code == 0, result.output
    assert target.read_bytes() == b"drawn"
    ((figure, suffix, width, height, scale),) = asked
    assert (suffix, width, scale) == (".png", 900, 3)
    assert height > 150
    assert figure.layout.xaxis.title.text == "time from the start of token 4’s compute"
    assert figure.layout.paper_bgcolor == "#161B22"
    assert {t.name for t in figure.data if t.showlegend} == {
        "kernel", "sync", "launch", "copy", "NVTX range", "inter-token gap",
    }  # fmt: skip


def test_the_report_has_the_advice_of_the_command():
    path = SAMPLES / "llama1b-sccc-graph"
    facts = as_json("advise", path)
    found = advice_for(runs_at([path])[0])
    assert [row[0] for row in found.changes] == [one["edit"] for one in facts["advice"]]
    assert [row[4] for row in found.changes] == ["; ".join(one["sites"]) or "–" for one in facts["advice"]]
    assert any(note.startswith("the device idles for ") for note in found.notes)
    page = unescape(report_page(runs_at([path])))
    assert "What to change" in page
    assert all(cell in page for row in found.changes for cell in row)


def test_advice_in_the_report_escapes_names_and_says_what_is_missing(hand_made):
    run = runs_at(hand_made)[0]
    found = advice_for(run)
    ((edit, *_, place),) = found.changes
    assert (edit, place) == ("ggg", "token N")
    assert HOSTILE not in report_page([run])
