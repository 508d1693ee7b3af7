"""Answers that take seconds: worked out in the background, each once for all readers, the latest kept.

Threads and not Dash's background callbacks: these start a process for each question, which would need the recording
read, or pickled, once more. Here twenty readers who ask the same share one answer, and a question is asked again by the
page's own polling, so that any server process that gets it can answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dashboard.store import Run

Answer = TypeVar("Answer")
_WORKERS = 2
_MOST_ANSWERS, _MOST_CAUSALITIES = 400, 4
_MOST_WAITING = 64


class Answers:
    """Questions about runs, and their answers as far as these are there. Safe to use from several threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, "answers")
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[Run, Hashable], Future[Any]] = OrderedDict()
