"""The commit that made a program slower: bisection of a history, each step decided by the sequential test.

A commit is tried against the good end, in turns, so that what the host does meets both. It is bad as soon as it is
shown to be slower than the good end, and good as soon as it is shown to be faster than the bad end, whose own
difference is measured first. The probability of a wrong answer is shared out evenly over these trials. A commit whose
build or run fails, with exit code 125 or any other, is skipped.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path
from typing import Final, NamedTuple

from tracer.analysis.compare import Comparison
from tracer.analysis.interval import Interval
from tracer.errors import ProgramError, RecordError, UsageError, printable
from tracer.experiments.ab import Campaign, compared
from tracer.experiments.printed import Form, last_line
from tracer.experiments.programs import Run, Variant, heed
from tracer.experiments.sequential import ERROR
from tracer.experiments.turns import Until
from tracer.files.output import signals_unwind
from tracer.recorders import foreground

MOST: Final = 100
"""Rounds of a trial, unless the user gives another number."""
GOOD: Final = "good"
BAD: Final = "bad"
SKIPPED: Final = "skipped"
_STOPPED: Final = (-signal.SIGTERM, -signal.SIGHUP)  # which we pass on to what runs: nothing is skipped then
_UNDECIDED: Final = 3  # commits, after which the host is too noisy for the difference
_PRECISE: Final = 0.4  # half the interval of the ends, of their difference: narrower costs more than it saves later


# --- the search ---


class SkippedError(Exception):
    """A commit cannot be tried; the message says why."""


Trial = Callable[[int, Until], tuple[str, Interval]]
"""The verdict on the commit of a number against commit 0, and the logarithm of the ratio of their rates. Raises
SkippedError."""


@dataclass
class Search:
    """What is known of commits 0 (good) to `last` (bad).

    Attributes:
        verdicts: number of a commit -> what its trial said; `ratios` its rate over the good end's.
        why: number of a commit that was skipped -> the reason.
        good, bad: the last that is known to be good, and the first that is known to be bad.
    """

    last: int
    most: int = MOST
    error: float = ERROR
    verdicts: dict[int, str] = field(default_factory=dict)
    ratios: dict[int, Interval] = field(default_factory=dict)
    why: dict[int, str] = field(default_factory=dict)
    good: int = 0
    bad: int = 0

    def run(self, trial: Trial) -> None:
        """Try the bad end, then commits between until none is left.

        Raises:
            ProgramError: the bad end cannot be tried, or is not shown to be slower.
        """
        each = 2 * self.error / (1 + ceil(log2(max(self.last, 2))))  # of which half are on the side that is wrong
        try:
            verdict, ends = trial(self.last, Until(_slower_enough, self.most, error=each))
        except SkippedError as problem:
            raise ProgramError(f"the bad end cannot be tried: {problem}") from None
        self.ratios[self.last] = ends
        if verdict != BAD and not _is_slower(ends):
            raise ProgramError(f"the bad end is {'not slower' if verdict == GOOD else 'not shown to be slower'}")
        self.good, self.bad = 0, self.last
        self.verdicts[self.last] = BAD
        while (middle := self._middle()) is not None:
            try:
                verdict, ratio = trial(middle, Until(_between(ends), self.most, error=each))
            except SkippedError as problem:
                self.why[middle] = str(problem)
                self.verdicts[middle] = SKIPPED
                continue
            self.verdicts[middle], self.ratios[middle] = verdict, ratio
            if verdict == BAD:
                self.bad = middle
            elif verdict == GOOD:
                self.good = middle
            else:
                self.why[middle] = f"undecided after {self.most} rounds"
                if list(self.verdicts.values()).count(verdict) >= _UNDECIDED:
                    return

    def _middle(self) -> int | None:
        """The untried commit next to the middle; None if there is none."""
        untried = [at for at in range(self.good + 1, self.bad) if at not in self.verdicts]
        return min(untried, key=lambda at: abs(2 * at - self.good - self.bad), default=None)


def _is_slower(ratio: Interval) -> bool:
    return ratio.bounds is not None and ratio.bounds[1] < 0


def _slower_enough(ratio: Interval) -> str:
    """Bad where the ends differ so clearly that commits between can be told from both."""
    if ratio.bounds is None:
        return ""
    low, high = ratio.bounds
    if low >= 0:
        return GOOD
    return BAD if _is_slower(ratio) and (high - low) / 2 <= _PRECISE * -ratio.estimate else ""


def _between(ends: Interval) -> Callable[[Interval], str]:
    """Bad if slower than the good end, good if faster than the bad end, both shown."""

    def decide(ratio: Interval) -> str:
        if ratio.bounds is None or ends.bounds is None:
            return ""
        return BAD if _is_slower(ratio) else GOOD if ratio.bounds[0] > ends.bounds[1] else ""

    return decide


# --- a git history ---


class Commit(NamedTuple):
    """Its full name and the first line of its message."""

    name: str
    title: str

    @property
    def short(self) -> str:
        """The start of its name."""
        return self.name[:10]


def history(repository: Path, good: str, bad: str) -> list[Commit]:
    """The commits from good to bad, oldest first, by first parents: merges count as one.

    Raises:
        UsageError: there is no repository, no such commit, or bad does not descend from good.
    """
    ends = [_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{end}^{{commit}}")
            for end in (good, bad)]  # fmt: skip
    for end, name in zip(ends, (good, bad), strict=True):
        if end.returncode:
            raise UsageError(f"{printable(name)}: not a commit of the repository in {repository}")
    first, last = (end.stdout.strip() for end in ends)
    if first == last or _git(repository, "merge-base", "--is-ancestor", first, last).returncode:
        raise UsageError(f"{printable(bad)} does not descend from {printable(good)}")
    lines = _git(repository, "log", "--format=%H %s", "--first-parent", "--reverse", f"{first}..{last}").stdout
    start = _git(repository, "log", "-1", "--format=%H %s", first).stdout
    return [Commit(*map(printable, line.partition(" ")[::2])) for line in (start + lines).splitlines()]


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git without the user's hooks, whatever repository the environment names."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_GIT}
    command = ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, errors="replace")
    except OSError as problem:
        raise UsageError(f"git cannot be run: {problem.strerror or problem}") from None


_OF_GIT: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX")


@contextmanager
def worktree(repository: Path, place: Path, commit: str) -> Iterator[Path]:
    """A work tree of the repository at a commit, removed when the block ends. Raises UsageError if git refuses."""
    _checked(_git(repository, "worktree", "add", "--quiet", "--detach", str(place), commit))
    try:
        yield place
    finally:
        _git(repository, "worktree", "remove", "--force", "--force", str(place))


def _checked(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason"]
        raise UsageError(f"git {done.args[5]} failed: {printable(lines[-1])}")


@dataclass(eq=False)
class Bisection:
    """A bisection of a repository.

    Attributes:
        repository: the user's, whose files are not touched.
        commits: see `history`.
        build: run once for each commit, in its work tree; empty if `command` builds.
        command: what is measured, in the same work tree.
        folder: for outputs; `trees` for work trees.
        form, is_recorded, keep, tell: as in `Campaign`.
        runs: number of a commit -> its runs; those of the good end are of the first trial.
        builds: the number of commits that were built, the ends included.
    """

    repository: Path
    commits: Sequence[Commit]
    build: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    trees: Path
    form: Form | None = None
    is_recorded: bool = True
    keep: bool = False
    tell: Callable[[str], None] = lambda _: None
    unit: str = ""
    search: Search = field(default_factory=lambda: Search(0))
    runs: dict[int, list[Run]] = field(default_factory=dict)
    builds: int = 0

    def run(self, most: int = MOST) -> None:
        """Run all of it.

        Raises:
            ProgramError: an end cannot be built or run, or they do not differ.
            UsageError: git makes no work tree.
        """
        self.search = Search(len(self.commits) - 1, most)
        with (
            signals_unwind(),
            worktree(self.repository, self.trees / "good", self.commits[0].name) as good,
            worktree(self.repository, self.trees / "next", self.commits[-1].name) as tried,
        ):
            try:
                self._build(0, good)
            except SkippedError as problem:
                raise ProgramError(f"the good end cannot be tried: {problem}") from None
            self.search.run(lambda number, until: self._trial(number, until, good, tried))

    def _place(self, number: int) -> Path:
        return self.folder / f"{number}-{self.commits[number].short}"

    def _build(self, number: int, tree: Path) -> None:
        """Build a commit in its tree, with the command itself if that builds. Raises SkippedError if it fails."""
        self.builds += 1
        command = self.build or self.command
        place = self._place(number)
        place.mkdir(parents=True, exist_ok=True)
        self.tell(f"building {self.commits[number].short} {self.commits[number].title}")
        output = place / "build.txt"
        with output.open("wb") as file:
            try:
                code = foreground.run(command, output=file.fileno(), folder=tree)
            except OSError as problem:
                raise RecordError(f"{command[0]} cannot be run: {problem.strerror or problem}") from problem
        heed(code)
        if code in _STOPPED:
            raise ProgramError(f"the build of {self.commits[number].short} {foreground.how_it_ended(code)}")
        if code:
            line = last_line(output)
            raise SkippedError(f"its build {foreground.how_it_ended(code)}{f': {line}' if line else ''}")

    def _trial(self, number: int, until: Until, good: Path, tried: Path) -> tuple[str, Interval]:
        """Check a commit out, build it, and run it in turns with the good end."""
        commit = self.commits[number]
        _checked(_git(tried, "checkout", "--quiet", "--force", "--detach", commit.name))
        self._build(number, tried)
        variants = [Variant("good", self.command, folder=good), Variant(commit.short, self.command, folder=tried)]
        campaign = Campaign.of(variants, until, self._place(number), seed=number)
        campaign.form, campaign.is_recorded, campaign.keep = self.form, self.is_recorded, self.keep
        campaign.tell, campaign.unit = self.tell, self.unit
        try:
            campaign.run()
        except ProgramError as problem:
            if problem.whose == commit.short and problem.code not in _STOPPED:
                raise SkippedError(str(problem)) from None
            raise
        self.unit, self.is_recorded = campaign.unit, campaign.is_recorded
        self.runs[number] = campaign.runs[commit.short]
        self.runs.setdefault(0, campaign.runs["good"])
        verdict = campaign.turns.verdicts[commit.short]
        self.tell(f"{commit.short} is {verdict}")
        return verdict, campaign.turns.ratio(commit.short)

    @property
    def candidates(self) -> list[Commit]:
        """The first bad commit; several if those before it could not be told."""
        return list(self.commits[self.search.good + 1 : self.search.bad + 1])

    @property
    def changed(self) -> Comparison | None:
        """What changed in a step between the last good commit and the first bad one, by their recordings."""
        return compared(self.runs[self.search.good], self.runs[self.search.bad])
