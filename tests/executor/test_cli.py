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

from executor.backends import BACKENDS
from executor.commands import run as cli
from executor.graph.models import MODELS
from executor.planning.allocator import ALLOCATORS
from executor.planning.concurrency import MODES
from executor.scheduling.launchers import LAUNCHERS
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


def test_combinations_launch_kind_and_batch_show_in_the_names(invoke, tmp_path):
    result = invoke(*QUICK, "--sync", "aaag, ggg", "--concurrency", "sequential,branches", "--launch", "eager",
                    "--batch", "2", "--json")  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["schema"] == "intertoken.runs/1"
    assert [run["path"].rpartition("/")[2] for run in printed["runs"]] == [
        "tiny-aaag-sequential-eager-b2", "tiny-aaag-branches-eager-b2",
        "tiny-ggg-sequential-eager-b2", "tiny-ggg-branches-eager-b2",
    ]  # fmt: skip
    assert [run["configuration"]["allocator"] for run in printed["runs"]] == ["sequential", "stream_aware"] * 2
    assert all(run["measured"]["tokens_per_s"]["median"] > 0 for run in printed["runs"])
    assert result.stderr == ""
    for run in printed["runs"]:
        assert len(read(run["path"])["kernels"]) > 0


def test_prompts_and_cache_show_in_the_names_and_files(invoke, tmp_path):
    sequences = ("--sync", "aaag", "--batch", "3", "--kv", "unified")
    for prompt, name in [(("--prompt", "0,5"), "p0+5"), (("--prompt", "7", "--shared-prompt"), "p7-shared")]:
        result = invoke(*QUICK, *sequences, *prompt)
        assert result.exit_code == 0, result.output
        trace = read(tmp_path / "runs" / f"tiny-aaag-sequential-b3-unified-{name}")
        assert trace.metadata["run"]["configuration"]["kv"] == "unified"
        assert (trace["nvtx"]["text"] == "prefill").sum() == 2


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


@pytest.mark.parametrize(
    "arguments", [["--batch", "0"], ["--tokens", "many"], ["--nonsense"], ["--prompt", "1,x"], ["--prompt", ""]]
)
def test_numbers_are_checked_by_click(invoke, arguments):
    assert invoke(*arguments).exit_code == 2


def test_output_that_is_a_file_is_refused(invoke, tmp_path):
    (tmp_path / "runs").write_text("")
    assert invoke(*QUICK).exit_code == 2


def test_help_names_every_choice_and_shows_examples(invoke):
    text = re.sub(r"-\n +", "-", invoke("--help").stdout)
    for table in (BACKENDS, MODELS, STRATEGIES, MODES, ALLOCATORS, LAUNCHERS):
        assert all(name in text for name in table)
    examples = text.partition("Examples:")[2]
    assert "intertoken run -o runs" in examples
    for option in ("gpu-layers", "experts", "devices", "kv", "micro-batch", "launch"):
        assert f"--{option} " in examples


def test_a_dry_run_names_the_runs_and_refuses_what_a_run_would(invoke, tmp_path):
    result = invoke("--dry-run", "--json", "--sync", "sccc,ggg", "--concurrency", "sequential,branches")
    assert json.loads(result.stdout)["runs"] == [
        f"tiny-{strategy}-{mode}" for strategy in ("sccc", "ggg") for mode in ("sequential", "branches")
    ]
    refused = invoke("--dry-run", "--concurrency", "branches", "--allocator", "sequential")
    assert isinstance(refused.exception, UnsafePlanError)
    assert isinstance(invoke("--dry-run", "--passes", "node").exception, UsageError)
    assert not (tmp_path / "runs").exists()
