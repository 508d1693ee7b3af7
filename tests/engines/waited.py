"""What a device truly waits for while it computes nothing: what the host that launches next does meanwhile."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict

from tests.engines.machine import Call, Machine, Ran

LAUNCH, COPY, SYNC, HOST, SETUP = "launch", "copy", "sync", "host", "setup"
LAUNCHES = ("launch", "launch ex", "graph")
COPIES = ("copy", "blocking copy")
SYNCS = ("sync", "device sync", "event sync", "query")
SETUPS = ("instantiate",)
CAPTURE = ("begin capture", "end capture")

Span = tuple[int, int]


class Waited:
    """The causes of idle spans of a machine of one host.

    Args:
        compute: what computes on each device, as a recorder sees it, in order of start.
    """

    def __init__(self, machine: Machine, compute: dict[int, list[Ran]]) -> None:
        self._compute = compute
        self._starts = {at: [ran.start for ran in of] for at, of in compute.items()}
        self._copies: dict[int, list[Span]] = defaultdict(list)
        for ran in machine.ran:
            if ran.what == "copy":
                self._copies[ran.device].append((ran.start, ran.end))
        self._calls: dict[str, list[Span]] = {
            cause: [(call.start, call.end) for call in machine.calls if call.what in of]
            for cause, of in ((LAUNCH, LAUNCHES), (COPY, COPIES), (SETUP, SETUPS))
        }
        begins, ends = ([call for call in machine.calls if call.what == what] for what in CAPTURE)
        captures = [(begin.start, end.end) for begin, end in zip(begins, ends, strict=True)]
        self._calls[LAUNCH] = _joined(self._calls[LAUNCH] + captures)  # nothing runs of what is launched in one
        self._calls[SYNC] = _waits([call for call in machine.calls if call.what in SYNCS])
        for spans in (*self._copies.values(), *self._calls.values()):
            spans.sort()

    def causes(self, device: int, start: int, end: int) -> Counter[str]:
        """How long each cause takes of an idle span, ns.

        A copy on the device comes first, then calls that launch. If what computes next had been launched before, the
        device takes the rest of the time; else what the host does until then.
        """
        following = self._compute[device][bisect_left(self._starts[device], end)].call
        found: Counter[str] = Counter()
        left = [(start, end)]
        sets = [(COPY, self._copies[device]), (LAUNCH, self._calls[LAUNCH])]
        if following.end <= start:
            sets.append((LAUNCH, [(start, end)]))
        else:
            sets.append((LAUNCH, [(following.end, end)] if following.end < end else []))
            sets += [(COPY, self._calls[COPY]), (SYNC, self._calls[SYNC]), (LAUNCH, self._calls[SETUP])]
        for cause, spans in sets:
            left, taken = _without(left, spans)
            found[cause] += taken
        found[HOST] += sum(until - begin for begin, until in left)
        return found


def _waits(calls: list[Call]) -> list[Span]:
    """Times inside syncs, and inside loops that ask for an event, from the first question to the last answer."""
    spans: list[Span] = []
    asked = -1
    for call in calls:
        if call.what == "query" and call.event == asked:
            spans[-1] = spans[-1][0], call.end
        else:
            spans.append((call.start, call.end))
        asked = call.event if call.what == "query" else -1
    return spans


def _joined(spans: list[Span]) -> list[Span]:
    """The spans without those inside others."""
    kept: list[Span] = []
    for start, end in sorted(spans):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


def _without(left: list[Span], spans: list[Span]) -> tuple[list[Span], int]:
    """What is left of some spans without others, which are in order, and how much that took."""
    kept, taken = [], 0
    for start, end in left:
        at = max(bisect_right(spans, (start, start)) - 1, 0)
        while at < len(spans) and spans[at][0] < end:
            begin, until = max(spans[at][0], start), min(spans[at][1], end)
            if begin < until:
                taken += until - begin
                if begin > start:
                    kept.append((start, begin))
                start = until
            at += 1
        if start < end:
            kept.append((start, end))
    return kept, taken
