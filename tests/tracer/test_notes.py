"""Notes on a recording: short sentences, those first that change a figure, and all of it on request."""

import json
import re

import pytest
from click.testing import CliRunner

from tests.golden import kept
from tests.recordings import SAMPLES
from tracer.cli import main
from tracer.notes import AT_ONCE, LONGEST, NAME, brief, by_weight, clauses, fitting, whole

NOTES = "notes"


def notes_in(answer):
    """All notes of an answer, at any depth."""
    if isinstance(answer, dict):
        texts = answer.get(NOTES)
        yield from (text for text in texts or () if isinstance(texts, list) and isinstance(text, str))
    for inside in answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ():
        yield from notes_in(inside)


def test_every_golden_note_is_a_short_sentence():
    found = {note for name in kept.files() for note in notes_in(kept.read(name))}
    assert len(found) > 20
    for note in found:
        assert len(note) <= LONGEST, note
        assert note.isprintable(), note
        assert note.endswith("."), note
        assert not re.search(r"(?<!\S)~?/\w|[A-Z]:\\", note), note
        assert all(len(word) <= NAME + 2 for word in note.split()), note


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("3 are left out", "3 are left out"),
        ("3 are left out.\nmore of it", "3 are left out"),
        (f"it has a long name: {'x' * 50}; {'word ' * 30}", f"it has a long name: {'x' * 26}…{'x' * 13}"),
        (f"{'word ' * 40}", "word " * 31 + "…"),
        ("the ranges of /home/someone/model dir/serve.py overlap", "the ranges of …/model dir/serve.py overlap"),
        ("a\x1bb", "a\\x1bb"),
        ("5 launches/s, and/or 3", "5 launches/s, and/or 3"),
    ],
)
def test_a_note_is_told_in_a_sentence(note, sentence):
    assert brief(note) == sentence
    assert len(f"{brief(note)}.") <= LONGEST


def test_clauses_end_where_others_begin():
    assert clauses("one, two; three", 9) == "one, two"
    assert clauses("one, two; three", 8) == "one, two"
    assert clauses("one, two; three", 7) == "one"
    assert clauses("one, two", 2) == ""


def test_what_is_too_long_for_a_sentence_is_told_after_a_shorter_one():
    full = f"{'some ' * 40}are left out"
    assert fitting(full, "some are left out") == f"some are left out\n{full}"
    assert fitting(f"some: {full}", "some") == f"some\n{full}"
    assert whole(fitting("a; b", "c")) == "a; b."


def test_notes_that_change_a_figure_come_first():
    zipped, lost = "read from a.json in the zip", "3 calls are missing"
    assert by_weight([zipped, lost, zipped]) == [lost, zipped]


def test_info_gives_the_answer_then_three_notes_and_all_on_request():
    path = str(SAMPLES / "jax-step")
    runner = CliRunner()
    said = runner.invoke(main, ["info", path])
    assert said.output.index("contains") < said.output.index("note: ")
    *first, more = said.stderr.splitlines()
    assert len(first) == AT_ONCE
    told = runner.invoke(main, ["info", path, "-v"]).stderr.splitlines()
    assert more == f"note: {len(told) - AT_ONCE} more notes: -v"
    assert any("which confirm their ends within" in line for line in told)
    notes = json.loads(runner.invoke(main, ["info", path, "--json"]).stdout)[NOTES]
    assert [f"note: {note}" for note in notes[:AT_ONCE]] == first
    assert len(notes) == len(told)
