"""Computes slow answers in the background, once for all readers, and keeps the latest ones.

This uses threads instead of Dash's background callbacks, which start a process per question and would need the
recording pickled or read again. All readers with the same question share one answer, and the page polls for it, so any
server process can answer.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dashboard.reading.readers import half_of_memory
from tracer.errors import IntertokenError, printable

Answer = TypeVar("Answer")

_MOST_WAITING: Final = 500
_MOST_KEPT: Final = 2000
_BYTES: Final = 100  # of memory that an event takes


def heaviest() -> int:
    """Maximum number of events in all kept answers: a sixteenth of the memory of this machine or container."""
    return half_of_memory() // 8 // _BYTES


@dataclass(frozen=True)
class _Asked:
    """A question: its answer, its weight, its lane, and how many answers of the lane are kept."""

    future: Future[Any]
    weight: Callable[[Any], int]
    lane: str = ""
    most: int = _MOST_KEPT


class Background:
    """Questions and their answers. Safe to use from several threads.

    Each lane has its own thread while it has work, so that the questions of one page do not wait for those of another.
    The kept answers together weigh at most `most` events, not counting the last one requested.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = heaviest() if most is None else most
        self._lock = threading.Lock()
        self._asked: OrderedDict[Hashable, _Asked] = OrderedDict()
        self._waiting: dict[str, deque[tuple[Hashable, Future[Any], Callable[[], Any]]]] = {}

    def ask(
        self, lane: str, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int] = lambda _: 1,
        most: int = _MOST_KEPT,
    ) -> Future[Answer]:  # fmt: skip
        """The answer to a question, possibly not ready yet; asking again returns the same one.

        Args:
            lane: the lane of the question.
            question: identifies the answer.
            work: computes the answer.
            weight: the memory that the answer takes, in events.
            most: the number of the lane's answers that are kept.
        """
        with self._lock:
            if question in self._asked:
                self._asked.move_to_end(question)
                return self._asked[question].future
            future: Future[Answer] = Future()
            self._asked[question] = _Asked(future, weight, lane, most)
            if lane not in self._waiting:
                self._waiting[lane] = deque()
                threading.Thread(target=self._work, args=(lane,), name=f"background {lane}", daemon=True).start()
            waiting = self._waiting[lane]
            waiting.append((question, future, work))
            if len(waiting) > _MOST_WAITING:  # readers who still need it ask again
                oldest, dropped, _ = waiting.popleft()
                dropped.cancel()
                self._asked.pop(oldest, None)
            self._forget()
            return future

    def now(self, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int]) -> Answer:
        """Like `ask`, but computed in the calling thread unless it is known; for parts that several answers need."""
        with self._lock:
            known = self._asked.get(question)
            future: Future[Answer] = known.future if known else Future()
            self._asked[question] = _Asked(future, weight)
            self._asked.move_to_end(question)
            self._forget()
        if known is None:
            _find(future, work)
        return future.result()

    def _work(self, lane: str) -> None:
        while True:
            with self._lock:
                if not self._waiting[lane]:
                    del self._waiting[lane]
                    return
                _, future, work = self._waiting[lane].popleft()
            _find(future, work)

    def _forget(self) -> None:
        """Drop the least recently used answers until the weight is below the limit."""
        done = [(question, one) for question, one in self._asked.items() if one.future.done()]
        weights = [1 if one.future.exception() else one.weight(one.future.result()) for _, one in done]
        total, held = sum(weights), Counter(one.lane for _, one in done)
        for (question, one), own in zip(done, weights, strict=True):
            if total > self._most or len(self._asked) > _MOST_KEPT or held[one.lane] > one.most:
                del self._asked[question]
                total, held[one.lane] = total - own, held[one.lane] - 1


def known(answer: Future[Answer]) -> Answer | str | None:
    """The answer, why there is none, or None if it is still being computed."""
    if not answer.done() or answer.cancelled():
        return None
    problem = answer.exception()
    if problem is None:
        return answer.result()
    return printable(str(problem)) if isinstance(problem, IntertokenError) else f"internal error: {problem!r}"


def _find(future: Future[Answer], work: Callable[[], Answer]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as problem:  # it is the answer, shown by the page that asked
            future.set_exception(problem)
