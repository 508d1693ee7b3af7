"""Queries the GPU's clock through mapped memory that a waiting kernel polls: a round trip takes about 2 µs."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_uint32, c_void_p
from typing import Final

from executor.backends.cuda_library import Library
from executor.backends.cuda_staging import address, pinned_array
from executor.clocks import Offset, Sample
from tracer.errors import ExecutionError

QUESTIONS: Final = 200
_PATIENCE_NS: Final = 10_000_000_000
"""Long, as other processes may occupy the GPU."""


class GpuClock:
    """Measures the offset between a host clock and `%globaltimer` while the GPU is idle."""

    def __init__(self, library: Library) -> None:
        self._cuda = library.cuda
        self._question = pinned_array(self._cuda, (1,), "uint32")
        self._answers = pinned_array(self._cuda, (QUESTIONS,), "uint64")
        arguments = (
            c_void_p(address(self._question)), c_void_p(address(self._answers)), c_uint32(QUESTIONS),
        )  # fmt: skip
        self._call = library.call("clock.cu", "answer_time", (1, 1), 1, arguments)

    def offset(self, stream: int, clock: Callable[[], int]) -> Offset:
        """Query the clock `QUESTIONS` times.

        Raises:
            ExecutionError: the GPU does not answer.
        """
        question, answers = self._question, self._answers
        question[0] = 0
        answers[:] = 0
        self._call.issue(self._cuda, stream)
        samples: list[Sample] = []
        for i in range(QUESTIONS):
            before = clock()
            question[0] = i + 1
            while not (answer := int(answers[i])):
                if clock() - before > _PATIENCE_NS:
                    raise ExecutionError(f"{self._cuda.gpu} did not answer a query of its clock within 10 s")
            samples.append((before, answer, clock()))
        self._cuda.runtime.streamSynchronize(stream)
        return Offset.of(samples)
