"""`intertoken run` from the command line."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress

import click
import pytest
from click.testing import CliRunner

from executor.commands import run as cli
from executor.scheduling.strategies import STRATEGIES
from tracer import read
from tracer.errors import UnsafePlanError, UsageError

QUICK = ["--tokens", "2", "--repeats", "1", "--warmup", "1"]


@pytest.fixture
def invoke(tmp_path):
    group = click.Group()
    group.add_command(cli.run)

    def invoke(*arguments):
        return CliRunner().invoke(group, ["run", *arguments, "-o", str(tmp_path / "runs")])

    return invoke


def test_all_strategies_by_default(invoke, tmp_path):
    result = invoke(*QUICK)
    assert result.exit_code == 0, result.output
    written = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert written == sorted(f"tiny-{s}-sequential" for s in STRATEGIES)
    assert all(name in result.stdout for name in written)
    trace = read(tmp_path / "runs" / "tiny-sccc-sequential")
    assert len(trace["kernels"]) == 3 * 82
    assert (trace["nvtx"]["text"] == "token").sum() == 2
    assert trace.metadata["run"]["configuration"]["strategy"] == "sccc"
    assert "path" not in json.dumps(trace.metadata["run"])


def test_existing_runs_are_kept_unless_forced(invoke, tmp_path):
    arguments = (*QUICK, "--sync", "ggg")
    assert invoke(*arguments).exit_code == 0
    directory = tmp_path / "runs" / "tiny-ggg-sequential"
    (directory / "notes.txt").write_text("mine")

    refused = invoke(*arguments)
    assert isinstance(refused.exception, UsageError)
    assert "already holds tiny-ggg-sequential" in str(refused.exception)
    assert "--force" in str(refused.exception)
    assert (directory / "notes.txt").exists()

    refused = invoke(*arguments, "--force")
    assert isinstance(refused.exception, UsageError)
    assert "more than a recording: notes.txt" in str(refused.exception)
    (directory / "notes.txt").unlink()
    (directory / "mark.parquet").touch()
    assert invoke(*arguments, "--force").exit_code == 0
    assert not (directory / "mark.parquet").exists()
    assert read(directory).metadata["run"]["configuration"]["strategy"] == "ggg"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny-ggg-sequential"]


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)],
)
def test_a_run_that_is_ended_leaves_nothing(tmp_path, number, code):
    options = ("--sync", "ggg", "--tokens", "200", "--repeats", "1000")
    command = [sys.executable, "-m", "tracer.cli", "run", *options, "-o", tmp_path / "runs"]
    terminal, end = pty.openpty()
    with open(terminal, "rb", buffering=0) as shown:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end, env=os.environ | {"TERM": "xterm"})
        os.close(end)
        said = b""
        while b"running" not in said:  # of the bar
            said += shown.read(1024)
        process.send_signal(number)
        with suppress(OSError):  # nobody writes to it any more
            while shown.read(1024):
                pass
        assert process.wait() == code
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--sync", "sccc,aaaag"], UsageError, "unknown strategy 'aaaag'.*Did you mean 'aaag'"),
        (["--model", "llama"], UsageError, "unknown model"),
        (["--backend", "gpu"], UsageError, "unknown backend 'gpu'; choose from cpu"),
        (["--concurrency", "branches", "--allocator", "sequential"], UnsafePlanError, "race.*stream_aware"),
        (["--tokens", "1000"], UsageError, "context of 256"),
        (["--prompt", "0,250", "--batch", "2"], UsageError, "context of 256"),
        (["--prompt", "0,250"], UsageError, "2 prompts are too many for a batch of 1"),
        (["--prompt", "-1"], UsageError, "prompt must be at least 0, not -1"),
        (["--kv", "stream"], UsageError, "unknown KV cache 'stream'.*Did you mean 'streams'"),
        (["--shared-prompt"], UsageError, "a shared prompt needs one length"),
    ],
)
def test_errors_are_one_line_and_write_nothing(invoke, tmp_path, arguments, error, message):
    result = invoke(*arguments)
    assert isinstance(result.exception, error)
    assert "\n" not in str(result.exception)
    assert re.search(message, str(result.exception))
    assert not (tmp_path / "runs").exists()


def test_hazards_are_allowed_by_name_and_counted(invoke):
    racing = ("--concurrency", "branches", "--allocator", "sequential", "--allow-hazards", "--batch", "4")
    result = invoke(*QUICK, "--sync", "aaag", *racing, "--json")
    assert result.exit_code == 0
    (run,) = json.loads(result.stdout)["runs"]
    assert run["path"].endswith("tiny-aaag-branches-sequential-b4-hazards")
    assert run["plan"]["hazards"] == 48


def test_output_that_is_a_file_is_refused(invoke, tmp_path):
    (tmp_path / "runs").write_text("")
    assert invoke(*QUICK).exit_code == 2


def test_a_dry_run_names_the_runs_and_refuses_what_a_run_would(invoke, tmp_path):
    result = invoke("--dry-run", "--json", "--sync", "sccc,ggg", "--concurrency", "sequential,branches")
    assert json.loads(result.stdout)["runs"] == [
        f"tiny-{strategy}-{mode}" for strategy in ("sccc", "ggg") for mode in ("sequential", "branches")
    ]
    refused = invoke("--dry-run", "--concurrency", "branches", "--allocator", "sequential")
    assert isinstance(refused.exception, UnsafePlanError)
    assert isinstance(invoke("--dry-run", "--passes", "node").exception, UsageError)
    assert not (tmp_path / "runs").exists()
