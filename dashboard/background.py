"""Answers that take seconds: worked out in the background, each once for all readers, the latest kept.

Threads, and not Dash's background callbacks: those start a process per question, which would need the recording pickled
or read again. Here all readers who ask the same share one answer, and the page asks again until it is there, so that
any server process can be the one that is asked.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, TypeVar

Answer = TypeVar("Answer")

_MOST_WAITING: Final = 500
_MOST_KEPT: Final = 2000
_HEAVIEST: Final = 30_000_000  # events; about 100 bytes each


class Background:
    """Questions and their answers. Safe to use from several threads.

    Each lane has a thread of its own while there is work for it, so that the questions of one page do not wait for
    those of another. What is kept weighs at most `heaviest` together, the answer asked for last excepted.
    """

    def __init__(self, heaviest: int = _HEAVIEST) -> None:
        self._heaviest = heaviest
        self._lock = threading.Lock()
        self._asked: OrderedDict[Hashable, tuple[Future[Any], Callable[[Any], int]]] = OrderedDict()
        self._waiting: dict[str, deque[tuple[Hashable, Future[Any], Callable[[], Any]]]] = {}

    def ask(
        self, lane: str, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int] = lambda _: 1
    ) -> Future[Answer]:
        """The answer to a question, perhaps not there yet; asking again gives the same one.

        Args:
            lane: who asks.
            question: what is asked.
            work: finds the answer.
            weight: how much memory the answer takes, in events.
        """
        with self._lock:
            if question in self._asked:
                self._asked.move_to_end(question)
                return self._asked[question][0]
            future: Future[Answer] = Future()
            self._asked[question] = future, weight
            if lane not in self._waiting:
                self._waiting[lane] = deque()
                threading.Thread(target=self._work, args=(lane,), name=f"background {lane}", daemon=True).start()
            waiting = self._waiting[lane]
            waiting.append((question, future, work))
            if len(waiting) > _MOST_WAITING:  # whoever still wants it asks again
                oldest, dropped, _ = waiting.popleft()
                dropped.cancel()
                self._asked.pop(oldest, None)
            self._forget()
            return future

    def now(self, question: Hashable, work: Callable[[], Answer], weight: Callable[[Answer], int]) -> Answer:
        """The same, found in the calling thread unless it is known; for what several answers need."""
        with self._lock:
            known = self._asked.get(question)
            future: Future[Answer] = known[0] if known else Future()
            self._asked[question] = future, weight
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
        """Let go of the answers asked for longest ago while they weigh too much."""
        done = [(q, f, weight) for q, (f, weight) in self._asked.items() if f.done()]
        weights = [1 if f.exception() else weight(f.result()) for _, f, weight in done]
        total = sum(weights)
        for (question, _, _), own in zip(done, weights, strict=True):
            if total <= self._heaviest and len(self._asked) <= _MOST_KEPT:
                break
            del self._asked[question]
            total -= own


def _find(future: Future[Answer], work: Callable[[], Answer]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as problem:  # it is the answer; whoever asked says it
            future.set_exception(problem)
