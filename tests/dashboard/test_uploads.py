"""Uploads: what is taken, what is refused, and what is left behind."""

import gzip
import io
import json
import re
import shutil
import socket
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dashboard.app import create_app
from dashboard.reading.store import RunStore
from dashboard.serving import Serving
from dashboard.serving.uploads import SLICE, Inbox
from tests.dashboard.conftest import begin_upload, served, upload
from tests.dashboard.traces import decode
from tracer import formats
from tracer.errors import UsageError

LIMIT = 5_000_000
DATA = Path(__file__).parent / "data"
NUMBERS = json.loads((DATA / "requests.json").read_text(encoding="utf-8"))["no numbers"]
NAMES = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))["hostile names"]


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A recording as files that can be uploaded, by suffix."""
    folder = tmp_path_factory.mktemp("files")
    formats.write(decode(), folder / "dir")
    for suffix in ("sqlite", "json", "json.gz"):
        formats.write(decode(), folder / f"x.{suffix}")
    made = {suffix: (folder / f"x.{suffix}").read_bytes() for suffix in ("sqlite", "json", "json.gz")}
    for name, prefix in (("zip", ""), ("around.zip", "my run/"), ("deep.zip", "runs/my run/")):
        made[name] = zip_of((f"{prefix}{file.name}", file.read_bytes()) for file in (folder / "dir").iterdir())
    return made


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def client(inbox):
    client = create_app([], Serving(uploads=inbox, upload_limit=LIMIT)).server.test_client()
    client.application.config["PROPAGATE_EXCEPTIONS"] = False
    return client


def left(inbox):
    return sorted(path.name for path in inbox.rglob("*") if path.name != ".parts")


def test_every_kind_of_file_arrives_in_slices_and_equal_names_stand_beside_each_other(client, inbox, files):
    for kind in files:
        answer = upload(client, f"my run.{kind}", files[kind], step=10_000)
        assert answer.status_code == 200, answer.get_json()
        assert answer.get_json()["received"] == len(files[kind])
        (run,) = RunStore([inbox]).chosen([answer.get_json()["run"]])
        assert run.summary.gap_p50_us == pytest.approx(100), kind
        assert list((inbox / ".parts").iterdir()) == []
    shutil.rmtree(inbox / "my run")
    answers = [upload(client, "same.json", files["json"]).get_json()["run"] for _ in range(3)]
    assert len(set(answers)) == 3
    assert {"2-same.json", "3-same.json", "same.json"} <= {*left(inbox)}


def test_no_name_of_an_upload_is_that_of_a_place_of_the_server_and_none_leaves_the_inbox(client, inbox, files):
    for number, name in enumerate(("unpacked", ".unpacked.zip", ".parts", ".parts.zip"), 1):
        answer = upload(client, name, files["zip"])
        assert answer.status_code == 200, answer.text
        assert client.get("/healthz").get_json()["runs"] == {"read": number, "total": number}
    before = left(inbox)
    for name in NAMES:  # even of what is no recording
        answer = upload(client, name.encode("utf-8", "replace").decode(), b"{}")
        assert answer.status_code == 422, (name, answer.get_json())
        assert [*inbox.parent.iterdir()] == [inbox]
        assert left(inbox) == before


def test_what_is_no_recording_is_refused_in_words_and_deleted(client, inbox):
    inside = "../../out.parquet", "/etc/x", "a/b/c/d/e", "a\\..\\b", "a\u202eb"
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zip_of([("a", "x"), ("a", "y")])
    whole = zip_of([("a", "x")])
    lying = [whole[:-10] + b"\xff\xff\xff\x7f" + whole[-6:], whole[:-12] + b"\xff\xff" + whole[-10:]]
    for name, data, words in (
        ("cat.png", b"\x89PNG\r\n\x1a\n" * 9, "not a recording"),
        ("page.html", b"<script>alert(1)</script>", "not a recording"),
        ("x.sqlite", b"MZ not at all", "not an SQLite file"),
        ("x.sqlite", b"SQLite format 3\0" + b"junk" * 99, "truncated"),
        ("x.json", b"{}", "not a recording"),
        ("x.json.gz", b"\x1f\x8b junk", "its gzip data is damaged"),
        ("x.json.gz", b"\x1f\x8b\x08", "not a recording"),
        ("x.zip", b"PK\3\4 and no more", "truncated zip"),
        ("x.zip", zip_of([("readme.txt", "no recording")]), "holds no recording"),
        ("x.zip", zip_of([]), "not a recording"),
        *(("x.zip", zip_of([(name, "x")]), "is not a valid path") for name in inside),
        ("x.zip", zip_of((f"{i}", "") for i in range(2_001)), "more files than"),
        *(("x.zip", data, "more files") for data in lying),
        ("x.zip", twice, "x.zip: holds two files of the same name"),
        ("x.nsys-rep", b"x" * 999, "x.nsys-rep"),
    ):
        answer = upload(client, name, data)
        assert answer.status_code == 422, (name, words)
        said = answer.get_json()["error"]
        assert words in said
        assert str(inbox) not in said
        assert left(inbox) == []
    assert client.get("/healthz").get_json()["runs"] == {"read": 0, "total": 0}


def test_a_zip_packed_in_another_way_is_refused_with_the_name_of_the_file_and_the_way(client, inbox):
    for method, packed in ((14, "LZMA"), (12, "bzip2"), (93, "Zstandard"), (77, "method 77")):
        whole = zip_of([("NVTX_EVENTS.parquet", "x" * 99)], method if method in (14, 12) else zipfile.ZIP_STORED)
        at = whole.index(b"PK\1\2") + 10  # the method in the table of contents
        data = whole[:at] + method.to_bytes(2, "little") + whole[at + 2 :]
        for each in (data, data[:60] + b"\xff" * 8 + data[68:]):  # damaged, too
            answer = upload(client, "x.zip", each)
            said = f"x.zip: 'NVTX_EVENTS.parquet' is packed with {packed}; only stored and deflated files are read"
            assert (answer.status_code, answer.get_json()) == (422, {"error": said})
    assert left(inbox) == []


def test_bombs_are_refused_before_they_fill_disk_or_memory(client, inbox):
    zeros = b"\0" * 10_000_000
    packer = zlib.compressobj(9, wbits=31)
    gzip_bomb = b"".join(packer.compress(zeros) for _ in range(10)) + packer.flush()
    many = b"".join([gzip.compress(zeros[:1_000_000])] * 10)
    zip_bomb = zip_of([("NVTX_EVENTS.parquet", zeros), ("b", zeros)])
    for name, bomb in (("x.json.gz", gzip_bomb), ("x.json.gz", many), ("x.zip", zip_bomb)):
        tracemalloc.start()
        answer = upload(client, name, bomb)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status_code == 422
        assert "exceeds 5,000,000 bytes unpacked" in answer.get_json()["error"]
        assert peak < 10 * SLICE
        assert left(inbox) == []


def test_the_limit_holds_for_what_is_announced_and_for_what_comes(client, inbox):
    answer = begin_upload(client, "x", LIMIT + 1)
    assert (answer.status_code, "--upload-limit" in answer.get_json()["error"]) == (413, True)
    assert [begin_upload(client, "x", size).status_code for size in ("much", 0)] == [400, 413]
    key = begin_upload(client, "x", 10).get_json()["id"]
    assert client.put(f"/upload/{key}?at=0", data=b"x" * 11).status_code == 413
    assert client.put(f"/upload/{key}?at=0", data=b"x").status_code == 404  # given up
    key = begin_upload(client, "x", LIMIT).get_json()["id"]
    assert client.put(f"/upload/{key}?at=0", data=b"x" * (SLICE + 1)).status_code == 413
    assert left(inbox) == []


def test_sizes_and_offsets_are_digits(client, inbox):
    for number in (*NUMBERS, "9" * 5_000):
        answer = begin_upload(client, "x", number)
        assert (answer.status_code, answer.get_json()) == (400, {"error": "The size is not a number."}), number
    assert left(inbox) == []
    key = begin_upload(client, "x", "010").get_json()["id"]
    for number in (*NUMBERS, "9" * 5_000):
        answer = client.put(f"/upload/{key}", query_string={"at": number}, data=b"x")
        assert (answer.status_code, answer.get_json()) == (400, {"error": "The offset is not a number."}), number
    assert client.put(f"/upload/{key}?at=00", data=b"x").get_json()["received"] == 1


def test_lengths_of_bodies_are_digits_and_what_is_cut_off_leaves_the_server_as_it_was(inbox, caplog):
    with served(inbox.parent, Serving(uploads=inbox)) as address:
        port = urlsplit(address).port

        def asked(head, body="", *headers):
            lines = [head, "Host: localhost", *headers, "Connection: close", "", body]
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                connection.sendall("\r\n".join(lines).encode())
                return connection.makefile("rb").read().decode()

        def status(header, body):
            return int(asked("PUT /upload/x?at=0 HTTP/1.1", body, header).split()[1])

        assert status("Content-Length: 5", "hello") == status("Content-Length: 005", "hello") == 404  # no such upload
        assert status("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n") == 404
        for number in NUMBERS:
            if number.strip() not in {"", "5"}:  # spaces around a header's value are no part of it
                assert status(f"Content-Length: {number}", "hello") in {400, 413}, number
            if not re.fullmatch("[0-9a-f]+(;6)?\n?", number):  # those are hexadecimal, and something may follow them
                assert status("Transfer-Encoding: chunked", f"{number}\r\nhello\r\n0\r\n\r\n") == 400, number
        assert "uncaptured" not in caplog.text  # as waitress says of a request that ends a connection by a fault
        for _ in range(20):
            begun = asked("POST /upload?name=x.json&size=1000000 HTTP/1.1", "", "Content-Length: 0")
            if "too many simultaneous uploads" in begun:
                break
            with socket.create_connection(("127.0.0.1", port), 10) as half:
                key = re.search(r'"id": ?"([^"]+)"', begun)[1]
                head = f"PUT /upload/{key}?at=0 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
                half.sendall(head.encode() + b"x" * 500_000)
        else:
            pytest.fail("more uploads at once than are allowed")
        assert " 200 OK" in asked("GET /healthz HTTP/1.1")
        assert sum(file.stat().st_size for file in inbox.rglob("*") if file.is_file()) == 0


def test_slices_sent_again_or_out_of_order_do_no_harm(client, files):
    data = files["json"]
    key = begin_upload(client, "x.json", len(data)).get_json()["id"]
    parts = [data[:100], data[100:]]
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).get_json() == {"received": 0, "run": None}
    for _ in range(2):
        assert client.put(f"/upload/{key}?at=0", data=parts[0]).get_json()["received"] == 100
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).get_json()["run"] == "x"
    assert client.put(f"/upload/{key}?at=100", data=parts[1]).status_code == 404
    assert client.put("/upload/../../etc/passwd?at=0", data=b"x").status_code in {404, 405}


@pytest.fixture
def boxed(inbox):
    """A clock that a test sets, and an inbox that goes by it."""
    now = [0.0]
    return now, Inbox(inbox, LIMIT, RunStore([], inbox=inbox), lambda: now[0])


def test_uploads_that_stop_half_way_or_were_never_sent_make_room_for_others(boxed, inbox):
    now, box = boxed
    for number in range(16):
        now[0] = float(number)
        key = box.begin(f"x{number}", 100)
        if number < 4:
            box.append(key, 0, io.BytesIO(b"half"))
    now[0] = 10.0
    with pytest.raises(UsageError, match="too many"):
        box.begin("one more", 100)
    now[0] = 17.0
    for _ in range(4):  # numbers 4 to 7, of which nothing came
        box.begin("one more", 100)
    with pytest.raises(UsageError, match="too many"):
        box.begin("one more", 100)
    now[0] = 221.0
    key = box.begin("one more", 100)
    assert left(inbox) == [key]
    box.cancel(key)
    assert left(inbox) == []


def test_who_sends_much_makes_room_for_who_sends_little(boxed, inbox, files, monkeypatch):
    now, box = boxed
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
    shutil.rmtree(inbox)
    inbox.mkdir()
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
    assert left(inbox) == ["mine.json", *(f"theirs{number}.json" for number in range(3, 6))]
    assert {run.key for run in store.runs()} == {"mine", *(f"theirs{number}" for number in range(3, 6))}
    assert sent("theirs0", "stranger") == "theirs0"  # its name is free again


def test_what_has_no_room_is_refused_or_given_up(boxed, inbox, monkeypatch):
    _, box = boxed
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
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": (256 << 20) + 3 * LIMIT}))
    for _ in range(3):
        box.begin("theirs", LIMIT, "stranger")
    with pytest.raises(UsageError, match="no room"):
        box.begin("theirs", LIMIT, "stranger")
    box.begin("mine", LIMIT, "me")  # what is promised to one sender keeps no disk from the next


def test_who_may_upload(inbox):
    none = create_app([inbox]).server.test_client()
    assert begin_upload(none, "x", 3).status_code in {404, 405}
    assert json.loads(none.get("/_dash-layout").text)["props"]["data-upload-limit"] == "0"
    client = create_app([], Serving(uploads=inbox, token="secret")).server.test_client()
    assert begin_upload(client, "x", 3).status_code == 403
    client.post("/login", data={"token": "secret"})
    assert client.post("/upload?name=x&size=3", headers={"Origin": "https://evil.example"}).status_code == 403
    assert begin_upload(client, "x", 3).status_code == 201
