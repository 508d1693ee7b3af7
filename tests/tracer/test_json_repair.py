"""JSON that its writer did not escape is repaired as it is read, however it is cut into pieces."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer import kineto
from tracer import formats
from tracer.files.json_repair import Repair

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(0, 1) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
)
REPAIRED = [
    (rb'{"a": "C:\Users\x"}', {"a": r"C:\Users\x"}, {"backslashes": 2}),
    (rb'{"a": "\u12", "b": "\u00e9\"\\"}', {"a": r"\u12", "b": 'é"\\'}, {"backslashes": 1}),
    (b'["a\x01\n\tb", 1]\n', ["a\x01\n\tb", 1], {"control characters": 3}),
    (b"[nan, -nan, NaN, -nan(ind), inf, -inf, Infinity, -Infinity, 1, true]", [None] * 8 + [1, True],
     {"numbers that are none": 8}),
    (b'{"nan": "inf", "a": [1, nan ,2]}', {"nan": "inf", "a": [1, None, 2]}, {"numbers that are none": 1}),
    (b'{"a": [1, 2, ], "b": {"c": 1 , }, }', {"a": [1, 2], "b": {"c": 1}}, {"commas": 3}),
    (b'{"a":\0 1}', {"a": 1}, {"control characters": 1}),
]  # fmt: skip


def repaired(text, cuts):
    """The text, repaired in pieces, and what was."""
    repair, bounds = Repair(), [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(bounds)]
    return b"".join([*map(repair.next, pieces), repair.next(b"", last=True)]), repair.count


@given(value=JSON, ascii=st.booleans(), cuts=st.lists(st.integers(0, 500), max_size=9))
def test_valid_json_stays_as_it_is(value, ascii, cuts):
    text = json.dumps(value, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    assert repaired(text, cuts) == (text, {})


@pytest.mark.parametrize(("text", "value", "count"), REPAIRED)
def test_what_is_not_escaped_is_repaired(text, value, count):
    for cuts in ((), range(len(text)), range(0, len(text), 3)):
        found, done = repaired(text, cuts)
        assert (json.loads(found), done) == (value, count), found
    assert repaired(found, ()) == (found, {})


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_file_that_is_not_escaped_is_read_whole_and_a_note_says_so(tmp_path, name):
    expected = formats.read(kineto.write(tmp_path / "good.json", kineto.GPU))
    text = json.dumps(kineto.GPU).encode()
    text = text.replace(b'"ts": ', b'"path": "C:\\Users", "occupancy": nan, "text": "a\nb", "ts": ')
    found = formats.read(kineto.write(tmp_path / name, text))
    places = text.count(b"nan")
    note = f"{places} backslashes, {places} control characters, {places} numbers that are none"
    assert f"its JSON is not valid and was repaired: {note}" in found.notes
    assert all(found[table].equals(frame) for table, frame in expected.tables.items())


def test_a_file_that_is_cut_anywhere(tmp_path):
    whole = json.dumps(kineto.GPU).encode()
    path, rows = tmp_path / "a.json", 0
    for cut in range(40, len(whole), 101):
        path.write_bytes(b"\xef\xbb\xbf" + whole[:cut])  # with a byte order mark, too
        if b'"ph"' in whole[:cut] and b"}" in whole[whole.index(b'"ph"') : cut]:
            found = formats.read(path)
            assert any(note.startswith("the file is truncated: only the ") for note in found.notes), cut
            assert len(found) >= rows
            rows = len(found)
        else:
            with pytest.raises(formats.FormatError, match=r"truncated before its first event|not a trace"):
                formats.read(path)
    assert rows > 30
