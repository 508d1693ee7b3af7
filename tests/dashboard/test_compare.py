"""The sentence above the chart and the table of its figures: those of `intertoken compare`."""

import json
import shutil
import time

import pytest
from click.testing import CliRunner

from dashboard.pages.overview.compare import section, skeleton, table_of, words_of
from dashboard.reading.answers import against_base, ask_against_base, cautions_of, comparison_table, methods_of
from dashboard.reading.store import RunStore, known
from tests.dashboard.traces import GAP, decode
from tests.recordings import LLAMA, SAMPLES
from tracer import formats
from tracer.cli import main
from tracer.reporting.compare_matrix import matrix

pytestmark = pytest.mark.usefixtures("all_resamples")

HOSTILE = '<img src=x onerror="window.hacked=1">\u202e'
OURS = [SAMPLES / f"llama-1.1b-{s}-sequential-cuda" for s in ("sccc", "saaas", "ggg")]


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


def test_of_each_line_the_largest_difference_is_lit_and_of_two_runs_the_largest_cause(ladder):
    def lit(lines):
        return {line.label: [at for at, cell in enumerate(line.cells) if cell.is_largest] for line in lines}

    several = lit(matrix([one.found for one in ladder]))
    assert several["Gap p50, µs"] == several["Tokens/s"] == several["of which sync, µs"] == [1]
    assert several["of which other process/thread, µs"] == []  # none is shown
    assert several["Syncs per token"] == []  # no interval
    one = lit(matrix([ladder[0].found]))
    assert [label for label, cells in one.items() if cells] == ["of which sync, µs"]


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
