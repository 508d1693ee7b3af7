"""The sentence above the chart and the table of its figures: those of `intertoken compare`."""

import io
import json
import shutil
import time

import pandas as pd
import pytest
from click.testing import CliRunner

from dashboard.app import create_app
from dashboard.pages.overview.compare import section, skeleton, table_of, words_of
from dashboard.reading.background import known
from dashboard.reading.comparisons import against_base, ask_against_base, cautions_of, comparison_table, methods_of
from dashboard.reading.store import RunStore
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats
from tracer.cli import main
from tracer.reporting.compare_matrix import LABELS, matrix

pytestmark = pytest.mark.usefixtures("all_resamples")

HOSTILE = '<img src=x onerror="window.hacked=1">\u202e'
OURS = [SAMPLES / f"llama-1.1b-{s}-sequential-cuda" for s in ("sccc", "saaas", "ggg")]
PUBLISHED = [LLAMA[s, "graph"] for s in ("sccc", "saaas")]


def text(part):
    """What a part of the page reads."""
    if isinstance(part, list | tuple):
        return "".join(map(text, part))
    return part if isinstance(part, str) else text(getattr(part, "children", None) or "")


def runs_at(paths):
    return RunStore(paths, passes=False).runs()


def compared(*paths):
    result = CliRunner().invoke(main, ["compare", *map(str, paths), "--json"])
    return json.loads(result.stdout)["runs"][1:]


@pytest.fixture(scope="module")
def ladder():
    return against_base(runs_at(OURS))


def test_the_page_says_what_the_command_says(ladder):
    facts = compared(*OURS)
    assert [fact["name"] for fact in facts] == [one.other.name for one in ladder]
    for one, fact, words in zip(ladder, facts, words_of(ladder), strict=True):
        short, *rest = words.children
        assert (short.title + "".join(map(text, rest))).startswith(fact["sentence"])
        assert text(short).count("…") >= 2, "names that fit on a line"
        assert one.found.speedup.low == fact["speedup"]["low"]
        assert one.found.gap_us.high == fact["difference"]["gap_us"]["high"]
    published = against_base(runs_at(PUBLISHED))
    assert text(words_of(published)).startswith(compared(*PUBLISHED)[0]["sentence"])


def test_every_figure_of_the_sentence_leads_to_its_row(ladder):
    rows = table_of(ladder).children[1].children
    cells = {cell.id for row in rows for cell in row.children if getattr(cell, "id", None)}
    for words in words_of(ladder):
        targets = [part.href.removeprefix("#") for part in words.children if hasattr(part, "href")]
        assert len(targets) >= 4
        assert set(targets) <= cells
    said = {text(row.children[0]): [text(cell) for cell in row.children[1:]] for row in rows}
    assert not {"Tracing overhead of the recording, ×", "of which other process/thread, µs"} & set(said), "all the same"
    assert said["Gap p50, µs"] == ["73.4", "51.7", "−21.7 [−25.6, −16.6]", "2.1", "−71.3 [−72.9, −69.2]"]
    assert said["Tokens/s"][-1] == "+8.1 % [+7.7, +8.5]"


def test_of_each_line_the_largest_difference_is_lit_and_of_two_runs_the_largest_cause(ladder):
    def lit(lines):
        return {line.label: [at for at, cell in enumerate(line.cells) if cell.is_largest] for line in lines}

    several = lit(matrix([one.found for one in ladder]))
    assert several["Gap p50, µs"] == several["Tokens/s"] == several["of which sync, µs"] == [1]
    assert several["of which other process/thread, µs"] == []  # none is shown
    assert several["Syncs per token"] == []  # no interval
    one = lit(matrix([ladder[0].found]))
    assert [label for label, cells in one.items() if cells] == ["of which sync, µs"]


def test_rates_of_other_bases_are_lines_of_their_own(tmp_path):
    paths = [LLAMA["sccc", "graph"], LLAMA["saaas", "graph"], tmp_path / "saaas"]
    shutil.copytree(LLAMA["saaas", "graph"], paths[2])
    (paths[2] / "run.json").unlink()
    found = [one.found for one in against_base(runs_at(paths))]
    lines = {line.label: (line.base, [cell.text for cell in line.cells]) for line in matrix(found)}
    rates = {label: cells for label, cells in lines.items() if label.startswith(("Tokens/s", "Steps/s"))}
    assert rates["Tokens/s, untraced"] == ("748.7", ["759.5", "–"])
    assert len(rates) == 2
    assert all(cells[0] == "–" for label, (_, cells) in rates.items() if "as traced" in label)


def test_cautions_are_those_of_the_command_and_follow_the_words():
    paths = [LLAMA["sccc", "node"], LLAMA["saaas", "graph"]]
    found = against_base(runs_at(paths))
    assert cautions_of(found) == compared(*paths)[0]["cautions"]
    assert len(cautions_of(found)) >= 3
    places = [part.id for part in section().children[2].children if getattr(part, "id", "")]
    assert places.index("compare-words") + 1 == places.index("compare-cautions")


def test_without_a_verdict_the_page_says_why_and_states_no_difference(tmp_path):
    for strategy in ("sccc", "saaas"):
        shutil.copytree(LLAMA[strategy, "node"], tmp_path / strategy)
        (tmp_path / strategy / "run.json").unlink()
    runs = {run.key: run for run in runs_at([tmp_path])}
    (found,) = against_base([runs["sccc"], runs["saaas"]])
    (words,) = words_of([found])
    assert text(words).startswith("saaas against sccc: no verdict: tracing adds time to every call")
    assert methods_of([found]) == ""
    rows = {
        text(row.children[0]): [text(cell) for cell in row.children[1:]]
        for row in table_of([found]).children[1].children
    }
    assert rows["Steps/s"] == ["606.3", "623.7", ""]
    assert rows["Syncs per token"][-1] == "−9.0"
    frame = comparison_table([runs["sccc"], runs["saaas"]]).set_index("figure")
    assert frame.loc["gap_us p50", ["estimate", "low", "high"]].isna().all()


def test_the_table_has_labels_and_takes_away_the_same_figures(ladder):
    frame = comparison_table(runs_at(OURS[:2]))
    assert set(frame["run"]) == {"llama-1.1b-saaas-sequential-cuda"}
    assert set(frame["against"]) == {"llama-1.1b-sccc-sequential-cuda"}
    row = frame.set_index("figure").loc["causes_us sync"]
    assert row["other"] - row["base"] == pytest.approx(row["estimate"]) == pytest.approx(-21.6, abs=0.1)
    labels = [LABELS[figure] for figure in frame["figure"] if not figure.startswith("kernel_us")]
    assert labels[:4] == ["Tokens/s", "Gap p50, µs", "Gap mean, µs", "of which sync, µs"]
    assert "Syncs per token" in labels
    assert comparison_table([]).empty
    assert "Welch" in methods_of(ladder)


def test_runs_that_cannot_be_compared_say_why(tmp_path):
    for name, model in (("a", "one"), ("b", "two"), ("c", "one")):
        formats.write(decode(tokens=8), tmp_path / name)
        (tmp_path / name / "run.json").write_text(json.dumps({"configuration": {"model": model}}))
    formats.write(decode(tokens=1), tmp_path / "short")
    runs = {run.key: run for run in runs_at([tmp_path])}
    unlike, alike, short = against_base([runs[key] for key in ("a", "b", "c", "short")])
    assert unlike.problem == "a and b are not comparable: model one against two"
    assert text(words_of([unlike])).startswith("b: a and b are not comparable")
    assert (alike.found.verdict, table_of([unlike])) == ("no difference shown", None)
    assert short.problem
    frame = comparison_table([runs["a"], runs["b"], runs["c"]]).set_index("run")
    assert (frame.loc["b", "problem"], frame.loc["b", "figure"]) == (unlike.problem, "")
    assert set(frame.loc["c", "problem"]) == {""}
    assert [one.problem for one in against_base([runs["short"], runs["a"]])] == [short.problem]


def test_hostile_names_are_text(tmp_path):
    for name, gap in ((HOSTILE.replace("/", ""), GAP), ("n" * 200, 2 * GAP)):
        formats.write(decode(tokens=8, gap=gap), tmp_path / name)
    found = against_base(runs_at([tmp_path]))
    said = text(words_of(found))
    assert "<img src=x" in said  # Dash escapes what is text
    assert "\\u202e" in said
    assert "n" * 61 not in said
    assert "n" * 61 not in text(table_of(found))


def test_the_answer_comes_in_the_background_once(tmp_path):
    for name, gap in (("a", GAP), ("b", 2 * GAP), ("c", 3 * GAP)):
        formats.write(decode(tokens=8, gap=gap), tmp_path / name)
    store = RunStore([tmp_path])
    runs = store.runs()
    answer = ask_against_base(store, runs)
    assert ask_against_base(store, runs) is answer
    deadline = time.monotonic() + 20
    while known(answer) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [one.other.key for one in known(answer)] == ["b", "c"]
    assert ask_against_base(store, runs[::-1]).result(20)[0].base is runs[2]
    assert [text(line) for line in skeleton(2)] == ["Comparing …", ""]


def test_the_download_names_run_and_base(tmp_path):
    for name, gap in (("a", GAP), ("b", 2 * GAP)):
        formats.write(decode(tokens=8, gap=gap), tmp_path / name)
    client = create_app([tmp_path]).server.test_client()
    rows = pd.DataFrame(client.get("/download/comparison.json?run=a&run=b").get_json()).set_index("figure")
    assert (rows.loc["gap_us p50", ["run", "against", "base", "other"]] == ["b", "a", 100, 200]).all()
    parquet = client.get("/download/comparison.parquet?run=a&run=b").data
    assert pd.read_parquet(io.BytesIO(parquet)).set_index("figure")["estimate"].equals(rows["estimate"])
    assert len(client.get("/download/comparison.csv?run=a&run=b").text.splitlines()) == len(rows) + 1
    assert client.get("/download/comparison.json?run=a").get_json() == []
