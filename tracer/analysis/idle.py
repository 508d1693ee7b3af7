"""Idle time of a step on a device: the part of its period in which nothing computes there.

The period of a step lasts from its first compute to that of the following step. Its holes are the gap to that step and
the bubbles inside the step. Collectives, and compute of others on the device, are neither compute of the step nor idle
and are removed from the holes. So period = busy + communication + others + idle, exactly, and idle is the sum of four
places:

- between steps: the gap;
- before the graph: holes that end before the step's first CUDA graph begins on the device;
- after the graph: holes that begin after the end of its last one;
- between kernels: all others, in graphs whose nodes were traced and in steps without a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracer.analysis.causes import CAUSE_OF, CAUSES, PART_COLUMNS, PART_NAMES, PARTS, Near
from tracer.analysis.distortion import stretch_ns
from tracer.analysis.holes import GRAPHS, PERIOD, PLACES, Holes, holes_of
from tracer.analysis.tokens import Steps
from tracer.analysis.waited_for import Thread, waited_table
from tracer.analysis.windows import parts_of
from tracer.model.collectives import shown_name
from tracer.model.fits import fits_of, gpu_of
from tracer.model.rows import positions, taken
from tracer.model.trace import RUN, Trace
from tracer.text import plain

_STEPS: Final = [*PERIOD, "period", "busy", "communication", "others", "idle", *PLACES, *GRAPHS]
_TABLE: Final = ["step", "device", "start", "end", "place", "next"]
MOST_RUNS: Final = 0.02  # of the time: an error of the idle time that needs no mention
_MOST_HOLES: Final = 200  # kinds of holes to keep
_LEAST, _MOST_NAMED, _LONGEST = 0.05, 3, 60  # share and number of parts, and length of a name, in a sentence


def statistics(ns: NDArray[np.int64]) -> dict[str, float]:
    """p50, p90 and mean, µs; empty if there are no steps."""
    us = ns / 1e3
    if not len(us):
        return {}
    return {"p50": float(np.median(us)), "p90": float(np.percentile(us, 90)), "mean": float(us.mean())}


@dataclass(frozen=True)
class IdleReport:
    """The idle time of a trace.

    Attributes:
        steps: one row per device and step that is followed by another, ns: device step period busy communication others
            idle, the idle time in each of `PLACES`, and for CUDA graphs whose nodes were traced graph_kernels (their
            number), graph_busy (sum of their durations) and graph_union (without overlap).
        holes: by place and by the compute that follows, the largest idle time first: place next (its name) count
            idle_us (both per step) cause (the name of the largest one) part (its largest part, a column of
            `causes.PARTS`) part_us (per step).
        table: one row per piece of a hole in which the device idles: step device start end (ns) place next (the name of
            the compute after the hole) part (the largest part of its largest cause, of `causes.PARTS`).
        parts: what the device waits for in all of them, ns: a row per place, columns as in `causes.PARTS`; they add up
            to the idle time there.
        threads: the threads for which the host waits in them, see `waited_for.waited_table`.
        gpu: the names of the devices, which choose the constants of the stretch.
        left_out: the number of steps that have no row because it is unknown when the device computed in them.
    """

    steps: pd.DataFrame
    holes: pd.DataFrame
    table: pd.DataFrame
    parts: pd.DataFrame
    threads: pd.DataFrame
    gpu: str = ""
    left_out: int = 0

    @property
    def idle_us(self) -> dict[str, float]:
        """p50, p90 and mean per step, and the mean of each of `PLACES`, which add up to the mean, µs; empty if no step
        has a period."""
        if not len(self.steps):
            return {}
        of_places = {place: float(self.steps[place].mean() / 1e3) for place in PLACES}
        return statistics(self.steps["idle"].to_numpy()) | of_places

    @property
    def causes_us(self) -> dict[str, dict[str, float]]:
        """Place -> cause's name -> mean per step, µs; they add up to the place's mean in `idle_us`."""
        each = self.parts_us
        return {
            place: {cause: sum(inner.values()) for cause, inner in causes.items()} for place, causes in each.items()
        }

    @property
    def parts_us(self) -> dict[str, dict[str, dict[str, float]]]:
        """Place -> cause's name -> its parts' columns -> mean per step, µs."""
        if not len(self.steps):
            return {}
        of_parts = (self.parts.to_numpy() / len(self.steps) / 1e3).T.tolist()
        means = dict(zip(PART_COLUMNS, of_parts, strict=True))
        return {
            place: {name: {part: means[part][row] for part in PARTS[cause]} for cause, name in CAUSES.items()}
            for row, place in enumerate(PLACES)
        }

    @property
    def where(self) -> str | None:
        """A sentence on where most of the idle time is, what it waits for, and the largest kind of hole; None if
        nothing idles."""
        whole = int(self.parts.to_numpy().sum())
        if not whole:
            return None
        sums = self.parts.to_numpy()
        at = int(sums.sum(axis=1).argmax())
        place, total = list(PLACES)[at], int(sums[at].sum())
        there = sorted(zip(sums[at].tolist(), PART_COLUMNS, strict=True), key=lambda each: -each[0])
        named = [f"{PART_NAMES[part]} {ns / total:.0%}" for ns, part in there if ns >= _LEAST * total]
        hole = self.holes.iloc[0]
        following = plain(shown_name(hole["next"]), _LONGEST)
        far = "" if hole["place"] == place else f"{PLACES[hole['place']]}, "
        return (
            f"{total / whole:.0%} {PLACES[place]}: {', '.join(named[:_MOST_NAMED])}; largest hole: {far}before "
            f"{following}, {hole['idle_us']:,.1f} µs a step, mostly {PART_NAMES[hole['part']]}"
        )

    @property
    def busy_us(self) -> float | None:
        """How long the device computes for a step, as the union of all its work: median, µs."""
        return float(self.steps["busy"].median() / 1e3) if len(self.steps) else None

    @property
    def share(self) -> float:
        """Idle time as a share of all periods."""
        return float(self.steps["idle"].sum() / max(self.steps["period"].sum(), 1))

    def untraced_ns(self, steps_per_s: float, sign: int = 0) -> NDArray[np.int64]:
        """The idle time of each step at a rate measured without a profiler: 1 / rate - busy, ns; 0 or less if the
        device is busy for longer.

        Tracing whole graphs does not change the device's own work. Tracing their nodes stretches the graphs
        (`distortion.stretch_ns`), first between their kernels; only what exceeds the time there is subtracted from the
        work. Communication and compute of others stay as recorded.

        Args:
            steps_per_s: the rate.
            sign: -1 and 1 for the least and the most that node-level tracing may have added. Where it may be hidden,
                the least is 0.
        """
        busy, communication, others, between = (
            self.steps[name].to_numpy() for name in ("busy", "communication", "others", "between_kernels")
        )
        beyond = np.minimum(np.maximum(self._stretch(sign) - between, 0), busy)
        return np.asarray(round(1e9 / steps_per_s) - (busy + communication + others) + beyond, dtype=np.int64)

    def _stretch(self, sign: int) -> NDArray[np.int64]:
        """What node-level tracing added to the CUDA graphs of each step, ns."""
        kernels, busy = (self.steps[name].to_numpy() for name in ("graph_kernels", "graph_busy"))
        found = stretch_ns(kernels, busy, fits_of(self.gpu).stretch, sign)
        return found if sign > 0 else np.where(self._hides, 0, found)

    @property
    def _hides(self) -> NDArray[np.bool_]:
        """Whether kernels of each step's graphs overlap more than in any measurement of the stretch. It may then be
        hidden, partly or entirely."""
        union, busy = (self.steps[name].to_numpy() for name in ("graph_union", "graph_busy"))
        return np.asarray(union < fits_of(self.gpu).stretch.union * busy)

    @property
    def hides_stretch(self) -> bool:
        """Whether that is the case for any step."""
        return bool(self._hides.any())

    def untraced_us(self, steps_per_s: float) -> dict[str, float]:
        """p50 and mean of `untraced_ns`, µs."""
        us = np.maximum(self.untraced_ns(steps_per_s), 0) / 1e3
        return {"p50": float(np.median(us)), "mean": float(us.mean())}

    def untraced_gaps(self, gaps: pd.DataFrame, steps_per_s: float, sign: int = 0) -> NDArray[np.int64]:
        """The gaps at that rate, ns, in the order of `gaps` (`gaps.GapReport.table`).

        Their idle part keeps its recorded share of the idle time: all of it if a step idles nowhere else; for graphs
        whose nodes were traced, its share of the idle time outside them, since what tracing adds inside is known.
        Communication in the gaps and compute of others stay as recorded.
        """
        left, between, outside = self._outside(steps_per_s, sign)
        kept = np.where(outside == between, left, np.round(left * (between / np.maximum(outside, 1))))
        return self._with(gaps, kept - between)

    def bounds_of_gaps(self, gaps: pd.DataFrame, steps_per_s: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lower and upper bounds: everything that tracing added, or by which a slower run is longer, may belong to
        the gap or to the other places."""
        left, between, outside = self._outside(steps_per_s, 0)
        rest = left - (outside - between)
        least = np.where(outside == between, left, np.maximum(np.minimum(rest, between), 0))
        most = np.where(outside == between, left, np.maximum(np.minimum(left, between), rest))
        return self._with(gaps, least - between), self._with(gaps, most - between)

    def _outside(self, steps_per_s: float, sign: int) -> tuple[NDArray[np.int64], ...]:
        """Per step, ns: the idle time that a rate leaves outside graphs whose nodes were traced, the recorded gap, and
        all recorded idle time outside them."""
        idle, between, inside = (self.steps[name].to_numpy() for name in ("idle", "between_steps", "between_kernels"))
        apart = np.where(self.steps["graph_kernels"] > 0, inside, 0)
        left = np.maximum(self.untraced_ns(steps_per_s, sign), 0)
        return np.maximum(left - np.maximum(apart - self._stretch(sign), 0), 0), between, idle - apart

    def _with(self, gaps: pd.DataFrame, change: NDArray[np.int64]) -> NDArray[np.int64]:
        """The gaps, each changed by the amount of its step; unchanged if the step has no period."""
        of_gap = positions(gaps, self.steps, PERIOD)
        return np.asarray(gaps["gap"].to_numpy() + np.append(change, 0)[of_gap], dtype=np.int64)


def idle_report(trace: Trace, steps: Steps, gaps: pd.DataFrame, every: pd.DataFrame, near: Near) -> IdleReport:
    """Find the idle time in the periods of the steps; none if they all start to compute at the same time. Periods of
    which more than `MOST_RUNS` are runs of eager launches are left out, since it is unknown when the device computed
    in them.

    Args:
        trace: the recording.
        steps: its steps.
        gaps: their `gaps.GapReport.table`.
        every: their `all_compute`.
        near: what may explain their idle time.
    """
    whole = holes_of(trace, steps, gaps, every)
    holes = _known(whole, trace, steps, every)
    left_out = len(whole.periods) - len(holes.periods)
    per_step, pieces = _per_step(holes.periods, holes.table), _pieces(holes)
    waited: dict[Thread, NDArray[np.int64]] = {}
    parts = _parts(trace, steps, near, pieces, waited)
    threads = waited_table(trace, waited, len(per_step))
    table = pieces[_TABLE].assign(part=_largest(parts, len(pieces)))
    by_next = _by_next(pieces, parts, max(len(per_step), 1))
    return IdleReport(per_step, by_next, table, _by_place(pieces, parts), threads, gpu_of(trace), left_out)


def _known(holes: Holes, trace: Trace, steps: Steps, every: pd.DataFrame) -> Holes:
    """The periods without those in which runs of eager launches, recorded as one row each, take more than `MOST_RUNS`;
    none at all if that applies to most."""
    if not trace.has_runs or not len(holes.periods):
        return holes
    runs = taken(every, ((every["name"] == RUN) & (every["at"] >= 0)).to_numpy(), ["start", "end", "device", "at"])
    runs["step"] = steps.table["step"].to_numpy()[runs["at"]]
    at = positions(runs, holes.periods, PERIOD)
    length = (runs["end"] - runs["start"]).to_numpy()
    in_runs = np.bincount(at[at >= 0], length[at >= 0], minlength=len(holes.periods))
    kept = in_runs <= MOST_RUNS * (holes.periods["until"] - holes.periods["begin"]).to_numpy()
    if 2 * kept.sum() < len(kept):
        kept[:] = False
    here = kept[positions(holes.table, holes.periods, PERIOD)]
    pieces = holes.pieces[here[holes.pieces["hole"]]]
    pieces = pieces.assign(hole=(np.cumsum(here) - 1)[pieces["hole"]])
    return Holes(*(frame.reset_index(drop=True) for frame in (holes.table[here], pieces, holes.periods[kept])))


def _pieces(holes: Holes) -> pd.DataFrame:
    """The idle pieces, each with the properties of its hole."""
    of = holes.table.iloc[holes.pieces["hole"]].reset_index(drop=True)
    return of.assign(**{name: holes.pieces[name] for name in ("start", "end", "hole")})


def _parts(
    trace: Trace, steps: Steps, near: Near, pieces: pd.DataFrame, waited: dict[Thread, NDArray[np.int64]]
) -> dict[str, NDArray[np.int64]]:
    """What the device, and the host, wait for in each piece, as in `parts_of`."""
    if not len(pieces):
        return {}
    hosts = {f"step_{name}": steps.table[name].to_numpy()[pieces["at"]] for name in ("process", "thread")}
    windows = pieces[["start", "end", "device", "correlation", "process"]].assign(**hosts)
    return parts_of(trace, near, windows, waited)


def _largest(parts: dict[str, NDArray[np.int64]], length: int) -> pd.Series:
    """For each row, the largest part of its largest cause."""
    most, chosen = np.zeros(length, np.int64), np.zeros(length, np.int8)
    for inner in PARTS.values():
        known = [part for part in inner if part in parts]
        if not known:
            continue
        whole = np.sum([parts[part] for part in known], axis=0)
        part, longest = np.zeros(length, np.int8), np.full(length, -1)
        for name in known:
            more = parts[name] > longest
            part[more], longest[more] = PART_COLUMNS.index(name), parts[name][more]
        larger = whole > most
        chosen[larger], most[larger] = part[larger], whole[larger]
    return pd.Series(pd.Categorical.from_codes(chosen, dtype=pd.CategoricalDtype(PART_COLUMNS)))


def _by_place(pieces: pd.DataFrame, parts: dict[str, NDArray[np.int64]]) -> pd.DataFrame:
    """See `IdleReport.parts`."""
    here = [(pieces["place"] == place).to_numpy() for place in PLACES]
    sums = {part: [int(parts[part][place].sum()) if part in parts else 0 for place in here] for part in PART_COLUMNS}
    return pd.DataFrame(sums, index=list(PLACES), dtype="int64")


def _by_next(pieces: pd.DataFrame, parts: dict[str, NDArray[np.int64]], steps: int) -> pd.DataFrame:
    """See `IdleReport.holes`."""
    of = pieces.groupby(["place", "next"], observed=True).ngroup().to_numpy()
    found = pieces[["place", "next"]].iloc[np.unique(of, return_index=True)[1]].reset_index(drop=True)
    first = np.diff(pieces["hole"].to_numpy(), prepend=-1) != 0  # of each hole
    sums = {part: np.bincount(of, ns).astype(np.int64) for part, ns in parts.items()}
    part = _largest(sums, len(found))
    table = pd.DataFrame({
        "place": found["place"].astype(str), "next": found["next"].astype(str),
        "count": np.bincount(of, first) / steps,
        "idle_us": sum(sums.values(), np.zeros(len(found), np.int64)) / steps / 1e3,
        "cause": [CAUSES[CAUSE_OF[name]] for name in part], "part": part.astype(str),
        "part_us": [float(sums[name][row]) / steps / 1e3 for row, name in enumerate(part)],
    })  # fmt: skip
    return table.sort_values("idle_us", ascending=False, kind="stable", ignore_index=True).head(_MOST_HOLES)


def _per_step(periods: pd.DataFrame, holes: pd.DataFrame) -> pd.DataFrame:
    """See `IdleReport.steps`."""
    at = positions(holes, periods, PERIOD)
    idle, place = holes["idle"].to_numpy(), holes["place"].to_numpy()

    def total(ns: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(len(periods), np.int64)
        np.add.at(sums, at, ns)
        return sums

    found = {name: periods[name].to_numpy() for name in (*PERIOD, *GRAPHS)}
    found |= {name: total(holes[name].to_numpy()) for name in ("idle", "communication", "others")}
    found |= {name: total(np.where(place == name, idle, 0)) for name in PLACES}
    found["period"] = (periods["until"] - periods["begin"]).to_numpy()
    found["busy"] = found["period"] - found["idle"] - found["communication"] - found["others"]
    return pd.DataFrame({name: found[name] for name in _STEPS}, dtype="int64")
