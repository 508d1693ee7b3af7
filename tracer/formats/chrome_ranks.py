"""The process, device and rank that the pid of an event refers to.

Kineto writes the process id as the pid of host events and the device as the pid of device events. Tools that merge the
files of several ranks change both, so that viewers separate the ranks: to a text ("[TP01] 4242", "rank 1", "1_4242")
or by an offset per rank (10004242). Correlations and `args.device` keep each rank's own numbers, so they are meaningful
only together with the rank. An offset is a device event's pid minus its device; a host process belongs to the largest
offset that is not above its pid.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

import numpy as np
import pandas as pd

from tracer.model.intervals import Ints
from tracer.model.rows import numbered
from tracer.model.schema import DEVICE_TABLES, MISSING

Rank = tuple[int, ...]
"""The numbers by which a file names a rank: (1,) of "rank 1", (0, 1) of "[TP00-DP01] 4242"."""

ON_DEVICE: Final = (*DEVICE_TABLES, "syncs", "cuda_events")
_ON_HOST: Final = ("api", "nvtx")
_OWN_TRACKS: Final = ("Spans", "Traces")  # Kineto's own tracks, which are not processes
_MOST_SHOWN: Final = 8


class Pids:
    """The meaning of the pids of a file.

    Args:
        found: the rows as `chrome_tables` collects them; a pid that is text is -2 minus its index in `texts`.
        texts: those texts.

    Attributes:
        ranks: the ranks, sorted; a single one if the file does not distinguish ranks.
        devices: our device -> (index of its rank in `ranks`, the rank's own device number).
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame], texts: Sequence[str]) -> None:
        parsed = {-2 - place: _parse(text) for place, text in enumerate(texts)}
        named = {pid: rank for pid, (rank, _) in parsed.items()}
        self._number = {pid: number for pid, (_, number) in parsed.items()}
        hosts = _unique(tables, _ON_HOST, "process")
        tracks = self._tracks(tables, ON_DEVICE)
        of_device, of_host = _offsets(self._tracks(tables, DEVICE_TABLES), hosts)
        rank_of = dict.fromkeys([*hosts, *tracks["pid"].tolist()], ()) | named | of_device | of_host
        used = {*hosts, *tracks["pid"].tolist()} - {MISSING}
        self.ranks: list[Rank] = sorted({rank_of[pid] for pid in used}) or [()]
        place_of = {rank: place for place, rank in enumerate(self.ranks)}
        self._rank = {pid: place_of[rank_of[pid]] for pid in used}
        self.ranks_known = not of_device or bool(of_host)  # otherwise devices differ, but their ranks are unknown
        self._process = self._processes(hosts)
        self.devices = self._number_devices(tables, tracks)

    def rank(self, pids: pd.Series) -> Ints:
        """The index in `ranks` of each pid; 0 for all if the rank of calls is unknown."""
        return _look_up(pids, self._rank, 0) if self.ranks_known else np.zeros(len(pids), np.int64)

    def process(self, pids: pd.Series) -> Ints:
        """The process of each host event's pid; MISSING for a track that is not a process."""
        return _look_up(pids, self._process, MISSING)

    def device(self, frame: pd.DataFrame, column: str = "device") -> Ints:
        """Our device for each row's `column`, which holds the rank's own device number."""
        counted = self._device(frame) if column == "device" else frame[column].to_numpy()
        if all(ours == theirs for ours, (_, theirs) in self.devices.items()):
            return counted
        ours = {place: device for device, place in self.devices.items()}
        codes, distinct = numbered(_look_up(frame["pid"], self._rank, 0), counted)
        return np.array([ours.get((int(rank), int(device)), MISSING) for rank, device in distinct], np.int64)[codes]

    def notes(self) -> list[str]:
        """Notes on a file of several ranks: the processes and devices of each."""
        if not self.ranks_known:
            return [f"devices with equal numbers but different pids are treated as {len(self.devices)} devices"]
        if len(self.ranks) < 2:
            return []
        shown = [self._describe(place) for place in range(min(len(self.ranks), _MOST_SHOWN))]
        more = ", ..." if len(self.ranks) > _MOST_SHOWN else ""
        return [f"the file holds {len(self.ranks)} ranks: {', '.join(shown)}{more}"]

    def _describe(self, place: int) -> str:
        processes = sorted(self._process[pid] for pid in self._process if self._rank[pid] == place)
        devices = sorted(device for device, (rank, _) in self.devices.items() if rank == place)
        of = [f"{what} {' '.join(map(str, ids))}" for what, ids in (("process", processes), ("device", devices)) if ids]
        return f"rank {'-'.join(map(str, self.ranks[place])) or '?'} = {' and '.join(of)}"

    def _tracks(self, found: Mapping[str, pd.DataFrame], tables: Sequence[str]) -> pd.DataFrame:
        """The pids under which devices have rows; columns pid and device."""
        tracks = pd.concat([found[name][["pid", "device"]] for name in tables]).drop_duplicates()
        return tracks.assign(device=self._device(tracks))

    def _device(self, frame: pd.DataFrame) -> Ints:
        """The rank's own device number: from the event itself, else from its pid."""
        pids, device = frame["pid"].to_numpy(), frame["device"].to_numpy()
        stated = np.where(pids < MISSING, _look_up(frame["pid"], self._number, MISSING), pids)
        return np.where(device == MISSING, stated, device)

    def _processes(self, hosts: list[int]) -> dict[int, int]:
        """Process ids: the file's if they are unique, else the next free ones."""
        known = {pid: pid for pid in hosts if pid >= 0}
        used, free = set(known), count()
        for pid in sorted((pid for pid in hosts if pid < MISSING), key=lambda pid: (self._rank[pid], -pid)):
            number = self._number[pid]
            if number is None:
                continue
            if number in used or number == MISSING:
                number = next(id for id in free if id not in used)
            known[pid] = number
            used.add(number)
        return known

    def _number_devices(self, tables: Mapping[str, pd.DataFrame], tracks: pd.DataFrame) -> dict[int, tuple[int, int]]:
        """The ranks' own device numbers if they are unique across ranks, else consecutive numbers."""
        ends = [tables["memcpys"][["pid", column]] for column in ("src_device", "dst_device")]
        every = pd.concat([tracks, *(end.set_axis(["pid", "device"], axis=1) for end in ends)]).drop_duplicates()
        every = every[(every["device"] >= 0) & (every["pid"] != MISSING)]
        places = sorted(set(zip(_look_up(every["pid"], self._rank, 0).tolist(), every["device"].tolist(), strict=True)))
        counted = [device for _, device in places]
        return dict(zip(counted if len(set(counted)) == len(counted) else range(len(counted)), places, strict=True))


def _parse(text: str) -> tuple[Rank, int | None]:
    """The rank and the number (process or device; MISSING if absent) in a text pid; None if it is not a process."""
    numbers = [int(n) for n in re.findall(r"\d{1,18}", text)]
    if not numbers or text.endswith(_OWN_TRACKS):
        return (), None
    if len(numbers) == 1 and "rank" in text.lower():
        return (numbers[0],), MISSING
    if text[-1].isdigit():
        return tuple(numbers[:-1]), numbers[-1]
    return (tuple(numbers) if len(numbers) > 1 else ()), MISSING


def _offsets(tracks: pd.DataFrame, hosts: list[int]) -> tuple[dict[int, Rank], dict[int, Rank]]:
    """The ranks of pids that differ by an offset, of device events and of hosts; both empty for a single rank.

    If a device occurs under several pids but the offsets do not separate the hosts, only the devices have ranks.
    """
    tracks = tracks[(tracks["pid"] >= 0) & (tracks["device"] >= 0)]
    offset = dict(zip(tracks["pid"].tolist(), (tracks["pid"] - tracks["device"]).tolist(), strict=True))
    offsets = sorted(set(offset.values()))
    if len(offsets) < 2:
        return {}, {}
    owner = {pid: bisect_right(offsets, pid) - 1 for pid in hosts if pid >= offsets[0]}
    of_device: dict[int, Rank] = {pid: (bisect_left(offsets, at),) for pid, at in offset.items()}
    if len(set(owner.values())) == len(offsets):
        return of_device, {pid: (place,) for pid, place in owner.items()}
    return (of_device, {}) if tracks.groupby("device")["pid"].nunique().max() > 1 else ({}, {})


def _unique(found: Mapping[str, pd.DataFrame], tables: Sequence[str], column: str) -> list[int]:
    ids = np.concatenate([pd.unique(found[name][column]) for name in tables])
    return sorted({int(id) for id in ids} - {MISSING})


def _look_up(values: pd.Series, table: Mapping[int, int | None], missing: int) -> Ints:
    """Each value's entry in a table; `missing` for values without one."""
    codes, distinct = pd.factorize(values)
    entries = [table.get(int(value)) for value in distinct]
    return np.array([missing if entry is None else entry for entry in entries], np.int64)[codes]
