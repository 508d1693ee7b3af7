"""Overhead of the light recorder from short turns within one generation, for engines whose rate changes by itself.

vLLM's rate changes by 30 % from one generation to the next, recorded or not, so that blocks of whole generations need
thousands of pairs. Here a thread starts or pauses recording every few milliseconds while the engine generates, and
neighbouring turns are compared: the mean time between the steps that lie in one turn whole, without those at its start,
which the engine had begun in the turn before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from record_engines import Generate

EVERY_S = 0.03  # a turn
SETTLE_S = 0.006  # at the start of a turn, not compared
LEAST = 4  # steps of a turn that is compared
CLOCKS = {"CLOCK_MONOTONIC": time.CLOCK_MONOTONIC, "CLOCK_REALTIME": time.CLOCK_REALTIME}


def now() -> dict[str, int]:
    """Return the time on the clock of each kind of recording, ns."""
    return {name: time.clock_gettime_ns(clock) for name, clock in CLOCKS.items()}


class Turns(threading.Thread):
    """Switches recording until told to end. One of each two turns is recorded, the first and the second in turn."""

    def __init__(self, switch: Callable[..., None]) -> None:
        super().__init__(daemon=True)
        self.switch, self.ended = switch, threading.Event()
        self.since: list[dict[str, int]] = []
        self.on: list[bool] = []

    def run(self) -> None:
        """Switch recording."""
        while not self.ended.is_set():
            on = len(self.on) % 4 in (1, 2)
            self.switch(on=on)
            self.since.append(now())
            self.on.append(on)
            self.ended.wait(EVERY_S)


def in_turns(generate: Generate, tokens: int, seconds: float, switch: Callable[..., None]) -> dict[str, Any]:
    """Generate for some seconds; return the time of a decode step, µs, in each pair of turns, and when the recorded
    ones ran."""
    turns, times = Turns(switch), list[np.ndarray]()
    turns.start()
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        times.append(np.array([step.time for step in generate(tokens) if step.kind == "decode"]))
    turns.ended.set()
    turns.join()
    since = np.array([each["CLOCK_MONOTONIC"] for each in turns.since]) / 1e9  # which `perf_counter` reads on Linux
    found = compared(times, since, np.array(turns.on))
    turns.since.append(now())
    return {**found, "spans": [turns.since[turn : turn + 2] for turn in found.pop("recorded")]}


def compared(times: list[np.ndarray], since: np.ndarray, on: np.ndarray) -> dict[str, Any]:
    """Return the mean period of each pair of turns, µs, from the times of the steps of each generation, and the number
    of its recorded turn."""
    begin = np.concatenate([each[:-1] for each in times])
    end = np.concatenate([each[1:] for each in times])
    turn = np.searchsorted(since, begin, side="right") - 1
    whole = (turn >= 0) & (turn == np.searchsorted(since, end, side="right") - 1)
    whole &= begin >= since[turn] + SETTLE_S
    steps = pd.DataFrame({"turn": turn[whole], "us": (end - begin)[whole] * 1e6})
    means = steps.groupby("turn")["us"].agg(["mean", "size"])
    means = means[means["size"] >= LEAST]
    found = pd.DataFrame({"pair": means.index // 2, "on": on[means.index], "us": means["mean"].to_numpy()})
    pairs = found.pivot_table(index="pair", columns="on", values="us").reindex(columns=[True, False]).dropna()
    recorded = 2 * pairs.index.to_numpy() + ~on[2 * pairs.index.to_numpy()]
    return {
        "recorded_us": pairs[True].round(2).tolist(),
        "paused_us": pairs[False].round(2).tolist(),
        "recorded": recorded.tolist(),
    }
