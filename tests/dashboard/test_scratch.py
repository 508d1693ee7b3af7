"""What servers that were killed have left goes at the next start, and nothing else does."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile

import pytest

from dashboard import serving
from dashboard.serving import scratch

HOLD = """
from dashboard.serving import scratch
with scratch() as folder:
    (folder / "uploads").mkdir()
    (folder / "uploads" / "x.json").write_text("left")
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where temporary files go."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def orphan(place, name="intertoken-uploads-old"):
    (place / name / "uploads").mkdir(parents=True)
    (place / name / "uploads" / "x.json").write_text("left")
    return place / name


def test_the_folder_of_a_killed_server_goes_and_that_of_a_running_one_stays(place):
    environment = os.environ | {"TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", HOLD], env=environment, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        held = process.stdout.readline().strip()
        with scratch() as folder:
            assert os.listdir(held) == ["uploads"]
            assert folder.stat().st_mode & 0o077 == 0
        process.kill()
    assert os.path.exists(held)
    with scratch() as folder:
        assert list(place.iterdir()) == [folder]
    assert list(place.iterdir()) == []


def test_links_are_not_followed(place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.json").write_text("mine")
    (place / "intertoken-uploads-link").symlink_to(outside)
    (orphan(place) / "uploads" / "link").symlink_to(outside)
    (place / "intertoken-uploads-file").write_text("mine")
    (place / "intertoken-other").mkdir()
    with scratch():
        pass
    assert sorted(path.name for path in place.iterdir()) == [
        "intertoken-other", "intertoken-uploads-file", "intertoken-uploads-link",
    ]  # fmt: skip
    assert (outside / "mine.json").read_text() == "mine"


def test_what_others_have_stays(place, monkeypatch):
    orphan(place)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        serving.remove_orphans()
    assert len(list(place.iterdir())) == 1
    serving.remove_orphans()
    assert list(place.iterdir()) == []


def test_a_folder_that_another_start_takes_for_an_orphan_is_made_anew(place, monkeypatch):
    made, make = [], tempfile.mkdtemp

    def taken(**named):
        made.append(make(**named))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken)
    with scratch() as folder:
        assert [str(folder)] == made[1:]
        assert folder.is_dir()


def test_a_file_system_without_locks_is_good_enough(place, monkeypatch):
    def flock(*_):
        raise OSError("no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    orphan(place)
    with scratch() as folder:
        assert folder.is_dir()
    assert [path.name for path in place.iterdir()] == ["intertoken-uploads-old"]
