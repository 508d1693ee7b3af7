"""Reading rings: what was written by halves or by two threads at once is never taken for a record."""

import errno
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tracer.fake_driver import Build
from tracer.errors import FormatError
from tracer.recorders import light, light_ring
from tracer.recorders.light import light_trace
from tracer.recorders.light_ring import PAIR, RECORD, check_of, header_check, marks, read_ring
from tracer.recorders.symbols import chains_beside, functions_at, kernel_names

RECORDS_AT, PAIRS_AT = 1 << 16, 4096 + 8192
WORDS = RECORD.itemsize // 8


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ring of a decode loop of 40 tokens."""
    built = Build.into(tmp_path_factory.mktemp("ring"))
    built.run("decode", "proc", "", "40")
    return built.ring().path.read_bytes()


def words_of(content: bytes, count: int) -> np.ndarray:
    return np.frombuffer(content, np.uint64, count * WORDS, RECORDS_AT).reshape(count, WORDS).copy()


def with_words(content: bytes, words: np.ndarray, path: Path) -> Path:
    path.write_bytes(content[:RECORDS_AT] + words.tobytes() + content[RECORDS_AT + words.nbytes :])
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_record_with_words_of_another_is_none(content: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """As where a writer slept for a whole round of the ring and goes on while another writes, in any order."""
    words = words_of(content, 200)
    row, donor = data.draw(st.tuples(st.integers(0, 199), st.integers(0, 199)))
    torn = data.draw(st.lists(st.booleans(), min_size=WORDS, max_size=WORDS))
    mixed = np.where(torn, words[donor], words[row])
    is_same = (mixed == words[row]).all()
    words[row] = mixed
    ring = read_ring(with_words(content, words, tmp_path / "1-0.ring"))
    assert ring.lost == (not is_same)
    assert (row + 1 in ring.records["sequence"]) == is_same
    assert len(ring.records) == ring.written - ring.lost


def test_a_record_of_an_earlier_round_is_lost_and_said(content: bytes, tmp_path: Path) -> None:
    """Its content is whole, but it stands where a newer one belongs."""
    records = words_of(content, 20).view(RECORD)[:, 0]
    records["sequence"][7] = 4096 + 8
    records["sequence"] = marks(records)
    ring = read_ring(with_words(content, records.view(np.uint64), tmp_path / "1-0.ring"))
    assert (ring.lost, 8 in ring.records["sequence"]) == (1, False)
    (note,) = [note for note in light_trace([ring]).notes if "missing" in note]
    assert note.endswith("1 calls are missing: the process was killed, or was running, while it wrote them")


def test_what_a_killed_process_had_begun_to_write_is_noted(content: bytes, tmp_path: Path) -> None:
    """It had taken a number for the record, and written nothing of it."""
    words = words_of(content, 243)
    words[-1] = 0
    assert read_ring(with_words(content, words, tmp_path / "1-0.ring")).lost == 1


def test_a_torn_pair_of_clocks_changes_no_time(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "1-0.ring"
    path.write_bytes(content)
    whole = read_ring(path)
    pairs = np.frombuffer(content, PAIR, 2, PAIRS_AT)
    assert (check_of(np.stack([pairs["tick"], pairs["monotonic"].view(np.uint64)], axis=1)) == pairs["check"]).all()
    torn = pairs[1].copy()
    torn["monotonic"] += 10**9
    torn["tick"] -= 1000
    path.write_bytes(content[: PAIRS_AT + 48] + torn.tobytes() + content[PAIRS_AT + 72 :])
    assert (read_ring(path).records == whole.records).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(8, 128 + 8), bit=st.integers(0, 7))
def test_a_header_that_is_not_whole_is_no_ring(content: bytes, tmp_path: Path, at: int, bit: int) -> None:
    """As a reader on another processor may see it while the process writes it."""
    changed = bytearray(content)
    changed[at] ^= 1 << bit
    (tmp_path / "1-0.ring").write_bytes(changed)
    with pytest.raises(FormatError, match=r"1-0\.ring"):
        read_ring(tmp_path / "1-0.ring")


HEADER = struct.Struct("<8sIIIIQQQQQQQQqqQII128sQ")
RECORDS, PAIRS, STAMPS_AT, START, START_UTC = 5, 9, 11, 13, 14  # fields of the header


@pytest.mark.parametrize(
    ("field", "value", "size"),
    [
        (PAIRS, PAIRS_AT + (1 << 16), 0),
        (RECORDS, (1 << 24) + 1, (1 << 31) - 1),
        (START, -(2**63), 0),
        (START_UTC, 2**62, 0),
    ],
)
def test_a_header_that_no_library_wrote_is_refused(
    content: bytes, tmp_path: Path, field: int, value: int, size: int
) -> None:
    """Although its check is right: names of more bytes, more records, or times that overflow."""
    changed, path = bytearray(content), tmp_path / "1-0.ring"
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
    path.write_bytes(changed)
    if size:
        os.truncate(path, size)  # a hole
    with pytest.raises(FormatError, match=r"1-0\.ring: the header is damaged$"):
        read_ring(path)


def test_a_record_at_an_impossible_time_is_left_out(content: bytes, tmp_path: Path) -> None:
    records = words_of(content, 20).view(RECORD)[:, 0]
    whole = read_ring(with_words(content, records.view(np.uint64), tmp_path / "1-0.ring"))
    records["end"][7] = 2**63 - 1
    records["sequence"] = marks(records)
    ring = read_ring(with_words(content, records.view(np.uint64), tmp_path / "1-0.ring"))
    assert len(whole.records) - len(ring.records) == 1
    assert 8 not in ring.records["sequence"]


def test_nothing_waits_for_the_writer_of_a_fifo(tmp_path: Path) -> None:
    for name in ("1-0.ring", "programs", "lib.so"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(FormatError, match=r"1-0\.ring: cannot be read: not a regular file"):
        read_ring(tmp_path / "1-0.ring")
    for touch in (light_ring.trim, light_ring._has_ended):
        with pytest.raises(OSError, match=r"not a regular file|not seekable"):
            touch(tmp_path / "1-0.ring")
    assert light.without_room(tmp_path) == []
    assert functions_at(tmp_path / "lib.so", np.array([1])) == [""]


def test_a_copy_of_a_ring_takes_no_more_memory_than_what_was_written(content: bytes, tmp_path: Path) -> None:
    path, copy = tmp_path / "1-0.ring", tmp_path / "copy"
    path.write_bytes(content)
    light_ring.trim(path)
    os.truncate(path, len(content) + (1 << 30))
    light_ring.copy_small(path, copy)
    assert copy.stat().st_size == path.stat().st_size
    assert copy.stat().st_blocks * 512 <= path.stat().st_blocks * 512 + (1 << 18)
    with copy.open("rb") as file:
        assert file.read(len(content)) == content


def test_a_ring_is_not_copied_where_there_is_no_room(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1-0.ring").write_bytes(content)
    monkeypatch.setattr(light_ring, "_free_bytes", lambda base: 4096)
    with pytest.raises(OSError) as refused:
        light_ring.copy_small(tmp_path / "1-0.ring", tmp_path / "copy")
    assert refused.value.errno == errno.ENOSPC


def test_more_than_a_ring_is_not_read_to_free_its_memory(tmp_path: Path) -> None:
    with (tmp_path / "1-0.ring").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="too large"):
        light_ring.trim(tmp_path / "1-0.ring")


HUGE = "9" * 30
LARGE = str(2**64)


@pytest.mark.parametrize(
    "line",
    [f"{HUGE}\tff\tname", f"1\t{HUGE}\tname", f"{LARGE}\tff\tname", f"1\tff\t={'f' * 40}", "٣\tff\tname",
     "-1\tff\tname", "1\t-1\tname", "1\tff", "1\tff\t", "\t\t", "1\tff\tna\0me", "1\tff\tname\tfile"],
)  # fmt: skip
def test_names_that_no_library_wrote_are_left_out(content: bytes, tmp_path: Path, line: str) -> None:
    path = tmp_path / "1-0.ring"
    path.write_bytes(content)
    (tmp_path / "1-0.ring.names").write_text(f"0\tff\tkept\n{line}\n2\tff\tcut\0\0")
    records = read_ring(path).records
    records["object"] = 0xFF
    assert set(kernel_names(path, records)) == {"kept"}


@pytest.mark.parametrize(
    "line",
    [f"{HUGE}\t1\tfile", f"1\t{HUGE}\tfile", f"{LARGE}\t1\tfile", f"1\t{LARGE}\tfile", "٣\t1\tfile", "-1\t1\tfile",
     "1\t1", "\t\t", "1\t1\tfi\0le", "1\t1\tname\tfile"],
)  # fmt: skip
def test_sites_that_no_library_wrote_are_left_out(tmp_path: Path, line: str) -> None:
    (tmp_path / "1-0.ring.sites").write_text(f"3\t5\tfile\n{line}\n3\t6\tfi\0\0")
    chains = chains_beside(tmp_path / "1-0.ring")
    assert chains[["chain", "module"]].to_numpy().tolist() == [[3, "file"]]


def test_a_name_with_control_characters_is_spelled_out(content: bytes, tmp_path: Path) -> None:
    name = b"a\n7! \x1b[2J\xe2\x80\xae"
    head = struct.Struct("<8sIIIIQQQQQQQQqqQII128s")
    fields = [*head.unpack_from(content)]
    fields[-1] = name
    part = head.pack(*fields)
    check = check_of(np.frombuffer(part, np.uint64)[np.newaxis])
    (tmp_path / "1-0.ring").write_bytes(part + check.tobytes() + content[head.size + 8 :])
    assert read_ring(tmp_path / "1-0.ring").program == r"a\x0a7! \x1b[2J\u202e"
