"""Runs a program in passes: plain twice, watched, with delays, drained; and more where these leave a question.

A pass is one run of the command with settings of the library (`recorders/native/races/start.c`). What the program
prints goes to a file beside its logs.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import Final, Literal

from tracer.errors import RecordError
from tracer.races.logs import Log, Site, read_logs
from tracer.recorders import foreground, light
from tracer.recorders.cupti_library import INJECTION
from tracer.recorders.light import SITES

SETTINGS: Final = "INTERTOKEN_RACES"
OUTPUT: Final = "output.txt"
KINDS: Final = {"h2d": 1, "d2h": 2, "launch": 4, "graph": 8, "sync": 16, "host": 32}
"""What can be delayed, as the library's bits: copies to and from the device, launches, graph launches, syncs (by the
host, before them), and the host before each copy."""

COPIES: Final = KINDS["h2d"] | KINDS["d2h"]
_LAUNCHES: Final = KINDS["launch"] | KINDS["graph"]
_DRAIN_MS: Final = 200
_RARELY: Final = 100  # of 1000 launches
_MOST_SITES: Final = 8  # that are delayed alone
_MOST_HALVINGS: Final = 3
_CLOSE: Final = 1.5  # a smallest delay is known well enough within this factor
_LEAST_US: Final = 5
_LONGEST_S, _LONGEST_TIMES = 60.0, 20.0  # how long a pass may take, with the time of the first: then it hangs
_MOST_PRINTED: Final = 500  # bytes of what the program printed last

Purpose = Literal["plain", "witness", "delay", "launches", "drain", "one site", "halving", "host"]


@dataclass(frozen=True)
class Pass:
    """One run: what it is for, the delay (µs), and of which kinds of calls; `site` is the only one delayed."""

    purpose: Purpose
    delay_us: int = 0
    kinds: int = 0
    per_mille: int = 1000
    seed: int = 1
    site: int = 0

    @property
    def name(self) -> str:
        """What it is called in a report."""
        often = "" if self.per_mille == 1000 else f", {self.per_mille / 10:g} % of them, seed {self.seed}"
        what = " and ".join(name for name, bit in KINDS.items() if self.kinds & bit)
        where = " at one site" if self.site else ""
        return f"{self.purpose}: {what}{where} {self.delay_us} µs late{often}" if self.delay_us else self.purpose

    @property
    def settings(self) -> dict[str, int]:
        """Those of the library."""
        given = {"witness": int(self.purpose != "plain"), "seed": self.seed}
        if self.purpose == "drain":
            given["drain_ms"] = _DRAIN_MS
        if self.delay_us:
            given |= {"delay_us": self.delay_us, "kinds": self.kinds, "per_mille": self.per_mille, "site": self.site}
        return given


Results = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Of each process: its program, of more results than are kept one digest over all, and the digests of the others. All
sorted, because threads and processes may take turns otherwise in each run."""


def results_of(log: Log) -> tuple[str, int, tuple[int, ...]]:
    """What one process fetched."""
    rest = log.all_digests if log.counters["digests_lost"] else 0
    return log.program, rest, tuple(sorted(fetch.digest for fetch in log.fetches))


@dataclass(frozen=True)
class Ran:
    """A pass that was made: the exit code (-N: ended by signal N), how long it took, what the library saw, the last
    line that the program printed, and whether it was ended because it took too long."""

    what: Pass
    code: int
    seconds: float
    logs: tuple[Log, ...]
    printed: str = ""
    hung: bool = False

    @property
    def results(self) -> Results:
        """What the program fetched from the device."""
        return tuple(sorted(map(results_of, self.logs)))

    @property
    def sites(self) -> dict[int, list[Site]]:
        """The call sites of all processes, by key."""
        found: dict[int, list[Site]] = {}
        for log in self.logs:
            for site in log.sites:
                found.setdefault(site.key, []).append(site)
        return found

    def counts(self, key: int) -> Counter[str]:
        """What was counted at a site, in all processes."""
        total: Counter[str] = Counter()
        for site in self.sites.get(key, ()):
            total.update(site.counts)
        return total

    @property
    def counters(self) -> Counter[str]:
        """What was counted beside sites, in all processes."""
        total: Counter[str] = Counter()
        for log in self.logs:
            total.update(log.counters)
        return total

    @property
    def bad(self) -> int:
        """How many copies arrived otherwise than they were at the call."""
        return sum(site.counts["bad"] + site.counts["bad_excused"] for log in self.logs for site in log.sites)


def is_other(one: Ran, other: Ran) -> bool:
    """Whether two passes fetched other results, or ended otherwise. One that was ended proves nothing."""
    if one.hung or other.hung:
        return False
    return one.results != other.results or one.code != other.code


@dataclass(frozen=True)
class Plan:
    """Which delays (µs), how many seeds of each (those after the first delay only some of the copies), and the most
    seconds for all passes."""

    delays: tuple[int, ...] = (50, 200, 500)
    seeds: int = 1
    per_mille: int = 300
    seconds: float | None = None

    def passes(self) -> list[Pass]:
        """The passes that are made in any case, after the two plain ones, the drained one at last."""
        delayed = [
            Pass("delay", delay, COPIES, self.per_mille if seed > 1 else 1000, seed)
            for delay in self.delays
            for seed in range(1, self.seeds + 1)
        ]
        return [Pass("witness"), *delayed, Pass("launches", max(self.delays), _LAUNCHES, _RARELY), Pass("drain")]


@dataclass
class Runs:
    """The passes that were made so far, and those that were left out for the budget."""

    command: Sequence[str]
    folder: Path
    plan: Plan
    tell: Callable[[str], None]
    made: list[Ran] = field(default_factory=list)
    left_out: list[Pass] = field(default_factory=list)

    def of(self, *purposes: Purpose) -> list[Ran]:
        """Those that were made for these purposes."""
        return [ran for ran in self.made if ran.what.purpose in purposes]

    @property
    def agree(self) -> bool:
        """Whether the two plain runs fetched the same results."""
        plain = self.of("plain")
        return len(plain) > 1 and not is_other(*plain[:2])

    def go(self, what: Pass) -> Ran | None:
        """Make a pass; None if the budget leaves no time for it.

        Raises:
            RecordError: the command cannot be started.
        """
        spent, last = sum(ran.seconds for ran in self.made), max((ran.seconds for ran in self.made), default=0.0)
        if self.plan.seconds is not None and len(self.made) > 1 and spent + last > self.plan.seconds:
            self.left_out.append(what)
            return None
        number = len(self.made) + 1
        folder = self.folder / f"{number:02d}-{what.purpose.replace(' ', '-')}"
        folder.mkdir(mode=0o700)
        self.tell(f"pass {number}, {what.name}")
        begun = time.monotonic()
        limit = _LONGEST_S + _LONGEST_TIMES * self.made[0].seconds if self.made else None
        code = _run(self.command, folder, what.settings, limit)
        seconds = time.monotonic() - begun
        hung = limit is not None and seconds > limit and code < 0
        ran = Ran(what, code, seconds, tuple(read_logs(folder)), _last_line(folder / OUTPUT), hung)
        if code in (-signal.SIGINT, 128 + signal.SIGINT):
            raise KeyboardInterrupt
        self.made.append(ran)
        return ran


def environment(folder: Path, settings: Mapping[str, int], base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of the program in a pass. Raises RecordError if there is no library for this machine."""
    preloaded = light.environment(light.library(races=True), folder, base)
    given = ",".join(f"{name}={value}" for name, value in settings.items())
    nvtx = {INJECTION: base.get(INJECTION, "")}  # this library is none for NVTX
    return {name: value for name, value in {**preloaded, **nvtx, SITES: "1", SETTINGS: given}.items() if value}


def _run(command: Sequence[str], folder: Path, settings: Mapping[str, int], seconds: float | None) -> int:
    try:
        with (folder / OUTPUT).open("wb") as output:
            return foreground.run(command, (), environment(folder, settings), output, seconds)
    except OSError as problem:
        raise RecordError(f"{command[0]} cannot be run: {problem.strerror or problem}") from problem


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MOST_PRINTED))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_all(runs: Runs) -> None:
    """Make all passes.

    Raises:
        RecordError: the command cannot be started, or it made no call of the driver.
    """
    light.library(races=True)  # compiled now, not within the first run
    runs.tell(f"the command runs {2 + len(runs.plan.passes())} times or more")
    first = runs.go(Pass("plain"))
    assert first is not None
    if not first.logs:
        why = light.why_nothing(runs.folder / "01-plain")
        said = f", and printed last: {first.printed}" if first.printed else ""
        raise RecordError(f"nothing was watched: the program {foreground.how_it_ended(first.code)}{said}; {why}")
    whole = (2 + len(runs.plan.passes())) * first.seconds
    limit = "" if runs.plan.seconds is None else f", at most {runs.plan.seconds:g} s"
    runs.tell(f"a plain run takes {first.seconds:.1f} s, all of them about {whole:.0f} s or more{limit}")
    runs.go(Pass("plain"))
    for what in runs.plan.passes():
        runs.go(what)
    for step in (_halve, _separate):
        for what in step(runs):
            if runs.go(what) is None:
                break


def _halve(runs: Runs) -> Iterator[Pass]:
    """Passes that look for the smallest delay under which a copy arrives otherwise, where one only does if delayed."""
    if any(ran.bad for ran in runs.of("witness")):
        return
    for _ in range(_MOST_HALVINGS):
        delayed = [ran for ran in runs.of("delay", "halving") if ran.what.per_mille == 1000]
        bad = [ran.what.delay_us for ran in delayed if ran.bad]
        high = min(bad, default=0)
        low = max((ran.what.delay_us for ran in delayed if not ran.bad and ran.what.delay_us < high), default=0)
        if high <= _LEAST_US or high <= low * _CLOSE:
            return
        yield Pass("halving", round(sqrt(max(low, high / 16) * high)), COPIES)


def _separate(runs: Runs) -> Iterator[Pass]:
    """Passes that look for the one site whose delay changes the results; and whether these depend on time alone, where
    the host is late instead. Not where bytes show a race already: it may change the results in any pass."""
    if not runs.agree or _has_race_by_bytes(runs):
        return
    plain = runs.made[0]
    other = [ran for ran in runs.of("delay") if is_other(plain, ran)]
    if other:
        worst = max(ran.what.delay_us for ran in other)
        delayed = other[0].sites
        busiest = sorted(delayed, key=lambda key: -sum(site.counts["delayed"] for site in delayed[key]))
        yield Pass("host", worst, KINDS["host"])
        for key in busiest[:_MOST_SITES]:
            yield Pass("one site", worst, COPIES, site=key)
    elif any(is_other(plain, ran) for ran in runs.of("launches", "drain")):
        yield Pass("host", max(runs.plan.delays), KINDS["host"])


def _has_race_by_bytes(runs: Runs) -> bool:
    """Whether copies of a site arrived otherwise, and none where it was drained."""
    bad = {key for ran in runs.made for key, sites in ran.sites.items() if any(_is_bad(site) for site in sites)}
    drained = [ran.counts(key) for ran in runs.of("drain") for key in bad]
    return any(counts["drained"] and not counts["bad"] + counts["bad_excused"] for counts in drained)


def _is_bad(site: Site) -> bool:
    return bool(site.counts["bad"] + site.counts["bad_excused"])
