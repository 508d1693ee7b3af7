"""Bookmarks: in the link, and in a file next to the recording."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.pages.overview.actions import after_request
from dashboard.pages.overview.tools import SUFFIX, file_of, keep, kept, listed, may_keep, written
from dashboard.reading.store import RunStore
from dashboard.view import FURTHEST, MOST_BOOKMARKS, Bookmark, View
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import formats
from tracer.errors import UsageError

TOKENS = 6
MARK = Bookmark("a", 0, PERIOD, "slow")


@pytest.fixture
def runs(tmp_path):
    formats.write(decode(TOKENS), tmp_path / "a")
    formats.write(decode(TOKENS, gap=2 * GAP), tmp_path / "b")
    return RunStore([tmp_path]).chosen(["a", "b"])


NOTES = st.sampled_from(["", "a.b..c", "<b>&=%", "ü"])
MARKS = st.builds(
    Bookmark, st.text(min_size=1, max_size=20), st.integers(-FURTHEST, 0), st.integers(0, FURTHEST), NOTES
)


@given(st.lists(MARKS, max_size=3, unique=True))
def test_a_link_holds_bookmarks_of_any_name(marks):
    assert View.parse(View(bookmarks=tuple(marks)).query()).bookmarks == tuple(marks)


@pytest.mark.parametrize("text", ["", "1", "1..2", "1..x.a.n", "1..2..n", "x..2.a.n"])
def test_what_is_no_bookmark_in_a_link_is_left_out(text):
    assert View.parse(f"?bookmark={text}").bookmarks == ()


def test_what_is_in_view_is_bookmarked_and_found_again_at_any_token(runs):
    view = after_request(
        View(runs=("a", "b"), token=2, range=(-PERIOD, 0)), {"what": "bookmark", "note": " slow "}, runs
    )
    assert view.bookmarks == (Bookmark("a", 2 * PERIOD - GAP, 3 * PERIOD - GAP, "slow"),)
    assert after_request(view, {"what": "bookmark", "note": "slow"}, runs) == view
    wish = {"of": list(view.bookmarks[0])}
    later = View(runs=("a",), token=4)
    assert after_request(later, {"what": "go to bookmark", **wish}, runs).range == (-3 * PERIOD, -2 * PERIOD)
    assert after_request(later, {"what": "go to bookmark", "of": ["gone", 0, 1, ""]}, runs) == later
    assert after_request(view, {"what": "unmark", **wish}, runs).bookmarks == ()
    full = View(bookmarks=tuple(Bookmark("a", 0, at + 1) for at in range(MOST_BOOKMARKS)))
    assert after_request(full, {"what": "bookmark", "note": ""}, runs) == full
    assert after_request(View(), {"what": "bookmark"}, []) == View()


def test_bookmarks_are_kept_beside_the_recording_which_stays_one(runs, tmp_path):
    view = View(runs=("a", "b"), bookmarks=(MARK, Bookmark("b", 1, 2, "other")))
    assert "Write them to a.bookmarks.json" in str(listed(view, runs))
    assert written({"what": "keep bookmarks", "run": "a"}, view, runs)
    assert kept(runs[0]) == [MARK]
    assert kept(runs[1]) == []
    assert json.loads((tmp_path / "a.bookmarks.json").read_text()) == {
        "bookmarks": [{"low": 0, "high": PERIOD, "note": "slow", "within": None}]
    }
    said = str(listed(view, runs))
    assert "in the file next to the recording" in said
    assert "Write them to a.bookmarks.json" not in said
    assert [run.key for run in RunStore([tmp_path]).runs()] == ["a", "b"]
    assert not written({"what": "drop bookmark", "of": ["a", 1, 2, "none"]}, view, runs)
    assert written({"what": "drop bookmark", "of": list(MARK)}, view, runs)
    assert kept(runs[0]) == []
    assert not written({"what": "keep bookmarks", "run": "../../etc/passwd"}, view, runs)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A recording beside which each test writes what it likes."""
    directory = tmp_path_factory.mktemp("alone")
    formats.write(decode(TOKENS), directory / "a")
    return RunStore([directory]).runs()[0]


@pytest.mark.parametrize("content", [
    b"{", b"[]", b'{"bookmarks": 5}', b'{"bookmarks": [{"low": "0", "high": 1}]}', b'{"bookmarks": [{"low": 0}]}',
    b'{"bookmarks": [{"low": 0, "high": 1e99}]}', b'{"bookmarks": [{"low": 0, "high": 1, "more": 1}]}',
    b'{"bookmarks": [' + b'{"low": 0, "high": 1},' * 200 + b'{"low": 0, "high": 1}]}', b" " * 300_000, b"\xff",
])  # fmt: skip
def test_a_file_that_is_none_of_ours_counts_for_nothing_and_is_not_written_over(alone, content):
    file = file_of(alone)
    file.write_bytes(content)
    assert kept(alone) == []
    assert not may_keep(alone)
    with pytest.raises(UsageError, match="may not write next to the recording"):
        keep(alone, [MARK])
    assert file.read_bytes() == content


def test_no_link_is_followed_out_of_the_folder(runs, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "else.json"
    outside.write_text('{"bookmarks": []}')
    file_of(runs[0]).symlink_to(outside)
    assert not may_keep(runs[0])
    with pytest.raises(UsageError):
        keep(runs[0], [MARK])
    assert outside.read_text() == '{"bookmarks": []}'


def test_nothing_is_kept_where_the_server_may_not_write(runs, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not may_keep(runs[0])
    view = View(runs=("a",), bookmarks=(MARK,))
    assert SUFFIX not in str(listed(view, runs))
    with pytest.raises(UsageError, match="are in the link"):
        written({"what": "keep bookmarks", "run": "a"}, view, runs)


def test_notes_are_shown_as_they_are(runs):
    said = str(listed(View(bookmarks=(Bookmark("a", 0, 1, "<script>\u202e"),)), runs))
    assert "<script>" in said
    assert "\u202e" not in said


def test_a_recording_has_room_for_so_many(runs):
    with pytest.raises(UsageError, match="at most 100"):
        keep(runs[0], [Bookmark("a", 0, at + 1) for at in range(MOST_BOOKMARKS + 1)])
    assert kept(runs[0]) == []
