"""Experts whose weights stay on the host: the rows that a step uses are copied to the device before its products.

As ggml's scheduler does it where a batch is worth computing on the device: the numbers of the experts come to the host
first, and neighbouring experts in one copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from executor.backends.interface import Array, Backend, HostArray
from executor.concurrency import MAIN_STREAM
from executor.graph import Tensor
from executor.memory import Place
from executor.strategies import Copy


@dataclass(frozen=True)
class CopiedWeights:
    """A weight of all experts, (E, O, I).

    Attributes:
        weight: the leaf of the split.
        place: where it is on the device.
        values: on the host, in memory that copies reach quickly.
    """

    weight: Tensor
    place: Place
    values: HostArray


class ExpertCopies:
    """What a split needs of the experts' weights.

    Args:
        backend: of the split's device.
        ids: the numbers of the experts that a step uses, on the device.
        shape: of `ids`, all of it int32.
        weights: of the split.

    Attributes:
        used: the numbers on the host, once they are fetched.
    """

    def __init__(self, backend: Backend, ids: Array, shape: tuple[int, ...], weights: list[CopiedWeights]) -> None:
        self._backend, self._ids, self._weights = backend, ids, weights
        self.used = backend.host_array(shape, "int32")
        self._made: dict[tuple[int, int, int], Copy] = {}

    def copies(self) -> list[Copy]:
        """The copies for this step; waits for what chooses the experts."""
        self.fetch()
        runs = list(_runs(self.choose()))
        return [self._copy(number, *run) for number in range(len(self._weights)) for run in runs]

    def fetch(self) -> None:
        """Bring the numbers to the host, and wait for them."""
        self._backend.copy_to_host(self.used, self._ids, MAIN_STREAM)
        self._backend.synchronize(MAIN_STREAM)

    def choose(self) -> HostArray:
        """The experts that are used, rising."""
        return np.unique(self.used)

    def _copy(self, number: int, first: int, last: int) -> Copy:
        key = (number, first, last)
        if key not in self._made:
            weights, backend = self._weights[number], self._backend
            part = replace(weights.weight, shape=(last - first, *weights.weight.shape[1:]))
            buffer, offset = weights.place
            each = weights.weight.nbytes // weights.weight.shape[0]
            array = backend.array(buffer, offset + first * each, part)
            send = partial(backend.copy_constant_to_device, array, weights.values[first:last], MAIN_STREAM)
            self._made[key] = Copy(send, backend)
        return self._made[key]


def _runs(numbers: HostArray) -> Iterator[tuple[int, int]]:
    """First and last + 1 of every run of successive numbers among rising ones."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    for part in np.split(numbers, breaks):
        yield int(part[0]), int(part[-1]) + 1
