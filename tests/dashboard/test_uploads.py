"""Uploads: what is taken, what is refused, and what is left behind."""

import gzip
import io
import json
import os
import re
import shutil
import socket
import tracemalloc
import zipfile
import zlib
from urllib.parse import urlsplit

import pytest

from dashboard.app import create_app
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.uploads import SLICE, Inbox
from dashboard.text import safe_name
from tests.dashboard.conftest import served
from tests.dashboard.traces import decode
from tracer import formats
from tracer.errors import UsageError

LIMIT = 5_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A recording as files that can be uploaded, by suffix."""
    folder = tmp_path_factory.mktemp("files")
    formats.write(decode(), folder / "dir")
    for suffix in ("sqlite", "json", "json.gz"):
        formats.write(decode(), folder / f"x.{suffix}")
    made = {suffix: (folder / f"x.{suffix}").read_bytes() for suffix in ("sqlite", "json", "json.gz")}
    for name, prefix in (("zip", ""), ("around.zip", "my run/"), ("deep.zip", "runs/my run/")):
        made[name] = zip_of({f"{prefix}{file.name}": file.read_bytes() for file in (folder / "dir").iterdir()})
    return made


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    return zip_of_pairs(members.items(), method)


def zip_of_pairs(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def client(inbox):
    return create_app([], Serving(uploads=inbox, upload_limit=LIMIT)).server.test_client()


def send(client, name, data, step=SLICE):
    begun = client.post("/upload", query_string={"name": name, "size": len(data)})
    if begun.status_code != 201:
        return begun
    key = begun.get_json()["id"]
    for at in range(0, len(data), step):
        answer = client.put(f"/upload/{key}?at={at}", data=data[at : at + step])
        if answer.status_code != 200:
            break
    return answer


def left(inbox):
    return sorted(path.name for path in inbox.rglob("*") if path.name != ".parts")


@pytest.mark.parametrize("kind", ["sqlite", "json", "json.gz", "zip", "around.zip", "deep.zip"])
def test_every_kind_of_file_arrives_in_slices_and_is_read(client, inbox, files, kind):
    answer = send(client, f"my run.{kind}", files[kind], step=10_000)
    assert answer.status_code == 200, answer.get_json()
    assert answer.get_json()["received"] == len(files[kind])
    key = answer.get_json()["run"]
    store = RunStore([inbox])
    assert store.chosen([key])[0].summary.gap_p50_us == pytest.approx(100)
    assert list((inbox / ".parts").iterdir()) == []


def test_equal_names_stand_beside_each_other(client, inbox, files):
    answers = [send(client, "same.json", files["json"]).get_json()["run"] for _ in range(3)]
    assert len(set(answers)) == 3
    assert left(inbox) == ["2-same.json", "3-same.json", "same.json"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("cat.png", b"\x89PNG\r\n\x1a\n" * 9, "not a recording"),
        ("page.html", b"<script>alert(1)</script>", "not a recording"),
        ("x.sqlite", b"MZ not at all", "not an SQLite file"),
        ("x.sqlite", b"SQLite format 3\0" + b"junk" * 99, "truncated"),
        ("x.json", b"{}", "not a recording"),
        ("x.json.gz", b"\x1f\x8b junk", "its gzip data is damaged"),
        ("x.json.gz", b"\x1f\x8b\x08", "not a recording"),
        ("x.zip", b"PK\3\4 and no more", "truncated zip"),
        ("x.zip", zip_of({"readme.txt": "no recording"}), "holds no recording"),
        ("x.zip", zip_of({}), "not a recording"),
        ("x.zip", zip_of({"../../out.parquet": "x"}), "is not a valid path"),
        ("x.zip", zip_of({"/etc/x": "x"}), "is not a valid path"),
        ("x.zip", zip_of({"a/b/c/d/e": "x"}), "is not a valid path"),
        ("x.zip", zip_of({"a\\..\\b": "x"}), "is not a valid path"),
        ("x.zip", zip_of({"a\u202eb": "x"}), "is not a valid path"),
        ("x.zip", zip_of({f"{i}": "" for i in range(2_001)}), "more files than"),
        ("x.nsys-rep", b"x" * 999, "x.nsys-rep"),
    ],
)
def test_what_is_no_recording_is_refused_in_words_and_deleted(client, inbox, name, data, words):
    answer = send(client, name, data)
    assert answer.status_code == 422
    said = answer.get_json()["error"]
    assert words in said
    assert str(inbox) not in said
    assert left(inbox) == []
    assert client.get("/healthz").get_json()["runs"] == {"read": 0, "total": 0}


@pytest.mark.parametrize(
    ("method", "packed"),
    [(zipfile.ZIP_LZMA, "LZMA"), (zipfile.ZIP_BZIP2, "bzip2"), (93, "Zstandard"), (77, "method 77")],
)
def test_a_zip_packed_in_another_way_is_refused_with_the_name_of_the_file_and_the_way(client, inbox, method, packed):
    is_known = method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    whole = zip_of({"NVTX_EVENTS.parquet": "x" * 99}, method if is_known else zipfile.ZIP_STORED)
    at = whole.index(b"PK\1\2") + 10  # the method in the table of contents
    data = whole[:at] + method.to_bytes(2, "little") + whole[at + 2 :]
    damaged = data[:60] + b"\xff" * 8 + data[68:]
    for each in (data, damaged):
        answer = send(client, "x.zip", each)
        said = f"x.zip: 'NVTX_EVENTS.parquet' is packed with {packed}; only stored and deflated files are read"
        assert (answer.status_code, answer.get_json()) == (422, {"error": said})
        assert left(inbox) == []


def test_a_zip_with_a_damaged_byte_is_read_or_refused_in_words(client, inbox):
    client.application.config["PROPAGATE_EXCEPTIONS"] = False
    whole = zip_of({"aé.parquet": "x" * 99, "b": "y"})
    for at in range(4, len(whole)):  # the first four say that it is a zip
        for value in (0, 255, whole[at] ^ 1):
            answer = send(client, "x.zip", whole[:at] + bytes([value]) + whole[at + 1 :])
            assert (answer.status_code, answer.is_json) == (422, True), (at, value)
            assert str(inbox) not in answer.get_json()["error"]
    assert left(inbox) == []


def test_two_files_of_one_name_in_a_zip_are_refused(client):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zip_of_pairs([("a", "x"), ("a", "y")])
    assert send(client, "x.zip", data).get_json()["error"] == "x.zip: holds two files of the same name"


@pytest.mark.parametrize("name", ["unpacked", ".unpacked", "unpacked.zip", ".unpacked.zip", ".parts", ".parts.zip"])
def test_no_name_of_an_upload_is_that_of_a_place_of_the_server(client, files, name):
    answer = send(client, name, files["zip"])
    assert answer.status_code == 200, answer.text
    assert client.get("/healthz").get_json()["runs"] == {"read": 1, "total": 1}


def test_bombs_are_refused_before_they_fill_disk_or_memory(client, inbox):
    zeros = b"\0" * 10_000_000
    packer = zlib.compressobj(9, wbits=31)
    gzip_bomb = b"".join(packer.compress(zeros) for _ in range(100)) + packer.flush()
    many = b"".join([gzip.compress(zeros[:1_000_000])] * 50)
    zip_bomb = zip_of({"NVTX_EVENTS.parquet": zeros * 2, "b": zeros})
    for name, bomb in (("x.json.gz", gzip_bomb), ("x.json.gz", many), ("x.zip", zip_bomb)):
        tracemalloc.start()
        answer = send(client, name, bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status_code == 422
        assert "exceeds 5,000,000 bytes unpacked" in answer.get_json()["error"]
        assert peak < 10 * SLICE
        assert left(inbox) == []


def test_a_lying_table_of_contents_is_not_read(client, inbox):
    whole = zip_of({"a": "x"})
    for change in ((len(whole) - 10, b"\xff\xff\xff\x7f"), (len(whole) - 12, b"\xff\xff")):
        data = bytearray(whole)
        data[change[0] : change[0] + len(change[1])] = change[1]
        assert "more files" in send(client, "x.zip", bytes(data)).get_json()["error"]
    assert left(inbox) == []


def test_the_limit_holds_for_what_is_announced_and_for_what_comes(client, inbox):
    answer = client.post("/upload", query_string={"name": "x", "size": LIMIT + 1})
    assert (answer.status_code, "--upload-limit" in answer.get_json()["error"]) == (413, True)
    assert client.post("/upload", query_string={"name": "x", "size": "much"}).status_code == 400
    assert client.post("/upload", query_string={"name": "x", "size": 0}).status_code == 413
    key = client.post("/upload", query_string={"name": "x", "size": 10}).get_json()["id"]
    assert client.put(f"/upload/{key}?at=0", data=b"x" * 11).status_code == 413
    assert client.put(f"/upload/{key}?at=0", data=b"x").status_code == 404  # given up
    key = client.post("/upload", query_string={"name": "x", "size": LIMIT}).get_json()["id"]
    assert client.put(f"/upload/{key}?at=0", data=b"x" * (SLICE + 1)).status_code == 413
    assert left(inbox) == []


NUMBERS = [
    "+5", " 5", "5 ", "5\n", "1_000", "\u0663", "\uff15", "5\u00b2", "0x10", "0b1", "-1", "-0", "1e3", "5.0", "5,0", "",
    " ", "five", "nan", "inf", "None", "true", "5;6", "9" * 19, "9" * 5_000, "5\0",
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_sizes_and_offsets_are_digits(client, inbox, number):
    answer = client.post("/upload", query_string={"name": "x", "size": number})
    assert (answer.status_code, answer.get_json()) == (400, {"error": "The size is not a number."})
    assert left(inbox) == []
    key = client.post("/upload", query_string={"name": "x", "size": "010"}).get_json()["id"]
    answer = client.put(f"/upload/{key}", query_string={"at": number}, data=b"x")
    assert (answer.status_code, answer.get_json()) == (400, {"error": "The offset is not a number."})
    assert client.put(f"/upload/{key}?at=00", data=b"x").get_json()["received"] == 1


def test_lengths_of_bodies_are_digits(inbox, caplog):
    with served(inbox.parent, Serving(uploads=inbox)) as address:

        def status(headers, body):
            lines = ["PUT /upload/x?at=0 HTTP/1.1", "Host: localhost", headers, "Connection: close", "", body]
            with socket.create_connection(("127.0.0.1", urlsplit(address).port), 10) as connection:
                connection.sendall("\r\n".join(lines).encode())
                return int(connection.makefile("rb").readline().split()[1])

        assert status("Content-Length: 5", "hello") == status("Content-Length: 005", "hello") == 404  # no such upload
        assert status("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n") == 404
        for number in NUMBERS:
            if number.strip() not in {"", "5"}:  # spaces around a header's value are no part of it
                assert status(f"Content-Length: {number}", "hello") in {400, 413}, number
            if not re.fullmatch("[0-9a-f]+(;6)?\n?", number):  # those are hexadecimal, and something may follow them
                assert status("Transfer-Encoding: chunked", f"{number}\r\nhello\r\n0\r\n\r\n") == 400, number
    assert "uncaptured" not in caplog.text  # as waitress says of a request that ends a connection by a fault


def test_slices_sent_again_or_out_of_order_do_no_harm(client, files):
    data = files["json"]
    key = client.post("/upload", query_string={"name": "x.json", "size": len(data)}).get_json()["id"]
    parts = [data[:100], data[100:]]
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).get_json() == {"received": 0, "run": None}
    for _ in range(2):
        assert client.put(f"/upload/{key}?at=0", data=parts[0]).get_json()["received"] == 100
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).get_json()["run"] == "x"
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).status_code == 404
    assert client.put("/upload/../../etc/passwd?at=0", data=b"x").status_code in {404, 405}


def test_uploads_that_stop_half_way_make_room_for_others(inbox):
    now, box = box_of(inbox)
    for number in range(16):
        box.append(box.begin(f"x{number}", 100), 0, io.BytesIO(b"half"))
    with pytest.raises(UsageError, match="too many"):
        box.begin("one more", 100)
    now[0] = 121.0
    key = box.begin("one more", 100)
    assert left(inbox) == [key]
    box.cancel(key)
    assert left(inbox) == []


def box_of(inbox):
    now = [0.0]
    return now, Inbox(inbox, LIMIT, RunStore([], inbox=inbox), lambda: now[0])


def test_uploads_that_were_begun_and_never_sent_make_room_soon(inbox):
    now, box = box_of(inbox)
    for number in range(16):
        now[0] = float(number)
        key = box.begin(f"x{number}", 100)
        if number < 4:
            box.append(key, 0, io.BytesIO(b"half"))
    now[0] = 10.0
    with pytest.raises(UsageError, match="too many"):
        box.begin("one more", 100)
    now[0] = 17.0
    for _ in range(4):  # numbers 4 to 7
        box.begin("one more", 100)
    with pytest.raises(UsageError, match="too many"):
        box.begin("one more", 100)


def test_who_sends_much_makes_room_for_who_sends_little(inbox):
    now, box = box_of(inbox)
    key = box.begin("mine", 100, "me")
    for number in range(40):
        now[0] += 0.1
        try:
            theirs = box.begin(f"theirs{number}", 100, "stranger")
            box.append(theirs, 0, io.BytesIO(b"x"))
        except UsageError:
            assert number >= 15
    assert box.append(key, 0, io.BytesIO(b"y" * 50)) == 50
    others = [box.begin(f"mine{number}", 100, "me") for number in range(6)]
    assert sum("theirs" in name for name in left(inbox)) == 9
    assert all(box.append(each, 0, io.BytesIO(b"y")) == 1 for each in others)


def test_so_many_recordings_are_kept_and_who_has_sent_most_makes_room(inbox, files, monkeypatch):
    monkeypatch.setattr("dashboard.serving.uploads.MOST_KEPT", 4)
    store = RunStore([], inbox=inbox)
    box = Inbox(inbox, LIMIT, store)

    def sent(name, sender):
        key = box.begin(f"{name}.json", len(files["json"]), sender)
        box.append(key, 0, io.BytesIO(files["json"]))
        return box.finish(key)

    sent("mine", "me")
    for number in range(6):
        sent(f"theirs{number}", "stranger")
    assert sorted(left(inbox)) == sorted(["mine.json", *(f"theirs{number}.json" for number in range(3, 6))])
    assert {run.key for run in store.runs()} == {"mine", *(f"theirs{number}" for number in range(3, 6))}
    assert sent("theirs0", "stranger") == "theirs0"  # its name is free again


def test_what_is_promised_to_one_sender_keeps_no_disk_from_the_next(inbox, monkeypatch):
    _, box = box_of(inbox)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": (256 << 20) + 3 * LIMIT}))
    for _ in range(3):
        box.begin("theirs", LIMIT, "stranger")
    with pytest.raises(UsageError, match="no room"):
        box.begin("theirs", LIMIT, "stranger")
    box.begin("mine", LIMIT, "me")


def test_an_upload_that_has_made_room_or_does_not_fit_is_given_up(inbox):
    _, box = box_of(inbox)
    key = box.begin("x", 100)
    shutil.rmtree(inbox / ".parts" / key)  # as when it goes while a slice is being written
    with pytest.raises(KeyError):
        box.append(key, 0, io.BytesIO(b"y"))
    box.cancel(key)
    key = box.begin("x", 100)
    (inbox / ".parts" / key / "x").symlink_to("/dev/full")
    with pytest.raises(UsageError, match="No space left"):
        box.append(key, 0, io.BytesIO(b"y"))
    assert left(inbox) == []


def test_a_full_disk_is_said(inbox, monkeypatch):
    box = Inbox(inbox, LIMIT, RunStore([], inbox=inbox))
    usage = type("Usage", (), {"free": 10**6})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(UsageError, match="no room"):
        box.begin("x", 100)


def test_a_reader_that_fails_leaves_nothing_behind(client, inbox, files, monkeypatch):
    server = client.application
    server.config["PROPAGATE_EXCEPTIONS"] = False
    with monkeypatch.context() as patched:
        patched.setattr("tracer.formats.chrome.read", lambda *_, **__: 1 / 0)
        patched.setattr("tracer.formats.read", lambda *_, **__: 1 / 0)
        assert send(client, "x.json", files["json"]).status_code == 422
    assert left(inbox) == []
    assert send(client, "y.json", files["json"]).get_json()["run"] == "y"


NAMES = [
    "../../etc/passwd", "..", "", ".hidden.json", "a\0b.json", "<img src=x onerror=alert(1)>.json", " . .json",
    "x" * 10_000 + ".json", "\u202egnp.json", "😀.json", "C:\\Windows\\x.json", "a/b\\c.json", "\ud800.json",
    "-rf.json", "a\nb.json",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_made_safe(name):
    safe = safe_name(name)
    assert safe == os.path.basename(safe)
    assert 0 < len(safe) <= 100
    assert safe.isprintable()
    assert not safe.startswith(".")
    assert not set(safe) & set("<>\0\n\u202e/\\:")
    assert safe.endswith(".json") == name.endswith(".json")


def test_whatever_its_name_an_upload_stays_in_the_inbox(client, inbox, tmp_path):
    for name in NAMES:  # even of what is no recording
        answer = send(client, name.encode("utf-8", "replace").decode(), b"{}")
        assert answer.status_code == 422, (name, answer.get_json())
        assert [*tmp_path.iterdir()] == [inbox]
        assert left(inbox) == []


def test_without_uploads_there_is_no_such_address(tmp_path):
    client = create_app([tmp_path]).server.test_client()
    assert client.post("/upload?name=x&size=3").status_code in {404, 405}
    assert json.loads(client.get("/_dash-layout").text)["props"]["data-upload-limit"] == "0"


def test_other_sites_and_strangers_cannot_upload(inbox):
    client = create_app([], Serving(uploads=inbox, token="secret")).server.test_client()
    assert client.post("/upload?name=x&size=3").status_code == 403
    client.post("/login", data={"token": "secret"})
    assert client.post("/upload?name=x&size=3", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.post("/upload?name=x&size=3").status_code == 201
