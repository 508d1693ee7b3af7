"""What the passes say of each call site of copies: a verdict, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tracer.errors import printable
from tracer.races.logs import FirstBad, Stack
from tracer.races.passes import Pass, Ran, Runs, is_other, results_of
from tracer.recorders.foreground import how_it_ended

Verdict = Literal["race", "candidate", "ordered by design", "clean", "not seen"]
ORDER: Final = ("race", "candidate", "ordered by design", "clean", "not seen")

_PROOF: Final = ("differs under delay", "differs where drained")

_NOT_SEEN: Final = {
    "captured": "copies that were captured into CUDA graphs",
    "graph_h2d_copies": "copies to the device by CUDA graphs",
    "graph_d2h_copies": "copies to the host by CUDA graphs",
    "managed": "copies from managed memory",
    "to_arrays": "copies to arrays",
    "batches_3d": "batches of copies of rows",
    "from_device": "copies that are not from the host",
    "without_stream": "copies on more streams than are followed",
    "slots_full": "copies for which there was no room",
    "witness_refused": "copies that the driver refused to copy back",
    "fetches_lost": "results beyond those that are followed",
    "rows_lost": "copies at more call sites than are kept",
    "entries_left": "driver functions that are newer than this library",
}
_STAGED: Final = {
    "pageable": "copies from pageable memory, which the driver reads within the call",
    "during_call": "copies of a batch that the driver reads within the call",
}


@dataclass(frozen=True)
class Found:
    """The verdict of one call site. `delay_us` is the smallest delay that showed a race, 0 if none was needed; for a
    clean site the largest that was tried, for `copies` copies. `proof`: "bytes" arrived otherwise, or "results" differ.
    `bad`: how many copies arrived otherwise, by the name of the pass."""

    key: int
    call: str
    stack: Stack
    verdict: Verdict
    why: str
    proof: str
    delay_us: int | None
    copies: int
    bytes: int
    bad: dict[str, int]
    first_bad: FirstBad | None
    unwaited: int


@dataclass(frozen=True)
class Freed:
    """Memory that was freed while a copy had not arrived: how often, where, and the copy's call and stack."""

    call: str
    stack: Stack
    copy_call: str
    copy_stack: Stack
    times: int


@dataclass(frozen=True)
class Results:
    """Whether what the program fetched was the same: "same", "differs between plain runs", "differs under delay",
    "differs with time" (also if only the host is late), "differs where drained", "not compared"; with the first pass
    that differs, and where."""

    verdict: str
    why: str


@dataclass(frozen=True)
class Judged:
    """All that the passes say."""

    found: tuple[Found, ...]
    freed: tuple[Freed, ...]
    results: Results
    not_seen: dict[str, int]
    staged: dict[str, int]
    notes: tuple[str, ...]

    @property
    def races(self) -> int:
        """How many races are proven."""
        return sum(found.verdict == "race" for found in self.found)


def number(count: int, one: str, more: str) -> str:
    """A number of things.

    Example:
        >>> number(1, "copy", "copies"), number(1200, "copy", "copies")
        ('1 copy', '1,200 copies')
    """
    return f"{count:,} {one if count == 1 else more}"


def judge(runs: Runs) -> Judged:
    """The verdicts of all sites, races first."""
    results = _results(runs)
    found = [_found(runs, key, results) for key in _keys(runs.made)]
    if results.verdict in _PROOF and not any(each.proof for each in found):
        found.append(_somewhere(results))
    found.sort(key=lambda each: (ORDER.index(each.verdict), -each.copies))
    watched = [*runs.of("witness"), *runs.made[:1]][0]
    return Judged(
        tuple(found), tuple(_freed(runs)), results, _counted(watched, _NOT_SEEN), _counted(watched, _STAGED),
        tuple(_notes(runs, results)),
    )  # fmt: skip


def _keys(made: Sequence[Ran]) -> list[int]:
    return list(dict.fromkeys(key for ran in made for key in ran.sites))


def _counted(ran: Ran, words: dict[str, str]) -> dict[str, int]:
    counters = ran.counters
    return {said: counters[name] for name, said in words.items() if counters[name]}


def _bad(counts: Counter[str]) -> int:
    return counts["bad"] + counts["bad_excused"]


def _found(runs: Runs, key: int, results: Results) -> Found:
    first = next(site for ran in runs.made for site in ran.sites.get(key, ()))
    is_fetch = any(ran.counts(key)["fetched"] for ran in runs.made)
    verdict, why, proof, delay, copies = _of_results(runs, key, results) if is_fetch else _of_bytes(runs, key)
    if not is_fetch and verdict != "race" and (blamed := _blamed(runs, key, results)):
        verdict, why, proof, delay = "race", _late(blamed), "results", blamed.what.delay_us
    bad = {ran.what.name: _bad(ran.counts(key)) for ran in runs.made if _bad(ran.counts(key))}
    bad_sites = [site for ran in runs.made for site in ran.sites.get(key, ()) if site.first_bad]
    return Found(
        key, first.call, first.stack, verdict, why, proof, delay, copies, first.most_bytes, bad,
        bad_sites[0].first_bad if bad_sites else None, max(ran.counts(key)["unwaited"] for ran in runs.made),
    )  # fmt: skip


def _somewhere(results: Results) -> Found:
    """A race that the results prove and no site explains, as one between two streams of the device."""
    why = f"the program's results differ {results.why}; no copy of the host explains it"
    return Found(0, "", (), "race", why, "results", None, 0, 0, {}, None, 0)


Answer = tuple[Verdict, str, str, int | None, int]


def _of_bytes(runs: Runs, key: int) -> Answer:
    """Of a copy to the device, by the bytes that arrived."""
    watched = runs.of("witness", "delay", "launches", "halving", "one site", "host")
    seen = [(ran.what, ran.counts(key)) for ran in watched if key in ran.sites]
    copies = sum(counts["checked"] for _, counts in seen)
    bad = [(what, counts) for what, counts in seen if _bad(counts)]
    if bad:
        return _of_bad(runs, key, bad, copies)
    if not copies:
        return "not seen", "none of its copies could be compared", "", None, 0
    longest = max(what.delay_us for what, counts in seen if counts["checked"])
    most = sum(counts["checked"] for what, counts in seen if what.delay_us == longest)
    sampled = any(counts["sampled"] for _, counts in seen)
    said = f"{number(most, 'copy', 'copies')} arrived as at the call, {longest} µs late"
    said += "; of large ones samples" if sampled else ""
    return "clean", said, "", longest, most


def _of_bad(runs: Runs, key: int, bad: Sequence[tuple[Pass, Counter[str]]], copies: int) -> Answer:
    """Where some arrived otherwise: those of a race do not where the host has waited before it went on."""
    smallest = min(what.delay_us for what, _ in bad)
    worst = max((counts for _, counts in bad), key=lambda counts: _bad(counts) / max(counts["checked"], 1))
    share = f"{_bad(worst):,} of {worst['checked']:,} copies arrived otherwise than they were at the call"
    if not runs.of("drain"):
        return "candidate", f"{share}; the program was not run drained, for the budget", "", smallest, copies
    drained = runs.of("drain")[0].counts(key)
    waits = f"{drained['bad_drained']:,} of {drained['drained']:,} where the host waited for the stream"
    in_vain = drained["given_up"] + drained["gated"] if drained["bad_given_up"] + drained["bad_gated"] else 0
    if drained["drained"] > in_vain and not drained["bad_drained"]:
        return "race", f"{share}; {waits}", "bytes", smallest, copies
    if drained["bad_given_up"]:
        why = f"{share}; the stream did not become idle, so it is open whether a wait would help"
        return "candidate", why, "", smallest, copies
    if drained["bad_gated"] and not drained["bad_drained"]:
        why = f"{share}; the program holds the stream back until the source is filled"
        return "ordered by design", why, "", smallest, copies
    if not drained["drained"]:
        return "candidate", f"{share}; no copy was made drained", "", smallest, copies
    if 2 * drained["bad_drained"] * worst["checked"] >= _bad(worst) * drained["drained"]:
        why = f"{share}; {waits} as well: work before the copy fills its source"
        return "ordered by design", why, "", smallest, copies
    return "candidate", f"{share}; {waits}", "", smallest, copies


def _blamed(runs: Runs, key: int, results: Results) -> Ran | None:
    """The pass in which this site alone was late, and the results differed."""
    if results.verdict != "differs under delay":
        return None
    alone = [ran for ran in runs.of("one site") if ran.what.site == key]
    return next((ran for ran in alone if is_other(runs.made[0], ran)), None)


def _late(ran: Ran) -> str:
    return f"the program's results differ if only this copy is {ran.what.delay_us} µs late"


def _of_results(runs: Runs, key: int, results: Results) -> Answer:
    """Of a copy to the host, by what the program made of it."""
    delayed = [ran for ran in runs.of("delay", "one site") if ran.counts(key)["delayed"]]
    copies = sum(ran.counts(key)["delayed"] for ran in delayed)
    longest = max((ran.what.delay_us for ran in delayed), default=0)
    if blamed := _blamed(runs, key, results):
        return "race", _late(blamed), "results", blamed.what.delay_us, copies
    if not delayed or not runs.agree:
        return "not seen", "the program's results cannot be compared", "", None, 0
    alone = [ran for ran in runs.of("one site") if ran.what.site == key]
    if results.verdict in ("same", "differs where drained") or alone:
        of = alone or [ran for ran in delayed if ran.what.delay_us == longest]
        most = sum(ran.counts(key)["delayed"] for ran in of)
        said = f"the program's results are the same, {number(most, 'copy', 'copies')} {longest} µs late"
        return "clean", said, "", longest, most
    return "not seen", "the program's results differ, and this site was not delayed alone", "", None, copies


def _results(runs: Runs) -> Results:
    plain = runs.made[0]
    if not runs.agree:
        made = runs.of("plain")
        if len(made) < 2:
            return Results("not compared", "the program was run only once without delays")
        return Results("differs between plain runs", f"outputs differ between plain runs: {_where(*made[:2])}")
    late = [ran for ran in runs.of("delay", "launches", "halving", "one site") if is_other(plain, ran)]
    drained = [ran for ran in runs.of("drain") if is_other(plain, ran)]
    if not late and not drained:
        fetched = sum(len(log.fetches) for log in plain.logs)
        same = f"{number(fetched, 'result is', 'results are')} the same in all passes"
        return Results("same", same if fetched else "the program fetched none that it waited for")
    said = f"in the pass {late[0].what.name}: {_where(plain, late[0])}" if late else ""
    said = said or f"where the host waits after each copy: {_where(plain, drained[0])}"
    if any(is_other(plain, ran) for ran in runs.of("host")):
        return Results("differs with time", f"{said}; also if only the host is late")
    return Results("differs under delay" if late else "differs where drained", said)


def _where(one: Ran, other: Ran) -> str:
    """The first result that differs, in words."""
    if one.code != other.code:
        return f"it ends with exit code {other.code} instead of {one.code}"
    if len(one.logs) != len(other.logs):
        return f"{len(other.logs)} processes instead of {len(one.logs)}"
    there = Counter(results_of(log) for log in other.logs)
    for log in one.logs:
        if there[results_of(log)]:
            there[results_of(log)] -= 1
            continue
        most = Counter(fetch.digest for each in other.logs for fetch in each.fetches if each.program == log.program)
        for number, fetch in enumerate(log.fetches, 1):
            if not most[fetch.digest]:
                return f"result {number:,} of {len(log.fetches):,} is another (after {fetch.step:,} graph launches)"
            most[fetch.digest] -= 1
        return f"{sum(len(each.fetches) for each in other.logs):,} results instead of {len(log.fetches):,}"
    return "results differ"


def _freed(runs: Runs) -> list[Freed]:
    """Over all passes with a witness, the most times that a call freed what a copy still used."""
    most: Counter[tuple[str, Stack, int]] = Counter()
    for ran in runs.of("witness", "delay"):
        times: Counter[tuple[str, Stack, int]] = Counter()
        for log in ran.logs:
            times.update((each.call, each.stack, each.copy) for each in log.in_flight if each.copy is not None)
        most |= times
    sites = {key: sites[0] for ran in runs.made for key, sites in ran.sites.items()}
    return [
        Freed(call, stack, sites[copy].call, sites[copy].stack, times)
        for (call, stack, copy), times in most.most_common()
    ]


def _notes(runs: Runs, results: Results) -> list[str]:
    notes = []
    if results.verdict == "differs between plain runs":
        notes.append(f"{results.why}; only the bytes of copies to the device are judged")
    if results.verdict == "differs with time":
        notes.append("the program's results depend on time, so they prove nothing")
    notes += [
        f"ended after {ran.seconds:.0f} s, as it may hang: the pass {ran.what.name}; its results are not compared"
        for ran in runs.made
        if ran.hung
    ]
    if runs.left_out:
        names = ", ".join(dict.fromkeys(what.name for what in runs.left_out))
        notes.append(f"passes left out for the budget: {names}")
    if runs.made[0].code:
        ended = how_it_ended(runs.made[0].code)
        said = f"; it printed last: {printable(runs.made[0].printed)}" if runs.made[0].printed else ""
        notes.append(f"the program {ended} also without delays{said}")
    counters = [ran.counters for ran in runs.made]
    if refused := sum(each["delays_refused"] for each in counters):
        notes.append(f"the driver refused {refused:,} delays on the device; the host waited instead")
    if any(each["no_memory"] for each in counters):
        notes.append("the driver pinned no memory for the comparison: nothing was compared")
    if any(not log.is_ended for ran in runs.made for log in ran.logs):
        notes.append(
            "some processes were killed, or left without their exit handlers: their last copies are not compared"
        )
    return notes
