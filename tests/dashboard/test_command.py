"""`intertoken dashboard`: how it serves, what it says, and what it leaves behind."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from selenium.webdriver.common.by import By

import dashboard.cli
from dashboard.app import create_app
from dashboard.serving import Serving, open_link
from dashboard.serving.guard import LOOPBACK
from tests.dashboard.conftest import served, until
from tracer.cli import main


@pytest.mark.parametrize(
    ("arguments", "said", "hosts"),
    [
        ([], "dashboard at http://127.0.0.1:8050/login?token=", LOOPBACK),
        (["--no-token"], "dashboard at http://127.0.0.1:8050/ (", LOOPBACK),
        (["--prefix", "tool/", "--no-token"], "dashboard at http://127.0.0.1:8050/tool/ (", LOOPBACK),
        (["--token", "a b"], "dashboard at http://127.0.0.1:8050/login?token=a+b (", LOOPBACK),
        (["--token", "a b"], "warning: a token of fewer than 16 characters can be guessed", LOOPBACK),
        (["--allow-host", "gpu1"], "dashboard at http://127.0.0.1:8050/login?", LOOPBACK | {"gpu1"}),
        (
            ["--host", "0.0.0.0", "--no-token"],
            "warning: 0.0.0.0 is not a loopback address and --no-token is set",
            None,
        ),
        (["--host", "0.0.0.0", "--allow-host", "gpu1", "--no-token"], "warning: 0.0.0.0 is not", {"gpu1"}),
    ],
)
def test_the_command_says_where_and_warns(runs, monkeypatch, arguments, said, hosts):
    result, serving = _started(monkeypatch, [str(runs), *arguments])
    assert result.exit_code == 0
    assert said in result.output
    assert serving.hosts == hosts


@pytest.mark.parametrize("options", [[], ["--token", "auto"], ["--host", "0.0.0.0"]])
def test_a_random_token_is_printed_once_as_a_link(runs, monkeypatch, options):
    result, serving = _started(monkeypatch, [str(runs), *options])
    assert len(serving.token) >= 32
    assert result.output.count(serving.token) == 1
    assert "warning" not in result.output
    assert _started(monkeypatch, [str(runs)])[1].token != serving.token


def test_a_token_that_no_list_of_processes_shows(runs, tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("a token in a file\n")
    file.chmod(0o600)
    result, serving = _started(monkeypatch, [str(runs), "--token-file", str(file)])
    assert serving.token == "a token in a file"
    assert "warning" not in result.output
    file.chmod(0o640)
    assert "warning: " in _started(monkeypatch, [str(runs), "--token-file", str(file)])[0].output
    monkeypatch.setenv("INTERTOKEN_TOKEN", "a token in a variable")
    assert _started(monkeypatch, [str(runs)])[1].token == "a token in a variable"
    assert "INTERTOKEN_TOKEN" not in os.environ  # processes that it starts do not know it


@pytest.mark.parametrize(
    "arguments",
    [["--token", ""], ["--prefix", "/a?b"], ["--prefix", "//x"], ["--prefix", "/../x"], ["--prefix", "/x/.."],
     ["--prefix", "/x/./y"], ["--prefix", "/%2e%2e/x"], ["--prefix", "a" * 50 + "!"], ["--port", "99999"],
     ["--trusted-proxy", "proxy.example"], ["--trusted-proxy", "*"], ["--host", "no such host"],
     ["--no-token", "--token", "auto"], ["--token-file", "x", "--no-token"], ["--token-file", "x", "--token", "y"],
     ["--token-file", "/no/such/file"], ["--token-file", "/"], ["--token-file", "/dev/null"],
     ["--token-file", "/dev/zero"], ["--token-file", sys.executable]],
)  # fmt: skip
def test_senseless_options_are_one_line(runs, arguments):
    result = CliRunner().invoke(main, ["dashboard", str(runs), "--no-open", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    said = [line for line in result.output.splitlines() if line.startswith(("Error", "intertoken:"))]
    assert len(said) == 1
    assert len(said[0]) < 200


@pytest.fixture
def browser_of(tmp_path):
    """A program to be started as the browser, and what its command line was."""
    said, program = tmp_path / "said", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}.new; mv {said}.new {said}\n')
    program.chmod(0o700)
    return program, said


def test_what_was_uploaded_is_gone_when_the_command_ends_and_the_token_is_seen_nowhere(runs, tmp_path, browser_of):
    program, said = browser_of
    (tmp_path / "tmp" / "intertoken-uploads-of-a-killed-one" / "uploads").mkdir(parents=True)
    command = [sys.executable, "-c", "from tracer.cli import main; main()", "dashboard", str(runs), "--port", "0"]
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": os.pathsep.join(sys.path),
                                "BROWSER": f"{program} %s", "DISPLAY": ":0"}  # fmt: skip
    with subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE) as process:
        address, token = re.search("(http://[^ ]+/)login.token=([^ ]+)", process.stdout.readline()).groups()
        with urllib.request.urlopen(f"{address}healthz") as answer:
            assert sorted(json.load(answer)) == ["runs", "status", "version"]
        [inbox] = (tmp_path / "tmp").iterdir()
        assert inbox.stat().st_mode & 0o077 == 0
        (inbox / "uploads" / "x.json").write_text("left")
        assert _refused(address) == 403
        assert _refused(f"{address}healthz", Host="evil.example") == 400
        _until(said.exists)
        opened = Path(said.read_text().strip().removeprefix("file://"))
        assert opened.parent == inbox
        assert opened.stat().st_mode & 0o077 == 0
        assert f"{address}login?token={token}" in opened.read_text()
        for shown in Path("/proc").glob("[0-9]*/cmdline"):
            assert token not in _read(shown)
        process.terminate()
        assert process.wait(30) == 0
    assert not inbox.exists()


def _refused(address, **headers):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address, headers=headers))
    refused.value.close()
    return refused.value.code


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _read(file):
    try:
        return file.read_text(errors="replace")
    except OSError:  # that process is gone
        return ""


@pytest.mark.browser
def test_the_browser_is_led_to_the_page_and_its_address_holds_no_token(browser, runs, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with served(runs, Serving(prefix="/lab", token="a token & <more>")) as address:
        open_link(f"{address}login?{urlencode({'token': 'a token & <more>'})}", tmp_path)
        browser.get(opened[0])
        until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#chips li"), "the page")
        assert browser.current_url.startswith(address)
        assert "more" not in browser.execute_script("return location.href + document.cookie + document.referrer")
        browser.get("about:blank")


def _started(monkeypatch, arguments):
    """What the command prints, and how it would serve."""
    seen = []

    class Server:
        def run(self):
            raise KeyboardInterrupt

        def close(self):
            pass

    def create(paths, serving, cache):
        seen.append(serving)
        return create_app(paths, serving, cache)

    monkeypatch.setattr("dashboard.app.create_app", create)
    monkeypatch.setattr("dashboard.serving.patience.listen", lambda *_: Server())
    return CliRunner().invoke(dashboard.cli.dashboard, [*arguments, "--no-open"]), seen[0]
