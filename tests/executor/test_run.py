"""Runs: what is recorded, in which order and where it is written, from Python and from the command line."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from click.testing import CliRunner

from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.run.directory import run_graph, run_json
from executor.scheduling.strategies import STRATEGIES
from tracer import read
from tracer.cli import main
from tracer.model.graph_json import GRAPH_FILE, read_graph
from tracer.model.run_json import SCHEMA


def test_warm_up_comes_first_and_repeats_are_interleaved():
    done = []
    both = combinations(Configuration(tokens=2, repeats=2, warmup=1), ["sccc", "ggg"], ["sequential"])
    results = execute(both, progress=lambda: done.append(None))
    assert len(done) == 2 * (1 + 2)
    origins = [r.trace.metadata["clock"]["origin_ns"] for r in results]
    spans = []
    for result, origin in zip(results, origins, strict=True):
        nvtx = result.trace["nvtx"]
        repeats = nvtx[nvtx["text"] == "repeat"]
        assert [*repeats["payload"]] == [0, 1]
        assert (nvtx["text"] == "warmup").sum() == 1
        assert nvtx.loc[nvtx["text"] == "warmup", "end"].max() < repeats["start"].min()
        spans.append([(s + origin, e + origin) for s, e in zip(repeats["start"], repeats["end"], strict=True)])
    order = sorted((start, run) for run, repeats in enumerate(spans) for start, _ in repeats)
    assert [run for _, run in order] == [0, 1, 0, 1]


def test_with_ggg_the_host_is_ahead_of_the_device_and_reads_late():
    (result,) = execute([Configuration(strategy="ggg", tokens=20, repeats=1)])
    trace = result.trace
    tokens = trace["nvtx"][trace["nvtx"]["text"] == "token"]
    copies = trace["memcpys"][trace["memcpys"]["kind"] == "DtoH"]
    assert len(copies) == 1
    assert copies["start"].iloc[0] > tokens["end"].max()
    launches = trace["api"][trace["api"]["name"] == "graphLaunch"]
    done = trace["kernels"].groupby("correlation")["end"].max()[launches["correlation"]]
    assert (launches["end"].to_numpy()[1:] < done.to_numpy()[:-1]).any()
    assert result.tokens.shape == (1, 20, 1)


def test_run_json_says_what_where_and_how_fast():
    """What it says of a plan is in tests/golden, of the simulated backend."""
    (result,) = execute([Configuration(tokens=4, repeats=3, batch=2, concurrency="branches")])
    run = run_json(result)
    assert (run["schema"], run["configuration"]["allocator"]) == (SCHEMA, "stream_aware")
    measured = run["measured"]
    rates = measured["tokens_per_s"]["repeats"]
    assert rates == pytest.approx([2 * 4 / s for s in result.seconds])
    assert measured["tokens_per_s"]["low"] == min(rates)
    assert measured["tokens_per_s"]["median"] == pytest.approx(2 * measured["steps_per_s"]["median"])
    assert run["plan"]["graph_plans"] == [{"created": 1, "reused": 15, "updated": 0, "reinstantiated": 0, "freed": 0}]
    assert set(run["machine"]) == {"cpu", "cores", "os", "python"}


def test_sampling_on_the_device_fetches_only_the_tokens():
    for strategy, batch in (("sccc", 3), ("saaas", 1), ("aaag", 3), ("aga", 1)):
        (result,) = execute([Configuration(strategy=strategy, batch=batch, tokens=6, repeats=1, sampling="device")])
        fetched = result.trace["memcpys"].query("kind == 'DtoH'")["bytes"]
        assert fetched.tolist() == [4 * batch] * (6 + result.configuration.warmup), strategy


def test_aga_sends_only_the_token_between_the_sync_and_the_launch():
    (result,) = execute([Configuration(strategy="aga", tokens=4, repeats=1, warmup=0)])
    calls = result.trace["api"].sort_values("start").query("name != 'memcpy'")["name"].astype("str").tolist()
    launches = [i for i, name in enumerate(calls) if name == "graphLaunch"]
    assert all(calls[i - 2 : i] == ["eventSynchronize", "memcpyAsync"] for i in launches[1:])
    step = ["graphLaunch", "memcpyAsync", "eventRecord", *["memcpyAsync"] * 5]
    assert all(calls[i : i + 8] == step for i in launches)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)]
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


DRY = ("", " --dry-run")


@pytest.fixture
def run(tmp_path):
    """`intertoken run` with few tokens; the exit code, and what it said."""

    def run(*options):
        quick = ["--tokens", "2", "--repeats", "1", "--warmup", "1"]
        return CliRunner().invoke(main, ["run", *quick, *options, "-o", str(tmp_path / "runs")])

    return run


def test_all_strategies_by_default(run, tmp_path):
    result = run()
    assert result.exit_code == 0, result.output
    written = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert written == sorted(f"tiny-{s}-sequential" for s in STRATEGIES)
    assert all(name in result.stdout for name in written)
    trace = read(tmp_path / "runs" / "tiny-sccc-sequential")
    assert len(trace["kernels"]) == 3 * 82
    assert (trace["nvtx"]["text"] == "token").sum() == 2
    assert trace.metadata["run"]["configuration"]["strategy"] == "sccc"
    assert "path" not in json.dumps(trace.metadata["run"])


def test_existing_runs_are_kept_unless_forced(run, tmp_path):
    assert run("--sync", "ggg").exit_code == 0
    directory = tmp_path / "runs" / "tiny-ggg-sequential"
    (directory / "notes.txt").write_text("mine")
    (result,) = execute([Configuration(strategy="ggg", tokens=2, repeats=1, warmup=1)])
    assert read_graph(directory / GRAPH_FILE) == run_graph(result.prepared)

    refused = run("--sync", "ggg")
    assert "already holds tiny-ggg-sequential" in refused.stderr
    assert "--force" in refused.stderr
    assert "more than a recording: notes.txt" in run("--sync", "ggg", "--force").stderr
    (directory / "notes.txt").rename(directory / "mark.parquet")
    assert run("--sync", "ggg", "--force").exit_code == 0
    assert not (directory / "mark.parquet").exists()
    assert read(directory).metadata["run"]["configuration"]["strategy"] == "ggg"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny-ggg-sequential"]


@pytest.mark.parametrize(
    ("options", "said"),
    [("--sync sccc,aaaag", "unknown strategy 'aaaag'; choose from"), ("--prompt 0,255 --batch 2", "context of 256"),
     *((f"--concurrency branches --allocator sequential{dry}", "Choose allocator 'stream_aware'") for dry in DRY),
     *((f"--passes node{dry}", "backend 'cpu' has no node pass") for dry in DRY),
     ("--backend sim --profile none.json", "no profile none.json")],
)  # fmt: skip
def test_errors_are_one_line_and_write_nothing(run, tmp_path, options, said):
    """What else is refused is in test_refused.py."""
    result = run(*options.split())
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert said in result.stderr
    assert not (tmp_path / "runs").exists()


def test_hazards_are_allowed_by_name_and_counted(run):
    racing = ("--concurrency", "branches", "--allocator", "sequential", "--allow-hazards", "--batch", "4")
    (told,) = json.loads(run("--sync", "aaag", *racing, "--json").stdout)["runs"]
    assert told["path"].endswith("tiny-aaag-branches-sequential-b4-hazards")
    assert told["plan"]["hazards"] == 48


def test_a_dry_run_names_the_runs(run, tmp_path):
    result = run("--dry-run", "--json", "--sync", "sccc,ggg", "--concurrency", "sequential,branches")
    names = [f"tiny-{strategy}-{mode}" for strategy in ("sccc", "ggg") for mode in ("sequential", "branches")]
    assert json.loads(result.stdout)["runs"] == names
    assert not (tmp_path / "runs").exists()
