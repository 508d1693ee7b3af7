"""`intertoken bisect`: the search over commits, and one of a git repository whose checkout stays as it is."""

import json
import re
import subprocess
import sys
import time
from math import log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.fake_driver import run
from tracer.analysis.interval import Interval
from tracer.errors import ProgramError
from tracer.experiments.bisect import BAD, GOOD, Search, SkippedError
from tracer.experiments.turns import UNDECIDED, Rate, Turns


def until(holds):
    deadline = time.monotonic() + 30
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)


JSON = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


def exact(first, skipped=(), undecided=(), slower=0.02):
    """A trial of commits that are slower from `first` on, without noise; and the numbers that it was asked for."""
    asked = []

    def trial(number, until):
        asked.append(number)
        if number in skipped:
            raise SkippedError("it does not compile")
        change = log(1 - slower) if number >= first else 0.0
        if number in undecided:
            return UNDECIDED, Interval(change, -1.0, 1.0)
        turns = Turns(["good", "it"], until)
        turns.take(lambda name, _: Rate(100 * (1 - slower) if name == "it" and number >= first else 100.0))
        assert turns.ratio("it").estimate == pytest.approx(change)
        return turns.verdicts["it"], turns.ratio("it")

    return trial, asked


@given(st.integers(1, 300).flatmap(lambda last: st.tuples(st.just(last), st.integers(1, last))))
def test_every_first_bad_commit_is_found_in_few_trials(both):
    last, first = both
    search, (trial, asked) = Search(last), exact(first)
    search.run(trial)
    assert (search.good, search.bad) == (first - 1, first)
    assert len(asked) == len(set(asked)) <= 1 + (last - 1).bit_length()


@given(st.integers(2, 40), st.data())
def test_skipped_commits_leave_those_that_may_be_bad(last, data):
    first = data.draw(st.integers(1, last))
    skipped = data.draw(st.sets(st.integers(1, last - 1)))
    search, (trial, _) = Search(last), exact(first, skipped)
    search.run(trial)
    known = [number for number in range(last + 1) if number not in skipped]
    assert search.good == max(number for number in known if number < first)
    assert search.bad == min(number for number in known if number >= first)
    assert set(search.why) <= skipped


def test_ends_that_do_not_differ_and_a_host_that_is_too_noisy():
    with pytest.raises(ProgramError, match="the bad end is not shown to be slower"):
        Search(10).run(exact(1, undecided=[10])[0])
    with pytest.raises(ProgramError, match="the bad end is not slower"):
        Search(10).run(exact(11)[0])
    with pytest.raises(ProgramError, match="the bad end cannot be tried: it does not compile"):
        Search(10).run(exact(1, skipped=[10])[0])
    search, (trial, asked) = Search(64), exact(30, undecided=range(1, 64))
    search.run(trial)
    assert (search.good, search.bad, len(asked)) == (0, 64, 4)
    assert search.why[32] == "undecided after 100 rounds"
    assert list(search.verdicts.values()) == [BAD, *[UNDECIDED] * 3]


def git(repository, *arguments):
    who = ("-c", "user.name=N", "-c", "user.email=n@example.org")
    done = subprocess.run(["git", "-C", repository, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


PROGRAM = """import os, sys, zlib
if not os.path.exists("built"): sys.exit("not built")
print("speed:", {speed} * (1 + zlib.crc32(os.urandom(4)) / 2**32 / 500))
"""
BUILD = (sys.executable, "-c", "open('built', 'w'); import ast; ast.parse(open('decode.py').read())")
RUN = (sys.executable, "decode.py")


@pytest.fixture
def repository(tmp_path):
    """Twelve commits, of which the ninth makes the program 1 % slower and the sixth does not build."""
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "--quiet", "--initial-branch=main")
    for number in range(12):
        text = PROGRAM.format(speed=99 if number >= 8 else 100) + f"# {number}\n"
        (place / "decode.py").write_text("this is no Python" if number == 5 else text)
        git(place, "add", ".")
        git(place, "commit", "--quiet", "-m", f"Change {number}")
    (place / "decode.py").write_text("being edited")
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\nexit 1\n")
    hook.chmod(0o755)
    return place


def state(repository):
    """What a bisection must not change."""
    files = {path.name: path.read_text() for path in repository.iterdir() if path.is_file()}
    return files, git(repository, "status", "--porcelain"), git(repository, "worktree", "list"), git(
        repository, "rev-parse", "HEAD"), git(repository, "branch", "--all")  # fmt: skip


def test_a_history_in_which_one_commit_is_slower(repository, tmp_path, monkeypatch):
    options = ("--repository", repository, "--good", "HEAD~11", "--rate", r"speed: ([\d.]+)", "--no-recorder")
    before = state(repository)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    done = run("bisect", *options, "--json", "-o", tmp_path / "out", "--", *BUILD, "---", *RUN)
    monkeypatch.delenv("GIT_DIR")
    assert done.exit_code == 0, done.output
    assert state(repository) == before
    facts = json.loads(done.stdout)
    assert facts["first_bad"]["title"] == "Change 8"
    assert (facts["commits"], facts["recorded"], facts["unit"]) == (11, False, "per s")
    assert facts["builds"] == len(facts["tried"]) + 1 <= 6
    verdicts = {one["title"]: one["verdict"] for one in facts["tried"]}
    assert verdicts["Change 5"] == "skipped"
    assert {name for name, verdict in verdicts.items() if verdict == BAD} >= {"Change 8", "Change 11"}
    assert all(verdict == GOOD for name, verdict in verdicts.items() if name in ("Change 6", "Change 7"))
    (skipped,) = (one for one in facts["tried"] if one["verdict"] == "skipped")
    assert skipped["why"].startswith("its build ended with exit code 1: SyntaxError")
    assert "not built" not in done.stderr
    section = re.search(r"^## `intertoken\.bisect/1`\n(.*?)(?=^## )", JSON.read_text(), re.MULTILINE | re.DOTALL)[1]
    assert facts.keys() == set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert facts["tried"][0].keys() <= set(re.findall(r"\w+", section))


def test_one_command_that_builds_and_runs(repository):
    """With exit code 125 where it does not build."""
    script = f"touch built; {sys.executable} -m py_compile decode.py 2>&1 || exit 125; exec {sys.executable} decode.py"
    options = ("--repository", repository, "--good", "HEAD~8", "--bad", "HEAD~3", "--rate", r"speed: ([\d.]+)")
    done = run("bisect", *options, "--no-recorder", "--", "sh", "-c", script)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"first bad commit: [0-9a-f]{10} Change 8", lines[0])
    assert re.match(r"rate against the good end: −[01]\.\d % \[", lines[1])
    assert any(re.search(r"Change 5: skipped: its build ended with exit code 125", line) for line in lines)
    assert lines[-1].endswith("wrong with a probability of at most 5 %")


def test_a_signal_ends_it_and_leaves_no_work_tree(repository):
    """It is passed on to what runs: here to a build."""
    script = "import time; open('{}', 'w'); time.sleep(60)"
    began = repository.parent / "began"
    command = [sys.executable, "-m", "intertoken", "bisect", "--repository", repository, "--good", "HEAD~2",
               "--", sys.executable, "-c", script.format(began), "---", *RUN]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        until(began.exists)
        assert len(git(repository, "worktree", "list").splitlines()) == 3
        process.terminate()
        told = process.communicate(timeout=30)[1]
    assert process.returncode == 2
    assert re.search(r"intertoken: the build of [0-9a-f]{10} ended by SIGTERM$", told.strip())
    assert len(git(repository, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--good", "nothing"), "nothing: not a commit of the repository in"),
     (("--good", "HEAD"), "HEAD does not descend from HEAD"),
     (("--good", "HEAD", "--bad", "HEAD~2"), "HEAD~2 does not descend from HEAD"),
     (("--good", "--all"), "--all: not a commit"),
     (("--good", "HEAD~6"), "the good end cannot be tried: its build ended with exit code 1: SyntaxError"),
     (("--good", "HEAD~1", "--bad", "HEAD", "--most", "4"), "the bad end is not shown to be slower")],
)  # fmt: skip
def test_what_is_refused(repository, options, said):
    done = run("bisect", "--repository", repository, *options, "--rate", r"speed: ([\d.]+)", "--no-recorder", "--",
               *BUILD, "---", *RUN)  # fmt: skip
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_one_build_and_one_run(repository):
    done = run("bisect", "--repository", repository, "--good", "HEAD~1", "--", "a", "---", "b", "---", "c")
    assert (done.exit_code, "give one BUILD and one RUN" in done.stderr) == (2, True)
