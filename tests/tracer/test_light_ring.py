"""Reading rings: what was written by halves, by two threads at once or by no library is never taken for a record."""

import errno
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracer.errors import FormatError
from tracer.recorders import light, light_ring
from tracer.recorders.light import light_trace, read_rings
from tracer.recorders.light_ring import PAIR, RECORD, STAMP, check_of, header_check, marks, read_ring
from tracer.recorders.symbols import chains_beside, functions_at, kernel_names

TOKENS, CALLS = 40, 243
RECORDS_AT, PAIRS_AT = 1 << 16, 4096 + 8192
WORDS = RECORD.itemsize // 8
NAME = "1-0.ring"


@pytest.fixture(scope="module")
def content(built):
    """A ring of a decode loop."""
    built.run("decode", "proc", "", str(TOKENS))
    return built.ring().path.read_bytes()


def records_of(content, count):
    return np.frombuffer(content, RECORD, count, RECORDS_AT).copy()


def read(folder, content, records=None):
    """Read a ring of that content, with other records at its begin."""
    words = b"" if records is None else records.tobytes()
    (folder / NAME).write_bytes(content[:RECORDS_AT] + words + content[RECORDS_AT + len(words) :])
    return read_ring(folder / NAME)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_record_with_words_of_another_is_none(content, tmp_path, data):
    """As where a writer slept for a whole round of the ring and goes on while another writes, in any order."""
    words = records_of(content, 200).view(np.uint64).reshape(200, WORDS)
    row, donor = data.draw(st.tuples(st.integers(0, 199), st.integers(0, 199)))
    torn = data.draw(st.lists(st.booleans(), min_size=WORDS, max_size=WORDS))
    mixed = np.where(torn, words[donor], words[row])
    is_same = (mixed == words[row]).all()
    words[row] = mixed
    ring = read(tmp_path, content, words)
    assert ring.lost == (not is_same)
    assert (row + 1 in ring.records["sequence"]) == is_same
    assert len(ring.records) == ring.written - ring.lost


def test_records_of_earlier_rounds_or_impossible_times_are_left_out_and_said(content, tmp_path):
    """Their content is whole, but it stands where a newer one belongs, or cannot be."""
    whole = read(tmp_path, content)
    for field, value in {"sequence": 4096 + 8, "end": 2**63 - 1}.items():
        records = records_of(content, 20)
        records[field][7] = value
        records["sequence"] = marks(records)
        ring = read(tmp_path, content, records)
        assert (len(whole.records) - len(ring.records), 8 in ring.records["sequence"]) == (1, False), field
        notes = [note for note in light_trace([ring]).notes if "missing" in note]
        said = "1 calls are missing: the process was killed, or was running, while it wrote them"
        assert [note.endswith(said) for note in notes] == [True] * (field == "sequence")
    begun = records_of(content, CALLS)  # by a process that was killed: a number for the record was taken
    begun[-1:].view(np.uint64)[:] = 0
    assert read(tmp_path, content, begun).lost == 1


def test_a_torn_pair_of_clocks_changes_no_time(content, tmp_path):
    whole = read(tmp_path, content)
    pairs = np.frombuffer(content, PAIR, 2, PAIRS_AT)
    assert (check_of(np.stack([pairs["tick"], pairs["monotonic"].view(np.uint64)], axis=1)) == pairs["check"]).all()
    torn = pairs[1].copy()
    torn["monotonic"] += 10**9
    torn["tick"] -= 1000
    at = PAIRS_AT + 20 * PAIR.itemsize  # behind those that were written
    changed = content[:at] + torn.tobytes() + content[at + PAIR.itemsize :]
    assert (read(tmp_path, changed).records == whole.records).all()


def test_a_stamp_that_cannot_be_holds_nobody_up(content, tmp_path):
    """Of 2 ** 62 ns there are too many windows of half a second to look at each."""
    last = RECORDS_AT + 4096 * RECORD.itemsize + STAMP.itemsize * (64 + 4 * TOKENS - 1)  # behind those of the chain
    ring = read(tmp_path, content[:last] + (2**62).to_bytes(8, "little") + content[last + 8 :])
    assert len(light_trace([ring])["api"]) == CALLS


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(8, 128 + 8), bit=st.integers(0, 7))
def test_a_header_that_is_not_whole_is_no_ring(content, tmp_path, at, bit):
    """As a reader on another processor may see it while the process writes it."""
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    with pytest.raises(FormatError, match=r"1-0\.ring"):
        read(tmp_path, bytes(changed))


def test_what_is_no_ring_is_said_and_loses_no_other(content, tmp_path):
    names = content.index(b"cuMemcpyHtoDAsync_v2")
    for damaged in (
        b"", b"\0" + content[1:], content[:-1000], bytes(4096),
        content[:names] + b"\xff\xfe\0\0" + content[names + 4 :],
    ):  # fmt: skip
        with pytest.raises(FormatError, match=r"1-0\.ring"):
            read(tmp_path, damaged)
    (tmp_path / "2-0.ring").write_bytes(content)
    unread = []
    assert len(read_rings(tmp_path, unread)) == 1
    assert [why.partition(": ")[0] for why in unread] == ["process 1 is left out"]


HEADER = struct.Struct("<8sIIIIQQQQQQQQQQQqqQII128sQ")
RECORDS, PAIRS, STAMPS_AT, START, START_UTC, PROGRAM = 5, 9, 11, 16, 17, 21  # fields of the header


def with_header(content, field, value, size=0):
    """With a header of this value, whose check is right."""
    changed = bytearray(content)
    fields = list(HEADER.unpack_from(changed))
    fields[field] = value
    if size:
        fields[STAMPS_AT] = size
    if field == PAIRS:
        changed = changed[:PAIRS_AT] + bytes(1 << 16) + changed[PAIRS_AT:]
        fields[PAIRS + 1] += 1 << 16
        fields[STAMPS_AT] += 1 << 16
    HEADER.pack_into(changed, 0, *fields)
    HEADER.pack_into(changed, 0, *fields[:-1], header_check(bytes(changed)))
    return bytes(changed)


@pytest.mark.parametrize(
    ("field", "value", "size"),
    [(PAIRS, PAIRS_AT + (1 << 16), 0), (RECORDS, (1 << 24) + 1, (1 << 31) - 1), (START, -(2**63), 0),
     (START_UTC, 2**62, 0)],
)  # fmt: skip
def test_a_header_that_no_library_wrote_is_refused(content, tmp_path, field, value, size):
    """Although its check is right: names of more bytes, more records, or times that overflow."""
    path = tmp_path / NAME
    path.write_bytes(with_header(content, field, value, size))
    if size:
        os.truncate(path, size)  # a hole
    with pytest.raises(FormatError, match=r"1-0\.ring: the header is damaged$"):
        read_ring(path)


def test_a_name_with_control_characters_is_spelled_out(content, tmp_path):
    ring = read(tmp_path, with_header(content, PROGRAM, b"a\n7! \x1b[2J\xe2\x80\xae"))
    assert ring.program == r"a\x0a7! \x1b[2J\u202e"


def test_no_writer_of_a_fifo_is_waited_for_and_no_more_read_than_a_ring_has(tmp_path):
    for name in (NAME, "programs", "lib.so"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match=r"1-0\.ring: cannot be read: not a regular file"):
        read_ring(tmp_path / NAME)
    for touch in (light_ring.trim, light_ring._has_ended):
        with pytest.raises(OSError, match=r"not a regular file|not seekable"):
            touch(tmp_path / NAME)
    assert light.without_room(tmp_path) == []
    assert functions_at(tmp_path / "lib.so", np.array([1])) == [""]
    with (tmp_path / "2-0.ring").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        light_ring.trim(tmp_path / "2-0.ring")


def test_a_copy_takes_no_more_memory_than_what_was_written_and_is_not_made_without_room(content, tmp_path, monkeypatch):
    path, copy = tmp_path / NAME, tmp_path / "copy"
    path.write_bytes(content)
    light_ring.trim(path)
    os.truncate(path, len(content) + (1 << 30))
    light_ring.copy_small(path, copy)
    assert copy.stat().st_size == path.stat().st_size
    assert copy.stat().st_blocks * 512 <= path.stat().st_blocks * 512 + (1 << 18)
    with copy.open("rb") as file:
        assert file.read(len(content)) == content
    monkeypatch.setattr(light_ring, "_free_bytes", lambda base: 4096)
    with pytest.raises(OSError) as refused:
        light_ring.copy_small(path, tmp_path / "another")
    assert refused.value.errno == errno.ENOSPC


def test_names_and_sites_that_no_library_wrote_are_left_out(content, tmp_path):
    hostile = json.loads((Path(__file__).parent / "data" / "ring_lines.json").read_text())
    records = read(tmp_path, content).records
    records["object"] = 0xFF
    for line in hostile["names"]:
        (tmp_path / f"{NAME}.names").write_text(f"0\tff\tkept\n{line}\n2\tff\tcut\0\0")
        assert set(kernel_names(tmp_path / NAME, records)) == {"kept"}, line
    for line in hostile["sites"]:
        (tmp_path / f"{NAME}.sites").write_text(f"3\t5\tfile\n{line}\n3\t6\tfi\0\0")
        chains = chains_beside(tmp_path / NAME)
        assert chains[["chain", "module"]].to_numpy().tolist() == [[3, "file"]], line


def test_a_handle_has_the_name_that_it_had_when_it_was_launched(tmp_path):
    """A module was unloaded, and the next one has its kernel at the same address; the last line is cut off."""
    (tmp_path / f"{NAME}.names").write_text("0\ta\tfirst\n5\ta\tsecond\n7\tb\tother\nnone\n9\tc")
    launches = np.zeros(5, RECORD)
    launches["sequence"], launches["object"] = [1, 5, 6, 7, 9], [10, 10, 10, 11, 12]
    assert list(kernel_names(tmp_path / NAME, launches)) == ["first", "first", "second", "other", "kernel 3"]


@given(st.lists(st.integers(1_000, 40_000_000), min_size=1, max_size=12), st.integers(-40, 40))
@settings(deadline=None)
def test_times_after_the_last_pair_go_on_as_fast_as_before(apart, off):
    """Pairs are wrong by some 40 ns: two that are close to each other do not tell how fast the ticks are."""
    ticks = np.cumsum([10**12, 40_000_000, *apart])
    pairs = np.zeros(len(ticks), PAIR)
    pairs["tick"], pairs["monotonic"] = ticks, ticks // 2 + off * (-1) ** np.arange(len(ticks))
    pairs["check"] = check_of(np.stack([pairs["tick"], pairs["monotonic"].view(np.uint64)], axis=1))
    records = np.zeros(2, RECORD)
    records["begin"] = records["end"] = ticks[0] - 20_000_000, ticks[-1] + 20_000_000
    found = light_ring._in_ns(records, pairs, ("begin", "end"))
    assert np.abs(found["begin"] - records["begin"] // 2).max() <= 200
