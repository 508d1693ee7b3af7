"""`intertoken dashboard`: how it serves, what it says, and what it leaves behind."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

import dashboard.cli
from dashboard import serving
from dashboard.serving import open_link, scratch
from dashboard.serving.guard import LOOPBACK
from tests.dashboard.conftest import until
from tracer.cli import main

SENSELESS = json.loads((Path(__file__).parent / "data" / "requests.json").read_text(encoding="utf-8"))["no options"]


def started(arguments):
    """What the command prints, how it would serve, and where it keeps what it reads."""
    seen = []

    class Server:
        def run(self):
            raise KeyboardInterrupt

        def close(self):
            pass

    def create(paths, serving, cache):
        seen.extend((serving, cache))
        return SimpleNamespace(server=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dashboard.app.create_app", create)
        patch.setattr("dashboard.serving.patience.listen", lambda *_: Server())
        result = CliRunner().invoke(dashboard.cli.dashboard, [*map(str, arguments), "--no-open"])
    assert result.exit_code == 0, result.output
    return result.output, *seen


def test_the_command_says_where_and_warns(runs, tmp_path):
    at, exposed = "dashboard at http://127.0.0.1:8050/", "warning: 0.0.0.0 is not a loopback address and --no-token is"
    for arguments, said, hosts in (
        ([], f"{at}login?token=", LOOPBACK),
        (["--no-token"], f"{at} (", LOOPBACK),
        (["--prefix", "tool/", "--no-token"], f"{at}tool/ (", LOOPBACK),
        (["--token", "a b"], f"{at}login?token=a+b (", LOOPBACK),
        (["--token", "a b"], "warning: a token of fewer than 16 characters can be guessed", LOOPBACK),
        (["--allow-host", "gpu1"], f"{at}login?", LOOPBACK | {"gpu1"}),
        (["--host", "0.0.0.0", "--no-token"], exposed, None),
        (["--host", "0.0.0.0", "--allow-host", "gpu1", "--no-token"], exposed, {"gpu1"}),
    ):
        output, served, _ = started([runs, *arguments])
        assert said in output
        assert served.hosts == hosts
    assert started([runs, "--cache", tmp_path / "kept"])[2].directory == tmp_path / "kept"
    assert started([runs, "--no-cache"])[2] is None


def test_a_token_is_random_or_such_that_no_list_of_processes_shows_it(runs, tmp_path, monkeypatch):
    tokens = set()
    for options in ([], ["--token", "auto"], ["--host", "0.0.0.0"]):
        output, served, _ = started([runs, *options])
        assert len(served.token) >= 32
        assert output.count(served.token) == 1
        assert "warning" not in output
        tokens.add(served.token)
    assert len(tokens) == 3
    file = tmp_path / "token"
    file.write_text("a token in a file\n")
    file.chmod(0o600)
    output, served, _ = started([runs, "--token-file", file])
    assert (served.token, "warning" in output) == ("a token in a file", False)
    file.chmod(0o640)
    assert "warning: " in started([runs, "--token-file", file])[0]
    monkeypatch.setenv("INTERTOKEN_TOKEN", "a token in a variable")
    assert started([runs])[1].token == "a token in a variable"
    assert "INTERTOKEN_TOKEN" not in os.environ  # processes that it starts do not know it


def test_senseless_options_are_one_line(runs):
    for arguments in (*SENSELESS, ["--token-file", sys.executable], ["--prefix", "a" * 50 + "!"]):
        result = CliRunner().invoke(main, ["dashboard", str(runs), "--no-open", *arguments])
        assert result.exit_code == 2, arguments
        assert "Traceback" not in result.output
        (said,) = [line for line in result.output.splitlines() if line.startswith(("Error", "intertoken:"))]
        assert len(said) < 200


def test_what_was_uploaded_is_gone_when_the_command_ends_and_the_token_is_seen_nowhere(runs, tmp_path):
    said, program = tmp_path / "said", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}.new; mv {said}.new {said}\n')
    program.chmod(0o700)
    (tmp_path / "tmp" / "intertoken-uploads-of-a-killed-one" / "uploads").mkdir(parents=True)
    command = [sys.executable, "-c", "from tracer.cli import main; main()", "dashboard", str(runs), "--port", "0"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path),
                                "BROWSER": f"{program} %s", "DISPLAY": ":0"}  # fmt: skip
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:

        def refused(address, **headers):
            with pytest.raises(urllib.error.HTTPError) as answer:
                urllib.request.urlopen(urllib.request.Request(address, headers=headers))
            answer.value.close()
            return answer.value.code

        address, token = re.search("(http://[^ ]+/)login.token=([^ ]+)", process.stdout.readline()).groups()
        with urllib.request.urlopen(f"{address}healthz") as answer:
            assert sorted(json.load(answer)) == ["runs", "status", "version"]
        [inbox] = (tmp_path / "tmp").iterdir()
        assert inbox.stat().st_mode & 0o077 == 0
        (inbox / "uploads" / "x.json").write_text("left")
        assert (refused(address), refused(f"{address}healthz", Host="evil.example")) == (403, 400)
        until(said.exists, 30)
        opened = Path(said.read_text().strip().removeprefix("file://"))
        assert opened.parent == inbox
        assert opened.stat().st_mode & 0o077 == 0
        assert f"{address}login?token={token}" in opened.read_text()
        for shown in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert token not in shown.read_text(errors="replace")
            except OSError:
                continue  # that process is gone
        process.terminate()
        assert process.wait(30) == 0
    assert not inbox.exists()


def test_the_page_that_leads_a_browser_to_the_dashboard_holds_its_link_as_text(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    open_link("http://127.0.0.1:1/lab/login?token=a+%26+<more>", tmp_path)
    page = Path(opened[0].removeprefix("file://")).read_text()
    assert "<more>" not in page
    assert "token=a+%26+&lt;more&gt;" in page


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where temporary files go, with what a server that was killed has left of uploads."""
    folder = tmp_path / "tmp"
    (folder / "intertoken-uploads-old" / "uploads").mkdir(parents=True)
    (folder / "intertoken-uploads-old" / "uploads" / "x.json").write_text("left")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def names(place):
    return sorted(path.name for path in place.iterdir())


def test_the_folder_of_a_killed_server_goes_and_that_of_a_running_one_stays(place):
    hold = "from dashboard.serving import scratch\nwith scratch() as folder: print(folder, flush=True); input()"
    environment = os.environ | {"TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", hold], env=environment, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # fmt: skip
        held = process.stdout.readline().strip()
        with scratch() as folder:
            assert names(place) == sorted([Path(held).name, folder.name])
            assert folder.stat().st_mode & 0o077 == 0
        process.kill()
    assert os.path.exists(held)
    with scratch() as folder:
        assert names(place) == [folder.name]
    assert names(place) == []


def test_links_are_not_followed_and_what_others_have_stays(place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.json").write_text("mine")
    (place / "intertoken-uploads-link").symlink_to(outside)
    (place / "intertoken-uploads-old" / "uploads" / "link").symlink_to(outside)
    (place / "intertoken-uploads-file").write_text("mine")
    (place / "intertoken-other").mkdir()
    before = names(place)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: os.getuid() + 1)
        serving.remove_orphans()
    assert names(place) == before
    serving.remove_orphans()
    assert names(place) == ["intertoken-other", "intertoken-uploads-file", "intertoken-uploads-link"]
    assert (outside / "mine.json").read_text() == "mine"


def test_a_folder_that_another_start_takes_is_made_anew_and_no_locks_are_good_enough(place, monkeypatch):
    made, make = [], tempfile.mkdtemp

    def taken(**named):
        made.append(make(**named))
        if len(made) == 1:
            shutil.rmtree(made[0])
        return made[-1]

    def flock(*_):
        raise OSError("no locks")

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "mkdtemp", taken)
        with scratch() as folder:
            assert [str(folder)] == made[1:]
            assert folder.is_dir()
    (place / "intertoken-uploads-other").mkdir()
    monkeypatch.setattr(fcntl, "flock", flock)
    with scratch() as folder:
        assert folder.is_dir()
    assert names(place) == ["intertoken-uploads-other"]
