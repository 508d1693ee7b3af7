"""Experts whose weights stay on the host: the rows that a step uses are copied to the device before its products.

This follows ggml's scheduler for batches worth computing on the device: the expert numbers are fetched to the host
first, and adjacent experts are copied together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from executor.backends.interface import Array, Backend, HostArray
from executor.graph import Tensor
from executor.planning.concurrency import MAIN_STREAM
from executor.scheduling.memory import Place
from executor.scheduling.strategies import Copy


@dataclass(frozen=True)
class CopiedWeights:
    """A weight of all experts, (E, O, I).

    Attributes:
        weight: the leaf of the split.
        place: its array on the device.
        values: its values on the host, in memory suited to fast copies.
    """

    weight: Tensor
    place: Place
    values: HostArray


class ExpertCopies:
    """The copies of expert weights that a split needs.

    Args:
        backend: backend of the split's device.
        ids: numbers of the experts that a step uses, on the device.
        shape: shape of `ids`, which is int32.
        weights: the copied weights of the split.

    Attributes:
        used: the numbers on the host, once fetched.
    """

    def __init__(self, backend: Backend, ids: Array, shape: tuple[int, ...], weights: list[CopiedWeights]) -> None:
        self._backend, self._ids, self._weights = backend, ids, weights
        self.used = backend.host_array(shape, "int32")
        self._made: dict[tuple[int, int, int], Copy] = {}

    def copies(self) -> list[Copy]:
        """Return the copies for this step, after waiting for the choice of experts."""
        self.fetch()
        runs = list(_runs(self.choose()))
        return [self._copy(number, *run) for number in range(len(self._weights)) for run in runs]

    def fetch(self) -> None:
        """Fetch the expert numbers to the host and wait for them."""
        self._backend.copy_to_host(self.used, self._ids, MAIN_STREAM)
        self._backend.synchronize(MAIN_STREAM)

    def choose(self) -> HostArray:
        """Return the numbers of the experts used, ascending."""
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
    """Yield first and last + 1 of every run of consecutive numbers in an ascending list."""
    breaks = np.flatnonzero(np.diff(numbers) > 1) + 1
    for part in np.split(numbers, breaks):
        yield int(part[0]), int(part[-1]) + 1
